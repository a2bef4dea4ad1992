"""Laws on reductions: pairs of them become one, and a chain of two becomes one stream.

Written over kernel-level expressions; every law is checked by running examples in the tests.

R3 pair: two reductions over one axis are one over the product monoid, always.
R4 stream: with r = max_j a_j and t = sum_j exp(c_j - r) * h_j, the pair (r, t) is one reduction:
    (r, t) . (r', t') = (s, t * q(r, s) + t' * q(r', s)), s = max(r, r'), q(r, s) = exp(r - s),
    where q(r, r) = 1 even for r = -inf, so that no NaN arises on the way. An element with
    a_j = -inf lifts to the identity. The fold in any tree is the value of the two passes, up to
    rounding; of a row that is masked out whole, (-inf, 0) where they give (-inf, NaN).
R5 delay: sum_j (p_j / s) * v_j = (sum_j p_j * v_j) / s where s does not depend on j.
R1 (split), R2 (map out) and R6 (pad with the identity) need no code here: schedules split
reductions, and a guarded element is the identity.
"""

from __future__ import annotations

from functools import cache, partial, reduce

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.monoid import Monoid, primitive, slot
from baregrad.ir.core.node import Node, alu, const, fill, rebuild, toposort
from baregrad.ir.core.op import MOVEMENT, Op, Ops
from baregrad.ir.core.substitution import substitute

_EXPONENTIALS = (Ops.EXP, Ops.EXP_NEAR, Ops.EXP2, Ops.EXP2_NEAR)
_VIEWS = MOVEMENT - {Ops.PAD}
# What a value is made of: states of a stream, products.
_STATES, _PRODUCTS = 1, 2
_IN_MEMORY = frozenset((Ops.PARAM, Ops.BUFFER, Ops.CONTIGUOUS, Ops.SCATTER, Ops.INDEX))
# What shows a value, or else zeros; reads at places that are read show them for those outside.
_ZEROS = (Ops.PAD, Ops.GUARD)
_BY_PLACES = (Ops.GATHER, Ops.GUARD)


def pair(left: Monoid, right: Monoid) -> Monoid:
    """R3: the product of two monoids, whose values and states are those of `left`, then `right`."""
    n, m = left.arity, right.arity

    def moved(formulas: tuple[Node, ...], where: tuple[int, ...]) -> tuple[Node, ...]:
        def visit(node: Node) -> Node | None:
            return slot(where[node.arg], node.dtype) if node.op is Ops.SLOT else None

        return tuple(rebuild(formula, visit) for formula in formulas)

    left_slots = (*range(n), *range(n + m, n + m + n))
    right_slots = (*range(n, n + m), *range(n + m + n, 2 * (n + m)))
    return Monoid(
        f"{left.name}_{right.name}",
        left.states + right.states,
        left.identity + right.identity,
        left.lift + moved(right.lift, tuple(range(n, n + m))),
        moved(left.combine, left_slots) + moved(right.combine, right_slots),
        commutative=left.commutative and right.commutative,
        idempotent=left.idempotent and right.idempotent,
    )


@cache
def stream(dtype: DType, sums: int, exponential: Op = Ops.EXP) -> Monoid:
    """R4: the semidirect product of a maximum and `sums` sums that are relative to it.

    States and values are (r, t1, ..., tn). The value of an element j is (a_j, g_j) where g_j is
    already relative to a_j: exp(c_j - a_j) * h_j; it counts for nothing where a_j is -inf.
    """
    count = 1 + sums
    left = tuple(slot(i, dtype) for i in range(count))
    right = tuple(slot(count + i, dtype) for i in range(count))
    top = alu(Ops.MAX, left[0], right[0])
    here, there = (_factor(part[0], top, exponential) for part in (left, right))
    totals = tuple(
        alu(Ops.ADD, alu(Ops.MUL, a, here), alu(Ops.MUL, b, there))
        for a, b in zip(left[1:], right[1:], strict=True)
    )
    zero, lowest = const(0, dtype), const(float("-inf"), dtype)
    masked = alu(Ops.CMPEQ, left[0], lowest)
    lifted = tuple(alu(Ops.WHERE, masked, zero, part) for part in left[1:])
    return Monoid(
        f"stream_{exponential.name.lower()}",
        (dtype,) * count,
        (lowest, *(zero,) * sums),
        (left[0], *lifted),
        (top, *totals),
    )


@cache
def sums(dtype: DType, count: int) -> Monoid:
    """R3: some sums over one axis as one reduction."""
    return reduce(pair, (primitive(Ops.ADD, dtype),) * count)


