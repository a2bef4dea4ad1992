"""What an instruction that multiplies and adds many numbers at once is: a row of data."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from functools import cache
from typing import NamedTuple

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.analysis.words import Factors
from baregrad.ir.core.monoid import slot
from baregrad.ir.core.node import Node, alu, cast
from baregrad.ir.core.op import Ops
from baregrad.kernel.facts.analysis import Facts, is_read
from baregrad.kernel.facts.axis_table import Axis, AxisTable
from baregrad.kernel.language.schedule import Tensorize, illegal
from baregrad.target.gpu import GpuTarget

# Bits of the floats of which sums of panels are added up apart, and so may be scaled; and of those
# that single warps multiply in their place.
OCTET, HALF = 8, 16


class Instruction(NamedTuple):
    """An instruction as schedules ask for it by `name`.

    executor: who executes it: a `lane`, a CPU's `core`, or a `warp` of threads. products: what it
    adds up, and what rows of `target` call it then. sizes: of its axes, in the order of the step's;
    () for any. The last `summed` of them are reduced, and all are loops but that at `vector`.
    operands: where the result and both factors lie. needs: the machines and sums that it is for, in
    words. check: refuses with a ScheduleError what is particular to it.
    """

    name: str
    executor: str
    products: Mapping[Factors, str]
    sizes: tuple[tuple[int, ...], ...]
    summed: int
    operands: str
    needs: str
    check: Callable[[AxisTable, Tensorize, list[Axis]], None]
    vector: int = -1


@cache
def meaning_of(product: Factors) -> Node:
    """What is added to an element of a sum: the product of two SLOTs, each cast to its dtype."""
    left, right, total = product
    return alu(Ops.MUL, cast(slot(0, left), total), cast(slot(1, right), total))


def is_element(node: Node) -> bool:
    """Whether a node reads an element of an argument, guarded or not."""
    return is_read(node.src[1] if node.op is Ops.GUARD else node)


def matched(meaning: Node, value: Node) -> tuple[Node, ...] | None:
    """What stands in `value` for the SLOTs of `meaning`, each a read, guarded or not; else None."""
    found: dict[int, Node] = {}
    pairs = [(meaning, value)]
    for one, other in pairs:
        if one.dtype is not other.dtype:
            return None
        if one.op is Ops.SLOT:
            if not is_element(other):
                return None
            found[one.arg] = other
        elif one.op is not other.op:
            return None
        else:
            pairs.extend(zip(one.src, other.src, strict=True))
    return tuple([found[place] for place in sorted(found)])


def factors_of(value: Node, products: Iterable[Factors]) -> tuple[Node, Node] | None:
    """The reads whose product `value` is, if it is one of these; else None."""
    for product in products:
        found = matched(meaning_of(product), value)
        if found is not None:
            return found[0], found[1]
    return None


def summed_factors(facts: Facts, products: Iterable[Factors]) -> tuple[Node, Node] | None:
    """The reads of which a kernel's only reduction sums such products; None for anything else."""
    if len(facts.reductions) != 1:
        return None
    node = facts.reductions[0].node
    return factors_of(node.src[0], products) if node.arg.monoid.primitive is Ops.ADD else None


def scaled_bits(target: GpuTarget | None) -> int:
    """Bits, at most, of the floats of which a machine may scale sums of panels."""
    return OCTET if target is None or target.warpgroup_warps else HALF


def kept_factors(facts: Facts, bits: int = OCTET) -> tuple[Node, Node] | None:
    """The two factors that a kernel's only reduction sums, ahead of casts that widen them.

    bits: as of `scaled_product`. None where it sums no products, or where a factor is not computed
    of elements alone.
    """
    if len(facts.reductions) != 1:
        return None
    node = facts.reductions[0].node
    if node.arg.monoid.primitive is not Ops.ADD or node.src[0].op is not Ops.MUL:
        return None
    left, right = map(_ahead_of_widening, scaled_product(node, bits)[0].src)
    return (left, right) if _is_elementwise(left) and _is_elementwise(right) else None


