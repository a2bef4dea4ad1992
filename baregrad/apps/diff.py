"""`baregrad diff SCRIPT`: where a device first computes something else than another.

The program runs on its device. Whatever it computes is computed once more on the other device from
the same bits, the first time with every value stored, so that the first operation which differs by
more than its dtype lets it is known. Where results differ and no stored value does, fused kernels
alone are at fault: what is wrong is looked for by walking from the result to its sources. `--nan`
looks for the first value that is not finite though all that it is made of is.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from baregrad.base.errors import ArgumentError
from baregrad.base.options import DEVICE_NAMES, options
from baregrad.dtypes import DType, decode, dtypes, finfo
from baregrad.engine.backends import open_backend
from baregrad.engine.canonical import Canonical
from baregrad.engine.reference import storage_of
from baregrad.engine.script import run_script
from baregrad.engine.session import Session, use_session
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import MOVEMENT, Ops

Array = np.ndarray[Any, Any]
# A sum of many products may differ by so many units in the last place of its largest result.
_UNITS = 1024
# Values that only sums read, and that are larger than that, are looked at as the sum alone.
_LARGEST = 1 << 22
_LEAVES = frozenset({
    Ops.PARAM, Ops.CONST, Ops.IOTA, Ops.VAR, Ops.SINK, Ops.CONTIGUOUS, Ops.COPY, *MOVEMENT,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class OpDifference:
    """An operation whose result differs, or is not finite: the op, the user's line, statistics.

    `within`: whether that is so only where it is computed in one kernel with what it is made of.
    """

    op: str
    where: str
    told: str
    within: bool = False

    def __str__(self) -> str:
        fused = "\n  only where it is computed together with what it is made of" * self.within
        where = self.where or "a line that is not known"
        return f"{self.op}\n  asked for at {where}\n  {self.told}{fused}"


class FoundDifference(BaseException):
    """Ends the program; not to be caught by it."""

    def __init__(self, difference: OpDifference) -> None:
        super().__init__(difference)
        self.difference = difference


class Comparison:
    """Computes what a backend computes on another as well.

    tolerance: the largest difference, by the largest magnitude in the array; None for what the
    dtype lets sums differ. nan: look for values that are not finite instead. `runs` counts what
    was computed on the device beside the program itself.
    """

    def __init__(
        self, session: Session, other: Any, *, tolerance: float | None = None, nan: bool = False
    ) -> None:
        self._session = session
        self._other = other
        self._tolerance = tolerance
        self._nan = nan
        self._known: set[Node] = set()
        self.compared = 0
        self.runs = 0

    def watch(self, backend: Any) -> None:
        """Compare what a backend computes from now on; the first difference ends the program."""
        original = backend.execute

        def execute(executable: Any, program: Canonical, where: Any) -> Any:
            raw = [ref.handle.contents() for ref in program.inputs]
            results = original(executable, program, where)
            found = [one.contents() for one in results]
            self.compared += 1
            fresh = program.sink not in self._known
            self._known.add(program.sink)
            if fresh or self._is_bad(program, raw, found):
                difference = self._find(backend, original, program, raw, found)
                if difference is not None:
                    raise FoundDifference(difference)
            return results

        backend.execute = execute

    def _is_bad(self, program: Canonical, raw: Sequence[Array], found: Sequence[Array]) -> bool:
        nodes = program.sink.src
        if self._nan:
            return any(_is_broken(_values(*pair)) for pair in zip(found, nodes, strict=True))
        wanted = self._reference(program, raw)
        return any(
            self._told(node, one, two)
            for node, one, two in zip(nodes, found, wanted, strict=True)
        )

    def _told(self, node: Node, found: Array, wanted: Array) -> str:
        """Say how two results differ, "" where they do not."""
        return difference(node.dtype, _values(found, node), _values(wanted, node), self._tolerance)

    def _reference(self, program: Canonical, raw: Sequence[Array]) -> list[Array]:
        return self._run(self._other, self._other.execute, program, raw)

    def _run(
        self, backend: Any, execute: Any, program: Canonical, raw: Sequence[Array]
    ) -> list[Array]:
        """Compute a program over copies of its inputs."""
        refs = []
        for ref, data in zip(program.inputs, raw, strict=True):
            buffer = backend.device.allocate(data.nbytes)
            if data.nbytes:
                backend.device.copy_in(buffer, data)
            refs.append(ref._replace(handle=buffer, device=backend.name))
        made = replace(program, inputs=tuple(refs))
        return [one.contents() for one in execute(backend.prepare(made, {}), made, None)]

    # Where it begins.

    def _find(
        self, backend: Any, execute: Any, program: Canonical, raw: Sequence[Array],
        results: Sequence[Array],
    ) -> OpDifference | None:
        """The first operation of a program that differs; `results` are what it gave."""
        def probe(nodes: Sequence[Node]) -> dict[Node, str]:
            """Say of each node what is wrong with it where all of them are results."""
            asked = _asking(program, nodes)
            found = self._run(backend, execute, asked, raw)
            self.runs += 1
            if self._nan:
                values = {one: _values(data, one) for one, data in zip(nodes, found, strict=True)}
                return {one: _broken_text(data) for one, data in values.items()}
            wanted = self._reference(asked, raw)
            each = zip(nodes, found, wanted, strict=True)
            return {node: self._told(node, one, two) for node, one, two in each}

        nodes = candidates(program.sink)
        wrong = probe(nodes) if nodes else {}
        for node in nodes:
            if wrong[node]:
                return self._difference(program, node, wrong[node], within=False)
        if not self._is_bad(program, raw, results):
            return None
        # Stored by themselves all are right: walk down from what is wrong together.
        known = set(nodes)
        (node, told), *_ = [one for one in probe(program.sink.src).items() if one[1]] or [
            (program.sink.src[0], "a result differs, and does not when it is computed again")
        ]
        while True:
            below = _sources(node, known)
            worse = next(
                ((one, text) for one in below for text in probe([one]).values() if text), None
            )
            if worse is None:
                return self._difference(program, node, told, within=True)
            node, told = worse

    def _difference(
        self, program: Canonical, node: Node, told: str, *, within: bool
    ) -> OpDifference:
        made = program.origins.get(node)
        where = "" if made is None else self._session.origins.get(made, "")
        shape = ", ".join(map(str, self._session.concrete(node.shape, program.variables)))
        return OpDifference(f"{node.op.name} {node.dtype.name}[{shape}]", where, told, within)


def candidates(sink: Node) -> list[Node]:
    """Return the operations of a graph whose results are looked at, sources first."""
    order = toposort(sink)
    readers: dict[Node, list[Node]] = {}
    for node in order:
        for source in node.src:
            readers.setdefault(source, []).append(node)
    return [
        node for node in order
        if node.op not in _LEAVES and node.shape is not None and node.dtype.storage is not None
        and not _only_summed(node, readers.get(node, []))
    ]  # fmt: skip


def _only_summed(node: Node, readers: Sequence[Node]) -> bool:
    size = 1
    for extent in node.shape:
        size *= extent if isinstance(extent, int) else 1
    sums = bool(readers) and all(reader.op is Ops.REDUCE for reader in readers)
    return sums and size > _LARGEST


def _sources(node: Node, known: set[Node]) -> list[Node]:
    """The nearest operations that a node is made of, views looked through."""
    found: dict[Node, None] = {}
    open_ = list(node.src)
    while open_:
        one = open_.pop()
        if one in known:
            found[one] = None
        elif one.op in _LEAVES:
            open_ += one.src
    return list(found)


def _asking(program: Canonical, nodes: Sequence[Node]) -> Canonical:
    return replace(program, sink=Node(Ops.SINK, dtypes.token, tuple(nodes)), whole=False)


def _values(raw: Array, node: Node) -> Array:
    """A result's values as float64, or as the integers that they are."""
    data = decode(raw.view(np.uint8).view(storage_of(node.dtype)), node.dtype)
    return data.astype(np.float64) if node.dtype.is_float else data


