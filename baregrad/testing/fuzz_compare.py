"""Running one program eagerly, jitted and on the reference device, and comparing what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from baregrad.base.errors import BaregradError, CompilerBug, GradientError
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor
from baregrad.testing.fuzz_program import FuzzProgram, Statement, given
from baregrad.testing.fuzz_values import tolerance

LOOSE = 1e-7


@dataclass(frozen=True, slots=True)
class Difference:
    """What two ways of running disagree about."""

    kind: str
    call: int
    name: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}, call {self.call}, {self.name}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Way:
    """A way of running: a device, the level of the reference evaluator, and whether jitted.

    No device means the default one of the options. plain: sizes are Python's integers, otherwise
    they are bound variables.
    """

    name: str
    device: str
    level: str = "tensor"
    jitted: bool = False
    plain: bool = False


EAGER = Way("eager", "")
JITTED = Way("jit", "", jitted=True)
REFERENCE = Way("reference", "REF", plain=True)
LOWERED = Way("reference at the kernel level", "REF", "kernel")
LINEAR = Way("reference at the linear level", "REF", "linear")

Results = list[dict[str, np.ndarray[Any, Any]]]


@contextmanager
def _in_force(way: Way) -> Iterator[None]:
    with options.override(device=way.device or options.device, ref_level=way.level):
        yield


def upload(data: dict[str, np.ndarray[Any, Any]], program: FuzzProgram) -> dict[str, Tensor]:
    """Arrays by name as tensors of the dtypes that a program wants."""
    rows = {**program.arguments, **program.state}
    return {name: Tensor(array, dtype=rows[name].dtype) for name, array in data.items()}


def run(program: FuzzProgram, way: Way, calls: int | None = None) -> Results:
    """Call the program with fresh data each time; per call every array by name, state included.

    Where a program's sizes do not fit, the call that refuses them is the last, and has no arrays.
    """
    found: Results = []
    with _in_force(way):
        space: dict[str, Any] = {**given(way.plain), **upload(program.data(-1), program)}
        if program.draws:
            Tensor.manual_seed(program.seed)
        perform(program.setup, space)
        exec(program.source(), space)  # noqa: S102 - the program is the subject
        function: Callable[..., list[Tensor]] = space["program"]
        if way.jitted:
            from baregrad.tensor.jit.jit import jit

            function = jit(function)
        for call in range(program.calls if calls is None else calls):
            if call and program.between:
                perform(program.between[call - 1], space)
            sizes = _sizes(program, way, call)
            try:
                found.append(_called(program, function, call, sizes, space))
            except BaregradError as error:
                if not program.sizes or isinstance(error, CompilerBug):
                    raise
                # With plain integers a write may cover all that hangs on what is differentiated.
                return found if isinstance(error, GradientError) else [*found, {}]
    return found


def perform(statements: tuple[Statement, ...], space: dict[str, Any]) -> None:
    """Run statements outside the program, on its state."""
    for statement in statements:
        exec(statement.text, space)  # noqa: S102 - as above


def _sizes(program: FuzzProgram, way: Way, call: int) -> list[Any]:
    values = program.integers(call)
    if way.plain:
        return list(values.values())
    return [program.sizes[name].bound(name, value) for name, value in values.items()]


def _called(
    program: FuzzProgram,
    function: Callable[..., list[Tensor]],
    call: int,
    sizes: list[Any],
    space: dict[str, Any],
) -> dict[str, np.ndarray[Any, Any]]:
    """What one call returns and leaves behind."""
    arguments = upload(program.data(call), program)
    results = function(*arguments.values(), *sizes)
    named = dict(zip(program.results, results, strict=True))
    everything = {**named, **arguments, **{name: space[name] for name in program.held()}}
    wanted = [t for t in everything.values() if t is not None]
    if wanted:
        wanted[0].realize(*wanted[1:])
    return {name: values_of(tensor) for name, tensor in everything.items()}


def values_of(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The elements, those of bfloat16 as float32."""
    if tensor.dtype is dtypes.bfloat16:
        return tensor.cast("float32").numpy()
    return tensor.numpy()


def compare(program: FuzzProgram, found: Results, wanted: Results, kind: str) -> Difference | None:
    """The first difference that rounding does not explain.

    A jitted function has the bits of the plain one, but where state was put back to a constant:
    functions of constants are computed elsewhere.
    """
    exactly = kind.startswith("jit") and not program.between
    for call, (ours, theirs) in enumerate(zip(found, wanted, strict=False)):
        if bool(ours) is not bool(theirs):
            if theirs and not kind.startswith("jit"):
                # Where plain integers cut a slice short, symbolic ones may be refused.
                return None
            detail = "refused" if theirs else "sizes taken that do not fit"
            return Difference(kind, call, "", detail)
        for name, array in ours.items():
            detail = _differs(program, name, array, theirs[name], exactly)
            if detail:
                return Difference(kind, call, name, detail)
    return None


def _limit(program: FuzzProgram, name: str, wanted: np.ndarray[Any, Any]) -> float:
    if name in program.loose:
        finite = np.abs(wanted[np.isfinite(wanted)])
        return LOOSE * (1.0 + (float(finite.max()) if finite.size else 0.0))
    row = program.arguments.get(name) or program.state.get(name)
    dtype = row.dtype if row is not None else dtypes.float64
    known = program.known[name]
    return tolerance(known, dtype) if row is not None else 2 * known.error


def _differs(
    program: FuzzProgram,
    name: str,
    found: np.ndarray[Any, Any],
    wanted: np.ndarray[Any, Any],
    exactly: bool,
) -> str:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype}{found.shape} instead of {wanted.dtype}{wanted.shape}"
    if found.dtype.kind != "f":
        bad = found != wanted
        limit = 0.0
    else:
        limit = 0.0 if exactly else _limit(program, name, wanted)
        a, b = found.astype(np.float64), wanted.astype(np.float64)
        with np.errstate(invalid="ignore"):
            close = np.abs(a - b) <= limit
        bad = ~(close | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not bad.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    return (
        f"{int(bad.sum())} of {bad.size} elements, first at {list(place)}: {found[place]!r}"
        f" instead of {wanted[place]!r} (limit {limit:.3g})"
    )


def check(program: FuzzProgram, lowered: bool, jitted: bool = True) -> Difference | None:
    """Run a program every way. Anything that is raised is a difference too.

    With `lowered`, also what kernels become: the linear level raises where one leaves its arrays,
    which a processor need not notice. That comes first, since a processor may also crash.
    """
    levels = [LOWERED, LINEAR] if lowered else []
    ways = [*levels, EAGER, *([JITTED] if jitted else [])]
    wanted: Results = []
    eager: Results = []
    for way in (REFERENCE, *ways):
        try:
            found = run(program, way)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            return Difference(f"{way.name} raises", 0, "", text[:300])
        if way is REFERENCE:
            wanted = found
            continue
        base = eager if way is JITTED else wanted
        against = "eager" if way is JITTED else "reference"
        difference = compare(program, found, base, f"{way.name} against {against}")
        if difference is not None:
            return difference
        if way is EAGER:
            eager = found
    return None
