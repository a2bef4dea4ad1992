"""Command lists run: step by step, as a graph, or timed."""

from __future__ import annotations

from baregrad.base.options import options
from baregrad.runtime.cuda.binding import CudaBoundList, ListGraph, TimedGraph
from baregrad.runtime.cuda.context import Context, who
from baregrad.runtime.cuda.event_clock import EventClock, EventsOf, TimedEvents
from baregrad.runtime.cuda.event_cost import event_ns
from baregrad.runtime.cuda.loaded_code import LoadedCode

# Microseconds of the host: a launch by itself, and what it costs as a node of a graph whose
# operands changed; then of a graph's launch, once and for each node. What matters is their order;
# `benchmarks/gpu_launch.py --costs` measures them.
LAUNCH_US = 3.0
SET_NODE_US = 1.6
GRAPH_US = 8.0
GRAPH_NODE_US = 0.3
# A graph is made once launching by hand cost about as much as making it does.
GRAPH_AFTER = 4
# The name of a list that is timed as a whole.
WHOLE_LIST = "list"
# Of a list that is timed so many graphs are in flight: one runs while the next is enqueued.
_TIMED_GRAPHS = 2


class ListRunner:
    """Enqueues bound lists in the stream of one context, which is current then."""

    def __init__(self, context: Context, code: LoadedCode) -> None:
        self._context = context
        self._driver = context.driver
        self._code = code
        self._clock: EventClock | None = None

    def start(self, bound: CudaBoundList) -> None:
        """Enqueue a list in the way that costs less."""
        if not bound.steps:
            return
        if self._prefers_graph(bound):
            self._run_graph(bound)
        else:
            self._run(bound)
        bound.submits += 1
        if self._code.has_dead:
            self._code.bury()

    def _prefers_graph(self, bound: CudaBoundList) -> bool:
        """Whether a graph costs the host less than launching the steps one by one."""
        count = len(bound.steps)
        if bound.submits < GRAPH_AFTER or count * LAUNCH_US < GRAPH_US or bound.has_empty:
            return False
        if options.cuda_blocking:
            return False
        # A graph that is yet to be made has nothing to be set.
        stale = 0 if bound.graph is None else len(bound.stale)
        by_graph = GRAPH_US + GRAPH_NODE_US * count + SET_NODE_US * stale
        return by_graph < LAUNCH_US * count

    def _run_graph(self, bound: CudaBoundList) -> None:
        if bound.graph is None:
            graph = ListGraph(self._driver, self._context.handle, bound.steps)
            self._code.add_graph(graph.graph, graph.executable)
            bound.graph = graph
            for one in bound.timed_graphs:
                one.stale |= bound.stale
            bound.stale.clear()
        bound.set_steps(bound.graph)
        name = "cuGraphLaunch"
        code = self._driver.functions[name](bound.graph.executable, self._context.stream)
        if code:
            raise self._driver.error(name, code, who(bound.names))
        self._context.progress.mark(bound.names)

    def _run(self, bound: CudaBoundList) -> None:
        """Enqueue the steps one by one; a new list marks each, so that a fault names one."""
        functions, stream = self._driver.functions, self._context.stream
        progress, blocking = self._context.progress, options.cuda_blocking
        closely = bound.submits < GRAPH_AFTER or blocking
        for step in bound.steps:
            if step.empty:
                continue
            code = step.enqueue(functions, stream)
            if code:
                raise self._driver.error(step.called, code, who((step.labelled_name,)))
            if closely:
                progress.mark((step.labelled_name,))
            if blocking:
                self._context.synchronize()
        if not closely:
            progress.mark(bound.names)

    def _started_clock(self) -> EventClock:
        if self._clock is None:
            self._clock = EventClock(self._context, event_ns(self._context))
        return self._clock

    def start_timed_whole(self, bound: CudaBoundList) -> TimedEvents:
        """Enqueue a list between two events; at first with all, until two graphs of it were timed.

        The first such graph is put on the GPU when it runs, which its first step waits for.
        """
        if sum(one.runs for one in bound.timed_graphs) < 2:
            return self.start_timed(bound)
        clock = self._started_clock()
        begin = clock.record()
        self.start(bound)
        return TimedEvents(clock, [begin, clock.record()], (WHOLE_LIST,), EventsOf.WHOLE)

    def start_timed(self, bound: CudaBoundList) -> TimedEvents:
        """Enqueue the steps with an event between each two: as a graph, or at first one by one."""
        clock = self._started_clock()
        bound.submits += 1
        if self._code.has_dead:
            self._code.bury()
        long = len(bound.steps) * LAUNCH_US >= GRAPH_US and not bound.has_empty
        if long and bound.submits > GRAPH_AFTER and not options.cuda_blocking:
            return self._start_timed_graph(clock, bound)
        events = [clock.record()]
        for step in bound.steps:
            if not step.empty:
                code = step.enqueue(self._driver.functions, self._context.stream)
                if code:
                    raise self._driver.error(step.called, code, who((step.labelled_name,)))
                self._context.progress.mark((step.labelled_name,))
            events.append(clock.record())
        return TimedEvents(clock, events, bound.labels, EventsOf.STEPS)

    def _start_timed_graph(self, clock: EventClock, bound: CudaBoundList) -> TimedEvents:
        """Enqueue a list as a graph with events, which are read before it runs again."""
        graph = next((one for one in bound.timed_graphs if one.is_free), None)
        if graph is None and len(bound.timed_graphs) < _TIMED_GRAPHS:
            events = [clock.event() for _ in range(len(bound.steps) + 1)]
            graph = TimedGraph(self._driver, self._context.handle, bound.steps, events)
            self._code.add_graph(graph.graph, graph.executable)
            bound.timed_graphs.append(graph)
        elif graph is None:
            graph = bound.timed_graphs[0]
            assert graph.user is not None
            clock.read_until(graph.user)
        # Of those in flight the first has waited longest.
        bound.timed_graphs.remove(graph)
        bound.timed_graphs.append(graph)
        graph.set_steps(graph.stale | bound.stale)
        graph.stale.clear()
        graph.runs += 1
        begin = clock.record()
        name = "cuGraphLaunch"
        code = self._driver.functions[name](graph.executable, self._context.stream)
        if code:
            raise self._driver.error(name, code, who(bound.names))
        self._context.progress.mark(bound.names)
        # An event of a graph that waits to run passes for one that was recorded.
        events = [begin, *graph.events, clock.record()]
        user = graph.user = TimedEvents(clock, events, bound.labels, EventsOf.GRAPH)
        return user
