"""Races in shared memory, found by what each thread knows of each other's progress.

Every thread, and every thread's asynchronous copies, is an agent with a clock that counts its
synchronisations. `known[t, a]` is the clock of agent `a` up to which its accesses come before what
thread `t` does next. Two accesses to one granule, one of them a write, race unless the earlier
agent's clock was known (C. Flanagan and S. Freund, "FastTrack: efficient and precise dynamic race
detection", PLDI 2009). Of the readers since the last write two are kept, so a race with a third
that a partial barrier left out can be missed; none is ever reported that is not there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from baregrad.testing.virtual_gpu.ptx.types import Array


class Race(NamedTuple):
    """Which access of the instruction races, and with whose earlier one; both are agents."""

    place: int
    agent: int
    other: int
    kind: str


class SharedRaces:
    """The accesses of one block's shared memory; `granule` is the size in bytes of a cell."""

    def __init__(self, threads: int, nbytes: int, granule: int) -> None:
        self.threads = threads
        self.granule = granule
        count = -(-nbytes // granule)
        self._writer = np.full(count, -1, np.int32)
        self._write_clock = np.zeros(count, np.int32)
        self._write_atomic = np.zeros(count, bool)
        self._readers = np.full((2, count), -1, np.int32)
        self._read_clocks = np.zeros((2, count), np.int32)
        # Ordinary stores that no fence has shown to bulk copies yet.
        self._hidden = np.zeros(count, bool)
        # While only whole blocks have met, one number says what everybody knows.
        self._epoch = 1
        self._known: Array | None = None
        self._copies = False
        self._copy_clocks: dict[int, int] = {}

    # ---- what comes before what -----------------------------------------------------------------

    def known(self) -> Array:
        """Return the table of clocks, (threads, 2 * threads): own clocks on the diagonal."""
        if self._known is None:
            count = self.threads
            self._known = np.full((count, 2 * count), self._epoch - 1, np.int32)
            np.fill_diagonal(self._known[:, :count], self._epoch)
        return self._known

    def meet_all(self) -> None:
        """Order everything that the block's threads did before what they do next."""
        if self._known is None:
            self._epoch += 1
        elif not self._copies:
            self._epoch = int(self._known.max()) + 1
            self._known = None
        else:
            self._known[:] = self._known.max(axis=0)
            self._tick(np.arange(self.threads))

    def meet(self, threads: Array) -> None:
        """Order everything that some threads did before what those threads do next."""
        known = self.known()
        known[threads] = known[threads].max(axis=0)
        self._tick(threads)

    def release(self, threads: Array, into: Array | None) -> Array:
        """Return what `into` and the threads know together: what a barrier object carries."""
        known = self.known()
        what = known[threads].max(axis=0)
        self._tick(threads)
        return np.asarray(what if into is None else np.maximum(what, into))

    def acquire(self, threads: Array, what: Array) -> None:
        """Let threads know what a barrier object carries."""
        known = self.known()
        known[threads] = np.maximum(known[threads], what)

    def start_copy(self, thread: int) -> tuple[int, int]:
        """Return the (agent, clock) of a new asynchronous copy of a thread."""
        known = self.known()
        self._copies = True
        agent = self.threads + thread
        clock = self._copy_clocks.get(agent, int(known[:, agent].max())) + 1
        self._copy_clocks[agent] = clock
        return agent, clock

    def finish_copy(self, thread: int, agent: int, clock: int) -> None:
        """Order a copy, and its agent's earlier ones, before what a thread does next."""
        known = self.known()
        known[thread, agent] = max(int(known[thread, agent]), clock)

    def _tick(self, threads: Array) -> None:
        known = self.known()
        known[threads, threads] += 1

    def _after(self, threads: Array, agents: Array, clocks: Array) -> Array:
        """Whether threads know of agents' accesses at their clocks."""
        if self._known is None:
            return np.asarray((clocks < self._epoch) | (agents == threads))
        return np.asarray(self._known[threads, agents] >= clocks)

    # ---- accesses -------------------------------------------------------------------------------

    def _spread(self, offsets: Array, nbytes: int) -> tuple[Array, int]:
        count = max(nbytes // self.granule, 1)
        first = offsets // self.granule
        if count == 1:
            return first, 1
        return (first[:, None] + np.arange(count)).reshape(-1), count

    def read(
        self,
        threads: Array,
        offsets: Array,
        nbytes: int,
        atomic: bool = False,
        copy: tuple[int, int] | None = None,
    ) -> Race | None:
        """Note reads of `nbytes` bytes at offsets; return a race with an earlier write."""
        places, count = self._spread(offsets, nbytes)
        by = np.repeat(threads, count) if count > 1 else threads
        writers = self._writer[places]
        bad = (writers >= 0) & (writers != by)
        if bad.any():
            if atomic:
                bad &= ~self._write_atomic[places]
            bad &= ~self._after(by, writers, self._write_clock[places])
            if bad.any():
                at = int(np.argmax(bad))
                return Race(at // count, int(by[at]), int(writers[at]), "reads what is written")
        self._note_readers(places, by, copy)
        return None

    def _note_readers(self, places: Array, by: Array, copy: tuple[int, int] | None) -> None:
        if copy is not None:
            agents = np.full(len(places), copy[0], np.int32)
            clocks = np.full(len(places), copy[1], np.int32)
        else:
            agents = by
            clocks = self._own_clocks(by)
        first = self._readers[0, places]
        settled = (first < 0) | (first == agents)
        settled |= self._after(by, first, self._read_clocks[0, places])
        if not settled.all():
            # A concurrent reader keeps its slot; the new one takes the other.
            other = ~settled
            self._readers[1, places[other]] = agents[other]
            self._read_clocks[1, places[other]] = clocks[other]
            places, agents, clocks = places[settled], agents[settled], clocks[settled]
        self._readers[0, places] = agents
        self._read_clocks[0, places] = clocks
        # Of several readers in one instruction the last is in the first slot; keep the first too.
        rest = self._readers[0, places] != agents
        if rest.any():
            self._readers[1, places[rest][::-1]] = agents[rest][::-1]
            self._read_clocks[1, places[rest][::-1]] = clocks[rest][::-1]

    def write(
        self,
        threads: Array,
        offsets: Array,
        nbytes: int,
        atomic: bool = False,
        copy: tuple[int, int] | None = None,
    ) -> Race | None:
        """Note writes of `nbytes` bytes at offsets; return a race with an earlier access."""
        places, count = self._spread(offsets, nbytes)
        by = np.repeat(threads, count) if count > 1 else threads
        writers = self._writer[places]
        agents = by if copy is None else np.full(len(places), copy[0], np.int32)
        bad = writers >= 0
        if copy is None:
            # Of a thread's own accesses the later comes after; of its copies not so.
            bad &= writers != agents
        if bad.any():
            if atomic:
                bad &= ~self._write_atomic[places]
            bad &= ~self._after(by, writers, self._write_clock[places])
            if bad.any():
                at = int(np.argmax(bad))
                return Race(at // count, int(by[at]), int(writers[at]), "writes what is written")
        for slot in (0, 1):
            readers = self._readers[slot, places]
            bad = (readers >= 0) & (readers != by)
            if bad.any():
                bad &= ~self._after(by, readers, self._read_clocks[slot, places])
                if bad.any():
                    at = int(np.argmax(bad))
                    return Race(at // count, int(by[at]), int(readers[at]), "writes what is read")
        self._writer[places] = agents
        self._write_clock[places] = self._own_clocks(by) if copy is None else copy[1]
        self._write_atomic[places] = atomic
        self._hidden[places] = copy is None
        self._readers[:, places] = -1
        return None

    def fence(self, threads: Array) -> None:
        """Show what threads stored to bulk copies (`fence.proxy.async`)."""
        if self._hidden.any():
            self._hidden &= ~np.isin(self._writer, threads)

    def unfenced(self, offsets: Array, nbytes: int) -> int | None:
        """Return a thread whose store to these bytes no fence has shown, None if there is none."""
        places, _ = self._spread(offsets, nbytes)
        hidden = self._hidden[places]
        return int(self._writer[places][int(np.argmax(hidden))]) if hidden.any() else None

    def _own_clocks(self, threads: Array) -> Array:
        if self._known is None:
            return np.full(len(threads), self._epoch, np.int32)
        return np.asarray(self._known[threads, threads])
