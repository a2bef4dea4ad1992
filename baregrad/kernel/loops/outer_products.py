"""Which products are larger than their factors: only these are summed without being rounded.

A sum of products may take each product unrounded (`x*y + z` with one rounding). Then its last bit
depends on whether it makes the products itself or reads them from memory, where they are rounded.
So products that something may store are rounded: those with no more elements than one of their
factors, as x*x, x*y and x*mean have. A product of matrices or a convolution has more elements than
each of its factors, and nobody stores it.

A factor has all elements of a product if the places that it reads from say which ones the other
factor reads: in x[i, j]*y[j] those of x do. In x[i + r]*w[r] those of neither do.
"""

from __future__ import annotations

from collections.abc import Iterable

from baregrad.dtypes import dtypes
from baregrad.ir.analysis.words import byte_products
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops

# An index without what is the same for all elements: atoms with their coefficients.
Place = frozenset[tuple[Node, int]]


def sums_outer(value: Node) -> bool:
    """Whether what is summed, at the kernel level, is a product larger than each of its factors.

    Also where that cannot be seen, and where the product is exact, so that nothing is rounded.
    """
    if byte_products(value):
        # Products of bytes are scaled where they are summed up, and their minima with them.
        return True
    product = value.src[1] if value.op is Ops.GUARD else value
    if product.op is Ops.MUL and all(_is_half(factor) for factor in product.src):
        return True
    return is_outer(value)


def is_outer(value: Node) -> bool:
    """Whether what is summed is a product that is larger than each of its factors, if it is one."""
    product = value.src[1] if value.op is Ops.GUARD else value
    if product.op is not Ops.MUL:
        return False
    first, second = (_places(factor) for factor in product.src)
    return not _follow(second, first) and not _follow(first, second)


def _is_half(factor: Node) -> bool:
    """Whether float32 holds each product of two such factors: they have 11 digits at most."""
    if factor.op is not Ops.CAST or factor.dtype not in (dtypes.float32, dtypes.float64):
        return False
    narrow = factor.src[0].dtype
    return narrow.is_float and narrow.bits <= 16


def _places(factor: Node) -> set[Place]:
    """The indices that a factor is read at or computed from."""
    found: set[Place] = set()
    for node in toposort(factor, enter=lambda node: node.dtype is not dtypes.index):
        if node.dtype is dtypes.index:
            # Of a loop inside a factor only the axes that it keeps matter.
            terms = [term for term in index.linear(node)[0].items() if term[1] and term[0].ranges]
            if not node.ranges <= factor.ranges:
                terms = [term for term in terms if term[0].ranges <= factor.ranges]
            found.add(frozenset(terms))
    found.discard(frozenset())
    return found


def _follow(places: Iterable[Place], known: set[Place]) -> bool:
    """Whether places are functions of known ones."""
    atoms = {atom for place in known if _is_mixed_radix(place) for atom, _ in place}
    return all(
        place in known or all(atom in atoms for atom, _ in place) for place in places
    )


def _is_mixed_radix(place: Place) -> bool:
    """Whether each value of an index comes from one value of each of its atoms."""
    reach = 0
    for atom, scale in sorted(place, key=lambda term: abs(term[1])):
        low, high = index.lower(atom), index.upper(atom)
        if abs(scale) <= reach:
            return False
        reach += abs(scale) * (high - low)
    return True
