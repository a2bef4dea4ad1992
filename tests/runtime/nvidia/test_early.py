"""Kernels that begin before the one in front has ended, on a virtual GPU that begins them so."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from baregrad.base.errors import DriverError
from baregrad.program import CUBIN, GpuLaunch, ParamSpec, Program
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import Kernel, Slot
from baregrad.runtime.nvidia.code.descriptor_fields import DescriptorLayout
from baregrad.runtime.nvidia.device import NvDevice
from baregrad.runtime.nvidia.lists import list_launches
from baregrad.runtime.nvidia.lists.list_style import STYLES
from baregrad.testing.virtual_gpu.machine.faults import ENGINE_EXCEPTION
from baregrad.testing.virtual_gpu.machine.gpu_model import GpuModel
from baregrad.testing.virtual_gpu.ptx.errors import PrematureAccess
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort
from tests.runtime.nvidia import device_tools
from tests.runtime.nvidia.device_tools import Words
from tests.runtime.nvidia.random_lists import random_lists
from tests.testing.virtual_gpu.virtual_tools import (
    LINK_BODY,
    cubin_of,
    data_cubin,
    kernel_text,
)

EARLY = sorted(name for name, style in STYLES.items() if style.early)
WAIT = "griddepcontrol.wait;"
# Each may be waited for; none of them keeps its promise to wait.
BROKEN = {
    "reads first": LINK_BODY.replace("cvt", f"{WAIT} cvt"),
    "writes first": LINK_BODY.replace("ld.global.u32 %r1, [%a]", "mov.u32 %r1, 0") + WAIT,
    "some threads do not": "setp.eq.u64 %p0, %n, 0; @%p0 griddepcontrol.wait;" + LINK_BODY,
    "never": LINK_BODY,
    "reads as constant": WAIT + LINK_BODY.replace("ld.global.u32", "ld.global.nc.u32"),
    "ends without": "add.u64 %n, %n, 1;",
    "copies first": f"""
        .shared .b32 s[32];
        mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, 4; mov.u64 %d1, s; add.u64 %d1, %d1, %d0;
        cp.async.ca.shared.global [%d1], [%a], 4;
        {WAIT}
    """,
    "reads by any address": "cvta.global.u64 %d1, %a; ld.u32 %r0, [%d1];" + WAIT,
}


def words(count: int, seed: int = 1) -> Words:
    return np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint32)


def link(name: str, body: str, waits: bool, architecture: str = "sm_90") -> Program:
    """A link of a chain, with what it promises."""
    return Program(
        name, CUBIN, cubin_of(kernel_text(body, name), architecture), name,
        (ParamSpec("p0", "uint32", 128, "rw"),), ("number",),
        launch=GpuLaunch((1, 1, 1), (32, 1, 1), waits=waits),
    )  # fmt: skip


def load_early(device: NvDevice, name: str) -> Kernel:
    made = device_tools.program(f"{name}_early")
    return device.load(dataclasses.replace(made, code=data_cubin("device")))


def opened(style: str, **options: object) -> tuple[VirtualPort, NvDevice]:
    port = VirtualPort(**options)  # type: ignore[arg-type]
    return port, NvDevice(port=port, style=STYLES[style], timeout_s=60)


def state_of(device: NvDevice, state: Words) -> Buffer:
    buffer = device.allocate(state.nbytes)
    device.copy_in(buffer, state)
    return buffer


def begun_early(port: VirtualPort) -> int:
    return port.machine.begun_early


@pytest.mark.parametrize("style", EARLY)
def test_a_chain_begins_early_and_is_right(style: str) -> None:
    port, device = opened(style)
    kernel = load_early(device, "link64")
    commands = device.command_list()
    for number in range(20):
        commands.exec(kernel, [Slot(0)], {"number": number})
    state = words(32)
    buffer = state_of(device, state)
    for turn in range(4):
        device.submit(commands, [buffer])
        for number in range(20):
            device_tools.link64(state, number)
        assert np.array_equal(buffer.contents().view(np.uint32), state)
        # All but the head of the chain.
        assert begun_early(port) == 19 * (turn + 1)
    device.close()
    assert not port.held() and not port.faults


@pytest.mark.parametrize("style", ["thorough", "chain", "light-told-progress"])
def test_other_styles_begin_nothing_early(style: str) -> None:
    port, device = opened(style)
    kernel = load_early(device, "link64")
    buffer = state_of(device, words(32))
    commands = device.command_list()
    for number in range(5):
        commands.exec(kernel, [Slot(0)], {"number": number})
    device.submit(commands, [buffer])
    device.synchronize()
    assert begun_early(port) == 0
    device.close()


@pytest.mark.parametrize("style", EARLY)
@pytest.mark.parametrize("seed", range(2))
def test_random_lists_of_both_kinds(style: str, seed: int) -> None:
    """Kernels that wait and kernels that do not, copies and fills between them."""
    port, device = opened(style, seed=seed)

    def load(device: NvDevice, name: str) -> Kernel:
        if name == "link64" or seed:
            return load_early(device, name)
        made = device_tools.program(name)
        return device.load(dataclasses.replace(made, code=data_cubin("device")))

    assert random_lists(device, 16, seed, load) >= 16
    assert begun_early(port) and not port.faults
    device.close()
    assert not port.held()


@pytest.mark.parametrize("architecture", ["sm_75", "sm_89", "sm_100", "sm_120"])
def test_generations_begin_early_where_they_have_latches(architecture: str) -> None:
    port, device = opened("early-progress", models=(GpuModel(architecture),))
    waits = device.load(link("waits", WAIT + LINK_BODY, True, architecture))
    plain = device.load(link("plain", LINK_BODY, False, architecture))
    buffer = state_of(device, words(32))
    commands, wanted = device.command_list(), words(32)
    for number, kernel in enumerate((plain, waits, waits, plain, waits)):
        commands.exec(kernel, [Slot(0)], {"number": number})
        device_tools.link64(wanted, number)
    device.submit(commands, [buffer])
    assert np.array_equal(buffer.contents().view(np.uint32), wanted)
    assert begun_early(port) == (3 if architecture in ("sm_100", "sm_120") else 0)
    device.close()


@pytest.mark.parametrize("name", BROKEN)
def test_a_kernel_that_breaks_its_promise_is_found_out(name: str) -> None:
    port, device = opened("early-progress")
    good = device.load(link("good", WAIT + LINK_BODY, True))
    broken = device.load(link("broken", BROKEN[name], True))
    buffer = state_of(device, words(32))
    commands = device.command_list()
    # At the head of a chain nothing is in front, and nothing is wrong.
    for kernel in (broken, good, broken):
        commands.exec(kernel, [Slot(0)], {"number": 7})
    with pytest.raises(DriverError, match="'broken'"):
        device.submit(commands, [buffer])
        device.synchronize()
    assert port.launched == ["broken", "good", "broken"]
    (told,) = port.faults
    assert told.fault.code == ENGINE_EXCEPTION
    assert isinstance(told.fault.__cause__, PrematureAccess)
    device.close()


@pytest.mark.parametrize("wrong", ["no latch", "another latch", "keeps caches"])
def test_a_wait_without_its_latch_is_found_out(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = list_launches.write_latch

    def write(view: memoryview, layout: DescriptorLayout, latch: int, *, waits: bool) -> None:
        right(view, layout, latch + waits * (wrong == "another latch"), waits=waits)
        if waits and wrong != "another latch":
            name = "wait_latch_valid" if wrong == "no latch" else "latch_drops_data"
            layout.write(view, name, 0)

    monkeypatch.setattr(list_launches, "write_latch", write)
    port, device = opened("early-progress")
    kernel = load_early(device, "link64")
    buffer = state_of(device, words(32))
    commands = device.command_list()
    for number in range(2):
        commands.exec(kernel, [Slot(0)], {"number": number})
    with pytest.raises(DriverError):
        device.submit(commands, [buffer])
        device.synchronize()
    assert "begins early" in port.faults[0].line
    device.close()


EAGER = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry eager(.param .u64 p0, .param .u64 p1, .param .u64 p2)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    ld.param.u64 %d0, [p0];
    ld.param.u64 %d1, [p1];
    ld.param.u32 %r0, [p2];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 4;
    add.u64 %d0, %d0, %d2;
    add.u64 %d1, %d1, %d2;
    ld.global.u32 %r2, [%d1];
    griddepcontrol.wait;
    ld.global.u32 %r3, [%d0];
    mad.lo.u32 %r3, %r3, 1664525, %r0;
    add.u32 %r3, %r3, %r2;
    st.global.u32 [%d0], %r3;
    ret;
}
"""


