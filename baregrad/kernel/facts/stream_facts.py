"""What a kernel of one stream is made of: its products, their axes, and which keys a row sees.

Rows stay, keys pass. Attention is one: rows are queries. So are its gradients, in which rows may as
well be keys and queries pass them: here a key is whatever passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from typing import NamedTuple

from baregrad.dtypes import dtypes
from baregrad.ir.analysis.stream import (
    are_float32_sums,
    is_contraction,
    is_of_bytes,
    is_operand,
    is_stream,
    is_widened,
    rounded,
    weights_of,
)
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import (
    NO_RANGES,
    Node,
    alu,
    const,
    extent_of,
    range_node,
    rebuild,
    toposort,
)
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.target import AnyTarget

# Bytes of a chunk that threads copy to shared memory at once.
CHUNK_NBYTES = 16
_LOWEST = float("-inf")
POWERS = (Ops.EXP, Ops.EXP_NEAR, Ops.EXP2_NEAR)
_LINEAR = (Ops.CAST, Ops.NEG, Ops.ADD, Ops.SUB)


class Scores(NamedTuple):
    """A product inside a stream: `total` is the sum over `depth` of left times right.

    left: a read along the row. right: a read along the key, guarded where there may be none.
    """

    total: Node
    left: Node
    right: Node
    depth: Node


class MaskLimit(NamedTuple):
    """A mask by places: where constant + factor * row - sign * key is below 0, no weight is left.

    A row sees the first keys alone where sign is 1, the last ones where it is -1.
    """

    constant: Dim
    factor: int
    sign: int


class Scaled(NamedTuple):
    """A product of a value and a constant factor from 0 to 1."""

    product: Node
    value: Node
    factor: Node


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A KERNEL whose outputs are made of one fold over `key`, with products inside it.

    states: of the fold. Three are a maximum, a sum of powers and a sum of weights times values; two
    are the former; none is plain sums of weights times values, or of weights alone. near: the one
    power, of e or 2, of x - something, x being the exponent with all masks. weights: of each sum
    what is rounded before it is multiplied by one of `values`, along `key` and `column`, if there
    are any. row: None where there is one row. batch: the other axes of the outputs. over: the axis
    of a fold that is of neither rows nor keys, of results for each of both; None elsewhere.
    """

    kernel: Node
    fold: Node
    states: int
    near: Node
    weights: tuple[Node, ...]
    products: tuple[Scores, ...]
    values: tuple[Node, ...]
    row: Node | None
    key: Node
    column: Node | None
    batch: tuple[Node, ...]
    over: Node | None = None

    @property
    def exponent(self) -> Node:
        """What the power is of, before anything is subtracted."""
        return self.near.src[0].src[0]

    @property
    def widths(self) -> tuple[int, ...]:
        """Steps of each product, and columns of the result."""
        axes = [scores.depth for scores in self.products]
        if self.column is not None:
            axes.append(self.column)
        sizes = [extent_of(axis) for axis in axes]
        assert all(isinstance(size, int) for size in sizes)
        return tuple([int(size) for size in sizes if isinstance(size, int)])

    def octets(self, target: AnyTarget, has_groups: bool) -> frozenset[Node]:
        """The keys and values of 8-bit floats that lie in shared memory as they do elsewhere.

        The matrix unit of a warp takes them from there if the machine widens such floats, and they
        lie together in whole chunks. It sees columns of values in an order of its own: that is one
        for all values.
        """
        if has_groups or self.over is not None or target.kind != "gpu":
            return frozenset()
        keys = {one.right for one in self.products if _are_octets(one.right, one.depth, target)}
        column = self.column
        are_values = column is not None and all(
            _are_octets(value, column, target) for value in self.values
        )
        return frozenset((*keys, *self.values)) if are_values else frozenset(keys)

    def is_widened(self, target: AnyTarget) -> bool:
        """Whether threads of warps make keys or values of 8-bit floats as they read them."""
        reads = {*[each.right for each in self.products], *self.values}
        reads -= self.octets(target, False)
        return any(is_of_bytes(node) for read in reads for node in toposort(read))

    def slots(self, target: AnyTarget, has_groups: bool) -> int:
        """Tiles of keys in shared memory: one is multiplied as the next is copied.

        Threads wait for what they widen themselves. A second tile hides nothing of that, unless
        groups of warps multiply meanwhile; without it there is room for twice as many blocks.
        """
        waits = not has_groups and self.over is None and self.is_widened(target)
        return 1 if waits else 2

    def passes_once(self, read: Node, rows: int) -> bool:
        """Whether blocks of so many rows read each element of keys or values once, all together.

        Nothing of that is in a cache before. Asked for by whole lines, 64 sequences of 8,192 keys
        for 32 heads of 8 took an H200 280 us in 8-bit floats and 287 without, 530 and 543 in
        bfloat16.
        """
        alone = self.row is None or index.upper(extent_of(self.row)) <= rows
        return alone and self.over is None and read.ranges >= set(self.batch)

    @property
    def shares_keys(self) -> bool:
        """Whether what some keys give and what others give can be put together in the end."""
        return self.states > 0 and len(self.values) == 1 and self.over is None

    @property
    def limits(self) -> tuple[MaskLimit, ...]:
        """The masks by places, one of each sign at most; none where no such mask is known."""
        return tuple(self._by_places.values()) if self.unmasked is not self.exponent else ()

    @property
    def hidden(self) -> tuple[Node, ...]:
        """Conditions each of which hides a key from a row, so that no weight is left."""
        if not self._vanish:
            return ()
        found, rest = list[Node](), self.exponent
        while (masked := _choice(rest)) is not None:
            found += _alternatives(masked[0])
            rest = masked[1]
        return tuple(found)

    @property
    def leaves_out(self) -> bool:
        """Whether data, as the length of a sequence, may hide a tile of keys from all rows."""
        return any(not {self.row, self.key} <= condition.ranges for condition in self.hidden)

    @property
    def _vanish(self) -> bool:
        """Whether what is summed is 0 where the power is, if it is finite."""
        return all(_vanishes(each, self.exponent) for each in self.weights)

    @property
    def _by_places(self) -> dict[Node, MaskLimit]:
        """The limits among what hides a key by the exponent's first condition, by what says so."""
        masked, found = _choice(self.exponent), dict[Node, MaskLimit]()
        for one in () if masked is None else _alternatives(masked[0]):
            limit = self._limit(one)
            if limit is not None and all(limit.sign != other.sign for other in found.values()):
                found[one] = limit
        return found

    @property
    def unmasked(self) -> Node:
        """The exponent where masks by places, if there are any around it, hide no key."""
        masked, limits = _choice(self.exponent), self._by_places
        if masked is None or not limits:
            return self.exponent
        # What is hidden counts for nothing if all that is summed are multiples of powers, and these
        # are no NaNs: of whole powers of two they are not, of others where a row sees a key.
        others = [one for one in _alternatives(masked[0]) if one not in limits]
        first = next(iter(limits.values())).constant
        sees = len(limits) == 1 and not others and index.lower(first) >= 0
        if not self._vanish or not (self.near.op is Ops.EXP2_NEAR or sees):
            return self.exponent
        if not others:
            return masked[1]
        kept = reduce(partial(alu, Ops.OR), others)
        return alu(Ops.WHERE, kept, const(_LOWEST, masked[1].dtype), masked[1])

    @property
    def scaled(self) -> Scaled | None:
        """What the exponent is a multiple of where no mask hides a key; None for other exponents.

        Of approximate powers alone: others are of what was rounded. Nothing else may be made of the
        exponent, and the factor makes no infinity of a number.
        """
        product = self.exponent
        while (masked := _choice(product)) is not None:
            product = masked[1]
        beside = toposort(*self.weights, enter=lambda node: node is not self.near.src[0])
        if self.near.op is Ops.EXP2_NEAR and product.op is Ops.MUL and self.exponent not in beside:
            for value, factor in (product.src, product.src[::-1]):
                if factor.op is Ops.CONST and 0 < factor.arg <= 1:
                    return Scaled(product, value, factor)
        return None

    @property
    def keeps_maxima(self) -> bool:
        """Whether the maximum itself is asked for, and not only what powers are relative to."""
        return any(
            node.op is Ops.PROJ and node.src[0] is self.fold and node.arg == 0
            for node in toposort(self.kernel)
        )

    @property
    def shared_weight(self) -> Node:
        """What all weights are made of: one of them that is part of the others, or the power."""
        for each in self.weights:
            if all(each in toposort(other) for other in self.weights):
                return each
        return self.near

    def read_beside(self, known: Node) -> frozenset[int]:
        """The products that the weights read otherwise than in `known`, by number."""
        order = toposort(*self.weights, enter=lambda node: node is not known)
        return frozenset([n for n, each in enumerate(self.products) if each.total in order])

    @property
    def exponent_reads(self) -> frozenset[int]:
        """The products that the exponent is made of, by number."""
        order = toposort(self.exponent)
        return frozenset([n for n, each in enumerate(self.products) if each.total in order])

    def _limit(self, condition: Node) -> MaskLimit | None:
        """The limit of a condition of that kind, which is how a causal mask is written."""
        below = _below_zero(condition)
        if below is None:
            return None
        terms, constant = index.linear(below)
        rest = dict(terms)
        along = rest.pop(self.key, 0)
        across = 0 if self.row is None else rest.pop(self.row, 0)
        # What depends on the block alone is the same for all its rows and keys.
        if abs(along) != 1 or across not in (0, -along):
            return None
        if any(not atom.ranges.issubset(self.batch) for atom in rest):
            return None
        return MaskLimit(index.from_linear(rest, constant), across, -along)


