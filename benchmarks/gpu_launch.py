"""Launches on one GPU, ours beside the CUDA driver API's own, on a machine with CUDA 13 (ptxas).

    python benchmarks/gpu_launch.py [--devices NV,CUDA] [--styles all] [--rounds 7] [--json FILE]
    python benchmarks/gpu_launch.py --costs

Two things are timed, from the call to its end as the host sees it: a replay of 1,000 kernels of
which each needs the one before, an nth part of it for each; and one such kernel, launched and
waited for. Ours are a command list on the devices NV and CUDA; the driver's are a CUDA graph and
cuLaunchKernel, called in a loop written in C where there is a compiler (else by ctypes, said so),
with the scheduling flag and the way to wait that are fastest here. Each side is a process of its
own; rounds alternate, and the counters that the kernels raise are checked.

With `--styles` the device NV is asked for each way to hand kernels over (`list_style.py`): "all",
or names with commas between. Styles that begin kernels early are given one that waits by itself. A
style that fails is said to, and left out. Where the driver's side is missing, times stand alone.

One line each: name, ratio ours/theirs (median over rounds), bar, microseconds, spread, verdict.
`--costs` times what the device CUDA chooses by: a launch, a graph's launch, a node's change.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import gpu_sides as sides
from benchmarks.gpu_sides import Answer

THREADS = 32
PTX = """.version 8.0
.target sm_75
.address_size 64
.visible .entry step(.param .u64 o)
{
    .reg .b64 %o, %i;
    .reg .b32 %t, %v;
    mov.u32 %t, %tid.x;
    mul.wide.u32 %i, %t, 4;
    ld.param.u64 %o, [o];
    add.s64 %o, %o, %i;
    ld.global.u32 %v, [%o];
    add.u32 %v, %v, 1;
    st.global.u32 [%o], %v;
    ret;
}
"""
LOOPS = """
#include <stdint.h>
#include <time.h>
typedef unsigned u;
typedef int launch_t(void *, u, u, u, u, u, u, u, void *, void **, void **);
typedef int graph_t(void *, void *);
typedef int wait_t(void *);
static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
static int finish(wait_t *wait, void *stream) {
    int code;
    while ((code = wait(stream)) == 600) {}
    return code;
}
int single(launch_t *launch, wait_t *wait, void *function, u threads, void *stream, void **params,
           int64_t *times, int count) {
    for (int i = 0; i < count; i++) {
        int64_t begin = now();
        int code = launch(function, 1, 1, 1, threads, 1, 1, 0, stream, params, 0);
        if (code || (code = finish(wait, stream))) return code;
        times[i] = now() - begin;
    }
    return 0;
}
int replay(graph_t *launch, wait_t *wait, void *graph, void *stream, int64_t *times, int count) {
    for (int i = 0; i < count; i++) {
        int64_t begin = now();
        int code = launch(graph, stream);
        if (code || (code = finish(wait, stream))) return code;
        times[i] = now() - begin;
    }
    return 0;
}
"""
SCHEDULING = {"auto": 0, "spin": 1, "yield": 2, "blocking": 4}
WAITS = ("cuStreamSynchronize", "cuStreamQuery")
WARM_UP = 12
SINGLES = 1000
REPLAYS = 20


WAITING = PTX.replace(".target sm_75", ".target sm_90").replace(
    "    ld.global", "    griddepcontrol.wait;\n    ld.global"
)


def cubin(architecture: str, text: str = PTX) -> bytes:
    """The kernel, assembled by the toolkit's ptxas, or packed for a virtual GPU."""
    from baregrad.assemble.ptxas import PtxAssembler
    from baregrad.assemble.virtual_cubin import VirtualAssembler
    from baregrad.base.options import options

    if options.nv_port == "virtual":
        target = f".target {architecture}"
        return VirtualAssembler().assemble(text.replace(".target sm_75", target))
    return PtxAssembler(architecture).assemble(text)


# Our side.


