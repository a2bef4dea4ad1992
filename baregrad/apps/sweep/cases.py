"""Rows of the sweep: one op, alone or with element-wise work around it, as seed and row decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from baregrad.apps.beside.draws import Draw
from baregrad.apps.beside.ours import Ours
from baregrad.apps.beside.peer import Peer
from baregrad.apps.beside.tensor_case import TensorCase
from baregrad.apps.beside.work import SideWork
from baregrad.apps.beside.worker import Case
from baregrad.apps.gpu_suite.training import AdamWCase
from baregrad.apps.sweep.elementwise import ELEMENTWISE
from baregrad.apps.sweep.pick import Pick
from baregrad.apps.sweep.plans import noted
from baregrad.apps.sweep.products import PRODUCTS
from baregrad.apps.sweep.reductions import REDUCTIONS
from baregrad.apps.sweep.structure import STRUCTURE
from baregrad.apps.sweep.sweep_op import OursKit, SweepOp, TorchKit, shape_text

TABLE = (*ELEMENTWISE, *REDUCTIONS, *STRUCTURE, *PRODUCTS)
LARGEST = 1 << 26
ROTATED_NBYTES, MOST_SETS = 1 << 27, 8
OPTIMISERS = 0.02
# Of the largest magnitude, for each dtype of inputs.
_TOLERANCES = (("bfloat16", 2.0**-7), ("float16", 2.0**-9), ("float32", 1e-5))
# So much more is allowed to the sum of all that a loss is.
_LOSS_TOLERANCE = 4.0

# Element-wise work before and after an op; all smooth.
_MORE: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("tanh", lambda k, x: x.tanh()), ("sigmoid", lambda k, x: x.sigmoid()),
    ("x*0.5+1", lambda k, x: x * 0.5 + 1), ("gelu", lambda k, x: k.gelu(x)),
    ("x-x*x*0.1", lambda k, x: x - x * x * 0.1),
)


@dataclass(frozen=True, slots=True)
class SweepCase:
    """One row: what it is, in words, and its work. `tolerance` is of its dtype."""

    text: str
    case: Case
    tolerance: float
    is_eager: bool = False
    has_plans: bool = False

    def on_ours(self, side: Ours) -> SideWork:
        """Return the work on our side; its facts tell of its kernels."""
        work = self.case.on_ours(side)
        kernels = noted(side, work.run, self.has_plans)
        return replace(work, facts={"kernels": kernels, "runs": work.calls})

    def on_peer(self, side: Peer) -> SideWork:
        """Return the work on PyTorch's side."""
        return self.case.on_peer(side)


def case_of(question: Mapping[str, Any]) -> SweepCase:
    """Return the row that a question names by `seed`, `row` and `largest`."""
    found = sweep_case(
        question["seed"], question["row"], question["largest"], question["is_gpu"]
    )
    return replace(found, has_plans=bool(question.get("plans")))


