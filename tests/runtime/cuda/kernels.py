"""PTX kernels written by hand for the tests of the device CUDA, and devices over pretended GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from baregrad.base.options import options
from baregrad.program import CUBIN, GpuLaunch, LaunchExpr, MapSpec, ParamSpec, Program
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import CommandList, Slot
from baregrad.runtime.cuda.device import CudaDevice
from tests.runtime.cuda.fake_driver import FakeCuda, image_of

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
# o[i] = a[i] * 2 + k for i < n, 64 threads a block.
SCALE = HEAD + """
.visible .entry scale(.param .u64 o, .param .u64 a, .param .s64 n, .param .s64 k)
{
    .reg .b64 %o, %a, %i, %n, %t, %v, %k;
    .reg .b32 %b, %x, %w;
    .reg .pred %p;
    mov.u32 %b, %ctaid.x;
    mov.u32 %x, %tid.x;
    mad.lo.s32 %x, %b, 64, %x;
    cvt.s64.s32 %i, %x;
    ld.param.s64 %n, [n];
    setp.ge.s64 %p, %i, %n;
    @%p ret;
    ld.param.u64 %o, [o];
    ld.param.u64 %a, [a];
    ld.param.s64 %k, [k];
    shl.b64 %t, %i, 3;
    add.s64 %a, %a, %t;
    add.s64 %o, %o, %t;
    ld.global.s64 %v, [%a];
    shl.b64 %v, %v, 1;
    add.s64 %v, %v, %k;
    st.global.s64 [%o], %v;
    ret;
}
"""
# o[0] += 1, by one thread.
STEP = HEAD + """
.visible .entry step(.param .u64 o)
{
    .reg .b64 %o, %v;
    ld.param.u64 %o, [o];
    ld.global.s64 %v, [%o];
    add.s64 %v, %v, 1;
    st.global.s64 [%o], %v;
    ret;
}
"""
# Writes 1 TiB beyond o.
WILD = HEAD + """
.visible .entry wild(.param .u64 o)
{
    .reg .b64 %o;
    ld.param.u64 %o, [o];
    add.s64 %o, %o, 1099511627776;
    st.global.s64 [%o], %o;
    ret;
}
"""
# o[0 .. 16] = the words of a tensor map of a.
MAPPED = HEAD + """
.visible .entry mapped(.param .u64 o, .param .u64 a, .param .align 64 .b8 m[128])
{
    .reg .b64 %o, %m, %t, %v;
    .reg .b32 %x;
    ld.param.u64 %o, [o];
    mov.b64 %m, m;
    cvta.param.u64 %m, %m;
    mov.u32 %x, %tid.x;
    mul.wide.u32 %t, %x, 8;
    add.s64 %m, %m, %t;
    add.s64 %o, %o, %t;
    ld.b64 %v, [%m];
    st.global.b64 [%o], %v;
    ret;
}
"""
HANG = HEAD + """
.visible .entry hang(.param .u64 o)
{
again:
    bra again;
}
"""


def program(
    name: str,
    text: str,
    params: tuple[tuple[str, str, LaunchExpr | None], ...],
    launch: GpuLaunch,
    variables: tuple[str, ...] = (),
) -> Program:
    specs = tuple(ParamSpec(label, "int64", size, access) for label, access, size in params)
    return Program(
        name=name, kind=CUBIN, code=image_of(text), entry=name, params=specs,
        variables=variables, source=text, launch=launch,
    )  # fmt: skip


def scale(block: int = 64) -> Program:
    """o = 2 a + k over n elements; the grid follows n."""
    n: LaunchExpr = ("var", "n")
    size = ("mul", n, 8)
    grid = ("floordiv", ("add", n, block - 1), block)
    launch = GpuLaunch((grid, 1, 1), (block, 1, 1))
    return program("scale", SCALE, (("o", "w", size), ("a", "r", size)), launch, ("n", "k"))


def mapped(spec: MapSpec) -> Program:
    """o = the bytes of a tensor map of a."""
    params = (("o", "w", 128), ("a", "r", None))
    made = program("mapped", MAPPED, params, GpuLaunch((1, 1, 1), (16, 1, 1)))
    return replace(made, maps=(spec,))


def one_thread(name: str, text: str, shared_nbytes: int = 0, cluster: int = 1) -> Program:
    """A kernel of one buffer `o`, one thread in each of `cluster` blocks."""
    launch = GpuLaunch((cluster, 1, 1), (1, 1, 1), cluster, shared_nbytes)
    return program(name, text, (("o", "rw", 8),), launch)


@contextmanager
def cuda(fake: FakeCuda | None = None, timeout_s: int = 60, **more: int) -> Iterator[CudaDevice]:
    """A device over a pretended driver; at the end nothing may be left, nor complained about."""
    fake = fake or FakeCuda()
    with options.override(gpu_timeout=timeout_s):
        device = CudaDevice(functions=fake.functions, **more)
    device.fake = fake  # type: ignore[attr-defined]
    try:
        yield device
    finally:
        device.close()
    assert_clean(fake)


def assert_clean(fake: FakeCuda) -> None:
    assert not fake.complaints, fake.complaints[0]
    assert not fake.alive()
    assert not fake.left_behind


def put(device: CudaDevice, values: list[int]) -> Buffer:
    data = np.array(values, np.int64)
    buffer = device.allocate(data.nbytes)
    device.copy_in(buffer, data)
    return buffer


def get(device: CudaDevice, buffer: Buffer) -> list[int]:
    data = np.empty(buffer.nbytes // 8, np.int64)
    device.copy_out(buffer, data)
    return data.tolist()


def make_list(
    device: CudaDevice, count: int
) -> tuple[CommandList, Callable[[list[int], int], tuple[list[int], list[int]]]]:
    """Copies, fills and launches over three slots; returns (list, what it does to numbers)."""
    kernel = device.load(scale())
    commands = device.command_list()
    for _ in range(count):
        commands.exec(kernel, [Slot(1), Slot(0)], {"n": 8})
        commands.copy(Slot(2, 64), Slot(1), 64)
        commands.exec(kernel, [Slot(1), Slot(2, 64)], {"n": 8})
        commands.fill(Slot(2), 64, 3)

    def model(values: list[int], k: int) -> tuple[list[int], list[int]]:
        once = [2 * value + k for value in values]
        return [2 * value + k for value in once], [0x0303030303030303] * 8 + once

    return commands, model
