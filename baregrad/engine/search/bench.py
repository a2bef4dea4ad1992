"""Checks and times programs of one kernel on a device, in a process of its own.

The first program is held against the reference; others against the reference and against every
element that the first one computed, with what lies before and after their results, and what they
should only read, looked at as well. Times are taken with programs in turn in one command list.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import numpy as np

from baregrad.dtypes import DType
from baregrad.engine.search.inputs import (
    Problem,
    differs,
    make_problem,
    samples,
)
from baregrad.ir.core.node import Node
from baregrad.ir.evaluate.alu import to_array
from baregrad.program import Program
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import Kernel
from baregrad.runtime.interface import Device

Array = np.ndarray[Any, Any]

# Bytes around each result that nothing may write to.
MARGIN = 4096
_MARK = 0x5B
# Arrays are copied until together they are larger than the caches, but no larger than this.
MOST_ROTATED_NBYTES = 512 << 20
MOST_COPIES = 64
# Rounds of a first look at a program, by its nanoseconds: more for what is short.
LOOK_NS = 3e6
LOOK_ROUNDS = (2, 12)
# A device apart works for so long before programs are timed: after a while in which it did not, and
# else. How long that while is, and how many runs are one list.
LONG_WARM_NS, WARM_NS = 1.5e8, 1e7
IDLE_S = 0.5
WARM_RUNS = 100
# Elements of a result that are compared at once where the host reads all of them from elsewhere.
COMPARED = 1 << 17


class Bench:
    """One kernel's arguments in memory, and the programs that were found right.

    cold_nbytes: how much memory the arrays are rotated through, if one set of them is smaller.
    Of large results in memory that the host does not see, a check compares some elements, `confirm`
    the rest: comparing takes the host far longer than computing takes the device.
    """

    def __init__(self, kernel: Node, device: Device, cold_nbytes: int) -> None:
        self.device = device
        self.problem: Problem = make_problem(kernel)
        self.results: dict[int, Array] = {}
        self.kernels: dict[str, Kernel] = {}
        self.expected = samples(self.problem)
        self.hasty = not device.host_visible
        self.first_ns = 0
        self.worked = -math.inf
        total = sum(array.nbytes for array in self.problem.arrays)
        count = 1
        if 0 < total < cold_nbytes:
            count = min(-(-cold_nbytes // total), MOST_COPIES, MOST_ROTATED_NBYTES // total)
        self.copies = [self._buffers() for _ in range(max(count, 1))]
        self.turn = 0

    def _buffers(self) -> list[Buffer]:
        made = []
        for array in self.problem.arrays:
            buffer = self.device.allocate(array.nbytes + 2 * MARGIN)
            view = buffer.view(MARGIN, array.nbytes)
            if array.nbytes:
                self.device.copy_in(view, np.ascontiguousarray(array))
            made.append(buffer)
        return made

    def _views(self, buffers: list[Buffer]) -> list[Buffer]:
        pairs = zip(buffers, self.problem.arrays, strict=True)
        return [buffer.view(MARGIN, array.nbytes) for buffer, array in pairs]

    # --- answers ----------------------------------------------------------------------------------

    def first(self, code: bytes) -> dict[str, Any]:
        """Run the first program; its results are what the others' are compared with."""
        kernel = self.device.load(Program.from_bytes(code))
        results, why = self._run(kernel, hasty=False)
        why = why or self._against_reference(results)
        if why:
            return {"wrong": why}
        self.results = results
        self.kernels["first"] = kernel
        # Threads are started and memory is touched for the first time.
        (warm,) = self.race(["first"], LOOK_ROUNDS[0] + 1)
        self.first_ns = min(warm)
        # Its clocks were low so far.
        self.worked = -math.inf
        (times,) = self.race(["first"], self._rounds(min(warm)))
        return {"ns": statistics.median_high(times)}

    def check(self, name: str, code: bytes) -> dict[str, Any]:
        """Run a program once; where it is right, times of the first one and of it, in turn."""
        kernel = self.device.load(Program.from_bytes(code))
        why = self._compared(kernel, self.hasty)
        if why:
            return {"wrong": why}
        self.kernels[name] = kernel
        (once,) = self.race([name], 1)
        return {"times": self.race(["first", name], self._rounds(once[0]))}

    def confirm(self, name: str) -> dict[str, Any]:
        """Compare all that a program computes, which was compared in part so far."""
        why = self._compared(self.kernels[name], hasty=False) if self.hasty else ""
        return {"wrong": why} if why else {}

    def _compared(self, kernel: Kernel, hasty: bool) -> str:
        """What is wrong with a program's results, "" if nothing is."""
        results, why = self._run(kernel, hasty)
        return why or self._against_reference(results) or self._against_first(results, hasty)

    def race(self, names: list[str], rounds: int, near: bool = False) -> list[list[int]]:
        """Nanoseconds of each program in each round; all run in every round, in changing order.

        near: on one set of arrays alone, which stay in the caches.
        """
        self._warm()
        commands = self.device.command_list()
        views = [self._views(buffers) for buffers in self.copies[: 1 if near else None]]
        order = []
        for number in range(rounds):
            shift = number % len(names)
            turn = [*range(shift, len(names)), *range(shift)]
            for place in turn if number % 2 else reversed(turn):
                commands.exec(self.kernels[names[place]], views[self.turn % len(views)])
                self.turn += 1
                order.append(place)
        timeline = self.device.submit(commands, (), self.problem.variables, timed=True)
        assert timeline is not None
        self.worked = time.monotonic()
        times: list[list[int]] = [[] for _ in names]
        for place, duration in zip(order, timeline.durations_ns(), strict=True):
            times[place].append(duration)
        return times

    def _warm(self) -> None:
        """Have a device whose clocks fall while it is idle work for a moment, on the first program.

        A program's kernels run one behind the other.
        """
        warm_ns = LONG_WARM_NS if time.monotonic() - self.worked > IDLE_S else WARM_NS
        count = int(warm_ns / self.first_ns) if self.hasty and self.first_ns else 0
        if not count:
            return
        commands = self.device.command_list()
        views = self._views(self.copies[0])
        for _ in range(min(count, WARM_RUNS)):
            commands.exec(self.kernels["first"], views)
        for _ in range(max(count // WARM_RUNS, 1)):
            self.device.submit(commands, (), self.problem.variables)

    # --- running ----------------------------------------------------------------------------------

    def _run(self, kernel: Kernel, hasty: bool) -> tuple[dict[int, Array], str]:
        """Results of one run from the first arguments, and what was touched that should not be.

        hasty: do not look at what should only be read.
        """
        buffers = self.copies[0]
        for slot, (buffer, array) in enumerate(zip(buffers, self.problem.arrays, strict=True)):
            if slot in self.problem.written:
                self._mark(buffer, array if self._is_read(kernel, slot) else None)
        self.device.run(kernel, self._views(buffers), self.problem.variables)
        self.device.synchronize()
        results: dict[int, Array] = {}
        why = ""
        for slot, (buffer, array) in enumerate(zip(buffers, self.problem.arrays, strict=True)):
            if hasty and slot not in self.problem.written:
                continue
            raw = buffer.contents()
            inside = raw[MARGIN : MARGIN + array.nbytes].view(array.dtype)
            if slot in self.problem.written:
                results[slot] = inside
                if (raw[:MARGIN] != _MARK).any() or (raw[MARGIN + array.nbytes :] != _MARK).any():
                    why = why or f"it writes outside argument {slot}"
            elif not np.array_equal(inside.view(np.uint8), array.reshape(-1).view(np.uint8)):
                why = why or f"it changes argument {slot}, which it should only read"
                # The next program is to read what this one did.
                self.device.copy_in(buffer.view(MARGIN, array.nbytes), np.ascontiguousarray(array))
        return results, why

    def _mark(self, buffer: Buffer, array: Array | None) -> None:
        """Fill a buffer with what nothing computes, but for the array that it is to hold."""
        if not self.device.host_visible:
            commands = self.device.command_list()
            commands.fill(buffer, buffer.nbytes, _MARK)
            self.device.submit(commands)
            if array is not None:
                view = buffer.view(MARGIN, array.nbytes)
                self.device.copy_in(view, np.ascontiguousarray(array))
            return
        whole = np.full(buffer.nbytes, _MARK, np.uint8)
        if array is not None:
            whole[MARGIN : MARGIN + array.nbytes] = array.reshape(-1).view(np.uint8)
        self.device.copy_in(buffer, whole)

    def _is_read(self, kernel: Kernel, slot: int) -> bool:
        return kernel.program.params[slot].access != "w"

    def _rounds(self, ns: int) -> int:
        """How many rounds a program that takes so long is looked at."""
        return min(max(int(LOOK_NS / max(ns, 1)), LOOK_ROUNDS[0]), LOOK_ROUNDS[1])

    # --- comparing --------------------------------------------------------------------------------

    def _against_reference(self, results: dict[int, Array]) -> str:
        problem = self.problem
        for each in self.expected:
            dtype = problem.dtypes[each.slot]
            found = _values(results[each.slot].reshape(-1)[each.places], dtype)
            why = differs(found, _values(each.values, dtype), dtype, problem.exact, problem.terms)
            if why:
                return f"against the reference: {why}"
        return ""

    def _against_first(self, results: dict[int, Array], hasty: bool) -> str:
        problem = self.problem
        for slot, raw in results.items():
            first = self.results[slot]
            if np.array_equal(raw.view(np.uint8), first.view(np.uint8)):
                continue
            if hasty and raw.size > COMPARED:
                places = np.random.default_rng(slot).integers(0, raw.size, COMPARED)
                raw, first = raw[places], first[places]
            dtype = problem.dtypes[slot]
            wanted = _values(first, dtype)
            why = differs(_values(raw, dtype), wanted, dtype, problem.exact, problem.terms)
            if why:
                return f"against the first schedule: {why}"
        return ""


def _values(raw: Array, dtype: DType) -> Array:
    """Working values of raw contents, or what are such values already."""
    if raw.dtype == dtype.storage or raw.dtype == dtype.numpy:
        return to_array(raw, dtype).reshape(-1)
    return raw.reshape(-1)