def ours(name: str, count: int) -> tuple[Mapping[str, Any], Callable[[Answer], Answer]]:
    """A device of ours: a list of `count` launches, and one of one."""
    import numpy as np

    from baregrad.program import CUBIN, GpuLaunch, ParamSpec, Program
    from baregrad.runtime import open_device
    from baregrad.runtime.commands import Slot
    from baregrad.target.gpu import gpu_row

    device: Any = open_device(name)
    if name.startswith("NV"):
        device.work.timeout_s = 5.0
    kernels = {}
    for waits, text in ((False, PTX), (True, WAITING)):
        if waits and not (name.startswith("NV") and gpu_row(device.architecture).dependent_launch):
            continue
        kernels[waits] = device.load(Program(
            "step", CUBIN, cubin(device.architecture, text), "step",
            (ParamSpec("o", "uint32", 4 * THREADS, "rw"),), source=text,
            launch=GpuLaunch((1, 1, 1), (THREADS, 1, 1), waits=waits),
        ))
    counters = np.zeros(THREADS, np.uint32)
    buffer = device.allocate(counters.nbytes)
    device.copy_in(buffer, counters)
    lists: dict[tuple[str, str], Any] = {}

    def list_of(what: str, style: str) -> Any:
        found = lists.get((what, style))
        if found is None:
            early = False
            if name.startswith("NV"):
                from baregrad.runtime.nvidia.lists.list_style import style_of

                device.style = style_of(style)
                early = device.style.early and True in kernels
            found = lists[what, style] = device.command_list()
            for _ in range(count if what == "chain" else 1):
                found.exec(kernels[early], [Slot(0)])
        return found

    def answer(question: Answer) -> Answer:
        commands = list_of(question["what"], question.get("style", ""))
        submit, wait = device.submit, device.synchronize
        table = [buffer]

        def once() -> None:
            submit(commands, table)
            wait()

        device.copy_in(buffer, np.zeros_like(counters))
        warm = question.get("warm", WARM_UP)
        for _ in range(warm):
            once()
        times = sides.timed_ns(once, question["times"])
        done = len(commands) * (warm + question["times"])
        device.copy_out(buffer, counters)
        if (counters != done & 0xFFFFFFFF).any():
            return {"error": f"counters are {counters.tolist()}, not {done}"}
        return {"times_ns": times, "libraries": sides.vendor_libraries()}

    return {"device": device.name, "architecture": device.architecture}, answer


# The driver's side.


