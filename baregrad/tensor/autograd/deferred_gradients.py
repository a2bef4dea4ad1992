"""Backward passes that are known: gradients of calls that are put off are put off themselves.

The calls below a result, and which leaves their operands are, are the key to which leaves a
gradient reaches. The gradients are results of one more call then, whose first operand is asked not
for its value but for what it is made of.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from baregrad.base.options import options
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.deferred import (
    MOST_WRITTEN_OUT,
    Asked,
    DeferredCall,
    DeferredValue,
    Form,
    Template,
)
from baregrad.tensor.array.link import SessionLike, session
from baregrad.tensor.array.put_off import form_of_fields, keep_template
from baregrad.tensor.array.storage import Storage
from baregrad.tensor.array.views import Leaf, Step, assign_gradient
from baregrad.tensor.autograd.gradients import pull_back

if TYPE_CHECKING:
    from baregrad.tensor.array.tensor_like import Tensor

Operand = tuple[Node | DeferredValue, tuple[Step, ...]]


def by_leaf(found: Mapping[Node, Node]) -> dict[Leaf, Node]:
    """The gradient of each leaf from those of its marks, of which one leaf may have several."""
    sums: dict[Leaf, Node] = {}
    for node, part in found.items():
        known = sums.get(node.arg)
        sums[node.arg] = part if known is None else nodes.add(known, part)
    return sums


class GradientTemplate(Template):
    """A backward pass from a result of one description.

    leaves: which of the leaves below it are reached, in the order of the results.
    """

    __slots__ = ("leaves",)
    needs_history = True

    def __init__(self, leaves: tuple[int, ...], results: tuple[Form, ...]) -> None:
        super().__init__(results)
        self.leaves = leaves

    def run(self, values: Sequence[tuple[Node, tuple[Step, ...]]]) -> tuple[Node, ...]:
        """The gradients of the first operand, in which no more gradients flow."""
        return tuple(_gradients(*[node for node, _ in values]).values())


def _gradients(root: Node, seed: Node | None = None) -> dict[Leaf, Node]:
    if seed is None:
        seed = nodes.broadcast(const(1, root.dtype), root.shape)
    found = pull_back((root,), (nodes.cast(seed, root.dtype),))
    return {leaf: nodes.detach(total) for leaf, total in by_leaf(found).items()}


def put_off_gradients(x: Tensor, gradient: Tensor | None) -> bool:
    """Give the leaves below a tensor gradients that are put off; False where that cannot be.

    The first time that is learned: the gradients are nodes as well then.
    """
    owner = session()
    watching = owner.watching
    value = x._storage.deferred
    if value is None or value.call is None or x._steps or not value.form.grad:
        return False
    if watching.at_once or watching.observers or watching.downloads or options.notes_lines:
        return False
    operands = _operands(value, gradient)
    if operands is None:
        return False
    asked = Asked([held for held, _ in operands if isinstance(held, DeferredValue)], owner)
    if asked.key is None or asked.noted:
        return False
    numbers: dict[Leaf, int] = {}
    marks = tuple([
        numbers.setdefault(mark, len(numbers))
        for call in asked.calls
        for _, steps in call.operands
        for op, mark in steps
        if op is Ops.DETACH and mark is not None
    ])
    leaves = list(numbers)
    if any(not isinstance(leaf, Leaf) or leaf.hooks is not None for leaf in leaves):
        # Functions of the user's are called each time.
        return False
    if not leaves or any(_has_gradient(leaf) for leaf in leaves):
        return False
    start = tuple([one.dtype if isinstance(one, Node) else one.form for one, _ in operands])
    key = (GradientTemplate, asked.key, marks, start)
    template: Any = owner.templates.get(key)
    if template is not None:
        if template.written_out > MOST_WRITTEN_OUT:
            return False
        call = DeferredCall(template, operands)
    else:
        gradients = _gradients(*[one if isinstance(one, Node) else one.node for one, _ in operands])
        if not gradients:
            return False
        template = _template(owner, gradients, numbers, value.form.device)
        keep_template(owner, key, template)
        call = DeferredCall(template, operands, tuple(gradients.values()))
    for position, (number, form) in enumerate(zip(template.leaves, template.results, strict=True)):
        tensor = leaves[number].owner()
        made = Storage(DeferredValue(call, position, form), form.device, form.grad)
        assign_gradient(tensor, tensor.__class__._on(made))
        watching.companions.append(weakref.ref(made))
    value.is_read = True
    watching.companions.append(weakref.ref(x._storage))
    return True


def _template(
    owner: SessionLike, gradients: Mapping[Leaf, Node], numbers: Mapping[Leaf, int], device: str
) -> GradientTemplate:
    """The template of a backward pass that gave these gradients."""
    forms = [
        form_of_fields(owner, leaf.owner().__class__, node.dtype, node.shape, device, False)
        for leaf, node in gradients.items()
    ]
    return GradientTemplate(tuple([numbers[leaf] for leaf in gradients]), tuple(forms))


def _has_gradient(leaf: Leaf) -> bool:
    """Whether a gradient would be added to another, or belongs to a tensor that is gone."""
    tensor = leaf.owner()
    return tensor is None or tensor._gradient is not None


def _operands(value: DeferredValue, gradient: Tensor | None) -> tuple[Operand, ...] | None:
    """The result and the gradient that it starts with, if any; None where these are refused."""
    shape = value.form.shape
    if gradient is None:
        return ((value, ()),) if all(extent == 1 for extent in shape) else None
    storage = gradient._storage
    if gradient._steps or gradient.shape != shape or storage.device != value.form.device:
        return None
    deferred = storage.deferred
    if deferred is not None:
        deferred.is_read = True
        return (value, ()), (deferred, ())
    node = storage.node
    return None if node.op is not Ops.BUFFER else ((value, ()), (node, ()))
