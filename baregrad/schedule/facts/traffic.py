"""What a GPU's memory moves: the bytes behind each value, for weighing storing against computing.

A GPU does several operations in the time in which it moves a byte. What one kernel reads again and
again comes from its caches; each kernel that reads an array moves it once.
"""

from __future__ import annotations

from collections.abc import Mapping

from baregrad.ir.core.node import Node
from baregrad.ir.core.op import ELEMENTWISE, Ops, mask_of
from baregrad.schedule.facts.survey import LEAVES, VIEWED, Survey, is_dear, own_work

# Operations of float32 in the time of a byte, on the large GPUs of several generations.
OPERATIONS_PER_BYTE = 8.0
# What all threads of a large GPU compute in the two microseconds that a launch takes beside its
# work, and the values of what they may as well all make anew.
GPU_LAUNCH, FEW_VALUES = 6e7, 64
_STORED = frozenset((*LEAVES, Ops.SCATTER, Ops.SCAN))
_READS = Ops.PARAM.bit | Ops.BUFFER.bit
_HELD = (Ops.PARAM, Ops.BUFFER, Ops.CONTIGUOUS)
_ELEMENTWISE = mask_of(ELEMENTWISE)
# Values below one that are looked at; what is further down is not counted.
FAR = 64


class Traffic:
    """The bytes of memory behind values, each worked out once it is asked for.

    outputs: values that are in memory whatever is decided. only_readers: of each value with one
    reader, that.
    """

    def __init__(
        self, survey: Survey, outputs: frozenset[Node], only_readers: Mapping[Node, Node]
    ) -> None:
        self.survey = survey
        self.outputs = outputs
        self.only_readers = only_readers
        self.known: dict[Node, dict[Node, float]] = {}

    def behind(self, node: Node) -> dict[Node, float]:
        """The bytes that computing all of a value reads of each stored one, were it not stored."""
        found = self.known.get(node)
        if found is None:
            found = self.known[node] = self._behind(node)
        return found

    def arrays(self, node: Node) -> set[Node]:
        """The stored values that a value is read or computed from."""
        return {node} if self._stored_nbytes(node) else set(self.behind(node))

    def _behind(self, node: Node) -> dict[Node, float]:
        size = self.survey.size
        found: dict[Node, float] = {}
        seen = {node}
        pending = [node]
        for value in pending:
            for child in value.src:
                # No more is read than what a view, or a place for each element, leaves of it.
                count = size[value.shape] if value.op is Ops.GATHER else size[child.shape]
                while child.op.bit & VIEWED:
                    child = child.src[0]
                    count = min(count, size[child.shape])
                if child in seen or not child.mask & _READS:
                    continue
                seen.add(child)
                nbytes = self._stored_nbytes(child)
                if nbytes:
                    found[child] = count * nbytes
                elif len(pending) < FAR:
                    pending.append(child)
        return found

    def _stored_nbytes(self, node: Node) -> int:
        """Bytes of an element, as narrow as it can be stored; 0 if it most likely is not."""
        survey, nbytes = self.survey, node.dtype.itemsize
        if node.op in _STORED or node in self.outputs:
            return nbytes
        if node in survey.contractions:
            reader = self.only_readers.get(node)
            return nbytes if reader is None else min(nbytes, reader.dtype.itemsize)
        if survey.readers[node] < 2 or not is_dear(node, survey.work.get(node, 0.0), survey):
            return 0
        return min(nbytes, node.src[0].dtype.itemsize) if node.op is Ops.CAST else nbytes


def is_little(node: Node) -> bool:
    """Whether a value is a few operations on one array, of 16 bits or asked for in memory."""
    if is_half(node):
        return False
    arrays, found, waiting = set[Node](), {node}, [node]
    while waiting:
        value = waiting.pop()
        if value.op is Ops.CONST:
            continue
        if value.op in _HELD or is_half(value):
            while value.op.bit & VIEWED:
                value = value.src[0]
            arrays.add(value)
            continue
        if not value.op.bit & (_ELEMENTWISE | VIEWED) or own_work(value) > 1.0:
            return False
        if len(found) > FEW_VALUES or len(arrays) > 1:
            return False
        new = [child for child in value.src if child not in found]
        found.update(new)
        waiting.extend(new)
    return len(arrays) == 1


def is_half(value: Node) -> bool:
    """Whether a value is of 16-bit floats."""
    return value.dtype.is_float and value.dtype.bits == 16
