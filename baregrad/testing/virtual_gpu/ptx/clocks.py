"""What each thread knows of each other's progress: what comes before what.

Every thread is an agent with a clock that counts its synchronisations, and so are every thread's
asynchronous copies, its bulk copies, and the matrix unit of each four warps: what waits for one of
them does not wait for the others.
`known[t, a]` is the clock of agent `a` up to which its accesses come before what thread `t` does
next. The threads of a cluster's blocks share one table: block after block.
"""

from __future__ import annotations

import numpy as np

from baregrad.testing.virtual_gpu.ptx.types import Array

# Threads that share a matrix unit.
GROUP = 128


class Clocks:
    """The clocks of `threads` threads, agents 0 to `threads` - 1, and of their copies after them.

    Behind those are their bulk copies, and then the matrix units of warpgroups. Agents of all
    arguments are threads, unless they are said to be copies' as well.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.agents = 3 * threads + -(-threads // GROUP)
        # While only all threads together have met, one number says what everybody knows.
        self._epoch = 1
        self._known: Array | None = None
        self._copies = False
        self._copy_clocks: dict[int, int] = {}

    def known(self) -> Array:
        """Return the table of clocks, (threads, agents): own clocks on the diagonal."""
        if self._known is None:
            count = self.threads
            self._known = np.full((count, self.agents), self._epoch - 1, np.int32)
            np.fill_diagonal(self._known[:, :count], self._epoch)
        return self._known

    def meet(self, agents: Array) -> None:
        """Order everything that some threads did before what those threads do next."""
        if len(agents) == self.threads and self._known is None:
            self._epoch += 1
        elif len(agents) == self.threads and not self._copies:
            assert self._known is not None
            self._epoch = int(self._known.max()) + 1
            self._known = None
        else:
            known = self.known()
            known[agents] = known[agents].max(axis=0)
            self._tick(agents)

    def nothing(self) -> Array:
        """Return what a barrier object carries before anybody arrives."""
        return np.zeros(self.agents, np.int32)

    def release(self, agents: Array, into: Array | None) -> Array:
        """Return what `into` and the threads know together: what a barrier object carries."""
        known = self.known()
        what = known[agents].max(axis=0)
        self._tick(agents)
        return np.asarray(what if into is None else np.maximum(what, into))

    def acquire(self, agents: Array, what: Array) -> None:
        """Let threads know what a barrier object carries."""
        known = self.known()
        known[agents] = np.maximum(known[agents], what)

    def start_copy(self, agent: int, kind: str = "async") -> tuple[int, int]:
        """Return the (agent, clock) of a thread's new `async` or `bulk` copy, or `product`."""
        known = self.known()
        self._copies = True
        first = {"async": 1, "bulk": 2, "product": 3}[kind] * self.threads
        copy = first + (agent // GROUP if kind == "product" else agent)
        last = self._copy_clocks.get(copy)
        clock = (int(known[:, copy].max()) if last is None else last) + 1
        self._copy_clocks[copy] = clock
        return copy, clock

    def finish_copy(self, agent: int, copy: int, clock: int) -> None:
        """Order a copy, and its agent's earlier ones, before what a thread does next."""
        known = self.known()
        known[agent, copy] = max(int(known[agent, copy]), clock)

    def after(self, agents: Array, others: Array, clocks: Array) -> Array:
        """Whether threads know of others' accesses, perhaps copies', at their clocks."""
        if self._known is None:
            return np.asarray((clocks < self._epoch) | (others == agents))
        return np.asarray(self._known[agents, others] >= clocks)

    def own(self, agents: Array) -> Array:
        """Return the threads' own clocks."""
        if self._known is None:
            return np.full(len(agents), self._epoch, np.int32)
        return np.asarray(self._known[agents, agents])

    def newest(self, agents: slice, other: int) -> int:
        """Return the clock of another, perhaps of copies, that any of some threads knows of."""
        return self._epoch - 1 if self._known is None else int(self._known[agents, other].max())

    def _tick(self, agents: Array) -> None:
        known = self.known()
        known[agents, agents] += 1