def sweep_case(seed: int, row: int, largest: int = LARGEST, is_gpu: bool = False) -> SweepCase:
    """Return a row: the same for the same numbers, whatever the machine.

    On a GPU, inputs rotate, so that its cache does not hold them.
    """
    pick = Pick(seed, row, largest)
    if pick.chance(OPTIMISERS):
        return _optimiser(pick)
    _, make = pick.one(TABLE)
    op = make(pick)
    words = [op.text, op.inputs[0].dtype]
    function, views = op.function, _views(pick, op, words)
    if op.takes_more:
        function = _surrounded(pick, op, function, words)
    has_gradients = bool(op.smooth) and op.takes_more and pick.chance(0.5)
    if has_gradients:
        words.append("with gradients")
        function = _squared(function)
    is_eager = pick.chance(0.25)
    words.append("eager" if is_eager else "jit")
    draws = (views[0], *op.inputs[1:])
    view = views[1]

    def viewed(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda first, *others: function(view(first), *others)

    def ours(*inputs: Any) -> Any:
        return viewed(lambda *given: function(OursKit(), *given))(*inputs)

    def theirs(torch: Any, *inputs: Any) -> Any:
        kit = TorchKit(torch, inputs[0].device)
        return viewed(lambda *given: function(kit, *given))(*inputs)

    nbytes = sum(draw.nbytes for draw in draws)
    sets = max(1, min(MOST_SETS, ROTATED_NBYTES // max(nbytes, 1))) if is_gpu else 1
    case = TensorCase(
        draws, ours, theirs, op.smooth if has_gradients else (), is_scalar=has_gradients,
        shown=None if op.shown is None else viewed(op.shown), is_eager=is_eager, sets=sets,
        is_smooth=bool(op.smooth),
    )
    dtypes = [draw.dtype for draw in draws]
    tolerance = next((one for name, one in _TOLERANCES if name in dtypes), 0.0) * op.tolerance
    if has_gradients:
        tolerance = max(tolerance, dict(_TOLERANCES)["float32"] * _LOSS_TOLERANCE)
    return SweepCase(", ".join(words), case, tolerance, is_eager)


def _views(
    pick: Pick, op: SweepOp, words: list[str]
) -> tuple[Draw, Callable[[Any], Any]]:
    """Return what the first input is drawn as, and the view of it that the work takes."""
    draw = op.inputs[0]
    shape = draw.shape
    kind = pick.one(("contiguous", "contiguous", "contiguous", "transposed", "sliced"))
    if kind == "transposed" and op.views and len(shape) > 1:
        words.append("transposed")
        turned = (*shape[:-2], shape[-1], shape[-2])
        return replace(draw, shape=turned), lambda x: x.transpose(-1, -2)
    if kind == "sliced" and op.views:
        words.append("sliced")
        wider = (*shape[:-1], shape[-1] + 3)
        return replace(draw, shape=wider), lambda x: x[..., 1:-2]
    return draw, lambda x: x


def _surrounded(
    pick: Pick, op: SweepOp, function: Callable[..., Any], words: list[str]
) -> Callable[..., Any]:
    """Put element-wise work before an op that is smooth, or after it, or both."""
    before = pick.one(_MORE) if op.smooth and pick.chance(0.25) else None
    after = pick.one(_MORE) if pick.chance(0.4) else None
    reduced = pick.chance(0.15)
    if before is not None:
        words.append(f"after {before[0]}")
    if after is not None:
        words.append(f"then {after[0]}")
    if reduced:
        words.append("then a sum of squares over the last axis")

    def whole(k: Any, first: Any, *others: Any) -> Any:
        found = function(k, first if before is None else before[1](k, first), *others)
        if after is not None:
            found = after[1](k, found)
        if reduced:
            # Squares: the gradient of a softmax's plain sum is nothing but rounding.
            found = k.wide(found).square()
            # By the root of their number: float16 has the gradients of long rows, too.
            size = found.shape[-1] ** -0.5 if found.ndim and op.smooth else None
            found = found.sum(-1) if found.ndim else found
            found = found if size is None else found * size
        return found

    return whole


def _squared(function: Callable[..., Any]) -> Callable[..., Any]:
    """A loss of a function's result, whose gradient is the result doubled."""
    return lambda k, *inputs: k.wide(function(k, *inputs)).square().sum()


def _optimiser(pick: Pick) -> SweepCase:
    """Steps of AdamW over parameters of several shapes."""
    count, dtype = pick.whole(1, 64), pick.floats()
    draws = [
        Draw(pick.shape(1, 2, pick.whole(1, max(1, pick.largest // 16 // count))), dtype)
        for _ in range(count)
    ]
    shapes = ", ".join(shape_text(draw.shape) for draw in draws[:3])
    text = f"AdamW of {count} parameters ({shapes}...), {dtype}, jit"
    return SweepCase(text, AdamWCase(draws), dict(_TOLERANCES)[dtype] * 2)