def _is_broken(values: Array) -> bool:
    return values.dtype.kind == "f" and not np.isfinite(values).all()


def _broken_text(values: Array) -> str:
    if not _is_broken(values):
        return ""
    nan, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    first = int(np.argmin(np.isfinite(values)))
    return f"{nan} NaN and {infinite} infinite of {values.size}, the first at {first}"


def difference(dtype: DType, found: Array, wanted: Array, tolerance: float | None) -> str:
    """Say how two arrays of a dtype differ, "" where they do not by more than the tolerance.

    Integers must be equal, and what is not finite must be so in both.
    """
    count = min(found.size, wanted.size)
    found, wanted = found.reshape(-1)[:count], wanted.reshape(-1)[:count]
    if not count or not dtype.is_float:
        bad = found != wanted
        bound: float = 0
    else:
        finite = np.isfinite(wanted) & np.isfinite(found)
        scale = float(np.abs(wanted[finite]).max(initial=0.0))
        bound = scale * (_UNITS * float(finfo(dtype).eps) if tolerance is None else tolerance)
        with np.errstate(invalid="ignore"):
            far = np.abs(found - wanted) > bound
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        bad = np.where(finite, far, ~same)
    if not bad.any():
        return ""
    with np.errstate(invalid="ignore"):
        apart = np.where(bad, np.abs(found.astype(np.float64) - wanted.astype(np.float64)), -1.0)
    worst = int(np.nanargmax(np.where(np.isnan(apart), np.inf, apart)))
    return (
        f"{int(bad.sum())} of {count} differ by more than {bound:.3g}, most at {worst}: "
        f"{found[worst]} here, {wanted[worst]} there"
    )


