"""Groups of channels that the GPU schedules together."""

from __future__ import annotations

from typing import Protocol

from baregrad.base.errors import ArgumentError
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.teardown import Teardown


class GroupMember(Protocol):
    """A channel to its group."""

    copies: bool

    def begin(self) -> None:
        """Submit what the channel needs once."""


class ChannelGroup:
    """Channels that the GPU schedules together, on one engine.

    `copy_engine` None is the graphics engine, which computes and copies; a number is that copy
    engine by itself, whose channels run beside the others. `why` says why it was chosen.
    """

    def __init__(self, gpu: Gpu, *, copy_engine: int | None = None, why: str = "") -> None:
        self.gpu = gpu
        self.why = why
        self.teardown = Teardown()
        self.channels: list[GroupMember] = []
        client = gpu.client
        self.engine = nv.NV2080_ENGINE_TYPE_GRAPHICS
        if copy_engine is not None:
            if not 0 <= copy_engine <= 9:
                raise ArgumentError("there is no such copy engine", found=copy_engine)
            self.engine = nv.NV2080_ENGINE_TYPE_COPY0 + copy_engine
        self.is_copy = copy_engine is not None
        # Why the GPU stopped the group: what stops one channel stops all.
        self.dead: str | None = None
        with self.teardown:
            params = client.struct("channel_group").record(
                engineType=self.engine, hVASpace=gpu.va_space if self.is_copy else 0
            )
            self.handle = client.make(
                self.teardown, "the channel group", gpu.device, nv.KEPLER_CHANNEL_GROUP_A, params
            )
            self.context_share = 0
            if not self.is_copy:
                params = client.struct("context_share").record(
                    hVASpace=gpu.va_space, flags=nv.CONTEXT_SHARE_ASYNC
                )
                self.context_share = client.make(
                    self.teardown, "the context share", self.handle,
                    nv.FERMI_CONTEXT_SHARE_A, params,
                )  # fmt: skip
        self._token = gpu.channels.push("a channel group", self.teardown.close)

    def schedule(self) -> None:
        """Let the GPU run the group's channels, all of which exist by now; sets them up."""
        client = self.gpu.client
        record = client.struct("schedule").record(bEnable=1)
        client.control(self.handle, nv.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, record)
        for channel in self.channels:
            channel.begin()

    def close(self) -> None:
        """Free the group and its channels."""
        self.gpu.channels.run(self._token)
