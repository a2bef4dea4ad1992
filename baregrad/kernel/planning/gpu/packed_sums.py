"""Sums of a GPU's kernel over numbers that are packed in words: a thread has all that is in a word.

What a word holds is unpacked once, by operations on all of it, and scales are made once for all
that a thread has under them. Neighbouring threads read neighbouring words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

from baregrad.base.bits import next_power_of_two
from baregrad.ir.core.node import Node, extent_of
from baregrad.ir.core.op import WORD_PRODUCTS, Ops
from baregrad.kernel.facts.analysis import ArrayAccess, itemsize, iterations
from baregrad.kernel.language.schedule import Bind, Collapse, Reorder, Split, Step
from baregrad.kernel.planning.common.decisions import powers_from
from baregrad.kernel.planning.gpu.gpu_plan import WARPS, GpuPlan

# Steps of a sum that are unpacked from the same words, at most.
MOST_HELD = 64
# Numbers of a word.
WORD = 4
# Arrays of words with a quarter of the bytes of the largest one, or more, are held as that is.
LEAST_SHARE = 4
# Numbers of a thread for a sum, about; those of neighbouring words, at most; and those that are
# under way together where words are fewer, as more would leave room for fewer threads.
THREAD_NUMBERS, NEIGHBOURS, TOGETHER = 64, 64, 32
MOST_WARPS = 8
# Neighbouring words of a thread, which are one access.
MOST_WORDS = 4
# Rows of a thread, which share the other factor, where as many warps as keep a multiprocessor busy
# are left; and those of all sums together where a step has many numbers, each of which is widened
# for all of them.
MOST_ROWS, MANY_ROWS, BUSY_WARPS = 2, 4, 16
# The same where words are multiplied as they are: rows at once, and threads of a row at most.
MOST_WORD_ROWS, MOST_WORD_THREADS = 4, 1024
# Registers of a thread beside the words that it loads; and bytes of one.
OTHER_REGISTERS, REGISTER_NBYTES = 24, 4
# Warps of a multiprocessor whose threads have several rows of the other factor.
SEVERAL_WARPS = 16
MOST_TURNS = 64
# Rows of the other factor that are multiplied by the same words; those of a thread, and numbers of
# its step of all of these, at most. Of more numbers two rows have too many registers: on an H200 a
# step of eight layers of a 1B in Q6_K took 1,247 us for eight rows so, and 1,088 with one.
MOST_SHARED, ROWS_OF_WORDS, MOST_SHARED_NUMBERS = 8, 4, 128


def plan_packed(plan: GpuPlan) -> bool:
    """Share out sums over packed numbers; False where none are, or many rows share them."""
    facts = plan.facts
    reductions = facts.reductions
    own = frozenset(reductions[0].own)
    if any(frozenset(each.own) != own or each.free != reductions[0].free for each in reductions):
        return False
    if any(each.node.arg.monoid.arity != 1 for each in reductions):
        return False
    axes = [axis for axis in reductions[0].own if extent_of(axis) != 1]
    if not all(isinstance(extent_of(axis), int) for axis in axes):
        return False
    words = _words(plan, own)
    if words is None or any(each.stride(axis) is None for each in words for axis in axes):
        return False
    main = words[0]
    held = [axis for axis in axes if any(each.stride(axis) == 0 for each in words)]
    moving = plan.by_stride([axis for axis in axes if axis not in held], main)
    rows = [axis for axis in facts.data if extent_of(axis) != 1]
    beside = _beside(plan, words)
    if not (held or beside > 1) or not moving or iterations(held) > MOST_HELD:
        return False
    shared = [axis for axis in rows if axis not in main.axes]
    rows = [axis for axis in rows if axis in main.axes]
    if shared and not (_has_words(plan) and len(rows) == 1 and iterations(shared) <= MOST_SHARED):
        return False
    numbers = iterations(held) * beside
    plan.because("{} numbers in words: a thread has all of each", numbers)
    each = max(beside // WORD, 1)
    together = _words_together(words, moving[-1], each, NEIGHBOURS // numbers)
    _plan(plan, rows, moving, held, numbers, together, beside > 1, shared)
    return True


def _words(plan: GpuPlan, own: frozenset[Node]) -> list[ArrayAccess] | None:
    """What numbers are packed in, that of most bytes first; None where nothing is unpacked."""
    found = [
        access for access in plan.facts.accesses
        if not access.write and not access.axes.isdisjoint(own)
        and access.array.dtype.kind == "uint" and itemsize(access.array.dtype) > 1
    ]  # fmt: skip
    sizes = {each: iterations(each.axes) * itemsize(each.array.dtype) for each in found}
    most = max(sizes.values(), default=0)
    large = [each for each in found if sizes[each] * LEAST_SHARE >= most]
    large.sort(key=sizes.__getitem__, reverse=True)
    is_unpacked = any(node.op in (Ops.SHR, *WORD_PRODUCTS) for node in plan.facts.order)
    return large if large and is_unpacked else None


def _beside(plan: GpuPlan, words: Sequence[ArrayAccess]) -> int:
    """Neighbours of an array that a step multiplies with what is in words: all of it, or one."""
    main = words[0]
    strides = _strides(main)
    # Those of another matrix may lie in the same array, further away than the next step is.
    near = min([abs(stride) for _, stride in strides if stride], default=1)
    alike = sum([
        each.array is main.array and _strides(each) == strides
        and abs(each.offset.constant - main.offset.constant) < near
        for each in words
    ])  # fmt: skip
    if alike > 1:
        return alike * WORD
    counts = Counter([
        (access.array, _strides(access))
        for access in plan.facts.accesses if not access.write and access.array.dtype.is_float
    ])  # fmt: skip
    most = max(counts.values(), default=1)
    return most if most % WORD == 0 else 1


def _strides(access: ArrayAccess) -> frozenset[tuple[Node, int]]:
    return frozenset(access.offset.strides.items())


def _plan(
    plan: GpuPlan, rows: Sequence[Node], moving: Sequence[Node], held: Sequence[Node], numbers: int,
    together: int, is_whole: bool, shared: Sequence[Node],
) -> None:
    """Threads along words, and along rows where a row has few.

    numbers: of one step's words. together: words of a thread that are neighbours. shared: axes of
    the other factor's rows.
    """
    # Where a step has all of a word, that is what lies side by side.
    inner = None if is_whole else _innermost(plan, held)
    for axis in held:
        plan.steps.append(Bind(plan.name(axis), "vector" if axis is inner else "unroll"))
    plan.taken.update((*held, *moving))
    count = prod([int(axis.src[0].arg) for axis in moving])
    has_words = _has_words(plan)
    turns = 1
    several = _rows_of_words(plan, shared, numbers)
    if has_words:
        words = _words_of(plan, rows, moving, held)
        # What blocks of a single row make of it pays in many turns.
        most = iterations(rows) if several > 1 else iterations(rows) * iterations(shared)
        first, each, turns = _shares_of_words(plan, most, count, words, several)
    else:
        most = next_power_of_two(max(count * numbers // THREAD_NUMBERS, 1))
        first = min(max(most, min(next_power_of_two(count), plan.warp)), MOST_WARPS * plan.warp)
        first = _filled(count, together, first, plan.warp)
        busy = plan.warp * BUSY_WARPS * plan.target.units
        most = MANY_ROWS // len(plan.facts.reductions) if numbers >= TOGETHER else MOST_ROWS
        each = max(most, MOST_ROWS)
        while each > 1 and iterations(rows) * first // busy < each:
            each //= 2
    threads = plan.pick("threads of a row", powers_from(first, 1, MOST_WARPS * plan.warp))
    each = plan.pick("rows of a thread", powers_from(each, 1, 2 * MOST_ROWS))
    turns = plan.pick("rows in turn", powers_from(turns, 1, MOST_TURNS))
    if threads <= plan.warp:
        units = [("thread", threads)]
        most = plan.target.threads_per_block // threads
        blocks = powers_from(WARPS * plan.warp // threads, 1, most)
        plan.spread_rows(rows, plan.pick("rows of a block", blocks), each, turns)
    else:
        units = [("thread_y", threads // plan.warp), ("thread", plan.warp)]
        plan.spread_rows(rows, 1, each, turns)
    _share_words(plan, shared, several)
    most = 1 if has_words else max(min(count // threads, TOGETHER // numbers) // together, 1)
    while -(-count // (threads * together)) % most:
        most -= 1
    steps = plan.pick("steps", powers_from(most, 1, most))
    name = plan.name(moving[0])
    if len(moving) > 1:
        name = "words"
        plan.steps.append(Collapse(tuple([plan.name(axis) for axis in moving]), name))
    units = [("unroll", steps), *units, ("vector", together)]
    parts = [(f"w_{unit}", size) for unit, size in units]
    plan.steps.append(Split(name, (("w_o", 0), *parts), masked=True))
    # Neighbouring words are words of their own, whose scales are the same.
    units[-1] = "unroll", together
    for (part, size), (unit, _) in zip(parts, units, strict=True):
        if size > 1:
            plan.steps.append(Bind(part, unit))


def _rows_of_words(plan: GpuPlan, shared: Sequence[Node], numbers: int) -> int:
    """Rows of the other factor that a thread multiplies by the words that it has.

    numbers: of one step's words.
    """
    if not shared:
        return 1
    few = min(iterations(shared), ROWS_OF_WORDS)
    most = few if numbers * ROWS_OF_WORDS <= MOST_SHARED_NUMBERS else 1
    return plan.pick("rows of words", powers_from(next_power_of_two(most), 1, MOST_SHARED))


def _share_words(plan: GpuPlan, shared: Sequence[Node], several: int) -> None:
    """Blocks for `several` rows of the other factor each, next to each other.

    So words come from memory once.
    """
    if shared:
        outer = _of_grid(plan.steps)
        done = len(plan.steps)
        if several > 1:
            plan.parts(shared, [("unroll", several)], "grid")
        else:
            plan.grid(shared)
        plan.steps.append(Reorder((*outer, *_of_grid(plan.steps[done:]))))


def _of_grid(steps: Sequence[Step]) -> list[str]:
    return [step.axis for step in steps if isinstance(step, Bind) and step.unit == "grid"]


def _words_of(
    plan: GpuPlan, rows: Sequence[Node], moving: Sequence[Node], held: Sequence[Node]
) -> int:
    """Registers of a thread for what a step of as many rows as it may have at once loads."""
    nbytes = 0
    each = max(MOST_WORD_ROWS // len(plan.facts.reductions), 1)
    for access in plan.facts.accesses:
        if not access.write and not access.axes.isdisjoint(moving):
            numbers = iterations([axis for axis in held if access.stride(axis)])
            size = numbers * itemsize(access.array.dtype)
            nbytes += size if access.axes.isdisjoint(rows) else size * each
    return nbytes // REGISTER_NBYTES


def _shares_of_words(
    plan: GpuPlan, rows: int, count: int, words: int, several: int
) -> tuple[int, int, int]:
    """Threads of a row, rows of a thread at once, and how many times as many it has in turn.

    A thread has one step of a row if it can: what it makes of the other factor is then the same for
    all of its rows. It has as many as let all blocks begin at once, which makes that seldom, and
    lets the next kernel begin. The order of a sum hangs on its length alone. Where the other factor
    has more rows than a thread, blocks for one group of them fill the machine: often there are no
    others. count: steps of a row. words: registers that they take. several: rows of the other
    factor that a thread has.
    """
    warp = plan.warp
    steps = -(-count // MOST_WORD_THREADS)
    threads = -(-count // (steps * warp)) * warp
    if several > 1:
        blocks, together = max(SEVERAL_WARPS * warp // threads, 1), 1
    else:
        warps = threads // warp if threads > warp else WARPS
        blocks = plan.target.resident_blocks(warps, words + OTHER_REGISTERS, 0)
        together = warps * warp // threads
    most = max(blocks, 1) * plan.target.units * together
    each = max(MOST_WORD_ROWS // len(plan.facts.reductions), 1)
    while each > 1 and 2 * (rows // each) < most:
        each //= 2
    return threads, each, max(-(-rows // (each * most)), 1)


def _has_words(plan: GpuPlan) -> bool:
    """Whether words are multiplied by words."""
    return any(node.op in WORD_PRODUCTS for node in plan.facts.order)


def _words_together(words: Sequence[ArrayAccess], inner: Node, each: int, most: int) -> int:
    """Neighbours of `each` words along an axis that are one access of each array, or `most`."""
    together = max(min(MOST_WORDS // each, most), 1)
    if any(access.stride(inner) != each for access in words):
        return 1
    while int(inner.src[0].arg) % together:
        together //= 2
    return together


def _filled(count: int, together: int, first: int, least: int) -> int:
    """Threads, `first` or fewer, of which the fewest have no words to the end of a row."""
    best = first
    threads = first
    while threads > least:
        threads //= 2
        tile, least_tile = threads * together, best * together
        if -(-count // tile) * tile < -(-count // least_tile) * least_tile:
            best = threads
    return best


def _innermost(plan: GpuPlan, axes: Sequence[Node]) -> Node | None:
    """The axis along which some array has neighbours, if there is one."""
    reads = [access for access in plan.facts.accesses if not access.write]
    return next((axis for axis in axes if any(one.stride(axis) == 1 for one in reads)), None)
