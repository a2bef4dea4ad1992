"""Arrays in a GPU's memory handed over and taken, by the device CUDA over a pretended driver."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from baregrad import Tensor
from baregrad.assemble.virtual_cubin import VirtualAssembler
from baregrad.base.errors import ArgumentError, DeviceError, DTypeError
from baregrad.base.options import options
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.compiler import Compiler
from baregrad.engine.session import Session, use_session
from baregrad.render import get
from baregrad.runtime.cuda.device import CudaDevice
from baregrad.runtime.dlpack import copied_from
from baregrad.target import gpu_row
from tests.runtime.cuda.fake_driver import FakeCuda
from tests.runtime.cuda.kernels import assert_clean


@pytest.fixture()
def device() -> Iterator[CudaDevice]:
    fake = FakeCuda()
    device = CudaDevice(functions=fake.functions)
    compiler = Compiler(gpu_row(device.architecture), get("ptx"), VirtualAssembler(), None)
    session = Session()
    session.adopt(CompiledBackend("CUDA", device, compiler))
    with use_session(session), options.override(device="CUDA"):
        yield device
    session.close()
    assert_clean(fake)


class Peer:
    """An array of another library, which hands over what a tensor of ours gave it."""

    def __init__(self, x: Tensor) -> None:
        self.capsule, self.place = x.__dlpack__(), x.__dlpack_device__()
        self.streams: list[Any] = []

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.streams.append(stream)
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "uint8", "bool"])
def test_arrays_go_out_and_come_back(device: CudaDevice, dtype: str) -> None:
    values = np.arange(12).reshape(3, 4)
    x = Tensor(values).cast(dtype)
    peer = Peer(x)
    assert peer.place == (2, 0)
    back = Tensor.from_dlpack(peer)
    assert back.dtype is x.dtype and back.shape == (3, 4) and back.device == "CUDA"
    np.testing.assert_array_equal(back.cast("float32").numpy(), x.cast("float32").numpy())
    assert peer.streams == [int(device.context.stream)]
    with pytest.raises(ArgumentError, match="nobody has taken"):
        Tensor.from_dlpack(peer)


def test_what_was_handed_out_is_a_copy(device: CudaDevice) -> None:
    x = Tensor([1.0, 2.0])
    peer = Peer(x)
    x.add_(5.0)
    assert Tensor.from_dlpack(peer).tolist() == [1.0, 2.0]
    # Of views what they show.
    assert Tensor.from_dlpack(Peer(Tensor([[1, 2], [3, 4]]).T)).tolist() == [[1, 3], [2, 4]]


def test_capsules_that_nobody_takes_are_freed(device: CudaDevice) -> None:
    x = Tensor.ones(300)
    for _ in range(4):
        # What was let go of is taken back when something is allocated.
        x.__dlpack__()
    gc.collect()
    before = device.memory_stats().in_use_nbytes
    for _ in range(5):
        x.__dlpack__()
    gc.collect()
    assert device.memory_stats().in_use_nbytes == before


def test_what_is_elsewhere_is_refused(device: CudaDevice) -> None:
    x = Tensor([1.0])
    with pytest.raises(DeviceError, match="another device"):
        Tensor.from_dlpack(Peer(x), device="CPU")
    with pytest.raises(DeviceError, match="another device"):
        copied_from(x.__dlpack__(), device, 1)
    with pytest.raises(ArgumentError, match="gives other libraries a copy"):
        x.__dlpack__(dl_device=(2, 3))
    with pytest.raises(DTypeError):
        Tensor([1, 2]).cast("int4").__dlpack__()
    assert np.from_dlpack(HostSide(x, dl_device=(1, 0))).tolist() == [1.0]


def test_who_names_a_version_alone_reads_the_host(device: CudaDevice) -> None:
    """As NumPy's `from_dlpack` asks: one that takes a GPU's memory names its stream."""
    x = Tensor([[1.0, 2.0]]) + 1
    assert np.from_dlpack(HostSide(x, max_version=(1, 0))).tolist() == [[2.0, 3.0]]
    capsule = x.__dlpack__(max_version=(1, 0), stream=1)
    assert copied_from(capsule, device, 0).shape == (1, 2)


class HostSide:
    """What asks a tensor for a copy on the host, in the words of `asked`."""

    def __init__(self, x: Tensor, **asked: Any) -> None:
        self.x, self.asked = x, asked

    def __dlpack__(self, **given: Any) -> Any:
        return self.x.__dlpack__(**self.asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)