def _below_zero(condition: Node) -> Dim | None:
    """A place that is below 0 where a condition on places holds; None for other conditions.

    Such a condition may choose one of two numbers first, one of which is then asked for.
    """
    holds = True
    while condition.op in (Ops.CMPEQ, Ops.CMPNE) and condition.src[0].op is Ops.WHERE:
        chosen, wanted = condition.src
        if any(one.op is not Ops.CONST for one in (*chosen.src[1:], wanted)):
            return None
        first, second = ((one.arg == wanted.arg) is (condition.op is Ops.CMPEQ)
                         for one in chosen.src[1:])  # fmt: skip
        if first is second:
            return None
        holds, condition = holds is first, chosen.src[0]
    if condition.op is not Ops.CMPLT or condition.src[0].dtype.kind != "index":
        return None
    left, right = condition.src
    return index.sub(left, right) if holds else index.sub(index.sub(right, left), 1)


def _choice(exponent: Node) -> tuple[Node, Node] | None:
    """(condition, rest) of an exponent that is -inf where a condition holds, else the rest."""
    casts = []
    while exponent.op is Ops.CAST and exponent.src[0].dtype.kind == "float":
        casts.append(exponent)
        exponent = exponent.src[0]
    if exponent.op is not Ops.WHERE:
        return None
    condition, value, rest = exponent.src
    if rest.op is Ops.CONST:
        # Zeros of its own, for the same keys, count no more.
        value, rest = rest, value
        if rest.op is Ops.GUARD and rest.src[0] is condition:
            rest = rest.src[1]
        condition = _negated(condition)
    if value.op is not Ops.CONST or value.arg != _LOWEST:
        return None
    for each in reversed(casts):
        rest = each.replace(src=(rest,))
    return condition, rest