def _factor(old: Node, new: Node, exponential: Op) -> Node:
    """q(old, new): what turns a sum relative to `old` into one relative to `new`."""
    equal = alu(Ops.CMPEQ, old, new)
    return alu(
        Ops.WHERE,
        equal,
        const(1, old.dtype),
        Node(exponential, old.dtype, (alu(Ops.SUB, old, new),)),
    )


def is_widened(node: Node) -> bool:
    """Whether a value is a 16-bit float as float32."""
    if node.op is not Ops.CAST or node.dtype is not dtypes.float32:
        return False
    return node.src[0].dtype.kind == "float" and node.src[0].dtype.bits == 16


def rounded(value: Node, dtype: DType) -> Node:
    """A float32 as the nearest float of 16 bits, as float32."""
    return Node(Ops.CAST, dtypes.float32, (Node(Ops.CAST, dtype, (value,)),))


def is_operand(node: Node) -> bool:
    """Whether a value is a 16-bit float as float32 that a kernel reads, not one it computes.

    There may be zeros around it.
    """
    while node.op in _ZEROS:
        node = shown(node.src[-1])
    return is_widened(node) and in_memory(shown(node.src[0]))


def in_memory(node: Node) -> bool:
    """Whether a value lies in memory, or is read from there, perhaps at places that are read.

    What lies there may be 8-bit floats, of which it is made as it is read.
    """
    while node.op in _BY_PLACES or is_of_bytes(node):
        node = shown(node.src[-1] if node.op is Ops.GUARD else node.src[0])
    return node.op in _IN_MEMORY


def is_of_bytes(node: Node) -> bool:
    """Whether a value is an 8-bit float as one of 16 bits."""
    if node.op is not Ops.CAST or node.dtype.kind != "float" or node.dtype.bits != 16:
        return False
    return node.src[0].dtype.kind == "float" and node.src[0].dtype.bits == 8


def weights_of(factor: Node) -> Node | None:
    """The float32 that a factor is before it is rounded to 16 bits; None for what is read.

    What is computed in 16 bits is the factor itself, as float32.
    """
    factor = shown(factor)
    if not is_widened(factor) or is_operand(factor):
        return None
    value = shown(factor.src[0])
    is_cast = value.op is Ops.CAST and value.src[0].dtype is dtypes.float32
    return value.src[0] if is_cast else factor


def is_float32_sum(node: Node) -> bool:
    """Whether a node is a sum in float32."""
    return node.op is Ops.REDUCE and node.arg.monoid is primitive(Ops.ADD, dtypes.float32)


def are_float32_sums(node: Node) -> bool:
    """Whether a node is a sum in float32, or several over one axis."""
    if node.op is not Ops.REDUCE or node.dtype is not dtypes.float32:
        return False
    return bool(node.arg.monoid == sums(node.dtype, node.arg.monoid.arity))


def is_contraction(node: Node) -> bool:
    """Whether a node is a sum of products of two 16-bit floats that are read, as float32."""
    if not is_float32_sum(node):
        return False
    product = node.src[0]
    if product.op is Ops.GUARD:
        product = product.src[1]
    return product.op is Ops.MUL and all(is_operand(shown(side)) for side in product.src)


def is_chained(node: Node, known: dict[Node, int] | None = None) -> bool:
    """Whether a node sums what is made of products and of a stream's states, as gradients do.

    Both weights that are multiplied by values and the terms of a row's sum are computed anew; there
    may be two such sums. Who asks for many nodes of a graph gives them one dict `known`, so that
    none is looked at twice.
    """
    if not are_float32_sums(node) or not node.mask & Ops.PROJ.bit or is_contraction(node):
        return False
    known = {} if known is None else known
    fill(known, node.src, _made_of, known, is_computed)
    return any(known[value] == _STATES | _PRODUCTS for value in node.src)


def _made_of(node: Node, known: dict[Node, int]) -> int:
    """Whether a value that a stream computes is made of a stream's states, of products, or both."""
    found = 0
    state = shown(node.src[0]) if node.op is Ops.CONTIGUOUS else node
    if state.op is Ops.PROJ and is_stream(state.src[0]):
        found |= _STATES
    if is_contraction(node):
        found |= _PRODUCTS
    if is_computed(node):
        for child in node.src:
            found |= known[child]
    return found


def is_computed(node: Node) -> bool:
    """Whether a stream computes a value anew, and does not read it."""
    if node.op in (Ops.PROJ, Ops.CONTIGUOUS) or is_operand(node):
        return False
    return node.op is not Ops.REDUCE or is_contraction(node)


def shown(node: Node) -> Node:
    """What views show; zeros around a value are part of it."""
    while node.op in _VIEWS:
        node = node.src[0]
    return node


