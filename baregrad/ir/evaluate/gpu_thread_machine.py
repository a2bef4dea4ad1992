"""Threads of one block that run in step: all of an ordinary kernel's, or the 32 of a warp.

A value has one element (or vector) for each thread, unless it is the same for all. Threads that a
condition leaves out keep what they had. The MACHINE instructions are those that a table names
(`gpu_threads.py`, `gpu_hopper.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from baregrad.base.errors import CompilerBug
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import Array
from baregrad.ir.evaluate.gpu_cluster import Blocked, Cluster, ClusterBlock, Group, MBarrier
from baregrad.ir.evaluate.linear_level import LinearMachine
from baregrad.ir.evaluate.loop_level import poisoned
from baregrad.ir.protocol.attributes import ProtocolError

NOBODY, SEVERAL = -1, -2
_POISON = 0xFF


class ThreadBlock(ClusterBlock):
    """A block with the bytes of its shared memory at real addresses and its pool of registers."""

    def __init__(self, rank: int, number: int, nbytes: int, warps: int, registers: int) -> None:
        super().__init__(rank, number)
        self.shared = np.full(nbytes, _POISON, np.uint8)
        # The warp (plus one) that wrote a byte which engines do not see yet.
        self.writer = np.zeros(nbytes, np.uint8)
        self.held = [registers] * warps
        self.free = 0
        self.warps: tuple[Threads, ...] = ()
        # Shared memory as the arrays of code of one thread.
        self.arrays: dict[Node, Array] = {}

    def array(self, node: Node) -> Array:
        """The flat memory of an array in shared memory."""
        if node not in self.arrays:
            count = int(np.prod(node.shape, dtype=np.int64)) * max(node.arg.depth, 1)
            self.arrays[node] = poisoned(count, node.dtype)
        return self.arrays[node]

    def seen(self, places: Array) -> Array:
        """Bytes as engines see them: poison where no fence has followed the write."""
        return np.where(self.writer[places] == 0, self.shared[places], np.uint8(_POISON))


class Threads(LinearMachine):
    """The state of threads in step. `blocks` are those of the cluster, theirs has the `rank`.

    threads: their numbers in the block. instructions: what each MACHINE does, by name.
    """

    def __init__(
        self,
        program: Node,
        params: Mapping[int, Array],
        variables: Mapping[str, int],
        cluster: Cluster,
        blocks: Sequence[ThreadBlock],
        rank: int,
        threads: Array,
        instructions: Mapping[str, Callable[[Threads, Node], None]],
    ) -> None:
        self.cluster = cluster
        self.blocks = blocks
        self.block = blocks[rank]
        self.instructions = instructions
        known: dict[str, int | Array] = {**variables, ".thread": threads}
        known[".block"] = self.block.number
        known |= {".cluster": cluster.number, ".rank": rank}
        super().__init__(program, params, known, threads=threads)
        self.lanes_are_threads = is_of_warps(program)
        self.number = int(threads[0]) // cluster.target.warp_lanes
        self.pace = (rank, self.number)
        self.blocked: Blocked | None = None
        # Who has touched each element of shared memory since the last barrier, and where copies
        # are under way.
        self.writers: dict[Node, Array] = {}
        self.readers: dict[Node, Array] = {}
        self.flying: dict[Node, Array] = {}
        # Asynchronous work by its kind: of no group yet, and groups, the oldest first.
        self.loose = {kind: Group() for kind in ("copy", "store", "mma")}
        self.groups: dict[str, list[Group]] = {kind: [] for kind in self.loose}
        # Accumulators that the matrix unit holds; their registers are poison meanwhile.
        self.hidden: dict[Node, Array] = {}

    def __str__(self) -> str:
        return f"warp {self.number} of block {self.block.rank} at instruction {self.next}"

    @property
    def ended(self) -> bool:
        """Whether the last instruction has run, and waits for nobody."""
        return super().ended and self.blocked is None

    def step(self) -> None:
        """Run some instructions, up to one that has to wait."""
        self.blocked = None
        for _ in range(self.cluster.rng.randint(1, 12)):
            if self.ended or self.blocked is not None:
                return
            super().step()

    def again(self, what: Callable[[], str], over: Callable[[], bool]) -> bool:
        """Whether a condition holds; if not, the present instruction is run again when it does."""
        if over():
            return False
        self.blocked = Blocked(what, over)
        self.next -= 1
        return True

    def machine(self, node: Node) -> None:
        """Run a MACHINE."""
        rule = self.instructions.get(node.arg.name)
        if rule is None:
            raise CompilerBug("an instruction that nobody knows", found=node.arg.name)
        rule(self, node)

    def uniform(self, node: Node) -> int:
        """The value of an operand, which must be the same in all active threads."""
        values = np.broadcast_to(self.use(node), self.threads.shape)[self.active]
        if (values != values[0]).any():
            raise ProtocolError(
                f"{self} gives a uniform operand several values", found=values.tolist()
            )
        return int(values[0])

    def buffer(self, node: Node) -> Array:
        """The flat memory of an array: shared memory is all threads' of the block."""
        if node.op is not Ops.ALLOC or node.arg.space != "shared":
            return super().buffer(node)
        return self.block.array(node)

    def barrier_key(self, src: Sequence[Node]) -> tuple[Hashable, Sequence[Node]]:
        """What names a barrier, an address or an element of an array, and the sources behind it."""
        if src[0].op is Ops.ALLOC:
            return (src[0].arg.name, self.uniform(src[1])), src[2:]
        return self.uniform(src[0]), src[1:]

    def barrier(self, src: Sequence[Node]) -> MBarrier:
        """The barrier that an instruction names first."""
        key, _ = self.barrier_key(src)
        return self.block.barrier(key)

    def give(self, node: Node, number: int) -> None:
        """Make a number the value of an instruction in all threads."""
        self.values[node] = np.asarray(number, np.int64)

    def commit(self, kind: str) -> Group:
        """Close the group of what was started last."""
        group, self.loose[kind] = self.loose[kind], Group()
        self.groups[kind].append(group)
        return group

    def check_exit(self) -> None:
        """Raise ProtocolError while matrix instructions or bulk stores are in flight."""
        if any(not group.done for kind in ("store", "mma") for group in self.groups[kind]):
            raise ProtocolError(f"{self} exits with work in flight")

    def meet(self, what: str) -> None:
        """Raise ProtocolError unless all threads are here."""
        if not self.active.all():
            missing = self.threads[~self.active].tolist()[:8]
            raise ProtocolError(f"{what} where threads {missing} do not come")

    def see(self, node: Node, array: Node, places: Array) -> None:
        """Raise ProtocolError unless elements of shared memory are there for the block to read."""
        size = self.buffer(array).size
        flying = self.flying.get(array)
        written = self.writers.get(array)
        if (flying is not None and flying[places].any()) or (
            written is not None and (written[places] != NOBODY).any()
        ):
            raise ProtocolError(f"{node!r} reads {array!r} before its threads have met")
        self.readers.setdefault(array, np.full(size, NOBODY))[places] = SEVERAL

    def note(self, node: Node, offset: Array, active: Array, write: bool) -> None:
        """Remember who touches shared memory; raise ProtocolError for a race."""
        array = node.src[0]
        if array.op is not Ops.ALLOC or array.arg.space != "shared":
            return
        size = self.buffer(array).size
        writer = self.writers.setdefault(array, np.full(size, NOBODY))
        reader = self.readers.setdefault(array, np.full(size, NOBODY))
        who = self.threads[:, None] if offset.ndim > 1 else self.threads
        who = np.broadcast_to(who, offset.shape)[active]
        places = offset[active]
        flying = self.flying.get(array)
        if flying is not None and flying[places].any():
            place = places[flying[places]][0]
            raise ProtocolError(
                f"element {place} of {array!r} is touched while a copy to it is under way"
            )
        if not self._mark(writer, reader, places, who, write):
            self._blame(node, writer, reader, places, who, write)

    @staticmethod
    def _mark(writer: Array, reader: Array, places: Array, who: Array, write: bool) -> bool:
        """Enter who touches places; return False, with nothing entered, where threads race."""
        written, read = writer[places], reader[places]
        if ((written != NOBODY) & (written != who)).any():
            return False
        if write:
            if ((read != NOBODY) & (read != who)).any():
                return False
            writer[places] = who
            if (writer[places] != who).any():
                writer[places] = written
                return False
            return True
        by = np.where((read == NOBODY) | (read == who), who, SEVERAL)
        reader[places] = by
        # Of several who read one element the last is entered.
        reader[places[reader[places] != by]] = SEVERAL
        return True

    def _blame(
        self, node: Node, writer: Array, reader: Array, places: Array, who: Array, write: bool
    ) -> None:
        """Raise ProtocolError for the first of the threads that race for elements of an array."""
        array = node.src[0]
        for place, thread in zip(places.tolist(), who.tolist(), strict=True):
            clash = writer[place] not in (NOBODY, thread)
            if write:
                clash = clash or reader[place] not in (NOBODY, thread)
                writer[place] = thread
            else:
                same = reader[place] in (NOBODY, thread)
                reader[place] = thread if same else SEVERAL
            if clash:
                raise ProtocolError(
                    f"threads race for element {place} of {array!r}: thread {thread} "
                    f"{'writes' if write else 'reads'} it in {node!r}"
                )


def is_of_warps(program: Node) -> bool:
    """Whether a PROGRAM is the code of a warp, whose vectors have an element in each thread."""
    return any(node.op is Ops.MACHINE and node.arg.name == "warp" for node in program.src)