def _alternatives(condition: Node) -> list[Node]:
    """Conditions of which one at least holds where a condition does."""
    if condition.op is Ops.OR:
        return [one for side in condition.src for one in _alternatives(side)]
    if condition.op is Ops.NOT and condition.src[0].op is Ops.AND:
        return [one for side in condition.src[0].src for one in _alternatives(_negated(side))]
    return [condition]


def _negated(condition: Node) -> Node:
    if condition.op is Ops.NOT:
        return condition.src[0]
    if condition.op is Ops.CMPLT and condition.src[0].dtype is dtypes.index:
        return index.at_least(*condition.src)
    return alu(Ops.NOT, condition)


def holds_between(
    condition: Node, key: Node, ends: tuple[Node, Node], wanted: bool = True
) -> Node | None:
    """Where a condition holds, or does not, for all keys from one to another; None if unknown.

    It may compare keys with numbers that are read, as the lengths of sequences, and join such.
    """
    if key not in condition.ranges:
        return condition if wanted else alu(Ops.NOT, condition)
    if condition.op is Ops.NOT:
        return holds_between(condition.src[0], key, ends, not wanted)
    if condition.op in (Ops.AND, Ops.OR):
        parts = [holds_between(one, key, ends, wanted) for one in condition.src]
        left, right = [part for part in parts if part is not None] + [None] * parts.count(None)
        if (condition.op is Ops.AND) is wanted:
            return None if left is None or right is None else alu(Ops.AND, left, right)
        return left if left is None or right is None else alu(Ops.OR, left, right)
    if condition.op not in (Ops.CMPLT, Ops.CMPLE):
        return None
    # One end decides: the greatest number on the left, or on the right the least.
    on_left, on_right = [key in side.ranges for side in condition.src]
    if (on_left and on_right) or not all(map(partial(_rises, key), condition.src)):
        return None
    found = substitute(condition, {key: ends[on_left is wanted]})
    return found if wanted else alu(Ops.NOT, found)


