"""The host's own time for one launch, without a GPU: how long Python is at work until the doorbell.

    python benchmarks/gpu_submit.py [--times 100000] [--profile]

The device is opened on the virtual GPU. Then its doorbell is led to plain memory and its timelines
say that all is done, so that nothing is left but what the host does; stores go through the machine
code that real doorbells are rung with. One line each: what, median and least of five parts, in us.
"""

from __future__ import annotations

import argparse
import cProfile
import ctypes
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from baregrad.assemble.virtual_cubin import VirtualAssembler
from baregrad.program import CUBIN, GpuLaunch, ParamSpec, Program
from baregrad.runtime.commands import Slot
from baregrad.runtime.nvidia.device import NvDevice
from baregrad.runtime.nvidia.driver.doorbell import RingState
from baregrad.runtime.nvidia.driver.port import KernelPort
from baregrad.runtime.nvidia.lists.list_style import STYLES, style_of
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort

PTX = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry step(.param .u64 a, .param .u64 b, .param .u64 c)
{
    griddepcontrol.wait;
    ret;
}
"""
PARTS = 5


def silence(device: Any) -> list[Any]:
    """Lead doorbells to plain memory and have all work count as done; return what must be kept."""
    code = KernelPort()
    kept: list[Any] = [code]
    for channel in device.channels:
        sink = ctypes.create_string_buffer(64)
        kept.append(sink)
        channel.ring = code.ring
        state = channel.ring_state
        state.put_address = state.doorbell_address = ctypes.addressof(sink)
        # Whatever is submitted is done: the timeline is where the last value is written down.
        state.timeline_address = ctypes.addressof(state) + RingState.last.offset
        channel.words = channel.timeline.words = channel.timeline._words = memoryview(
            (ctypes.c_uint64 * 1).from_address(state.timeline_address)
        ).cast("B").cast("Q")
    device.work.go, device.work.spin = code.go, code.spin
    return kept


def measure(what: str, action: Callable[[], Any], times: int) -> None:
    """Print how long an action takes."""
    found = []
    for _ in range(PARTS):
        begin = time.perf_counter_ns()
        for _ in range(times // PARTS):
            action()
        found.append((time.perf_counter_ns() - begin) / (times // PARTS) / 1e3)
    print(f"{what:44} {statistics.median(found):7.3f} us, least {min(found):7.3f}", flush=True)


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=100_000)
    parser.add_argument("--style", default="", help=", ".join(STYLES))
    parser.add_argument("--profile", action="store_true", help="say where the time goes instead")
    arguments = parser.parse_args()
    device = NvDevice(port=VirtualPort(), style=style_of(arguments.style))
    program = Program(
        "step", CUBIN, VirtualAssembler().assemble(PTX), "step",
        tuple(ParamSpec(name, "float32", 128, access) for name, access in
              (("a", "w"), ("b", "r"), ("c", "r"))),
        launch=GpuLaunch((1, 1, 1), (32, 1, 1), waits=True),
    )  # fmt: skip
    kernel = device.load(program)
    fixed = [device.allocate(128) for _ in range(3)]
    other = [device.allocate(128) for _ in range(3)]
    commands = device.command_list()
    commands.exec(kernel, [Slot(0), Slot(1), Slot(2)])
    device.submit(commands, fixed)
    device.synchronize()
    kept = silence(device)
    submit, wait, times = device.submit, device.synchronize, arguments.times
    if arguments.profile:
        with cProfile.Profile() as profile:
            for _ in range(times):
                submit(commands, fixed)
        pstats.Stats(profile).sort_stats("tottime").print_stats(18)
        return 0
    measure("submit, the same buffers", lambda: submit(commands, fixed), times)
    tables = [fixed, other]
    turn = iter(range(10 * times))
    measure("submit, other buffers each time", lambda: submit(commands, tables[next(turn) & 1]),
            times)
    measure("synchronize, nothing to wait for", wait, times)
    measure("submit and synchronize, the same buffers", lambda: (submit(commands, fixed), wait()),
            times)
    measure("launch of one kernel (device.run)", lambda: device.run(kernel, fixed), times // 10)
    del kept
    return 0


if __name__ == "__main__":
    sys.exit(main())