def compare(
    script: Path, words: Sequence[str], against: str, tolerance: float | None, nan: bool
) -> tuple[OpDifference | None, Mapping[str, int]]:
    """Run a program and compare; return the first difference, and how much was computed."""
    other = open_backend(against)
    try:
        with use_session(Session()) as session, options.override(lines=True):
            comparison = Comparison(session, other, tolerance=tolerance, nan=nan)
            # A function that is captured would be replayed, of which nothing could be compared.
            session.watching.downloads.append(lambda ref: None)
            comparison.watch(session.backend(options.device))
            found = None
            try:
                run_script(script, words)
            except FoundDifference as error:
                found = error.difference
            except SystemExit as end:
                # How many programs end; what was compared is told all the same.
                if isinstance(end.code, str):
                    print(end.code, file=sys.stderr)
            finally:
                session.close()
            return found, {"compared": comparison.compared, "runs": comparison.runs}
    finally:
        other.close()


def main(argv: Sequence[str]) -> int:
    """Compare a program on its device with another; return 1 where they differ."""
    parser = argparse.ArgumentParser(
        prog="baregrad diff",
        description="Run a Python program on the default device, compute all of it on another as "
        "well, and say which operation differs first. The exit status is 1 where one does.",
    )
    parser.add_argument("--against", default="REF", metavar="DEVICE", help="REF, CPU, NV, CUDA")
    parser.add_argument(
        "--tolerance", type=float, metavar="R",
        help="the largest difference, by the largest magnitude of the array",
    )
    parser.add_argument(
        "--nan", action="store_true", help="find where the first NaN or infinity is born instead"
    )
    parser.add_argument("script", type=Path, help="the program")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="its command line")
    arguments = parser.parse_args(argv)
    if arguments.tolerance is not None and not 0 <= arguments.tolerance < math.inf:
        raise ArgumentError(
            "no difference can be judged by this tolerance", found=arguments.tolerance,
            wanted="a number from 0 on",
        )
    against = arguments.against.upper()
    if against not in DEVICE_NAMES or against == "NULL":
        raise ArgumentError(
            "there is no such device to compare with", found=arguments.against,
            wanted=", ".join(name for name in DEVICE_NAMES if name != "NULL"),
        )
    if against == options.device and not arguments.nan:
        raise ArgumentError(f"{against} would be compared with itself", hint="give --against")
    found, counts = compare(
        arguments.script, arguments.words, against, arguments.tolerance, arguments.nan
    )
    if found is None:
        what = "nothing is born that is not finite" if arguments.nan else "nothing differs"
        print(f"{what}: {counts['compared']} computations")
        return 0
    after, runs = counts["compared"], counts["runs"]
    print(f"the first operation, after {after} computations, in {runs} further runs:\n{found}")
    return 1