def _rises(key: Node, place: Node) -> bool:
    """Whether a number does not fall as a key rises: a place among the keys, or no key's."""
    if key not in place.ranges:
        return True
    bits = 64
    while place.op is Ops.CAST and place.dtype.kind == "int":
        bits, place = min(bits, place.dtype.bits), place.src[0]
    if place.dtype is not dtypes.index or index.upper(place) >= 1 << (bits - 1):
        return False
    terms = dict(index.linear(place)[0])
    if terms.pop(key, 0) < 0:
        return False
    # A quotient that is taken off may fall by more than the key rises. A remainder falls where the
    # quotient by the same number rises, as in tiles of keys that are apart: by as much at least.
    quotients, remainders = (
        {atom.src[1]: factor for atom, factor in terms.items()
         if atom.op is op and atom.src[0] is key and atom.src[1].op is Ops.CONST}
        for op in (Ops.FLOORDIV, Ops.MOD)
    )  # fmt: skip
    if len(quotients) + len(remainders) < sum(key in atom.ranges for atom in terms):
        return False
    steps = [
        quotients.get(size, 0) - factor * (size.arg - 1) for size, factor in remainders.items()
    ]
    return min((*steps, *quotients.values(), *remainders.values()), default=0) >= 0


def _vanishes(term: Node, exponent: Node) -> bool:
    """Whether a term, if it is finite, is 0 where the power of an exponent is."""
    known: dict[Node, bool] = {}
    for node in toposort(term, enter=lambda one: one is not exponent):
        src = [known.get(child, False) for child in node.src]
        if node.op is Ops.CONST:
            known[node] = node.dtype.kind == "float" and node.arg == 0
        elif node.op in POWERS:
            known[node] = node.src[0].op is Ops.SUB and node.src[0].src[0] is exponent
        elif node.op is Ops.WHERE:
            known[node] = all(src[1:])
        else:
            known[node] = any(src) if node.op is Ops.MUL else node.op in _LINEAR and all(src)
    return known[term]