def eager(device: NvDevice, shared_nbytes: int = 0) -> Kernel:
    """state = state * 1664525 + number + weights, the last of which are read before the wait."""
    params = (ParamSpec("p0", "uint32", 128, "rw"), ParamSpec("p1", "uint32", 128, "r"))
    launch = GpuLaunch((1, 1, 1), (32, 1, 1), 1, shared_nbytes, True, (1,))
    return device.load(
        Program("eager", CUBIN, cubin_of(EAGER), "eager", params, ("number",), launch=launch)
    )


def run_eager(
    writes: str, slots: str = "apart"
) -> tuple[VirtualPort, NvDevice, list[Buffer], list[Words]]:
    """Two eager kernels behind one that writes the state or the weights, and what all gives."""
    port, device = opened("early-progress")
    kernel, other = eager(device), device.load(link("other", WAIT + LINK_BODY, True))
    state, weights = words(32, 1), words(32, 2)
    buffers = [state_of(device, state)]
    buffers.append(buffers[0] if slots == "alike" else state_of(device, weights))
    values = [state, state if slots == "alike" else weights]
    operands = [Slot(0), buffers[1] if slots == "fixed" else Slot(1)]
    commands = device.command_list()
    for number in range(3):
        target = int(number == 1 and writes == "weights")
        commands.exec(other, [operands[target]], {"number": number})
        values[target][:] = values[target] * np.uint32(1664525) + np.uint32(number)
        commands.exec(kernel, operands, {"number": number})
        values[0][:] = values[0] * np.uint32(1664525) + np.uint32(number) + values[1]
    device.submit(commands, buffers[: 1 if slots == "fixed" else 2])
    device.synchronize()
    return port, device, buffers, values


