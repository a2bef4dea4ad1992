"""What the virtual driver refuses, and with which status, as the real one does."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator

import pytest

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.abi import Record
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.abi.status import NAMES
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.channel_group import ChannelGroup
from baregrad.testing.virtual_gpu.machine.gpu_model import GpuModel
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort
from tests.testing.virtual_gpu.virtual_tools import RELEASES

MIB = 1 << 20


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    port = VirtualPort(models=(GpuModel(memory_nbytes=64 * MIB),))
    with Client(port) as client, Gpu(client) as opened:
        yield opened
    assert port.held() == []


def refused(action: Callable[[], object]) -> str:
    """The name of the status, or of the error, that a call is answered with."""
    with pytest.raises(DriverError) as found:
        action()
    assert "NV_ESC" in str(found.value) or "UVM_" in str(found.value)
    if found.value.code:
        return NAMES[found.value.code]
    told = re.search(r"gave (\w+)", str(found.value))
    return told[1] if told else str(found.value)


def memory_params(gpu: Gpu, nbytes: int, **values: int) -> Record:
    return gpu.memory._params(
        nbytes, 2 * MIB, attr=nv.ATTR_PAGE_HUGE, flags=nv.MEMORY_FLAGS_DEVICE, **values
    )


def test_objects_have_a_parent_a_class_and_a_handle_of_their_own(gpu: Gpu) -> None:
    client = gpu.client
    make = client.allocate
    assert refused(lambda: make(gpu.device, 0xBEEF, None)) == "NV_ERR_INVALID_CLASS"
    assert refused(lambda: make(gpu.device, 0xCDC0, None)) == "NV_ERR_INVALID_CLASS"
    assert refused(lambda: make(0x77, nv.NV20_SUBDEVICE_0, None)) == "NV_ERR_INVALID_OBJECT_PARENT"
    again = client.struct("subdevice").record()
    assert refused(lambda: make(gpu.device, nv.NV20_SUBDEVICE_0, again)) == "NV_ERR_STATE_IN_USE"
    params = memory_params(gpu, 2 * MIB)
    kind = nv.NV01_MEMORY_LOCAL_USER
    assert refused(lambda: make(client.root, kind, params)) == "NV_ERR_INVALID_OBJECT_PARENT"
    made = make(gpu.device, kind, params, handle=0x1234)
    assert made == 0x1234
    assert refused(lambda: make(gpu.device, kind, params, handle=0x1234)) == (
        "NV_ERR_INSERT_DUPLICATE_NAME"
    )
    assert refused(lambda: make(gpu.device, kind, None)) == "NV_ERR_INVALID_ARGUMENT"
    client.free(gpu.device, made)
    assert refused(lambda: client.free(gpu.device, made)) == "NV_ERR_OBJECT_NOT_FOUND"
    device = client.struct("device").record(deviceId=5)
    assert refused(lambda: make(client.root, nv.NV01_DEVICE_0, device)) == "NV_ERR_INVALID_DEVICE"


def test_memory_ends_and_comes_back(gpu: Gpu) -> None:
    make, kind = gpu.client.allocate, nv.NV01_MEMORY_LOCAL_USER
    used = gpu.client.port.machine.gpus[0].used_nbytes  # type: ignore[attr-defined]
    held = make(gpu.device, kind, memory_params(gpu, 64 * MIB - used))
    params = memory_params(gpu, 2 * MIB)
    assert refused(lambda: make(gpu.device, kind, params)) == "NV_ERR_NO_MEMORY"
    gpu.client.free(gpu.device, held)
    gpu.client.free(gpu.device, make(gpu.device, kind, params))
    # Memory of the GPU that is to lie in the host.
    params["attr"] = nv.ATTR_LOCATION_PCI
    assert refused(lambda: make(gpu.device, kind, params)) == "NV_ERR_INVALID_ARGUMENT"


def test_controls_have_an_exact_size(gpu: Gpu) -> None:
    client = gpu.client
    wrong = client.struct("work_submit_token").record()
    name = nv.NV2080_CTRL_CMD_GPU_GET_GID_INFO
    assert refused(lambda: client.control(gpu.subdevice, name, wrong)) == (
        "NV_ERR_INVALID_PARAM_STRUCT"
    )
    assert refused(lambda: client.control(gpu.subdevice, 0x2080_FFFF, wrong)) == (
        "NV_ERR_NOT_SUPPORTED"
    )
    assert refused(lambda: client.control(0x4321, name, wrong)) == "NV_ERR_OBJECT_NOT_FOUND"
    token = client.struct("work_submit_token").record()
    command = nv.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN
    assert refused(lambda: client.control(gpu.device, command, token)) == "NV_ERR_INVALID_OBJECT"
    info = client.struct("id_info").record(gpuId=0xDEAD)
    ask = nv.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2
    assert refused(lambda: client.control(client.root, ask, info)) == "NV_ERR_INVALID_ARGUMENT"


@pytest.mark.parametrize("release", RELEASES)
def test_a_struct_of_another_size_is_refused_by_the_kernel(release: str) -> None:
    with Client(VirtualPort(release)) as client:
        record = client.struct("control").record(hClient=client.root)
        port = client.port
        for nbytes in (31, 33, 0):
            request = 3 << 30 | nbytes << 16 | nv.NV_IOCTL_MAGIC << 8 | nv.NV_ESC_RM_CONTROL
            with pytest.raises(OSError) as found:
                port.ioctl(client.control_fd, request, record)
            assert found.value.errno == errno.EINVAL
        with pytest.raises(OSError):
            port.ioctl(client.control_fd, 0xC020_46FF, record)
        with pytest.raises(OSError):
            port.ioctl(client.uvm_fd, 0x1234, record)
        with pytest.raises(OSError) as found:
            port.ioctl(77, 0xC020_462A, record)
        assert found.value.errno == errno.EBADF


def test_a_bad_pointer_is_a_status(gpu: Gpu) -> None:
    client = gpu.client
    record = client.struct("alloc").record(
        hRoot=client.root, hObjectParent=gpu.device, hClass=nv.NV01_MEMORY_LOCAL_USER,
        pAllocParms=0x1000,
    )  # fmt: skip
    assert refused(
        lambda: client.resource_manager(nv.NV_ESC_RM_ALLOC, record, "nothing")
    ) == "NV_ERR_INVALID_ADDRESS"


def test_calls_go_to_the_node_that_answers_them(gpu: Gpu) -> None:
    client = gpu.client
    record = client.struct("free").record(hRoot=client.root, hObjectOld=gpu.device)
    assert refused(
        lambda: client.resource_manager(nv.NV_ESC_RM_FREE, record, "it", fd=gpu.fd)
    ) == "EINVAL"
    assert refused(lambda: gpu.register_fd(gpu.fd)) == "EINVAL"
    assert refused(lambda: gpu.register_fd(client.uvm_fd)) == "EINVAL"


def test_mappings_for_the_host(gpu: Gpu) -> None:
    client, port = gpu.client, gpu.client.port
    visible, page = gpu.memory.visible(1), gpu.memory.driver_page()
    with pytest.raises(OSError) as found:
        port.map_device(gpu.fd, 4096)
    assert found.value.errno == errno.EINVAL
    fd = port.open(gpu.node)
    record = client.struct("map_memory").record(fd=fd)

    def attach(handle: int, nbytes: int, number: int = fd) -> None:
        record["fd"] = number
        record["params.hClient"], record["params.hDevice"] = client.root, gpu.device
        record["params.hMemory"], record["params.length"] = handle, nbytes
        client.resource_manager(nv.NV_ESC_RM_MAP_MEMORY, record, "x", status="params.status")

    assert refused(lambda: attach(visible.handle, 4096)) == "NV_ERR_INVALID_ARGUMENT"
    gpu.register_fd(fd)
    assert refused(lambda: attach(visible.handle, 4 * MIB)) == "NV_ERR_INVALID_LIMIT"
    assert refused(lambda: attach(page.handle, 4096)) == "NV_ERR_INVALID_ARGUMENT"
    assert refused(lambda: attach(gpu.va_space, 4096)) == "NV_ERR_INVALID_OBJECT"
    attach(visible.handle, 8192)
    assert refused(lambda: attach(visible.handle, 8192)) == "NV_ERR_STATE_IN_USE"
    with pytest.raises(OSError) as found:
        port.map_device(fd, 4096)
    assert found.value.errno == errno.ENXIO
    address = port.map_device(fd, 8192)
    port.view(address, 4)[:] = b"seen"
    assert bytes(visible.view[:4]) == b"seen"
    port.unmap(address, 8192)
    with pytest.raises(OSError):
        port.unmap(address, 8192)
    linear = record["params.pLinearAddress"]
    gpu.memory._forget_mapping(gpu.device, visible.handle, linear)
    assert refused(
        lambda: gpu.memory._forget_mapping(gpu.device, visible.handle, linear)
    ) == "NV_ERR_OBJECT_NOT_FOUND"
    port.close(fd)
    with pytest.raises(OSError):
        port.close(fd)


def test_pages_that_are_pinned(gpu: Gpu) -> None:
    client = gpu.client
    address = client.port.map_memory(8192)

    def pin(
        place: int, nbytes: int, flags: int = nv.OS_DESCRIPTOR_FLAGS, handle: int = 0x99
    ) -> None:
        record = client.struct("alloc_memory").record(fd=-1)
        record["params.hRoot"], record["params.hObjectParent"] = client.root, gpu.device
        record["params.hObjectNew"], record["params.flags"] = handle, flags
        record["params.hClass"] = nv.NV01_MEMORY_SYSTEM_OS_DESCRIPTOR
        record["params.pMemory"], record["params.limit"] = place, nbytes - 1
        client.resource_manager(
            nv.NV_ESC_RM_ALLOC_MEMORY, record, "x", fd=gpu.fd, status="params.status"
        )

    assert refused(lambda: pin(address + 8, 4096)) == "NV_ERR_INVALID_ADDRESS"
    assert refused(lambda: pin(0x1000, 4096)) == "NV_ERR_INVALID_ADDRESS"
    assert refused(lambda: pin(address, 4096, flags=0)) == "NV_ERR_INVALID_FLAGS"
    assert refused(lambda: pin(address, 4096, handle=0)) == "NV_ERR_INVALID_OBJECT_NEW"
    pin(address, 8192)
    assert refused(lambda: pin(address, 8192)) == "NV_ERR_INSERT_DUPLICATE_NAME"
    client.free(gpu.device, 0x99)
    client.port.unmap(address, 8192)


def test_ranges_of_addresses(gpu: Gpu) -> None:
    client, memory = gpu.client, gpu.memory.device(2 * MIB)

    def create(base: int, nbytes: int) -> None:
        record = client.struct("uvm_create_external_range").record(base=base, length=nbytes)
        client.uvm(nv.UVM_CREATE_EXTERNAL_RANGE, record, "x")

    def see(base: int, nbytes: int, handle: int, **values: int | bytes) -> None:
        record = client.struct("uvm_map_external").record(
            base=base, length=nbytes, gpuAttributesCount=1, rmCtrlFd=client.control_fd,
            hClient=client.root, hMemory=handle,
        )  # fmt: skip
        record["perGpuAttributes[0].gpuUuid"] = gpu.uuid
        for name, value in values.items():
            record[name] = value
        client.uvm(nv.UVM_MAP_EXTERNAL_ALLOCATION, record, "x")

    assert refused(lambda: create(memory.gpu_va + 4096, 4096)) == "NV_ERR_UVM_ADDRESS_IN_USE"
    assert refused(lambda: create(0x123, 4096)) == "NV_ERR_INVALID_ADDRESS"
    assert refused(lambda: create(0x40_0000_0000, 100)) == "NV_ERR_INVALID_ADDRESS"
    base = 0x3000_0000_0000
    create(base, 2 * MIB)
    assert refused(lambda: see(base, 4 * MIB, memory.handle)) == "NV_ERR_INVALID_ADDRESS"
    assert refused(lambda: see(base, 2 * MIB, 0x55)) == "NV_ERR_OBJECT_NOT_FOUND"
    assert refused(lambda: see(base, 2 * MIB, memory.handle, offset=4096)) == (
        "NV_ERR_INVALID_OFFSET"
    )
    assert refused(lambda: see(base, 2 * MIB, memory.handle, gpuAttributesCount=0)) == (
        "NV_ERR_INVALID_ARGUMENT"
    )
    assert refused(lambda: see(base, 2 * MIB, gpu.va_space)) == "NV_ERR_INVALID_OBJECT_HANDLE"
    see(base, 2 * MIB, memory.handle)
    see(base, 2 * MIB, memory.handle)
    gpu.memory._free_range(base, 2 * MIB)
    assert refused(lambda: gpu.memory._free_range(base, 2 * MIB)) == "NV_ERR_INVALID_ADDRESS"


def test_uvm_wants_to_be_told_in_order(gpu: Gpu) -> None:
    client, port = gpu.client, gpu.client.port
    fresh = port.open("/dev/nvidia-uvm")
    record = client.struct("uvm_create_external_range").record(base=1 << 40, length=4096)
    assert refused(
        lambda: client.uvm(nv.UVM_CREATE_EXTERNAL_RANGE, record, "x", fd=fresh)
    ) == "NV_ERR_ILLEGAL_ACTION"
    port.close(fresh)
    again = client.struct("uvm_initialize").record(flags=1)
    assert refused(lambda: client.uvm(nv.UVM_INITIALIZE, again, "x")) == "NV_ERR_INVALID_ARGUMENT"
    register = client.struct("uvm_register_gpu").record(gpu_uuid=gpu.uuid, rmCtrlFd=-1)
    assert refused(lambda: client.uvm(nv.UVM_REGISTER_GPU, register, "x")) == (
        "NV_ERR_INVALID_DEVICE"
    )
    unknown = client.struct("uvm_register_gpu").record(gpu_uuid=bytes(16), rmCtrlFd=-1)
    assert refused(lambda: client.uvm(nv.UVM_REGISTER_GPU, unknown, "x")) == (
        "NV_ERR_GPU_UUID_NOT_FOUND"
    )
    space = client.struct("uvm_register_gpu_vaspace").record(
        gpuUuid=gpu.uuid, rmCtrlFd=client.control_fd, hClient=client.root, hVaSpace=gpu.va_space
    )
    assert refused(lambda: client.uvm(nv.UVM_REGISTER_GPU_VASPACE, space, "x")) == (
        "NV_ERR_INVALID_DEVICE"
    )


def test_channels_want_their_things_in_order(gpu: Gpu) -> None:
    client = gpu.client
    group = ChannelGroup(gpu)
    channel = Channel(group)
    channel._register = lambda: None  # type: ignore[method-assign]
    assert refused(channel.__class__._register.__get__(channel)) == "NV_ERR_INVALID_CHANNEL"
    channel._unregister()
    assert refused(channel._unregister) == "NV_ERR_INVALID_CHANNEL"
    # A channel of the graphics engine whose context has no place is not scheduled.
    record = client.struct("schedule").record(bEnable=1)
    command = nv.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE
    assert refused(lambda: client.control(group.handle, command, record)) == (
        "NV_ERR_INVALID_STATE"
    )
    copies = ChannelGroup(gpu, copy_engine=1)
    params = client.struct("channel").record(gpFifoEntries=1000)
    kind = gpu.generation.channel_class
    assert refused(lambda: client.allocate(copies.handle, kind, params)) == (
        "NV_ERR_INVALID_ARGUMENT"
    )
    wrong = client.struct("channel_group").record(engineType=99)
    assert refused(lambda: client.allocate(gpu.device, nv.KEPLER_CHANNEL_GROUP_A, wrong)) == (
        "NV_ERR_INVALID_ARGUMENT"
    )
    inside = client.struct("va_space").record(flags=0x40, vaSize=1 << 40, vaBase=0x1000)
    assert refused(lambda: client.allocate(gpu.device, nv.FERMI_VASPACE_A, inside)) == (
        "NV_ERR_INVALID_ARGUMENT"
    )
    channel.teardown._actions = {
        key: row for key, row in channel.teardown._actions.items()
        if row[0] != "the channel's registration"
    }


def test_what_hangs_on_a_descriptor_goes_with_it() -> None:
    port = VirtualPort()
    client = Client(port)
    gpu = Gpu(client)
    gpu.memory.device(1)
    held = port.held()
    assert any("class 0x40" in one for one in held) and any("UVM range" in one for one in held)
    for fd in list(port.driver.files):
        port.close(fd)
    assert all("mapping of" in one for one in port.held())
    for address in list(port._mappings):
        port.unmap(address, port._mappings[address][0].nbytes)
    assert port.held() == []