def stream_facts(kernel: Node) -> StreamFacts | None:
    """The facts of a kernel-level KERNEL; None where it is no stream that tiles are made of."""
    folds = [node for node in toposort(kernel)
             if node.op is Ops.REDUCE and not is_contraction(node)]  # fmt: skip
    if len(folds) != 1:
        return None
    (fold,) = folds
    states = fold.arg.monoid.arity if is_stream(fold) else 0
    count = fold.arg.monoid.arity
    if len(fold.src) > count + 1:
        kernel, fold = _over_one_axis(kernel, fold)
    if len(fold.src) != count + 1 or not (states in (2, 3) or are_float32_sums(fold)):
        return None
    terms = [_term(each) for each in fold.src[states - 1 if states == 3 else states : count]]
    weights = tuple([each for each, _ in terms])
    values = tuple([each for _, each in terms if each is not None])
    if len(values) < len(terms) and (states or count > 1):
        return None
    nears = {_near(source) for source in ((fold.src[1],) if states else weights)}
    near = nears.pop()
    if nears or near is None or (states and not _is_power(fold.src[1], near)):
        return None
    facts = _with_axes(kernel, fold, states, near, weights, values)
    if facts is None or (states and facts.read_beside(near)):
        return None
    # Where products are 0 because keys are missing, infinite queries would make them NaN.
    missing = {_negated(each.total.src[0].src[0]) for each in facts.products
               if each.total.src[0].op is Ops.GUARD}  # fmt: skip
    parts = {part for one in missing for part in _alternatives(one)}
    return facts if parts <= {*facts.hidden} else None


def _over_one_axis(kernel: Node, fold: Node) -> tuple[Node, Node]:
    """A kernel whose fold is over one axis in the place of several, as those of pages and keys."""
    count = fold.arg.monoid.arity
    axes = fold.src[count:]
    extents = tuple([extent_of(axis) for axis in axes])
    ids = [node.arg.id for node in toposort(kernel) if node.op is Ops.RANGE]
    key = range_node(index.as_dim(index.product(extents)), max(ids) + 1)
    places = [index.as_node(place) for place in index.unflatten(key, extents)]
    mapping = dict(zip(axes, places, strict=True))
    values = tuple([substitute(value, mapping) for value in fold.src[:count]])
    made = fold.replace(src=(*values, key))
    return rebuild(kernel, lambda node: None, memo={fold: made}), made


def _term(term: Node) -> tuple[Node, Node | None]:
    """Weights and the values that they are multiplied by; a term that is no such product itself."""
    for side, values in (term.src, term.src[::-1]) if term.op is Ops.MUL else ():
        weights = weights_of(side)
        if weights is not None and is_operand(values):
            return weights, _narrow(values)
    return term, None


def array_read(read: Node) -> Node | None:
    """The INDEX of what is read, guarded or not; None where that is something else.

    What is read may be 8-bit floats, of which a factor is made.
    """
    while read.op is Ops.GUARD or is_of_bytes(read):
        read = read.src[-1]
    return read if read.op is Ops.INDEX else None


def lies_together(read: Node, across: Node, count: int) -> bool:
    """Whether what is read lies in whole chunks of so many elements across a tile."""
    found = array_read(read)
    assert found is not None
    terms, constant = index.linear(index.flatten(found.src[1:], found.src[0].shape))
    others = [scale for atom, scale in terms.items() if atom is not across]
    return terms.get(across) == 1 and not any(scale % count for scale in (constant, *others))


def _are_octets(read: Node, across: Node, target: AnyTarget) -> bool:
    """Whether 8-bit floats that a machine widens lie in whole chunks across a tile."""
    found = array_read(read)
    if found is None or not found.dtype.is_float or found.dtype.name not in target.widened_floats:
        return False
    width = extent_of(across)
    count = CHUNK_NBYTES // found.dtype.itemsize
    whole = isinstance(width, int) and width % count == 0
    return found.dtype.bits == 8 and whole and lies_together(read, across, count)


