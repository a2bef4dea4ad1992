"""What is done while a trace is recorded, and again when it is replayed."""

from __future__ import annotations

import numpy as np

from baregrad.assemble.virtual_cubin import VirtualAssembler
from baregrad.program import CUBIN, GpuLaunch, ParamSpec, Program
from baregrad.runtime.commands import Slot
from baregrad.runtime.nvidia.device import NvDevice
from baregrad.runtime.nvidia.driver.port import Port
from tests.runtime.nvidia import device_tools

# link64 of data/device.cu: multiplies 32 words and adds a number.
LINK = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry link64(.param .u64 state, .param .s64 number)
{
    .reg .b64 %o, %i, %n;
    .reg .b32 %t, %v, %m;
    mov.u32 %t, %tid.x;
    mul.wide.u32 %i, %t, 4;
    ld.param.u64 %o, [state];
    ld.param.s64 %n, [number];
    cvt.u32.u64 %m, %n;
    add.s64 %o, %o, %i;
    ld.global.u32 %v, [%o];
    mul.lo.u32 %v, %v, 1664525;
    add.u32 %v, %v, %m;
    st.global.u32 [%o], %v;
    ret;
}
"""


def link_program(kind: str) -> Program:
    """The kernel for a GPU of sm_90, or for the virtual one."""
    if kind == "cubin":
        return device_tools.program("link64")
    return Program(
        "link64", CUBIN, VirtualAssembler().assemble(LINK), "link64",
        (ParamSpec("state", "uint32", 128, "rw"),), ("number",), source=LINK,
        launch=GpuLaunch((1, 1, 1), (32, 1, 1)),
    )  # fmt: skip


def work(port: Port, kind: str) -> str:
    """Open, allocate, copy, launch, replay, copy, close; return what was found.

    Waits after each step, since a replay has a GPU that is done at once.
    """
    device = NvDevice(port=port)
    try:
        state = np.random.default_rng(1).integers(0, 1 << 32, 32, np.uint32)
        buffer = device.allocate(128)
        device.copy_in(buffer, state)
        device.synchronize()
        kernel = device.load(link_program(kind))
        commands = device.command_list()
        for number in range(3):
            commands.exec(kernel, [Slot(0)], {"number": number})
        for _ in range(2):
            device.submit(commands, [buffer])
            device.synchronize()
            for number in range(3):
                device_tools.link64(state, number)
        found = np.zeros(32, np.uint32)
        device.copy_out(buffer, found)
        if not np.array_equal(found, state):
            raise AssertionError(f"the kernel gave {found.tolist()}, not {state.tolist()}")
        # Large enough for the copy engine, and for memory of its own.
        large = device.allocate(3 << 20)
        data = np.zeros(3 << 20, np.uint8)
        data[::4096] = np.arange(768) % 251
        device.copy_in(large, data)
        device.synchronize()
        back = np.zeros_like(data)
        device.copy_out(large, back)
        if not np.array_equal(back, data):
            raise AssertionError("a copy comes back changed")
        del buffer, large, kernel, commands
        return f"{device.architecture}, driver {device.client.version}"
    finally:
        device.close()