@pytest.mark.parametrize(("writes", "slots", "count"), [
    ("state", "apart", 5), ("state", "fixed", 5),
    # Behind the launch that writes weights, those that read them do not begin early.
    ("weights", "apart", 3), ("weights", "fixed", 3),
    # Where weights may be the state, none of them does.
    ("state", "alike", 2),
])  # fmt: skip
def test_what_is_read_before_the_wait_is_written_by_nobody_in_front(
    writes: str, slots: str, count: int
) -> None:
    port, device, buffers, values = run_eager(writes, slots)
    for buffer, wanted in zip(buffers, values, strict=True):
        assert np.array_equal(buffer.contents().view(np.uint32), wanted)
    assert begun_early(port) == count and not port.faults
    device.close()


def test_an_early_read_of_what_is_written_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_launches, "written_before", lambda commands: frozenset())
    with pytest.raises(DriverError, match="'eager'"):
        run_eager("weights")


@pytest.mark.parametrize(("nbytes", "kib"), [(0, 32), (3 << 10, 132), (6 << 10, 32)])
def test_multiprocessors_are_not_set_up_anew_between_kernels_that_read_early(
    nbytes: int, kib: int
) -> None:
    """Unless what is left for the first cache were too little."""
    _, device = opened("early-progress")
    kernel, other = eager(device, nbytes), device.load(link("other", WAIT + LINK_BODY, True))
    commands = device.command_list()
    commands.exec(other, [Slot(0)], {"number": 1})
    commands.exec(kernel, [Slot(0), Slot(1)], {"number": 2})
    recorded = commands.commands
    table = list_launches.LaunchTable(recorded, list_launches.ImageKind(), device.style, 0)
    configs = [one.form.launch.shared_config for one in table.launches.values()]
    alone = list_launches.LaunchTable(recorded[:1], list_launches.ImageKind(), device.style, 0)
    assert alone.launches[0].form.launch.shared_config.target_kib == 32
    assert configs[0].target_kib == kib and configs[0].least_kib == 8
    assert configs[1].target_kib == (228 if nbytes > 3 << 10 else kib)
    device.close()
