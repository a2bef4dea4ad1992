"""Each statement of a program compared with what NumPy makes of it, from the same inputs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from baregrad.base.errors import BaregradError, CompilerBug
from baregrad.base.options import options
from baregrad.tensor import Tensor
from baregrad.testing.fuzz_compare import Difference, perform, upload, values_of
from baregrad.testing.fuzz_program import FuzzProgram, Statement, given
from baregrad.testing.fuzz_values import mantissa_bits
from baregrad.testing.twin.array import Uncovered
from baregrad.testing.twin.casts import Array, rounded
from baregrad.testing.twin.tensor_twin import NumPyTwin, TwinMaker

KIND = "reference against NumPy"


def check_statements(program: FuzzProgram) -> Difference | None:
    """Run a program on the reference device, and each statement in NumPy beside; what differs.

    Statements that NumPy's twin does not cover pass. Sizes are those of the first call.
    """
    try:
        return _checked(program)
    except (BaregradError, IndexError) as error:
        # Sizes that do not fit are another check's business. With plain integers a part of an axis
        # may be shorter than with symbolic ones, and places in it no place.
        if program.sizes and not isinstance(error, CompilerBug):
            return None
        text = f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        text = f"{type(error).__name__}: {error}"
    return Difference(f"{KIND} raises", 0, "", text.splitlines()[0][:300])


def _checked(program: FuzzProgram) -> Difference | None:
    with options.override(device="REF", ref_level="tensor"), warnings.catch_warnings():
        # Of means of nothing and the like.
        warnings.simplefilter("ignore", RuntimeWarning)
        space: dict[str, Any] = {**given(plain=True), **upload(program.data(-1), program)}
        perform(program.setup, space)
        space.update(upload(program.data(0), program))
        space.update(program.integers(0))
        twins: dict[str, NumPyTwin] = {}
        for statement in program.statements:
            detail = _compared(program, statement, space, twins)
            if detail:
                return Difference(KIND, 0, statement.target, f"{statement.text}: {detail}")
    return None


def _compared(
    program: FuzzProgram, statement: Statement, space: dict[str, Any], twins: dict[str, NumPyTwin]
) -> str:
    """Take one step on both sides; how they differ."""
    names = [n for n in statement.reads if isinstance(space.get(n), Tensor)]
    beside: dict[str, Any] = {**space, "Tensor": TwinMaker()}
    for name in names:
        if name not in twins:
            twins[name] = NumPyTwin(values_of(space[name]), space[name].dtype)
        # A statement that writes changes its own.
        twin = twins[name]
        beside[name] = twin if statement.defines else NumPyTwin(twin.array.copy(), twin.dtype)
    before = {n: beside[n] for n in names}
    exec(statement.text, space)  # noqa: S102 - as above
    covered = True
    try:
        exec(statement.text, beside)  # noqa: S102 - as above
    except Uncovered:
        covered = False
    if not statement.defines:
        # Whatever shows what was written is read anew.
        twins.clear()
        target = statement.target
        return _differs(program, target, space[target], before[target]) if covered else ""
    (name,) = statement.defines
    twins.pop(name, None)
    made = beside.get(name)
    if not covered or not isinstance(made, NumPyTwin) or name not in program.known:
        return ""
    return _differs(program, name, space[name], made)


def _differs(program: FuzzProgram, name: str, tensor: Tensor, twin: NumPyTwin) -> str:
    found = values_of(tensor)
    if found.shape != twin.shape:
        return f"{found.shape} instead of {twin.shape}"
    if (tensor.dtype.kind == "float") is not (twin.dtype.kind == "float"):
        return f"{tensor.dtype.name} instead of {twin.dtype.name}"
    if tensor.dtype.kind != "float":
        bad = found != twin.array.astype(found.dtype)
        wanted: Array = twin.array
    else:
        wanted = rounded(twin.array, tensor.dtype)
        with np.errstate(invalid="ignore"):
            # Steps inside a statement are rounded as well.
            ulp = np.abs(wanted) * 2.0 ** (2 - mantissa_bits(tensor.dtype))
            limit = 2 * program.known[name].error + (ulp if program.known[name].error else 0.0)
            ours = found.astype(np.float64)
            close = np.abs(ours - wanted) <= limit
        bad = ~(close | (ours == wanted) | (np.isnan(ours) & np.isnan(wanted)))
    if not bad.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    return (
        f"{int(bad.sum())} of {bad.size} elements, first at {list(place)}: {found[place]!r}"
        f" instead of {wanted[place]!r}"
    )