def _narrow(operand: Node) -> Node:
    """What an operand is before it is widened, under the conditions that it is read under."""
    conditions = []
    while operand.op is Ops.GUARD:
        conditions.append(operand.src[0])
        operand = operand.src[1]
    return _under(conditions, operand.src[0])


def _under(conditions: list[Node], value: Node) -> Node:
    for condition in reversed(conditions):
        value = Node(Ops.GUARD, value.dtype, (condition, value))
    return value


def _near(source: Node) -> Node | None:
    """The one power of x - something that a value is made of, where x is made of products."""
    found = [
        node for node in toposort(source, enter=lambda node: node.op is not Ops.INDEX)
        if node.op in POWERS and node.src[0].op is Ops.SUB
        and any(map(is_contraction, toposort(node.src[0].src[0])))
    ]  # fmt: skip
    return found[0] if len(found) == 1 else None


def _is_power(value: Node, near: Node) -> bool:
    """Whether a value is a power, perhaps rounded to 16 bits."""
    return value is near or (is_widened(value) and value is rounded(near, value.src[0].dtype))


def _with_axes(
    kernel: Node, fold: Node, states: int, near: Node, weights: tuple[Node, ...],
    values: tuple[Node, ...],
) -> StreamFacts | None:  # fmt: skip
    """The facts of a fold whose parts are known, if its axes are those of tiles."""
    key, over = fold.src[-1], None
    if all(key in side.ranges for side in _first_product(fold).src):
        # What is summed over heads or sequences has tiles of keys of its own.
        key, over = kernel.src[0].src[-1], key
        if states or values or len(kernel.src) > 1 or key.op is not Ops.RANGE:
            return None
    products = []
    for total in toposort(*fold.src):
        if total.op is Ops.REDUCE:
            found = _scores(total, key)
            if found is None:
                return None
            products.append(found)
    reads = [side for each in products for side in (each.left, each.right)]
    reads += values
    if not products or any(array_read(read) is None for read in reads):
        return None
    own = products[0]
    still = NO_RANGES.union(*[each.ranges for each in values])
    # Of heads that share keys, each has rows of its own.
    lines = own.left.ranges - {own.depth} - own.right.ranges - still
    rows = frozenset(sorted(lines, key=lambda axis: axis.arg.id)[-1:])
    columns = still - {key} - own.total.ranges
    places = NO_RANGES.union(*[place.ranges for out in kernel.src for place in out.src[2:]])
    taken = rows | columns | {key, *[each.depth for each in products]}
    for each in products:
        if not rows <= each.left.ranges or not rows.isdisjoint(each.right.ranges):
            return None
    if len(columns) != bool(values) or not columns | rows <= places:
        return None
    if over is not None and (len(rows) != 1 or over in places):
        return None
    batch = tuple(sorted(places - taken, key=lambda axis: axis.arg.id))
    return StreamFacts(
        kernel, fold, states, near, weights, tuple(products),
        values, next(iter(rows), None), key,
        next(iter(columns), None), batch, over,
    )


def _first_product(fold: Node) -> Node:
    """The factors of the first sum of products in a fold, or the fold where there is none."""
    found = [node for node in toposort(*fold.src) if is_contraction(node)]
    product: Node = found[0].src[0] if found else fold
    return product.src[1] if product.op is Ops.GUARD else product


def _scores(total: Node, key: Node) -> Scores | None:
    """The sides of a product inside a stream."""
    product, conditions = total.src[0], list[Node]()
    if product.op is Ops.GUARD:
        conditions.append(product.src[0])
        product = product.src[1]
    left, right = map(_narrow, product.src)
    if key in left.ranges:
        left, right = right, left
    if key in left.ranges or key not in right.ranges or len(total.src) != 2:
        return None
    # Zeros are for keys that are not there.
    if any(key not in condition.ranges for condition in conditions):
        return None
    return Scores(total, left, _under(conditions, right), total.src[1])