class Raw:
    """A context of the driver with the kernel and a graph of it, and loops over its functions."""

    def __init__(self, count: int, driver: Any = None, library: Any = None) -> None:
        from baregrad.runtime.cuda.driver import LIBRARY, Driver

        self.driver = driver or Driver()
        self.library = library or ctypes.CDLL(LIBRARY)
        self.device = self.driver.device(0)
        self.code = cubin(self.driver.architecture(self.device))
        self.count = count
        self.done = 0
        self.loops = compiled_loops()
        self._open = False

    def open(self, scheduling: str) -> None:
        """Make a context with a scheduling flag, and all that the loops use."""
        from baregrad.runtime.cuda import abi

        if self._open:
            self.close()
        driver = self.driver
        flags = SCHEDULING[scheduling]
        code = self.library.cuDevicePrimaryCtxSetFlags_v2(self.device, flags)
        if code:
            raise driver.error("cuDevicePrimaryCtxSetFlags_v2", code)
        self.context = driver.handle("cuDevicePrimaryCtxRetain", self.device)
        driver.call("cuCtxPushCurrent_v2", self.context)
        self.stream = driver.handle("cuStreamCreate", abi.STREAM_NON_BLOCKING)
        module = driver.handle("cuModuleLoadData", self.code)
        self.function = driver.handle("cuModuleGetFunction", module, b"step")
        # Twice as much as the counters need: marks are written behind them.
        self.memory = driver.address("cuMemAlloc_v2", 8 * THREADS)
        driver.call("cuMemsetD8Async", self.memory, 0, 4 * THREADS, self.stream)
        self.value = ctypes.c_uint64(self.memory)
        self.params = (ctypes.c_void_p * 1)(ctypes.addressof(self.value))
        graph = driver.handle("cuGraphCreate", 0)
        self.nodes = []
        for _ in range(self.count):
            before = (ctypes.c_void_p * 1)(*self.nodes[-1:])
            given = (graph, before, len(self.nodes[-1:]), ctypes.byref(self.node()))
            self.nodes.append(driver.handle("cuGraphAddKernelNode_v2", *given))
        self.graph = driver.handle("cuGraphInstantiateWithFlags", graph, 0)
        self.done = 0
        self._open = True

    def node(self) -> Any:
        """The parameters of a node."""
        from baregrad.runtime.cuda import abi

        return abi.KernelNode(
            function=self.function, grid=(ctypes.c_uint * 3)(1, 1, 1),
            block=(ctypes.c_uint * 3)(THREADS, 1, 1), params=ctypes.addressof(self.params),
        )

    def close(self) -> None:
        """Give the context back with all that is in it."""
        self.driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        self.driver.call("cuDevicePrimaryCtxRelease_v2", self.device)
        self._open = False

    def function_of(self, name: str) -> Any:
        """A function of the driver, with the version of the API that ctypes was told of."""
        if name in self.driver.functions:
            return self.driver.functions[name]
        found = getattr(self.library, name)
        found.argtypes, found.restype = (ctypes.c_void_p,), ctypes.c_int
        return found

    def single(self, wait: str, times: int) -> list[int]:
        """Launch and wait, so many times."""
        launch, waiting = self.function_of("cuLaunchKernel"), self.function_of(wait)
        self.done += times
        if self.loops is None:
            given = (self.function, 1, 1, 1, THREADS, 1, 1, 0, self.stream,
                     ctypes.addressof(self.params), None)
            return sides.timed_ns(lambda: self._wait(launch(*given), waiting), times)
        found = (ctypes.c_int64 * times)()
        self._check(self.loops.single(
            launch, waiting, ctypes.c_void_p(self.function), THREADS,
            ctypes.c_void_p(self.stream), self.params, found, times,
        ))
        return list(found)

    def replay(self, wait: str, times: int) -> list[int]:
        """Launch the graph and wait, so many times."""
        launch, waiting = self.function_of("cuGraphLaunch"), self.function_of(wait)
        self.done += times * self.count
        if self.loops is None:
            given = (self.graph, self.stream)
            return sides.timed_ns(lambda: self._wait(launch(*given), waiting), times)
        found = (ctypes.c_int64 * times)()
        self._check(self.loops.replay(
            launch, waiting, ctypes.c_void_p(self.graph), ctypes.c_void_p(self.stream), found,
            times,
        ))
        return list(found)

    def _wait(self, code: int, waiting: Callable[[int], int]) -> None:
        self._check(code)
        while (code := waiting(self.stream)) == 600:
            pass
        self._check(code)

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise RuntimeError(f"the driver answers {code}")

    def check(self) -> None:
        """Raise unless the counters are what they should be."""
        found = (ctypes.c_uint32 * THREADS)()
        given = (ctypes.addressof(found), self.memory, 4 * THREADS, self.stream)
        self.driver.call("cuMemcpyDtoHAsync_v2", *given)
        self._wait(0, self.function_of("cuStreamQuery"))
        if set(found) != {self.done & 0xFFFFFFFF}:
            raise RuntimeError(f"counters are {list(found)}, not {self.done}")


