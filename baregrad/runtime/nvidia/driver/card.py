"""A card of the machine: its node, and the objects that stand for it in the driver."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from baregrad.runtime.nvidia.abi import Record
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.abi.rm_structs import WORD
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.teardown import Teardown


class Card:
    """An open card: device and subdevice, freed in reverse order with what `teardown` has.

    The node stays open, since the driver lets the GPU sleep when nobody has it open. Memory is
    freed with `allocations`, unless it has another owner.
    """

    def __init__(self, client: Client, index: int) -> None:
        self.client = client
        self.teardown = Teardown()
        self.allocations = Teardown()
        with self.teardown:
            self.gpu_id, minor = client.card(index)
            self.node = f"/dev/nvidia{minor}"
            self.fd = client.open_node(self.node, self.teardown)
            self.register_fd(self.fd)
            self._open_device()

    def register_fd(self, fd: int) -> None:
        """Register which client a descriptor of the GPU's node belongs to."""
        record = self.client.struct("register_fd").record(ctl_fd=self.client.control_fd)
        self.client.resource_manager(
            nv.NV_ESC_REGISTER_FD, record, f"to register {self.node}", fd=fd, status=""
        )

    def _open_device(self) -> None:
        client = self.client
        info = client.struct("id_info").record(gpuId=self.gpu_id)
        client.control(client.root, nv.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, info)
        params = client.struct("device").record(
            deviceId=info["deviceInstance"], hClientShare=client.root
        )
        self.device = client.make(
            self.teardown, "the device", client.root, nv.NV01_DEVICE_0, params
        )
        self.subdevice = client.make(
            self.teardown, "the subdevice", self.device, nv.NV20_SUBDEVICE_0,
            client.struct("subdevice").record(subDeviceId=info["subDeviceInstance"]),
        )  # fmt: skip

    @functools.cached_property
    def uuid(self) -> bytes:
        """The GPU's 16 bytes of identity."""
        record = self.client.struct("gid_info").record(flags=nv.GID_FORMAT_BINARY, length=16)
        self.client.control(self.subdevice, nv.NV2080_CTRL_CMD_GPU_GET_GID_INFO, record)
        return record.data("data")[:16]

    def classes(self) -> tuple[int, ...]:
        """Return every class of object that the driver makes on this GPU."""
        client = self.client
        record = client.struct("class_list").record()
        client.control(self.device, nv.NV0080_CTRL_CMD_GPU_GET_CLASSLIST, record)
        count = record["numClasses"]
        listed = Record(WORD, count)
        record["classList"] = listed.address
        client.control(self.device, nv.NV0080_CTRL_CMD_GPU_GET_CLASSLIST, record)
        return tuple(listed["value", i] for i in range(count))

    def ask_each(self, command: int, unit: str, indices: Sequence[int]) -> tuple[int, ...]:
        """Ask a unit of the GPU ("gr", "fb") for numbers by their indices."""
        client = self.client
        listed = Record(client.struct(f"{unit}_info"), len(indices))
        for place, index in enumerate(indices):
            listed["index", place] = index
        record = client.struct(f"{unit}_info_list").record(
            **{f"{unit}InfoListSize": len(indices), f"{unit}InfoList": listed.address}
        )
        client.control(self.subdevice, command, record)
        return tuple(listed["data", i] for i in range(len(indices)))
