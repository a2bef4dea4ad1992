"""Backward passes: gradients of tensors by tensors."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from baregrad.base.errors import GradientError, ShapeError
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.core import Array, check_float
from baregrad.tensor.array.link import session
from baregrad.tensor.array.views import assign_gradient
from baregrad.tensor.autograd.deferred_gradients import by_leaf, put_off_gradients
from baregrad.tensor.autograd.gradients import below, pull_back

if TYPE_CHECKING:
    from baregrad.tensor.array.tensor_like import Tensor


class Anomalies:
    """The mode of the process, as `autograd.set_detect_anomaly` sets it."""

    detected: ClassVar[bool] = False
    nan_checked: ClassVar[bool] = True


def check_gradient(x: Tensor, total: Node, leaf: Any) -> None:
    """Raise GradientError where a gradient, which is computed here, has a NaN.

    Inside `jit` nothing is looked at: its function reads no numbers.
    """
    if not Anomalies.nan_checked or session().watching.downloads:
        return
    gradient: Any = type(x)._make(total, leaf.device)
    if gradient.isnan().any().item():
        raise GradientError(
            "a gradient with NaN was made", found=f"for a tensor of shape {list(leaf.shape)}",
            hint="look at the values before it; a NaN comes from 0 * inf, inf - inf or log(-1)",
        )


def _seed(x: Tensor, gradient: Tensor | None, what: str) -> Node:
    """The gradient that `x` starts with: 1 for a scalar, else the one given."""
    check_float(x.dtype, what)
    if not x.requires_grad:
        raise GradientError(
            f"{what} of a tensor that does not depend on any that requires gradients",
            hint="call requires_grad_() on a leaf, and compute outside of no_grad()",
        )
    if gradient is None:
        if x.ndim and any(not (e.__class__ is int and e == 1) for e in x.shape):
            raise ShapeError(
                f"{what} of a tensor with several elements needs a gradient",
                found=f"shape {list(x.shape)}",
                wanted="a scalar",
                hint="reduce it, for example with sum(), or pass a gradient of its shape",
            )
        return nodes.broadcast(const(1, x.dtype), x.shape)
    if gradient.shape != x.shape:
        raise ShapeError(
            "a gradient has the shape of its tensor",
            found=str(list(gradient.shape)),
            wanted=str(list(x.shape)),
        )
    return nodes.cast(gradient.node, x.dtype)


def backward(x: Tensor, gradient: Tensor | None = None, *, create_graph: bool = False) -> None:
    """Add the gradient of this tensor to `grad` of every leaf that it depends on.

    A tensor with several elements needs `gradient`, of its shape. With `create_graph` the
    gradients can be differentiated again; without, this tensor and the gradients are computed along
    with the next that are, and its graph is freed then. Raises GradientError, ShapeError or
    DTypeError.
    """
    detected = Anomalies.detected
    if not create_graph and not detected and put_off_gradients(x, gradient):
        return
    seed = _seed(x, gradient, "backward()")
    found = pull_back((x._value(),), (seed,), again=create_graph)
    if not found:
        raise GradientError(
            "no leaf can be reached from this tensor any more: its graph was freed after an "
            "earlier backward(), or it was computed without gradients",
            hint="call backward(create_graph=True) the first time, or compute the tensor again",
        )
    if not create_graph and not x._steps:
        session().watching.companions.append(weakref.ref(x._storage))
    for leaf, total in by_leaf(found).items():
        owner = leaf.owner()
        if owner is None:
            continue
        hooks = leaf.hooks
        if detected:
            check_gradient(x, total, owner)
        _accumulate(owner, total if hooks is None else hooks.changed(total), create_graph)
        if hooks is not None:
            for hook in hooks.after:
                hook(total)


def _accumulate(owner: Array, total: Node, create_graph: bool) -> None:
    known = owner._gradient
    if create_graph:
        sum_ = total if known is None else nodes.add(known._value(), total)
        assign_gradient(owner, type(owner)._make(sum_, owner.device, True))
        return
    fixed = nodes.detach(total)
    sum_ = fixed if known is None else nodes.add(nodes.detach(known._value()), fixed)
    made = type(owner)._make(sum_, owner.device)
    assign_gradient(owner, made)
    session().watching.companions.append(weakref.ref(made._storage))


def gradient(
    x: Tensor,
    *tensors: Tensor,
    grad_outputs: Tensor | None = None,
    create_graph: bool = True,
    allow_unused: bool = False,
) -> tuple[Tensor, ...]:
    """Return the gradients of this tensor by `tensors`, which `grad` of no leaf changes.

    They can be differentiated again unless `create_graph` is False. Views of one tensor that show
    the same are one value here. Raises GradientError for a tensor that does not require gradients,
    or is not reached; with `allow_unused` an unreached one gives zeros.
    """
    return gradients((x,), tensors, (grad_outputs,), create_graph, allow_unused)


def gradients(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    grad_outputs: Sequence[Tensor | None],
    create_graph: bool,
    allow_unused: bool,
) -> tuple[Tensor, ...]:
    """The gradients of the sum of `outputs` by `inputs`; see `gradient`."""
    found = gradients_reached(outputs, inputs, grad_outputs, create_graph, allow_unused)
    return tuple([x.zeros_like() if one is None else one
                  for x, one in zip(inputs, found, strict=True)])  # fmt: skip


def gradients_reached(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    grad_outputs: Sequence[Tensor | None],
    create_graph: bool,
    allow_unused: bool,
) -> tuple[Tensor | None, ...]:
    """The gradients of the sum of `outputs` by `inputs`, None for those that are not reached."""
    seeds = [_seed(x, seed, "gradient()") for x, seed in zip(outputs, grad_outputs, strict=True)]
    roots = [x._value() for x in outputs]
    targets = [_targets(x, position, roots) for position, x in enumerate(inputs)]
    wanted = [node for group in targets for node in group]
    found = pull_back(roots, seeds, wanted, create_graph)
    results: list[Tensor | None] = []
    for position, (tensor, group) in enumerate(zip(inputs, targets, strict=True)):
        parts = [found[node] for node in group if node in found]
        if not parts:
            if not allow_unused:
                raise GradientError(
                    f"tensor {position} of gradient() is not reached from the result",
                    found=f"shape {list(tensor.shape)}, dtype {tensor.dtype}",
                    hint="the result does not depend on it by differentiable operations; "
                    "allow_unused=True allows it",
                )
            results.append(None)
            continue
        total = parts[0]
        for part in parts[1:]:
            total = nodes.add(total, part)
        if Anomalies.detected:
            check_gradient(tensor, total, tensor)
        leaf = tensor._leaf()
        if leaf is not None and leaf.hooks is not None:
            total = leaf.hooks.changed(total)
        if not create_graph:
            total = nodes.detach(total)
        results.append(type(tensor)._make(total, tensor.device, create_graph))
    return tuple(results)


def _targets(x: Tensor, position: int, roots: Sequence[Node]) -> list[Node]:
    """The nodes that stand for a tensor: for a leaf, every value that it had in the graph."""
    if not x.requires_grad:
        raise GradientError(
            f"tensor {position} of gradient() does not require gradients",
            found=f"shape {list(x.shape)}, dtype {x.dtype}",
            hint="call requires_grad_() on it before computing with it",
        )
    leaf = x._leaf()
    if leaf is None:
        return [x._value()]
    found = below(roots, lambda node: bool(node.mask & Ops.DETACH.bit))
    return [node for node in found if node.op is Ops.DETACH and node.arg is leaf]