def compiled_loops() -> Any:
    """The loops in C, None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="baregrad-loops-"))
    (folder / "loops.c").write_text(LOOPS)
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", "loops.so", "loops.c"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    found = ctypes.CDLL(str(folder / "loops.so")) if done.returncode == 0 else None
    shutil.rmtree(folder)
    return found


def driver_side(count: int) -> tuple[Mapping[str, Any], Callable[[Answer], Answer]]:
    """The driver by itself, in the setting that is fastest for each of the two questions."""
    raw = Raw(count)
    settings = {}
    best: dict[str, tuple[float, str, str]] = {}
    for scheduling in SCHEDULING:
        raw.open(scheduling)
        for wait in WAITS:
            for what, measure, times in (("single", raw.single, 300), ("chain", raw.replay, 6)):
                measure(wait, WARM_UP)
                middle = statistics.median(measure(wait, times)) / 1e3
                settings[f"{what} {scheduling} {wait}"] = round(middle, 3)
                best[what] = min(best.get(what, (1e9, "", "")), (middle, scheduling, wait))
        raw.check()

    def answer(question: Answer) -> Answer:
        what = question["what"]
        _, scheduling, wait = best[what]
        raw.open(scheduling)
        measure = raw.single if what == "single" else raw.replay
        measure(wait, WARM_UP)
        times = measure(wait, question["times"])
        raw.check()
        return {"times_ns": times, "setting": f"{scheduling} {wait}"}

    loops = "C" if raw.loops is not None else "ctypes (no C compiler found)"
    facts = {"settings_us": settings, "best": best, "loops": loops, "cuda": raw.driver.version,
             "gpu": raw.driver.device_name(raw.device)}
    return facts, answer


# The comparison.


def styles_of(text: str) -> list[str]:
    """The styles that were asked for, the default one first."""
    from baregrad.runtime.nvidia.lists.list_style import DEFAULT_STYLE, STYLES, style_of

    names = list(STYLES) if text == "all" else [name for name in text.split(",") if name]
    for name in names:
        style_of(name)
    return [DEFAULT_STYLE, *(name for name in names if name != DEFAULT_STYLE)]


class Times:
    """Medians of rounds in us, by what was timed and by whom, and who failed at it."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, list[float]]] = {"chain": {}, "single": {}}
        self.libraries: dict[str, list[str]] = {}
        self.failed: dict[str, str] = {}

    def ask(self, side: sides.Side, what: str, who: str, share: int, **question: Any) -> None:
        """Ask a side; one that failed once is not asked again."""
        if who in self.failed:
            return
        try:
            answer = side.ask(what=what, **question)
        except RuntimeError as error:
            self.failed[who] = f"{what}: {error}"
            return
        middle = statistics.median(answer["times_ns"]) / 1e3 / share
        self.found[what].setdefault(who, []).append(middle)
        if "libraries" in answer:
            self.libraries[side.name] = answer["libraries"]

    def lines(self, default: str) -> list[str]:
        """One line for each, the driver's ratio where there is one."""
        lines = []
        for what, bar in (("chain", "<0.9"), ("single", "<0.7")):
            theirs = self.found[what].get("driver")
            for who, mine in self.found[what].items():
                told = f"{statistics.median(mine):.3f} us"
                if who == "driver" or who in self.failed:
                    continue
                if theirs is None:
                    lines.append(f"{what + ' ' + who:34} {'-':>7} {'-':>6}  {told}")
                    continue
                ratios = [one / other for one, other in zip(mine, theirs, strict=True)]
                told += f" / {statistics.median(theirs):.3f} us"
                held = bar if who == default else ""
                lines.append(sides.row(f"{what} {who}", ratios, held, told))
        lines += [f"FAILED {who}: {why}" for who, why in self.failed.items()]
        return lines


