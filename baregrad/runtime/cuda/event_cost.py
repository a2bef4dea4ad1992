"""What an event between two nodes of a graph takes, as it is on the GPU and host at hand.

An event is written to the host's memory, so that it takes longer the farther that is: beside the
same kernels 1.7 us on one machine of an H200 and 2.8 us on another (driver 580.159.04).
"""

from __future__ import annotations

import ctypes
import itertools

import numpy as np

from baregrad.runtime.cuda import abi
from baregrad.runtime.cuda.binding import ListGraph
from baregrad.runtime.cuda.context import Context
from baregrad.runtime.cuda.driver import Driver
from baregrad.runtime.cuda.steps import FillStep
from baregrad.runtime.teardown import Teardown

# Steps of a graph, and how often it runs. What is measured is the middle half of all.
STEPS, _ROUNDS = 8, 13
_NBYTES = 512


class _TwoFills(FillStep):
    """Two fills, one after the other, as one step."""

    def add_node(self, driver: Driver, graph: int, before: list[int], context: int) -> int:
        """Make them two nodes, and return the second."""
        first = super().add_node(driver, graph, before, context)
        return super().add_node(driver, graph, [first], context)


def event_ns(context: Context) -> float:
    """Return by how many nanoseconds an event sets two nodes of a graph apart; waits for the GPU.

    The context is current. Between two events lies one short fill, or two: twice the one less the
    other is what the event adds to what lies between two fills anyway.
    """
    driver, held = context.driver, Teardown()

    def keep(name: str, value: int) -> int:
        held.push(name, lambda: context.release(name, value))
        return value

    try:
        place = keep("cuMemFree_v2", driver.address("cuMemAlloc_v2", _NBYTES))
        words = np.array([place], np.uint64)
        made = []
        for kind in (FillStep, _TwoFills):
            events = [
                keep("cuEventDestroy_v2", driver.handle("cuEventCreate", abi.EVENT_DEFAULT))
                for _ in range(STEPS + 1)
            ]
            steps = [kind("fill", words, 4, 0) for _ in range(STEPS)]
            graph = ListGraph(driver, context.handle, steps, events)
            keep("cuGraphDestroy", graph.graph)
            made.append((keep("cuGraphExecDestroy", graph.executable), events))
        found: tuple[list[float], list[float]] = ([], [])
        for turn in range(_ROUNDS):
            for (executable, events), passed in zip(made, found, strict=True):
                driver.call("cuGraphLaunch", executable, context.stream)
                context.synchronize()
                if turn:
                    # The first run puts the graph on the GPU, and the first step waits for it.
                    passed += [_between(driver, *pair) for pair in itertools.pairwise(events)][1:]
        one, two = map(_middle, found)
        return max(2 * one - two, 0.0)
    finally:
        held.close()


def _between(driver: Driver, before: int, after: int) -> float:
    passed = ctypes.c_float()
    driver.call("cuEventElapsedTime", ctypes.byref(passed), before, after)
    return passed.value * 1e6


def _middle(values: list[float]) -> float:
    """Return the mean of the middle half."""
    kept = sorted(values)[len(values) // 4 : -(len(values) // 4)]
    return sum(kept) / len(kept)
