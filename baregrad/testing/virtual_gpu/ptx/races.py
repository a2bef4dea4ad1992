"""Races in shared memory, found by what each thread knows of each other's progress.

`clocks.py` says what comes before what. Two accesses to one granule, one of them a write, race
unless the earlier agent's clock was known (C. Flanagan and S. Freund, "FastTrack: efficient and
precise dynamic race detection", PLDI 2009). Of the readers since the last write two are kept, so a
race with a third that a partial barrier left out can be missed; none is ever reported that is not
there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from baregrad.testing.virtual_gpu.ptx.clocks import Clocks
from baregrad.testing.virtual_gpu.ptx.types import Array

# Agent and clock of a copy, or of one copy for each access.
Copies = tuple[int, int] | tuple[Array, Array]


class Race(NamedTuple):
    """Which access of the instruction races, and with whose earlier one; both are agents."""

    place: int
    agent: int
    other: int
    kind: str


class SharedRaces:
    """The accesses of one block's shared memory; `granule` is the size in bytes of a cell.

    Those who access it are agents of `clocks`: threads of the block, which are those of the slice
    `own`, or of others of its cluster.
    """

    def __init__(self, clocks: Clocks, own: slice, nbytes: int, granule: int) -> None:
        self.clocks = clocks
        self.own = own
        self.granule = granule
        count = -(-nbytes // granule)
        self._writer = np.full(count, -1, np.int32)
        self._write_clock = np.zeros(count, np.int32)
        self._write_atomic = np.zeros(count, bool)
        self._readers = np.full((2, count), -1, np.int32)
        self._read_clocks = np.zeros((2, count), np.int32)
        # Stores of threads, and copies that are not in bulk, that no fence has shown to bulk copies
        # and matrix units yet.
        self._hidden = np.zeros(count, bool)
        # The last clock at which each agent of another block came here, and its copies.
        self._visits: dict[int, int] = {}

    # ---- other blocks ---------------------------------------------------------------------------

    def _visit(self, agents: Array, copy: Copies | None) -> None:
        strange = (agents < self.own.start) | (agents >= self.own.stop)
        if strange.any():
            visits = (agents, self.clocks.own(agents)) if copy is None else copy
            visitors, clocks = (np.broadcast_to(one, agents.shape)[strange] for one in visits)
            for agent, clock in zip(visitors.tolist(), clocks.tolist(), strict=True):
                self._visits[agent] = max(self._visits.get(agent, 0), clock)

    def meet_visitors(self) -> None:
        """Note that all threads of the cluster have met: what they did here is over."""
        self._visits = {one: at for one, at in self._visits.items() if one >= self.clocks.threads}

    def uninvited(self) -> int | None:
        """Return an agent whose access no thread of the block knows of, None if there is none.

        Asked when the block ends: such an access may as well come after that.
        """
        for agent, clock in self._visits.items():
            if self.clocks.newest(self.own, agent) < clock:
                return agent
        return None

    # ---- accesses -------------------------------------------------------------------------------

    def _spread(self, offsets: Array, nbytes: int) -> tuple[Array, int]:
        count = max(nbytes // self.granule, 1)
        first = offsets // self.granule
        if count == 1:
            return first, 1
        return (first[:, None] + np.arange(count)).reshape(-1), count

    def are_apart(self, offsets: Array, nbytes: int) -> bool:
        """Whether accesses of `nbytes` bytes at offsets touch different granules."""
        places, _ = self._spread(offsets, nbytes)
        return len(np.unique(places)) == len(places)

    def read(
        self,
        agents: Array,
        offsets: Array,
        nbytes: int,
        atomic: bool = False,
        copy: tuple[int, int] | None = None,
    ) -> Race | None:
        """Note reads of `nbytes` bytes at offsets; return a race with an earlier write."""
        self._visit(agents, copy)
        places, count = self._spread(offsets, nbytes)
        by = np.repeat(agents, count) if count > 1 else agents
        writers = self._writer[places]
        bad = (writers >= 0) & (writers != by)
        if bad.any():
            if atomic:
                bad &= ~self._write_atomic[places]
            bad &= ~self.clocks.after(by, writers, self._write_clock[places])
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
            clocks = self.clocks.own(by)
        first = self._readers[0, places]
        settled = (first < 0) | (first == agents)
        settled |= self.clocks.after(by, first, self._read_clocks[0, places])
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
        agents: Array,
        offsets: Array,
        nbytes: int,
        atomic: bool = False,
        copy: Copies | None = None,
        bulk: bool = False,
    ) -> Race | None:
        """Note writes of `nbytes` bytes at offsets; return a race with an earlier access.

        copy: the copy that writes; or one for each access, which are then apart.
        bulk: whether a copy is seen by others of its kind without a fence.
        """
        self._visit(agents, copy)
        places, count = self._spread(offsets, nbytes)
        by = np.repeat(agents, count) if count > 1 else agents
        writers = self._writer[places]
        if copy is None:
            agents, moments = by, self.clocks.own(by)
        else:
            each = (np.broadcast_to(one, offsets.shape) for one in copy)
            agents, moments = (np.repeat(one, count) for one in each)
        bad = writers >= 0
        if copy is None:
            # Of a thread's own accesses the later comes after; of its copies not so.
            bad &= writers != agents
        if bad.any():
            if atomic:
                bad &= ~self._write_atomic[places]
            bad &= ~self.clocks.after(by, writers, self._write_clock[places])
            if bad.any():
                at = int(np.argmax(bad))
                return Race(at // count, int(by[at]), int(writers[at]), "writes what is written")
        for slot in (0, 1):
            readers = self._readers[slot, places]
            bad = (readers >= 0) & (readers != by)
            if bad.any():
                bad &= ~self.clocks.after(by, readers, self._read_clocks[slot, places])
                if bad.any():
                    at = int(np.argmax(bad))
                    return Race(at // count, int(by[at]), int(readers[at]), "writes what is read")
        self._writer[places] = agents
        self._write_clock[places] = moments
        self._write_atomic[places] = atomic
        self._hidden[places] = copy is None or not bulk
        self._readers[:, places] = -1
        return None

    def fence(self, agents: Array) -> None:
        """Show bulk copies what threads stored, and copied and waited for (`fence.proxy.async`)."""
        places = np.flatnonzero(self._hidden)
        writers = self._writer[places]
        own = np.where(writers < self.clocks.threads, writers, writers - self.clocks.threads)
        shown = np.isin(own, agents)
        if shown.any():
            places, own, writers = places[shown], own[shown], writers[shown]
            known = (own == writers) | self.clocks.after(own, writers, self._write_clock[places])
            self._hidden[places[known]] = False

    def unfenced(self, offsets: Array, nbytes: int) -> int | None:
        """Return a thread whose store to these bytes no fence has shown, None if there is none."""
        places, _ = self._spread(offsets, nbytes)
        hidden = self._hidden[places]
        return int(self._writer[places][int(np.argmax(hidden))]) if hidden.any() else None