def is_stream(node: Node) -> bool:
    """Whether a node is a reduction by the monoid of R4."""
    if node.op is not Ops.REDUCE or node.arg.monoid.arity < 2 or node.dtype.kind != "float":
        return False
    monoid = node.arg.monoid
    # One that was read from text is equal, not the same.
    return any(monoid == stream(node.dtype, monoid.arity - 1, op) for op in _EXPONENTIALS)


# --- the rewrite ---------------------------------------------------------------------------------


def delay_divisions(root: Node) -> Node:
    """R5 wherever it applies: quotients by what a sum's axes do not move leave the sum."""

    def visit(node: Node) -> Node | None:
        if not _is_sum(node):
            return None
        axes = frozenset(node.src[1:])
        factors = _factors(node.src[0])
        divisors = [
            f.src[1] for f in factors if f.op is Ops.DIV and f.src[1].ranges.isdisjoint(axes)
        ]
        if not divisors:
            return None
        kept = [f.src[0] if f.op is Ops.DIV and f.src[1] in divisors else f for f in factors]
        total = node.replace(src=(_product(kept), *node.src[1:]))
        for divisor in divisors:
            total = alu(Ops.DIV, total, divisor)
        return total

    return rebuild(root, visit)


def merge_streams(root: Node) -> Node:
    """R5, then R4 with R3: a maximum and the sums of exponentials relative to it become one.

    root: a kernel-level expression or KERNEL. Reductions that fit no law stay as they are.
    """
    root = delay_divisions(root)
    for top in [node for node in toposort(root) if _is_maximum(node)]:
        axis = top.src[1]
        found: list[tuple[Node, Node]] = []
        for node in toposort(root):
            relative = _relative(node, top, axis)
            if relative is not None:
                found.append((node, relative))
        if found:
            root = _merged(root, top, axis, found)
    return root


def _merged(root: Node, top: Node, axis: Node, found: list[tuple[Node, Node]]) -> Node:
    kind = next(f.op for f in _factors(found[0][0].src[0]) if _is_power(f, top))
    monoid = stream(top.dtype, len(found), kind)
    values = (top.src[0], *(relative for _, relative in found))
    folded = Node(Ops.REDUCE, top.dtype, (*values, axis), Reduce(monoid))
    parts = [Node(Ops.PROJ, top.dtype, (folded,), i) for i in range(monoid.arity)]
    replaced = {node: parts[1 + i] for i, (node, _) in enumerate(found)}
    return rebuild(root, lambda node: parts[0] if node is top else None, memo=dict(replaced))


def _relative(node: Node, top: Node, axis: Node) -> Node | None:
    """The value of element j relative to a_j, over `axis`, of a sum relative to `top`."""
    if not _is_sum(node) or len(node.src) != 2 or top.ranges - node.src[0].ranges:
        return None
    own = node.src[1]
    if own.src[0] is not axis.src[0]:
        return None
    factors = _factors(node.src[0])
    streaming = [f for f in factors if _is_power(f, top)]
    rest = [f for f in factors if f not in streaming]
    if len(streaming) != 1 or any(top in toposort(f) for f in rest):
        return None
    power = streaming[0]
    exponent = substitute(power.src[0].src[0], {own: axis})
    if top in toposort(exponent):
        return None
    moved = [substitute(factor, {own: axis}) for factor in rest]
    if exponent is not top.src[0]:
        moved.insert(0, _factor(exponent, top.src[0], power.op))
    return _product(moved) if moved else const(1, node.dtype)


def _is_sum(node: Node) -> bool:
    return node.op is Ops.REDUCE and node.arg == Reduce(primitive(Ops.ADD, node.dtype))


def _is_maximum(node: Node) -> bool:
    fits = node.op is Ops.REDUCE and node.dtype.kind == "float" and len(node.src) == 2
    return fits and node.arg == Reduce(primitive(Ops.MAX, node.dtype))


def _is_power(node: Node, top: Node) -> bool:
    """exp(c - top)."""
    inner = node.src[0] if node.op in _EXPONENTIALS else None
    return inner is not None and inner.op is Ops.SUB and inner.src[1] is top


def _factors(value: Node) -> list[Node]:
    """The factors of a product, those of a quotient's numerator under the same divisor."""
    factors: list[Node] = []
    stack = [value]
    while stack:
        node = stack.pop()
        if node.op is Ops.MUL:
            stack.extend(reversed(node.src))
        else:
            factors.append(node)
    return factors


def _product(factors: list[Node]) -> Node:
    return reduce(partial(alu, Ops.MUL), factors)
