"""Sums, extremes, means and norms over axes; running sums; the largest few."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from baregrad.dtypes import dtypes
from baregrad.io.onnx.call import Function, NodeCall, Result, own_axis, standard
from baregrad.tensor import Tensor


def _over(function: Callable[[Tensor, list[int], bool], Tensor]) -> Function:
    """A reduction over some axes, or over all where none is named."""

    def run(call: NodeCall) -> Result:
        x = call[0]
        axes = call.axes()
        keep = bool(call.attribute("keepdims", 1))
        if not axes:
            if call.attribute("noop_with_empty_axes", 0):
                return function(x.unsqueeze(-1), [x.ndim], False).cast(x.dtype)
            axes = list(range(x.ndim))
        return function(x, [own_axis(axis, x.ndim) for axis in axes], keep).cast(x.dtype)

    return run


def _extreme(largest: bool) -> Function:
    def reduced(x: Tensor, axes: list[int], keep: bool) -> Tensor:
        if x.dtype is dtypes.bool:
            return x.any(axes, keep) if largest else x.all(axes, keep)
        if any(x.shape[axis].__class__ is int and not x.shape[axis] for axis in axes):
            kept = tuple(
                1 if a in axes else e for a, e in enumerate(x.shape) if keep or a not in axes
            )
            value = x.dtype.lowest if largest else x.dtype.highest
            return Tensor.full(kept, value, dtype=x.dtype, device=x.device)
        return x.amax(axes, keep) if largest else x.amin(axes, keep)

    return _over(reduced)


def _prod(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keep)
    return x


def _log_sum_exp(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if not x.ndim:
        return x
    if any(x.shape[axis].__class__ is int and not x.shape[axis] for axis in axes):
        return x.exp().sum(axes, keep).log()
    return x.logsumexp(axes, keep)


def _l2(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if x.dtype.kind != "float":
        return x.cast(dtypes.float32).square().sum(axes, keep).sqrt()
    return x.square().sum(axes, keep).sqrt()


def _log_sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    total = x.sum(axes, keep)
    return (total if x.dtype.kind == "float" else total.cast(dtypes.float32)).log()


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if x.dtype.kind != "float":
        total = x.sum(axes, keep)
        size = 1
        for axis in axes:
            size = size * x.shape[axis]
        return total.div(size, rounding_mode="trunc")
    return x.mean(axes, keep)


def _arg(largest: bool) -> Function:
    def run(call: NodeCall) -> Result:
        x = call[0]
        axis = own_axis(call.attribute("axis", 0), x.ndim)
        last = bool(call.attribute("select_last_index", 0))
        y = x.flip(axis) if last else x
        keep = bool(call.attribute("keepdims", 1))
        found = (y.argmax if largest else y.argmin)(axis, keepdim=keep)
        return x.shape[axis] - 1 - found if last else found

    return run


def _scan(function: Callable[[Tensor, int], Tensor], start: int) -> Function:
    def run(call: NodeCall) -> Result:
        x = call[0]
        axis = own_axis(int(call.number(1)), x.ndim)
        backwards = bool(call.attribute("reverse", 0))
        y = x.flip(axis) if backwards else x
        if call.attribute("exclusive", 0):
            rest = [0, 0] * (x.ndim - 1 - axis)
            y = y.narrow(axis, 0, x.shape[axis] - 1).pad([*rest, 1, 0], value=start)
        found = function(y, axis).cast(x.dtype)
        return found.flip(axis) if backwards else found

    return run


def _topk(call: NodeCall) -> Result:
    x = call[0]
    k = call.attribute("k") or int(call.number(1))
    axis = own_axis(call.attribute("axis", -1), x.ndim)
    found = x.topk(k, axis, bool(call.attribute("largest", 1)), True)
    return found[0], found[1].cast(dtypes.int64)


def _lp_norm(call: NodeCall) -> Result:
    x = call[0]
    axis, p = call.attribute("axis", -1), call.attribute("p", 2)
    size = x.abs().sum(axis, True) if p == 1 else x.square().sum(axis, True).sqrt()
    return (size == 0).where(0, x / (size == 0).where(1, size))


def _moments(call: NodeCall) -> Result:
    x = call[0]
    axes = call.attribute("axes", [0, 2, 3])
    mean = x.mean(axes, True)
    spread = (x.square().mean(axes, True) - mean.square()).sqrt()
    return (x - mean) / (spread + 1e-9)


def _sums(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return x.sum(axes, keep) if x.ndim else x


OPERATORS = MappingProxyType(standard({
    "ReduceSum": _over(_sums), "ReduceMean": _over(_mean), "ReduceProd": _over(_prod),
    "ReduceMax": _extreme(True), "ReduceMin": _extreme(False),
    "ReduceL1": _over(lambda x, axes, keep: x.abs().sum(axes, keep)), "ReduceL2": _over(_l2),
    "ReduceSumSquare": _over(lambda x, axes, keep: x.square().sum(axes, keep)),
    "ReduceLogSum": _over(_log_sum), "ReduceLogSumExp": _over(_log_sum_exp),
    "ArgMax": _arg(True), "ArgMin": _arg(False),
    "CumSum": _scan(Tensor.cumsum, 0), "CumProd": _scan(Tensor.cumprod, 1),
    "TopK": _topk, "LpNormalization": _lp_norm, "MeanVarianceNormalization": _moments,
}))  # fmt: skip
