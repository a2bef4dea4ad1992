"""Index arithmetic over unbounded integers: smart constructors that simplify as they build.

Every sum has one canonical form, c1*t1 + c2*t2 + ... + c0 with the terms in a fixed order, so equal
expressions are the same node and `x//c*c + x%c` folds back to `x`. Functions take ints or nodes of
dtype `index` and give an int when every input was one (`Dim` in, `Dim` out).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from baregrad.dtypes import dtypes
from baregrad.ir.core.axes import named
from baregrad.ir.core.bounds import bounds
from baregrad.ir.core.digest import free_digest
from baregrad.ir.core.integers import SIMPLIFIED
from baregrad.ir.core.node import Node, alu, const, scalar
from baregrad.ir.core.op import Ops, mask_of

Dim = int | Node
Terms = dict[Node, int]
_INDEX = dtypes.index
_ADD, _MUL, _CONST, _RANGE = Ops.ADD, Ops.MUL, Ops.CONST, Ops.RANGE
_DIGITS = frozenset((Ops.MOD, Ops.FLOORDIV))
_ID = attrgetter("arg.id")


def as_node(value: Dim) -> Node:
    """`value` as an index node."""
    return value if isinstance(value, Node) else const(value, dtypes.index)


def as_dim(value: Dim) -> Dim:
    """`value` as an int when it is constant."""
    return value.arg if isinstance(value, Node) and value.op is _CONST else value


def variable(name: str, lo: int, hi: int) -> Node:
    """A symbolic integer `name` with inclusive bounds. Raises ShapeError for none: see `named`."""
    return Node(Ops.VAR, dtypes.index, (), named(name, lo, hi))


def lower(value: Dim) -> int:
    """The smallest value of an int or an index node."""
    return value if isinstance(value, int) else bounds(value)[0]


def upper(value: Dim) -> int:
    """The largest value of an int or an index node."""
    return value if isinstance(value, int) else bounds(value)[1]


# --- the canonical sum ---------------------------------------------------------------------------


def linear(value: Dim) -> tuple[Terms, int]:
    """`value` as ({atom: coefficient}, constant); the dict is fresh."""
    if isinstance(value, int):
        return {}, value
    terms: Terms = {}
    constant = 0
    # What is left to do; last terms come first.
    stack: list[tuple[Node, int]] = []
    node, scale = value, 1
    while True:
        op = node.op
        if op is _ADD:
            first, node = node.src
            stack.append((first, scale))
            continue
        if op is _MUL:
            first, second = node.src
            if second.op is _CONST:
                node, scale = first, scale * int(second.arg)
                continue
            if first.op is _CONST:
                node, scale = second, scale * int(first.arg)
                continue
            terms[node] = terms.get(node, 0) + scale
        elif op is _CONST:
            constant += int(node.arg) * scale
        elif op is Ops.SUB:
            first, node = node.src
            stack.append((first, scale))
            scale = -scale
            continue
        elif op is Ops.NEG:
            node, scale = node.src[0], -scale
            continue
        elif op is not _RANGE or node.src[0].op is not _CONST or node.src[0].arg != 1:
            # The only value of an axis of extent 1 is 0.
            terms[node] = terms.get(node, 0) + scale
        if not stack:
            break
        node, scale = stack.pop()
    return terms, constant


def _order(atom: Node) -> tuple[int, int, str]:
    if atom.op is Ops.RANGE:
        return (0, atom.arg.id, "")
    if atom.op is Ops.VAR:
        return (1, 0, atom.arg.name)
    return (2, 0, free_digest(atom))


def from_linear(terms: Terms, constant: int) -> Node:
    """The canonical node of c1*t1 + ... + constant."""
    atoms = [atom for atom, scale in terms.items() if scale]
    if len(atoms) > 1:
        # Mostly they are axes alone, whose numbers are compared without running Python.
        plain = [atom for atom in atoms if atom.op is _RANGE]
        atoms.sort(key=_ID if len(plain) == len(atoms) else _order)
    total: Node | None = None
    for atom in atoms:
        scale = terms[atom]
        term = atom if scale == 1 else scalar(_MUL, _INDEX, (atom, const(scale, _INDEX)))
        total = term if total is None else scalar(_ADD, _INDEX, (total, term))
    if total is None:
        return const(constant, _INDEX)
    return total if constant == 0 else scalar(_ADD, _INDEX, (total, const(constant, _INDEX)))


def _recombine(terms: Terms) -> Terms:
    """k*(x%c) + k*c*(x//c) -> k*x, and k*(x%c) + k*c*((x//c)%d) -> k*(x%(c*d))."""
    changed = True
    while changed:
        changed = False
        for atom in [a for a in terms if a.op is Ops.MOD]:
            scale = terms.get(atom, 0)
            if not scale:
                continue
            whole, size = atom.src
            high = floordiv(whole, size)
            scaled = mul(size, scale)
            if not isinstance(scaled, int) and scaled.op is not Ops.CONST:
                continue
            factor = lower(scaled)
            if isinstance(high, Node) and terms.get(high) == factor:
                del terms[atom], terms[high]
                extra, constant = linear(whole)
                if constant:
                    extra[const(1, dtypes.index)] = constant
                for other, coefficient in extra.items():
                    terms[other] = terms.get(other, 0) + coefficient * scale
                changed = True
                break
            for other in [a for a in terms if a.op is Ops.MOD and a.src[0] is high]:
                if terms[other] == factor:
                    merged = as_node(mod(whole, mul(size, other.src[1])))
                    del terms[atom], terms[other]
                    terms[merged] = terms.get(merged, 0) + scale
                    changed = True
                    break
            if changed:
                break
    return terms


def total(values: Iterable[Dim]) -> Dim:
    """The canonical sum of several values."""
    terms: Terms = {}
    constant = 0
    symbolic = False
    for value in values:
        if isinstance(value, int):
            constant += value
            continue
        symbolic = True
        more, extra = linear(value)
        constant += extra
        for atom, scale in more.items():
            terms[atom] = terms.get(atom, 0) + scale
    if not symbolic:
        return constant
    return from_linear(*_with_whole_digits(terms, constant))


def _with_whole_digits(terms: Terms, constant: int) -> tuple[Terms, int]:
    """The same sum with quotients and remainders of one value put together again."""
    if len([atom for atom in terms if atom.op in _DIGITS]) > 1:
        terms = _recombine({atom: scale for atom, scale in terms.items() if scale})
        constant += terms.pop(const(1, _INDEX), 0)
    return terms, constant


def replaced(terms: Terms, constant: int, by: Mapping[Node, Node]) -> Node:
    """The canonical sum of what stands for the atoms of another sum."""
    found: Terms = {}
    for atom, scale in terms.items():
        more, extra = linear(by[atom])
        constant += extra * scale
        for other, each in more.items():
            found[other] = found.get(other, 0) + each * scale
    return from_linear(*_with_whole_digits(found, constant))


@SIMPLIFIED(Ops.ADD)
def add(a: Dim, b: Dim) -> Dim:
    """Return a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if b.__class__ is int and b == 0:
        return a
    if a.__class__ is int and a == 0:
        return b
    return total((a, b))


@SIMPLIFIED(Ops.SUB)
def sub(a: Dim, b: Dim) -> Dim:
    """Return a - b."""
    return a - b if isinstance(a, int) and isinstance(b, int) else total((a, mul(b, -1)))


@SIMPLIFIED(Ops.MUL)
def mul(a: Dim, b: Dim) -> Dim:
    """Return a * b; a constant factor is distributed over sums."""
    if a.__class__ is int and b.__class__ is int:
        return a * b
    a, b = as_dim(a), as_dim(b)
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if isinstance(a, int):
        a, b = b, a
    assert isinstance(a, Node)
    if isinstance(b, int):
        if b == 1:
            return a
        if a.op is _RANGE and b and a.src[0].op is _CONST and a.src[0].arg != 1:
            return scalar(_MUL, _INDEX, (a, const(b, _INDEX)))
        terms, constant = linear(a)
        return from_linear({atom: scale * b for atom, scale in terms.items()}, constant * b)
    terms, constant = linear(a)
    others, other_constant = linear(b)
    products: list[Dim] = [constant * other_constant]
    for atom, scale in terms.items():
        products.append(mul(atom, scale * other_constant) if other_constant else 0)
        for other, other_scale in others.items():
            first, second = sorted((atom, other), key=_order)
            products.append(mul(alu(Ops.MUL, first, second), scale * other_scale))
    for other, other_scale in others.items():
        if constant:
            products.append(mul(other, other_scale * constant))
    return total(products)


# --- division ------------------------------------------------------------------------------------


def _divide(terms: Terms, constant: int, size: int) -> tuple[Terms, int, Terms, int]:
    """Split c1*t1 + ... into size*(quotient) + rest, with the rest's constant in [0, size)."""
    quotient = {atom: scale // size for atom, scale in terms.items() if scale % size == 0}
    rest = {atom: scale for atom, scale in terms.items() if scale % size}
    return quotient, constant // size, rest, constant % size


def _coarse(terms: Terms, constant: int, size: int) -> tuple[int, Terms, int, Terms, int] | None:
    """A g > 1 dividing `size` with terms = g*high + low and 0 <= low < g, or None."""
    divisors = {math.gcd(abs(scale), size) for scale in terms.values()}
    for g in sorted(divisors, reverse=True):
        if g <= 1:
            continue
        high = {atom: scale // g for atom, scale in terms.items() if scale % g == 0}
        low = {atom: scale for atom, scale in terms.items() if scale % g}
        low_constant = constant % g
        lo, hi = bounds(from_linear(low, low_constant))
        if lo >= 0 and hi < g and high:
            return g, high, constant // g, low, low_constant
    return None


@SIMPLIFIED(Ops.FLOORDIV)
def floordiv(a: Dim, b: Dim) -> Dim:
    """Return floor(a / b) for b > 0; 0 for b = 0, in arrays without elements."""
    if a.__class__ is int and b.__class__ is int:
        return a // b if b else 0
    a, b = as_dim(a), as_dim(b)
    if isinstance(b, int):
        if b == 1:
            return a
        if b == 0:
            return 0
        if isinstance(a, int):
            return a // b
        return _floordiv_const(a, b)
    return _symbolic_division(a, b)[0]


def _floordiv_const(a: Node, size: int) -> Dim:
    quotient, whole, rest, constant = _divide(*linear(a), size)
    if not rest:
        return from_linear(quotient, whole)
    lo, hi = bounds(from_linear(rest, constant))
    if lo // size == hi // size:
        return from_linear(quotient, whole + lo // size)
    coarse = _coarse(rest, constant, size)
    if coarse is not None:
        g, high, high_constant, _, _ = coarse
        inner = floordiv(from_linear(high, high_constant), size // g)
        return total((from_linear(quotient, whole), inner))
    if not constant and len(rest) == 1:
        ((atom, scale),) = rest.items()
        if scale == 1 and atom.op is Ops.FLOORDIV and atom.src[1].op is Ops.CONST:
            inner = floordiv(atom.src[0], int(atom.src[1].arg) * size)
            return total((from_linear(quotient, whole), inner))
    node = alu(Ops.FLOORDIV, from_linear(rest, constant), const(size, dtypes.index))
    return total((from_linear(quotient, whole), node)) if quotient or whole else node


@SIMPLIFIED(Ops.MOD)
def mod(a: Dim, b: Dim) -> Dim:
    """Return a - b*floor(a / b) for b > 0; 0 for b = 0, in arrays without elements."""
    if a.__class__ is int and b.__class__ is int:
        return a % b if b else 0
    a, b = as_dim(a), as_dim(b)
    if isinstance(b, int):
        if b in (0, 1):
            return 0
        if isinstance(a, int):
            return a % b
        return _mod_const(a, b)
    return _symbolic_division(a, b)[1]


def _mod_const(a: Node, size: int) -> Dim:
    _, _, rest, constant = _divide(*linear(a), size)
    if not rest:
        return constant
    lo, hi = bounds(from_linear(rest, constant))
    if lo // size == hi // size:
        return add(from_linear(rest, constant), -(lo // size) * size)
    coarse = _coarse(rest, constant, size)
    if coarse is not None:
        g, high, high_constant, low, low_constant = coarse
        inner = mod(from_linear(high, high_constant), size // g)
        return total((mul(inner, g), from_linear(low, low_constant)))
    if not constant and len(rest) == 1:
        ((atom, scale),) = rest.items()
        if scale == 1 and atom.op is Ops.MOD and atom.src[1].op is Ops.CONST:
            if int(atom.src[1].arg) % size == 0:
                return mod(atom.src[0], size)
    positive = {atom: scale % size for atom, scale in rest.items()}
    if positive != rest and all(bounds(atom)[0] >= 0 for atom in rest):
        rest = positive
    return alu(Ops.MOD, from_linear(rest, constant), const(size, dtypes.index))


def _symbolic_division(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """(a // b, a % b) where b is symbolic and positive: terms that carry b as a factor divide."""
    size = as_node(b)
    terms, constant = linear(a)
    quotient: list[Dim] = []
    rest: Terms = {}
    for atom, scale in terms.items():
        if atom is size:
            quotient.append(scale)
        elif atom.op is Ops.MUL and size in atom.src:
            other = atom.src[1] if atom.src[0] is size else atom.src[0]
            quotient.append(mul(other, scale))
        else:
            rest[atom] = scale
    remainder = from_linear(rest, constant)
    if _below(remainder, size):
        return total(quotient) if quotient else 0, as_dim(remainder)
    high = alu(Ops.FLOORDIV, remainder, size)
    low = alu(Ops.MOD, remainder, size)
    return total((*quotient, high)), low


def _below(value: Node, limit: Node) -> bool:
    """Whether 0 <= value < limit is certain."""
    lo, hi = bounds(value)
    if lo < 0:
        return False
    if hi < bounds(limit)[0]:
        return True
    if value.op is Ops.RANGE and value.src[0] is limit:
        return True
    return _range_slack(*linear(sub(limit, value))) > 0


def _range_slack(terms: Terms, constant: int) -> int:
    """The least value of a sum in which each -c*range is replaced by -c*(extent - 1)."""
    worst: list[Dim] = [constant]
    for atom, scale in terms.items():
        if atom.op is Ops.RANGE and scale < 0:
            worst.append(mul(sub(atom.src[0], 1), scale))
        else:
            worst.append(mul(atom, scale))
    return lower(total(worst))


# --- comparison and selection --------------------------------------------------------------------


def less(a: Dim, b: Dim) -> Node:
    """Return a < b as a bool node; constant when bounds decide."""
    return _below_zero(a, b, 0)


def _below_zero(a: Dim, b: Dim, extra: int) -> Node:
    """Whether a - b + extra < 0; no node is made of the difference."""
    terms, constant = linear(a)
    more, taken = linear(b)
    for atom, scale in more.items():
        terms[atom] = terms.get(atom, 0) - scale
    terms, constant = _with_whole_digits(terms, constant - taken + extra)
    terms = {atom: scale for atom, scale in terms.items() if scale}
    lo = hi = constant
    for atom, scale in terms.items():
        ends = bounds(atom)
        lo += scale * ends[scale < 0]
        hi += scale * ends[scale > 0]
    if hi < 0 or lo >= 0:
        return const(hi < 0, dtypes.bool)
    for atom in terms:
        if atom.op is Ops.RANGE and (atom.src[0].op is not Ops.CONST or atom.src[0].arg < 1):
            # Bounds do not know how a symbolic extent and its axis belong together.
            if _range_slack({one: -scale for one, scale in terms.items()}, -constant) > 0:
                return const(True, dtypes.bool)
            break
    common = math.gcd(*terms.values())
    if common > 1:
        # g*x + k < 0  <=>  x < ceil(-k / g)
        terms = {atom: scale // common for atom, scale in terms.items()}
        constant = -((common - 1 - constant) // common)
    if len(terms) > 1:
        terms, constant = _decisive(terms, constant)
    return alu(Ops.CMPLT, from_linear(terms, 0), const(-constant, dtypes.index))


def _decisive(terms: Terms, constant: int) -> tuple[Terms, int]:
    """Those of the terms that decide whether the sum is less than 0, and their constant.

    64*i + j < 256 for 0 <= j < 64 is i < 4: j moves the sum within one step of the others.
    """
    for size in sorted({abs(scale) for scale in terms.values()}, reverse=True):
        fine = {atom: scale for atom, scale in terms.items() if scale % size}
        if not fine:
            break
        lo = hi = constant
        for atom, scale in fine.items():
            ends = [scale * end for end in bounds(atom)]
            lo, hi = lo + min(ends), hi + max(ends)
        if lo // size == hi // size:
            coarse = {atom: scale // size for atom, scale in terms.items() if atom not in fine}
            return coarse, lo // size
    return terms, constant


def at_least(a: Dim, b: Dim) -> Node:
    """Return a >= b as a bool node."""
    return _below_zero(b, a, -1)


def both(*conditions: Node) -> Node:
    """The conjunction of bool nodes; constants vanish, duplicates too."""
    kept: dict[Node, None] = {}
    for condition in conditions:
        if condition.op is Ops.CONST:
            if not condition.arg:
                return condition
            continue
        for part in conjuncts(condition):
            kept[part] = None
    if not kept:
        return const(True, dtypes.bool)
    # A digest takes long: one condition has no order.
    first, *others = sorted(kept, key=free_digest) if len(kept) > 1 else kept
    for condition in others:
        first = alu(Ops.AND, first, condition)
    return first


def conjuncts(condition: Node) -> list[Node]:
    """The parts of a conjunction."""
    parts: list[Node] = []
    stack = [condition]
    while stack:
        node = stack.pop()
        if node.op is Ops.AND:
            stack.extend(node.src)
        else:
            parts.append(node)
    return parts


def inside(value: Dim, extent: Dim) -> Node:
    """0 <= value < extent as a bool node."""
    return both(at_least(value, 0), less(value, extent))


@SIMPLIFIED(Ops.MIN)
def minimum(a: Dim, b: Dim) -> Dim:
    """The smaller of a and b."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if upper(a) <= lower(b):
        return a
    return b if upper(b) <= lower(a) else alu(Ops.MIN, as_node(a), as_node(b))


@SIMPLIFIED(Ops.MAX)
def maximum(a: Dim, b: Dim) -> Dim:
    """The larger of a and b."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if lower(a) >= upper(b):
        return a
    return b if lower(b) >= upper(a) else alu(Ops.MAX, as_node(a), as_node(b))


def product(dims: Iterable[Dim]) -> Dim:
    """The product of several dimensions."""
    constant = 1
    symbolic: Dim = 1
    for dim in dims:
        if dim.__class__ is int:
            constant *= dim
        else:
            symbolic = mul(symbolic, dim)
    return as_dim(mul(symbolic, constant))


def resimplify(node: Node) -> Node | None:
    """`node` built again through the smart constructors, when it is index arithmetic."""
    op = node.op
    rule = SIMPLIFIED.get(op) if node.dtype is _INDEX else None
    if rule is not None:
        return as_node(rule(*node.src))
    if op is Ops.CMPLT and node.src[0].dtype is _INDEX:
        return less(node.src[0], node.src[1])
    if op is Ops.AND and node.dtype is dtypes.bool:
        return both(*node.src)
    if op is Ops.GUARD and node.src[0].op is Ops.CONST:
        return node.src[1] if node.src[0].arg else const(0, node.dtype)
    return None


# What `resimplify` may make simpler, beside arithmetic on positions.
CONDITIONS = mask_of((Ops.CMPLT, Ops.AND, Ops.GUARD))


def flatten(indices: Iterable[Dim], shape: Iterable[Dim]) -> Dim:
    """The row-major offset of `indices` in an array of `shape`."""
    offset: Dim = 0
    for value, extent in zip(indices, shape, strict=True):
        offset = add(mul(offset, extent), value)
    return offset


def flat_terms(indices: Sequence[Dim], shape: Sequence[Dim]) -> tuple[Terms, int]:
    """What `linear` finds in `flatten(indices, shape)`, without making nodes on the way."""
    for extent in shape[1:]:
        if extent.__class__ is not int:
            return linear(flatten(indices, shape))
    terms: Terms = {}
    constant = 0
    stride = 1
    for value, extent in zip(indices[::-1], shape[::-1], strict=True):
        if isinstance(value, Node) and value.op is _RANGE:
            # An axis of one element is always 0.
            size = value.src[0]
            if size.op is not _CONST or size.arg != 1:
                terms[value] = terms.get(value, 0) + stride
        else:
            more, extra = linear(value)
            constant += extra * stride
            for atom, scale in more.items():
                terms[atom] = terms.get(atom, 0) + scale * stride
        if isinstance(extent, int):
            stride *= extent
    return _with_whole_digits(terms, constant)


def unflatten(offset: Dim, shape: tuple[Any, ...]) -> tuple[Dim, ...]:
    """The row-major indices of element `offset` of an array of `shape`."""
    indices: list[Dim] = []
    for extent in shape[:0:-1]:
        if extent.__class__ is int and isinstance(offset, Node):
            # What bounds say at once needs no arithmetic.
            if extent == 1:
                indices.append(0)
                continue
            least, most = bounds(offset)
            if least >= 0 and most < extent:
                indices.append(offset)
                offset = 0
                continue
        indices.append(mod(offset, extent))
        offset = floordiv(offset, extent)
    if shape:
        indices.append(offset)
    return tuple(reversed(indices))