def compare(arguments: argparse.Namespace) -> int:
    """Ask all sides in turn, and print and write what they say."""
    me = [sys.executable, str(Path(__file__).resolve()), "--count", str(arguments.count)]
    names = [name for name in arguments.devices.split(",") if name]
    ready = sides.start({name: [*me, "--side", name] for name in ("driver", *names)})
    styles = styles_of(arguments.styles) if "NV" in ready else []
    times = Times()
    try:
        for _ in range(arguments.rounds):
            for what, number in (("chain", arguments.replays), ("single", arguments.singles)):
                share = arguments.count if what == "chain" else 1
                for name, side in ready.items():
                    if name != "NV":
                        times.ask(side, what, name, share, times=number)
                        continue
                    for style in styles:
                        who = f"NV {style}"
                        given = {"times": number, "style": style, "warm": arguments.warm}
                        times.ask(side, what, who, share, **given)
    finally:
        for side in ready.values():
            side.close()
    if "driver" in ready:
        facts = ready["driver"].facts
        print(f"{facts['gpu']}, CUDA {facts['cuda']}, loops in {facts['loops']}; best settings: "
              + ", ".join(f"{what}: {best[1]} {best[2]}" for what, best in facts["best"].items()))
    lines = times.lines(f"NV {styles[0]}" if styles else "")
    for name, found in times.libraries.items():
        if name.startswith("NV"):
            lines.append(f"{'libraries of the vendor in ' + name:34} {found or 'none'}")
    print("\n".join(lines))
    sides.write_report(arguments.json, {
        "machine": sides.machine(), "times_us": times.found, "lines": lines,
        "libraries": times.libraries, "failed": times.failed,
        "facts": {name: side.facts for name, side in ready.items()},
    })
    # A side that was asked for and is not there is no success.
    return int(bool(times.failed) or any(name not in ready for name in names))


def costs(count: int) -> None:
    """Print the host's time for a launch, a node's change, and graphs of several lengths."""
    raw = Raw(count)
    raw.open("auto")
    launch, query = raw.driver.functions["cuLaunchKernel"], raw.function_of("cuStreamQuery")
    given = (raw.function, 1, 1, 1, THREADS, 1, 1, 0, raw.stream, ctypes.addressof(raw.params),
             None)

    def idle() -> None:
        raw._wait(0, query)

    def middle(action: Callable[[], Any], times: int, each: int = 1) -> float:
        idle()
        found = statistics.median(sides.timed_ns(action, times)) / 1e3 / each
        idle()
        return found

    mark = raw.driver.functions["cuStreamWriteValue32_v2"]
    name = "cuGraphExecKernelNodeSetParams_v2"
    change = raw.driver.functions[name]
    node = raw.node()
    given_node = (raw.graph, raw.nodes[count // 2], ctypes.byref(node))
    print(f"launch            {middle(lambda: launch(*given), 400):8.3f} us")
    print(f"mark              "
          f"{middle(lambda: mark(raw.stream, raw.memory + 4 * THREADS, 1, 0), 400):8.3f} us")
    print(f"change of a node  {middle(lambda: change(*given_node), 400):8.3f} us")
    graph = raw.driver.functions["cuGraphLaunch"]
    raw.close()
    for length in (1, 4, 16, 64, 256, 1000):
        part = Raw(length)
        part.open("auto")
        part.replay("cuStreamQuery", 3)
        once = functools.partial(graph, part.graph, part.stream)
        told = statistics.median(sides.timed_ns(once, 9)) / 1e3
        part._wait(0, query)
        print(f"graph of {length:5}    {told:8.3f} us, {told / length:.3f} us for each node")
        part.close()


def main() -> int:
    """Compare, or be a side."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", default="NV,CUDA", help="ours, with commas between")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--styles", default="", help="of the device NV: all, or names")
    parser.add_argument("--count", type=int, default=1000, help="kernels of a chain")
    parser.add_argument("--replays", type=int, default=REPLAYS, help="chains a round")
    parser.add_argument("--warm", type=int, default=WARM_UP, help="of each before it is timed")
    parser.add_argument("--singles", type=int, default=SINGLES, help="single launches a round")
    parser.add_argument("--json", default="", help="where to write all figures")
    parser.add_argument("--costs", action="store_true", help="time what the device CUDA chooses by")
    parser.add_argument("--side", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.costs:
        costs(arguments.count)
    elif arguments.side == "driver":
        sides.serve(lambda: driver_side(arguments.count))
    elif arguments.side:
        sides.serve(lambda: ours(arguments.side, arguments.count))
    else:
        return compare(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
