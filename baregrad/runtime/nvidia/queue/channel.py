"""Channels: rings of work that the driver knows, one for each engine object."""

from __future__ import annotations

from typing import NamedTuple

from baregrad.base.errors import ArgumentError, DriverError
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.driver.memory import HUGE_PAGE_NBYTES
from baregrad.runtime.nvidia.queue.channel_group import ChannelGroup
from baregrad.runtime.nvidia.queue.launch_memory import LaunchMemory
from baregrad.runtime.nvidia.queue.pushbuffer import COMPUTE_SUBCHANNEL, COPY_SUBCHANNEL, PushBuffer
from baregrad.runtime.nvidia.queue.ring import (
    PUSH_NBYTES,
    RING_ENTRIES,
    USERD_OFFSET,
    SubmissionRing,
)

# Where shaders see shared and local memory: above all that memory.py hands out, in the 49 bits
# that the windows of every generation have.
SHARED_WINDOW = 0x7294_0000_0000
LOCAL_WINDOW = 0x7293_0000_0000

_CONTEXT_NBYTES = 64 << 20
_NO_FAULT = "UNRECOGNIZED_FAULT"


class MmuFault(NamedTuple):
    """A bad address, what is bad about it, and where the code begins that used it.

    None and 0 where the driver does not say.
    """

    address: int | None
    kind: str
    program: int


class Channel(SubmissionRing):
    """A ring of work for one engine object, either compute or copies.

    The graphics engine has a context only once a channel of the group computes: that one is made
    first, those that copy after it.
    """

    def __init__(
        self,
        group: ChannelGroup,
        *,
        copies: bool = False,
        entries: int = RING_ENTRIES,
        push_nbytes: int = PUSH_NBYTES,
        begin_at: int = 0,
    ) -> None:
        super().__init__(group, entries=entries, push_nbytes=push_nbytes, begin_at=begin_at)
        self.copies = copies or group.is_copy
        if copies and not group.is_copy and all(one.copies for one in group.channels):
            raise ArgumentError(
                "a channel that copies on the graphics engine has no context yet",
                hint="make a channel that computes in its group first, or take a copy engine's "
                "group",
            )
        with self.teardown:
            self._open()
        self._closing = group.teardown.push("a channel", self.teardown.close)
        group.channels.append(self)

    def _open(self) -> None:
        gpu, client, teardown = self.gpu, self.gpu.client, self.teardown
        self.launches = None if self.copies else LaunchMemory(self)
        if self.launches is not None:
            teardown.push("memory of launches", self.launches.teardown.close)
        self.map()
        params = client.struct("channel").record(
            hObjectError=self.notifier.handle,
            gpFifoOffset=self.memory.gpu_va,
            gpFifoEntries=self.entries,
            hContextShare=self.group.context_share,
        )
        params["hUserdMemory[0]"] = self.memory.handle
        params["userdOffset[0]"] = USERD_OFFSET
        row = gpu.generation
        self.handle = client.make(
            teardown, "the channel", self.group.handle, row.channel_class, params
        )
        engine = None
        if self.group.is_copy:
            engine = client.struct("copy_engine").record(
                version=nv.COPY_ENGINE_VERSION, engineType=self.group.engine
            )
        self.kind = row.copy_class if self.copies else row.compute_class
        self.object = client.make(teardown, "the engine object", self.handle, self.kind, engine)
        token = client.struct("work_submit_token").record()
        client.control(self.handle, nv.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, token)
        self.open(token["workSubmitToken"])
        self._register()
        teardown.push("idleness", self._drain)

    def _register(self) -> None:
        """Give the driver a range of addresses for the channel's own context."""
        gpu, client = self.gpu, self.gpu.client
        base = client.low_addresses.take(_CONTEXT_NBYTES, HUGE_PAGE_NBYTES)
        self.teardown.push("context addresses", lambda: client.low_addresses.give(base))
        record = client.struct("uvm_register_channel").record(
            gpuUuid=gpu.uuid,
            rmCtrlFd=client.control_fd,
            hClient=client.root,
            hChannel=self.handle,
            base=base,
            length=_CONTEXT_NBYTES,
        )
        client.uvm(nv.UVM_REGISTER_CHANNEL, record, "to register a channel")
        self.teardown.push("the channel's registration", self._unregister)

    def _unregister(self) -> None:
        client = self.gpu.client
        record = client.struct("uvm_unregister_channel").record(
            hClient=client.root, hChannel=self.handle
        )
        if "gpuUuid" in record.struct.fields:
            record["gpuUuid"] = self.gpu.uuid
        client.uvm(nv.UVM_UNREGISTER_CHANNEL, record, "to unregister a channel")

    def begin(self) -> None:
        """Submit what a channel needs once: its object, and where shaders see their memory."""
        push = PushBuffer()
        if self.copies:
            push.set_object(COPY_SUBCHANNEL, self.kind)
        else:
            push.set_object(COMPUTE_SUBCHANNEL, self.kind)
            push.set_windows(SHARED_WINDOW, LOCAL_WINDOW)
        self.submit(push)

    def mmu_fault(self) -> MmuFault | None:
        """Return what the driver says of a bad address, once for each fault; None for nothing."""
        client = self.gpu.client
        record = client.struct("mmu_fault").record()
        try:
            client.control(self.handle, nv.NV906F_CTRL_CMD_GET_MMU_FAULT_INFO, record)
        except DriverError:
            return None
        kind = record.data("faultString").split(b"\0")[0].decode("ascii", "replace")
        address = record["addrHi"] << 32 | record["addrLo"]
        if not address and not kind:
            return None
        # Of traps there is none: 580 then reports address 0 and no kind that it knows.
        known = address or kind != _NO_FAULT
        return MmuFault(address if known else None, kind, record["shaderProgramVA[6]"])

    def state(self) -> str:
        """Say how far the channel is."""
        read, written = self.pointers
        status = int.from_bytes(self._notifier[14:16], "little")
        code = int.from_bytes(self._notifier[8:12], "little")
        why = f" ({self.group.why})" if self.group.why else ""
        return (
            f"timeline at {self.words[0]} of {self.last_value}, ring read up to {read} and written "
            f"up to {written} of {self.entries}, notifier {status:#x} with code {code}, engine "
            f"{self.group.engine}{why}, doorbell rung again {self.rung_again} times"
        )

    def _drain(self) -> None:
        if self.group.dead is None:
            self.wait(timeout_s=5)

    def close(self) -> None:
        """Wait for the channel to be idle and free it."""
        self.group.teardown.run(self._closing)
        if self in self.group.channels:
            self.group.channels.remove(self)
