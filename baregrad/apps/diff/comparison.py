"""Compares what a device computes with a reference, and finds the operation that begins it.

Whatever the program computes is computed once more from the same bits, the first time with every
value stored, so that the first operation which differs by more than its dtype lets it is known.
Where results differ and no stored value does, fused kernels alone are at fault: which value mends
them when it is stored is found by halving.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baregrad.apps.diff.apart import apart
from baregrad.apps.diff.births import birth, broken_text, is_broken
from baregrad.apps.diff.judging import (
    Array,
    OpDifference,
    candidates,
    difference,
    largest,
    magnitude,
    nearest,
    tolerances,
    values_of,
)
from baregrad.apps.diff.references import Reference, asking, run
from baregrad.apps.diff.smallest import ShownFault, smallest
from baregrad.base.errors import DriverError, IndexOutOfRange
from baregrad.engine.canonical import Canonical
from baregrad.engine.session import Session
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import CONTROL_MASK, Ops

# So many times what roundings come to in one run they may come to in another.
_NOISES = 16


class FoundDifference(BaseException):
    """Ends the program; not to be caught by it."""

    def __init__(self, found: OpDifference) -> None:
        super().__init__(found)
        self.difference = found


class Comparison:
    """Computes what a backend computes once more and judges it.

    reference: what is right; None to look for values that are not finite instead. tolerance: the
    largest difference, by the largest magnitude in the array; None for what the dtype lets sums
    differ. against: how a script names the reference, "" for no script. `runs` counts what was
    computed on the device beside the program itself, for the finding alone.
    """

    def __init__(
        self, session: Session, reference: Reference | None, *, tolerance: float | None = None,
        against: str = "",
    ) -> None:
        self._session = session
        self._reference = reference
        self._tolerance = tolerance
        self._against = against
        self._known: set[Node] = set()
        self.compared = 0
        self.runs = 0

    def watch(self, backend: Any) -> None:
        """Compare what a backend computes from now on; the first difference ends the program."""
        original = backend.execute

        def execute(executable: Any, program: Canonical, where: Any) -> Any:
            raw = [ref.handle.contents() for ref in program.inputs]
            finding = _Finding(self, backend, original, program, raw)
            try:
                results = original(executable, program, where)
                values = [one.contents() for one in results]
            except DriverError as error:
                raise FoundDifference(finding.stopped(error)) from error
            self.compared += 1
            found = finding.judge(values)
            if found is not None:
                raise FoundDifference(found)
            return results

        backend.execute = execute

    def is_fresh(self, program: Canonical) -> bool:
        """Whether a program is looked at for the first time."""
        fresh = program.sink not in self._known
        self._known.add(program.sink)
        return fresh

    def described(
        self, program: Canonical, node: Node, told: str, *, within: bool = False, script: str = ""
    ) -> OpDifference:
        """Return a difference at a node."""
        shape = ", ".join(map(str, self._session.concrete(node.shape, program.variables)))
        where = self._session.line_of(program, node)
        op = f"{node.op.name} {node.dtype.name}[{shape}]"
        alike = [
            one for one in candidates(program.sink)
            if (one.op, one.dtype, one.shape) == (node.op, node.dtype, node.shape)
            and self._session.line_of(program, one) == where
        ]  # fmt: skip
        which = (alike.index(node) + 1, len(alike)) if node in alike else (1, 1)
        return OpDifference(op, where, told, within, script, which)


class _Finding:
    """One computation: a program over its inputs."""

    def __init__(
        self, comparison: Comparison, backend: Any, execute: Any, program: Canonical,
        raw: Sequence[Array],
    ) -> None:
        self._comparison = comparison
        self._backend = backend
        self._execute = execute
        self._program = program
        self._raw = raw
        # What is right, of each node that was asked for.
        self._right: dict[Node, Array] = {}
        # By how much of its largest magnitude each may differ from that.
        self._allowed = dict(tolerances(program.sink))
        # The largest of what sums add up, where less may be left of it.
        self._scales: dict[Node, float] = {}

    def judge(self, results: Sequence[Array]) -> OpDifference | None:
        """Return the first difference of a computation, None where there is none."""
        comparison, program = self._comparison, self._program
        reference = comparison._reference
        if reference is None:
            found = [values_of(*pair) for pair in zip(results, program.sink.src, strict=True)]
            if program.sink.mask & CONTROL_MASK:
                return self._born_inside(found)
            if comparison.is_fresh(program) or any(is_broken(one) for one in found):
                return self._born(found)
            return None
        parted = reference.begin(program, self._raw)
        if parted:
            return comparison.described(program, program.sink.src[0], parted)
        if program.sink.mask & CONTROL_MASK:
            # Loops and choices run step by step; what is inside is computed with nothing stored.
            wrong = self._told(program.sink.src, results)
            first = next(iter(wrong), None)
            return None if first is None else comparison.described(program, first, wrong[first])
        if not comparison.is_fresh(program) and not self._told(program.sink.src, results):
            return None
        return self._differs(results)

    def _told(self, nodes: Sequence[Node], results: Sequence[Array]) -> dict[Node, str]:
        """Say of each of some nodes how its result differs; those that do not are left out."""
        reference = self._comparison._reference
        assert reference is not None
        self._ask(nodes)
        found = {}
        for node, one in zip(nodes, results, strict=True):
            values = reference.picked(values_of(one, node))
            scale = self._scales.get(node, 0.0)
            told = difference(node.dtype, values, self._right[node], self._tolerance(node), scale)
            if told:
                found[node] = told
        return found

    def _tolerance(self, node: Node) -> float:
        given = self._comparison._tolerance
        return self._allowed[node] if given is None else given

    def _ask(self, nodes: Sequence[Node]) -> None:
        """Have the reference compute what it was not asked for yet."""
        reference = self._comparison._reference
        assert reference is not None
        missing = [node for node in dict.fromkeys(nodes) if node not in self._right]
        if missing:
            wanted = reference.wanted(asking(self._program, missing), self._raw)
            self._right.update(zip(missing, wanted, strict=True))

    def _run(self, nodes: Sequence[Node]) -> list[Array]:
        self._comparison.runs += 1
        return run(self._backend, self._execute, asking(self._program, nodes), self._raw)

    def _differs(self, results: Sequence[Array]) -> OpDifference | None:
        nodes = candidates(self._program.sink)
        try:
            stored = self._run(nodes) if nodes else []
        except DriverError as error:
            return self.stopped(error)
        values, asked = dict(zip(nodes, stored, strict=True)), self._program.sink.src
        together = self._allowed
        found = self._first_wrong(nodes, stored)
        if found is not None:
            return found
        self._allowed = together
        # An integer that is made of computed floats may be another one where these are rounded
        # otherwise, as they are in one kernel; by itself it was right.
        judged = [pair for pair in zip(asked, results, strict=True)
                  if pair[0].dtype.is_float or not together[pair[0]]]  # fmt: skip
        wrong = self._told([one for one, _ in judged], [one for _, one in judged])
        if wrong and self._comparison._tolerance is None and self._allow_for_noise(list(wrong)):
            wrong = self._told([one for one, _ in judged], [one for _, one in judged])
        if not wrong:
            return None
        node, told = next(iter(wrong.items()))
        return self._fused(nodes, node, told, values)

    def _allow_for_noise(self, results: Sequence[Node]) -> bool:
        """Let results differ by what roundings before them come to; return whether that is known.

        That is how far the reference, from the program's inputs on, is from what is right of the
        device's own values: a quotient of small numbers makes much of their last bits.
        """
        reference = self._comparison._reference
        assert reference is not None
        if not reference.computes:
            return False
        whole = reference.wanted(asking(self._program, results), self._raw)
        for node, one in zip(results, whole, strict=True):
            if node.dtype.is_float:
                right = self._right[node].reshape(-1)
                scale = max(largest(right), self._scales.get(node, 0.0))
                noise = _NOISES * largest(one.reshape(-1) - right) / scale if scale else 0.0
                self._allowed[node] = max(self._allowed[node], noise)
        return True

    def _first_wrong(self, nodes: Sequence[Node], stored: Sequence[Array]) -> OpDifference | None:
        """Return the first difference of operations that were stored."""
        values = dict(zip(nodes, stored, strict=True))
        results = [] if len(nodes) < len(candidates(self._program.sink)) else self._program.sink.src
        try:
            self._ask_apart(values, results)
        except IndexOutOfRange:
            # What some indices are made of is wrong, or else it is the program's own mistake.
            count = self._count_fine(nodes, stored)
            found = self._first_wrong(nodes[:count], stored[:count]) if count else None
            if found is None:
                raise
            return found
        wrong = self._told(nodes, stored)
        first = next((node for node in nodes if node in wrong), None)
        return None if first is None else self._found(first, wrong[first], values, within=False)

    def _count_fine(self, nodes: Sequence[Node], stored: Sequence[Array]) -> int:
        """Return how many operations the reference computes before one whose indices it refuses."""
        fine, bad = 0, len(nodes)
        while bad - fine > 1:
            middle = (fine + bad) // 2
            try:
                self._ask_apart(dict(zip(nodes[:middle], stored[:middle], strict=True)), [])
            except IndexOutOfRange:
                bad = middle
            else:
                fine = middle
        return fine

    def _ask_apart(self, values: Mapping[Node, Array], results: Sequence[Node]) -> None:
        """Have the reference compute each operation of the values that the device had before it.

        All at once. A recording has what it has: values of the same program from its inputs on.
        """
        reference = self._comparison._reference
        assert reference is not None
        nodes = list(dict.fromkeys([*values, *results]))
        if not reference.computes:
            self._ask(nodes)
            return
        program, raw = apart(self._program, self._raw, values, nodes, self._backend.name)
        alone = program.sink.src
        sums = {node: added for node, one in zip(nodes, alone, strict=True)
                if (added := magnitude(one)) is not None}  # fmt: skip
        wanted = reference.wanted(asking(program, [*alone, *sums.values()]), raw)
        self._right.update(zip(nodes, wanted, strict=False))
        self._scales.update(zip(sums, map(largest, wanted[len(nodes) :]), strict=True))
        allowed = tolerances(program.sink)
        self._allowed = {node: allowed[one] for node, one in zip(nodes, alone, strict=True)}

    def _fused(
        self, nodes: Sequence[Node], result: Node, told: str, values: Mapping[Node, Array]
    ) -> OpDifference:
        """Halve what is stored beside a wrong result, until one value more makes it right."""
        below = set(toposort(result))
        inside = [one for one in nodes if one in below and one is not result]
        wrong, right = 0, len(inside)
        while right - wrong > 1:
            middle = (wrong + right) // 2
            (found, *_) = self._run([result, *inside[:middle]])
            if self._told([result], [found]):
                wrong = middle
            else:
                right = middle
        node = inside[wrong] if inside else result
        return self._found(node, told, values, within=True, result=result)

    def _found(
        self, node: Node, told: str, values: Mapping[Node, Array], *, within: bool,
        result: Node | None = None,
    ) -> OpDifference:
        """A difference, with the smallest script that shows it."""
        comparison = self._comparison
        bare = comparison.described(self._program, node, told, within=within)
        if not comparison._against:
            return bare
        shown = ShownFault(
            self._program, tuple(self._raw), node, node if result is None else result, values,
            str(bare), self._backend.name, comparison._against, comparison._tolerance,
        )
        script = smallest(shown, self._is_shown)
        return comparison.described(self._program, node, told, within=within, script=script)

    def _is_shown(self, program: Canonical, raw: Sequence[Array]) -> bool:
        """Whether a smaller program differs as well."""
        reference = self._comparison._reference
        assert reference is not None
        results = run(self._backend, self._execute, program, raw)
        wanted, allowed = reference.wanted(program, raw), tolerances(program.sink)
        given = self._comparison._tolerance
        return any(
            difference(node.dtype, values_of(one, node), two,
                       allowed[node] if given is None else given)
            for node, one, two in zip(program.sink.src, results, wanted, strict=True)
        )

    # Kernels that are stopped.

    def stopped(self, error: DriverError) -> OpDifference:
        """Halve what is computed until it is known with which operation the device stops."""
        nodes = candidates(self._program.sink)
        fine, bad = 0, len(nodes) + 1
        told, within = error, True
        while bad - fine > 1:
            # All of them first: where that is done, only kernels of several are stopped.
            middle = len(nodes) if bad > len(nodes) else (fine + bad) // 2
            try:
                self._run(nodes[:middle])
            except DriverError as again:
                bad, told, within = middle, again, False
            else:
                fine = middle
        node = nodes[bad - 1] if bad <= len(nodes) else self._program.sink.src[0]
        text = f"the device stopped: {told.message}"
        return self._comparison.described(self._program, node, text, within=within)

    # Values that are not finite.

    def _born_inside(self, results: Sequence[Array]) -> OpDifference | None:
        """Return the first broken result of a loop or a choice that is given whole values."""
        params = [one for one in toposort(self._program.sink) if one.op is Ops.PARAM]
        if any(is_broken(values_of(self._raw[one.arg.slot], one)) for one in params):
            return None
        for node, data in zip(self._program.sink.src, results, strict=True):
            if is_broken(data):
                return self._comparison.described(self._program, node, broken_text(data))
        return None

    def _born(self, results: Sequence[Array]) -> OpDifference | None:
        program, sink = self._program, self._program.sink
        nodes = candidates(sink)
        given = [one for one in toposort(sink) if one.op is Ops.CONST]
        given += [one for one in toposort(sink) if one.op is Ops.PARAM]
        asked = [*nodes, *given]
        found = self._run(asked) if nodes else []
        values = {node: values_of(one, node) for node, one in zip(asked, found, strict=False)}
        born = birth(nodes, values, sink.src)
        if born is not None:
            return self._comparison.described(program, *born)
        # Stored by themselves all are finite, or their infinities are the program's.
        known = set(nodes)
        for node, data in zip(sink.src, results, strict=True):
            own = [node] if node in known else nearest(node, known)
            below = [values[one] for one in own if one in values]
            if is_broken(data) and below and not any(map(is_broken, below)):
                return self._comparison.described(program, node, broken_text(data), within=True)
        return None