def product_of(
    facts: Facts, products: Container[Factors], bits: int = OCTET
) -> Factors | None:
    """What a kernel's only sum multiplies and adds up, if a unit makes such products; else None.

    The factors are elements of inputs, or values that the kernel rounds to their dtypes. bits: as
    of `scaled_product`.
    """
    found = kept_factors(facts, bits)
    if found is None:
        return None
    what = Factors(found[0].dtype, found[1].dtype, facts.reductions[0].node.dtype)
    return what if what in products else None


def scaled_product(total: Node, bits: int = OCTET) -> tuple[Node, Node | None]:
    """What a REDUCE of products sums, and a scale of whole rows of it, or None.

    Those are of floats of no more `bits` (`scaled_bits`), of which sums of a panel's products are
    multiplied by it.
    """
    value, *own = total.src
    while value.op in (Ops.CAST, Ops.GUARD):
        value = value.src[-1]
    if value.op is Ops.MUL and value.dtype is dtypes.float32 and len(own) > 1:
        for product, scale in (value.src, value.src[::-1]):
            narrow = product.op is Ops.MUL and all(is_narrow(each, bits) for each in product.src)
            if narrow and not (
                scale.has(Ops.REDUCE, Ops.SCAN, Ops.STAGE)
            ) and any(axis not in scale.ranges for axis in own):
                return product, scale
    return value, None


def is_narrow(factor: Node, bits: int) -> bool:
    """Whether a factor is widened of floats of 8 `bits`, or of so many at most."""
    found = _ahead_of_widening(factor).dtype
    return found.is_float and OCTET <= found.bits <= bits


def _ahead_of_widening(value: Node) -> Node:
    if value.op is not Ops.CAST:
        return value
    (narrow,) = value.src
    kinds = narrow.dtype.kind, value.dtype.kind
    is_exact = kinds[0] == kinds[1] or kinds == ("uint", "int")
    widens = narrow.dtype.bits < value.dtype.bits or narrow.dtype is dtypes.tfloat32
    return narrow if is_exact and widens else value


def _is_elementwise(value: Node) -> bool:
    """Whether a value is computed of elements of arguments, one at least, without folds."""
    return value.has(Ops.INDEX) and not value.has(Ops.REDUCE, Ops.SCAN, Ops.STAGE)


def check_step(table: AxisTable, step: Tensorize, row: Instruction) -> None:
    """Give the axes of a step to an instruction. Raises ScheduleError where it cannot do them."""
    if (row.executor == "warp") != (table.gpu is not None):
        raise without_instruction(table, step, row)
    wanted = _in_words(row)
    if len(step.axes) != len(row.sizes) or len(set(step.axes)) != len(row.sizes):
        raise illegal(step, found=f"{len(step.axes)} axes", wanted=wanted)
    axes = [table.axis(name, step) for name in step.axes]
    for place, (axis, sizes) in enumerate(zip(axes, row.sizes, strict=True)):
        free = not axis.serial and axis.name not in table.staged
        free = free and axis.unit == ("vector" if place == row.vector else "loop")
        fits = axis.extent in sizes if sizes else isinstance(axis.extent, int) and axis.extent > 0
        if not (free and fits) or axis.reduced != (place >= len(axes) - row.summed):
            raise illegal(
                step, "an axis is no part of the size that the instruction does",
                found=f"{axis.name} of {axis.extent} on {axis.unit}",
                wanted=f"{wanted}, not staged yet",
            )
    row.check(table, step, axes)
    for axis in axes:
        axis.serial = "an instruction does all of the axis"


def _in_words(row: Instruction) -> str:
    """The axes of an instruction, in words."""
    found = []
    for place, sizes in enumerate(row.sizes):
        kind = " summed" if place >= len(row.sizes) - row.summed else ""
        kind += " along a vector" if place == row.vector else ""
        found.append(f"{' or '.join(map(str, sizes)) or 'any number'}{kind}")
    return f"loops of {', '.join(found)}"


def without_instruction(table: AxisTable, step: Tensorize, row: Instruction) -> ScheduleError:
    """What is said where a machine does not have an instruction."""
    has = [name for name in dict.fromkeys(row.products.values()) if table.has(name)]
    return illegal(
        step, "the machine has no such instruction", found=", ".join(has) or "none of this kind",
        wanted=row.needs,
    )
