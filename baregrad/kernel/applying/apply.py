"""Applying a schedule: a KERNEL whose axes are split, bound and numbered in loop order.

The result is a kernel-level KERNEL again, so the evaluator can check the step by itself. Arrays
are addressed by one flat offset. A peeled data axis gives two OUTs, a peeled reduced axis two
REDUCEs that are combined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import dtypes
from baregrad.ir.analysis.words import in_word
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Reduce, StageInfo
from baregrad.ir.core.index import Dim
from baregrad.ir.core.monoid import Monoid
from baregrad.ir.core.node import (
    Node,
    alu,
    const,
    extent_of,
    fill,
    instruction,
    make_node,
    scalar,
    toposort,
)
from baregrad.ir.core.op import Ops
from baregrad.kernel.applying import partial_tiles
from baregrad.kernel.applying.axes import table_after
from baregrad.kernel.applying.axis_parts import in_parts, with_whole_parts
from baregrad.kernel.applying.final_axes import FinalAxes
from baregrad.kernel.applying.input_copies import copied_places, copy_loops
from baregrad.kernel.applying.scope import Pieces, Scope, flat_array, plain
from baregrad.kernel.applying.staged_accumulators import in_panels, kept_in_scratch
from baregrad.kernel.applying.staging_checks import check_room
from baregrad.kernel.applying.tighten_loop_bounds import narrowed
from baregrad.kernel.applying.window_copies import regions_of, without_parts
from baregrad.kernel.applying.window_walks import walked_box
from baregrad.kernel.facts.analysis import (
    by_id,
    facts_of,
    in_bounds,
    is_read,
    itemsize,
    offset_of,
    out_axes,
    runs_of,
)
from baregrad.kernel.facts.axis_table import AxisTable
from baregrad.kernel.gpu.boxes import ENGINE
from baregrad.kernel.gpu.pipelines import check_applied, slots_of
from baregrad.kernel.gpu.window_boxes import keep_window
from baregrad.kernel.instructions.amx import sum_of_words, without_array
from baregrad.kernel.instructions.dot_instructions import (
    Word,
    are_turned,
    at_number,
    turned_over,
    word_factors,
    word_of,
    word_product,
    word_slots,
)
from baregrad.kernel.instructions.instruction import is_element, kept_factors, scaled_bits
from baregrad.kernel.language.schedule import Pipeline, Schedule, StageInput, StageReduce, Staging
from baregrad.kernel.loops.loop_pieces import combined, guarded, moves_reductions, state_parts
from baregrad.kernel.loops.outer_products import sums_outer
from baregrad.kernel.loops.sharing import prepare
from baregrad.target import AnyTarget

# The offset of what is not written at all.
NOWHERE = const(-1, dtypes.index)
_SCOPED = frozenset((Ops.REDUCE, Ops.SCAN, Ops.STAGE, Ops.RANGE))
# What is rewritten other than by its sources, in some cases at least.
_OWN_WAY = _SCOPED | {Ops.INDEX, Ops.GUARD, Ops.PROJ}


def apply_schedule(kernel: Node, schedule: Schedule, target: AnyTarget | None = None) -> Node:
    """`kernel` with the steps of `schedule` applied, in order; the parallel axis stays one.

    target: the machine's row, whose units the schedule may name; a CPU's by default. Raises
    ScheduleError for the first step that is not legal.
    """
    return _rewritten(prepare(kernel, target), schedule, target, chunked=False)


def apply_chunked(kernel: Node, schedule: Schedule, target: AnyTarget) -> Node:
    """A prepared `kernel` with the steps of `schedule` applied, as `to_loop` takes it.

    The parallel axis is a loop of chunks and one inside, unless it is around all others: then it is
    one loop, of which some iterations are a chunk. Inputs are read by LOADs as at the loop level,
    so that most expressions are made once.
    """
    return _rewritten(kernel, schedule, target, chunked=True)


def _rewritten(
    kernel: Node, schedule: Schedule, target: AnyTarget | None, chunked: bool
) -> Node:
    table = table_after(facts_of(kernel), schedule, target)
    rewriter = Rewriter(table, chunked)
    result = in_panels(rewriter.kernel(kernel), table)
    if table.gpu is not None:
        partial_tiles.check_threads(result)
    check_applied(table, rewriter.applied, rewriter.axes.empty, rewriter.axes.dead)
    return result


class Rewriter:
    """Rewrites a kernel from its original axes to the final ones of a table."""

    def __init__(self, table: AxisTable, chunked: bool) -> None:
        self.table = table
        self.read_op = Ops.LOAD if chunked else Ops.INDEX
        self.axes = FinalAxes(table, chunked)
        self.flat: dict[Node, Node] = {}
        self.sums: dict[tuple[object, ...], Node] = {}
        self.reduced: dict[tuple[object, ...], tuple[Node, ...]] = {}
        self.roundings: dict[Node, Reduce] = {}
        self.scopes: dict[tuple[tuple[Node, int], ...], Scope] = {}
        self.early_scopes: dict[tuple[tuple[Node, int], ...], Scope] = {}
        self.applied: set[Staging | StageReduce | Pipeline] = set()
        self.copies: dict[tuple[object, ...], Node] = {}
        # Held, since what is known is found by the identity of the ranges that it is over.
        self.copied_ranges: list[Mapping[str, Node]] = []
        self.staged_params = frozenset(step.param for step in table.staged_inputs)
        bits = scaled_bits(table.gpu)
        factors = kept_factors(table.facts, bits) if table.staged_factors else None
        self.factors = {factors[s.place]: s for s in table.staged_factors} if factors else {}
        # Arguments that are read as words of bytes alone, at the loop level.
        self.words = word_slots(table) if chunked and table.tensorized else frozenset()
        self.masked = table.masked
        # Whether reads have guards of their own, or what is reduced has one for all below it.
        self.early = self.masked and partial_tiles.guards_reads(table)
        # At the loop level, where one sum's axes may be as long as loops around it say.
        self.narrows = chunked and table.gpu is None and len(table.facts.reductions) == 1
        self.narrows &= not (table.several or table.masked or table.merged)
        tiled = self.table.tiled
        names = () if tiled is None else tiled.axes[:4]
        axes = self.axes
        self.matrix = tuple([axes.ranges[name] for name in names if name not in axes.dead])
        self.panels = frozenset(step.axis for step in table.staged_reductions)

    def kernel(self, kernel: Node) -> Node:
        """The rewritten KERNEL."""
        statements: list[Node] = []
        for out in kernel.src:
            for pieces in self.axes.combinations(by_id(out_axes(out))):
                scope = self.scope(pieces, self.axes.ranges)
                (value,) = self.values((out.src[1],), scope)
                place = self.target(out, scope)
                src = (self.array(out.src[0]), value, place)
                statements.append(instruction(Ops.OUT, dtypes.token, src, out.arg))
        info = kernel.arg._replace(grain=self.axes.grain, cluster=self.table.cluster)
        if self.table.blocks:
            info = info._replace(grid=(self.table.blocks,), teams=self.table.teams)
        if self.table.cut:
            info = info._replace(cut=(1,))
        if (parted := self.table.roles) is not None:
            info = info._replace(roles=(parted.copies, parted.products))
        return instruction(Ops.KERNEL, dtypes.token, tuple(statements), info)

    def target(self, out: Node, scope: Scope) -> Node:
        """Where an OUT writes: NOWHERE for places read from memory that the array does not have.

        Reads have guards of their own.
        """
        offset = self.offset(out, scope)
        places = zip(out.src[2:], out.src[0].shape, strict=True)
        conditions = [index.inside(p, extent) for p, extent in places if p.mask & Ops.INDEX.bit]
        conditions = [] if out.arg.whole else conditions
        if not conditions and not self.masked:
            return offset
        condition = index.both(*conditions)
        if condition.op is not Ops.CONST or not condition.arg:
            ahead = self.scope(scope.pieces, self.axes.ranges, self.masked)
            (condition,) = self.values((condition,), ahead)
        if self.masked:
            condition = index.both(condition, self.limits(out_axes(out), scope))
        if condition.op is Ops.CONST and condition.arg:
            return offset
        return make_node(Ops.WHERE, offset.dtype, (condition, offset, NOWHERE))

    def limits(self, axes: Iterable[Node], scope: Scope) -> Node:
        """Whether no axis lies past its extent, where the last tile of one is partial."""
        found = [limit for axis in axes for limit in scope.pieces[axis].limits]
        if not found:
            return partial_tiles.TRUE
        # Axes that were collapsed have the limits of one.
        limits = tuple(dict.fromkeys(found))
        if limits not in scope.limits:
            finals = [dict(self.axes.finals_of(limit.terms, scope)) for limit in limits]
            pairs = zip(limits, finals, strict=True)
            scope.limits[limits] = index.both(*[
                index.less(index.add(index.from_linear(terms, 0), limit.start), limit.extent)
                for limit, terms in pairs
            ])
        return scope.limits[limits]

    def scope(
        self, pieces: Pieces, ranges: Mapping[str, Node], early: bool = False, copying: bool = False
    ) -> Scope:
        """The scope of these pieces: one for each choice where an axis has several.

        What is read in several outputs or reductions is then rewritten once.
        """
        if ranges is not self.axes.ranges:
            return Scope(pieces, ranges, early, copying)
        key: tuple[tuple[Node, int], ...] = ()
        if self.table.several:
            choices = self.axes.choices
            key = tuple([(axis, id(p)) for axis, p in pieces.items() if len(choices[axis]) > 1])
        scopes = self.early_scopes if early else self.scopes
        found = scopes.get(key)
        if found is None:
            found = scopes[key] = Scope(pieces, ranges, early)
        else:
            found.pieces.update(pieces)
        return found

    def rounding(self, node: Node) -> Reduce:
        """What the pieces of a sum fold as: products that the whole sum takes unrounded they take.

        A piece of one lane has lost the axis that makes a product larger than its factors, and
        which axis has such a piece depends on what else the kernel computes. Of rows in registers
        the places are only seen once they are shared out.
        """
        fold: Reduce = node.arg
        is_sum = fold.monoid.primitive is Ops.ADD and node.dtype.is_float
        if not is_sum or node.mask & Ops.STAGE.bit:
            return fold
        if node not in self.roundings:
            self.roundings[node] = fold._replace(unrounded=sums_outer(node.src[0]))
        return self.roundings[node]

    # --- addresses ------------------------------------------------------------------------------

    def array(self, node: Node) -> Node:
        """A PARAM as one flat axis."""
        found = self.flat.get(node)
        if found is None:
            found = self.flat[node] = flat_array(node, self.table, self.words)
        return found

    def offset(self, node: Node, scope: Scope) -> Node:
        """The flat offset of an INDEX or OUT in terms of the final axes."""
        old = offset_of(node)
        found = scope.offsets.get(old)
        if found is not None:
            return found
        table, finals = self.table, scope.finals
        terms: dict[Node, int] = {}
        joined: dict[Node, tuple[Node, ...]] = {}
        constant = old.constant
        extra: list[Dim] = []
        for axis, stride in old.strides.items():
            merged = table.merged.get(axis) if table.merged else None
            if merged is not None:
                group = table.groups[merged[0]]
                if axis not in joined:
                    joined.update((run[0], run) for run in runs_of(old.strides, group))
                run = joined.get(axis)
                if run is None:
                    continue
                if len(run) < len(group):
                    extent = index.product(extent_of(each) for each in run)
                    extra.append(index.mul(self.axes.value(axis, scope, extent), stride))
                    continue
            for final, scale in finals.get(axis) or self.axes.finals(axis, scope):
                terms[final] = terms.get(final, 0) + stride * scale
            start = scope.pieces[axis].start
            if isinstance(start, int):
                constant += start * stride
            else:
                extra.append(index.mul(start, stride))
        for atom, scale in old.rest:
            (value,) = self.values((atom,), scope)
            extra.append(index.mul(value, scale))
        # Arrays of one shape are mostly read and written at the same places.
        key = (constant, *terms.items())
        flat = self.sums.get(key)
        if flat is None:
            flat = self.sums[key] = index.from_linear(terms, constant)
        found = index.as_node(index.total((flat, *extra))) if extra else flat
        scope.offsets[old] = found
        return found

    # --- expressions ----------------------------------------------------------------------------

    def values(self, roots: tuple[Node, ...], scope: Scope) -> tuple[Node, ...]:
        """Expressions rewritten."""
        done = scope.done
        fill(done, roots, self.visit, scope, self.is_plain)
        return tuple([done[root] for root in roots])

    def is_plain(self, node: Node) -> bool:
        """Whether a node's sources are rewritten before it; others are rewritten whole."""
        op = node.op
        if op not in _OWN_WAY:
            return node not in self.factors
        if op in _SCOPED:
            return False
        if op is Ops.INDEX:
            return node.src[0].op is not Ops.PARAM
        return op is not Ops.GUARD or not self.is_guarded(node.src[1])

    def is_guarded(self, node: Node) -> bool:
        """Whether a node reads an input that some step copies, or a GPU's thread reads.

        What guards it, and what keeps a partial tile inside, is one condition then.
        """
        if not is_read(node):
            return False
        return self.table.gpu is not None or node.src[0].arg.slot in self.staged_params

    def visit(self, node: Node, scope: Scope) -> Node:
        """One node whose sources are done, unless it is a leaf."""
        op = node.op
        done = scope.done
        if node in self.factors:
            return self.factor(node, scope)
        if op not in _OWN_WAY:
            return plain(node, done)
        if op is Ops.RANGE:
            return self.axes.value(node, scope)
        if is_read(node) or (op is Ops.GUARD and self.is_guarded(node.src[1])):
            return self.read(node, scope)
        if op is Ops.REDUCE:
            scope.parts[node] = self.reduction(node, scope)
            return scope.parts[node][0]
        if op is Ops.PROJ and node.src[0] in scope.parts:
            position: int = node.arg
            return scope.parts[node.src[0]][position]
        if op is Ops.SCAN or op is Ops.STAGE:
            return self.scoped(node, scope)
        if op is Ops.INDEX:
            return self.stage_read(node, done)
        return plain(node, done)

    def read(self, node: Node, scope: Scope, word: Word | None = None) -> Node:
        """A read of an input, or a guarded one: in place, or through its copy if it has one.

        word: bytes are read as one word.
        """
        where = node if node.op is Ops.INDEX else node.src[1]
        if not scope.copying and where.src[0].arg.slot in self.staged_params:
            for step in self.table.staged_inputs:
                if step.param == where.src[0].arg.slot:
                    found = self.staged(step, node, where, scope, word)
                    if found is not None:
                        return found
        if word is not None and where.src[0].arg.slot not in self.words:
            return self.packed(node, scope, word)
        if where is node and scope.early and not scope.copying:
            held = partial_tiles.held_inside(self.table, node, scope, self.axes.finals)
            scope = Scope({**scope.pieces, **held}, scope.ranges, True) if held else scope
        src = (self.array(where.src[0]), self.offset(where, scope))
        if src[0].dtype is not node.dtype:
            src = (src[0], index.as_node(index.floordiv(src[1], in_word(node.dtype))))
        value = scalar(self.read_op, src[0].dtype, src)
        inside = self.limits(by_id(node.ranges), scope) if scope.early else partial_tiles.TRUE
        if where is node:
            value = guarded(inside, value)
            return turned_over(value) if word is not None and word.turned else value
        (condition,) = self.values((node.src[0],), scope)
        if inside is not partial_tiles.TRUE:
            condition = index.both(inside, condition)
        covered = scalar(Ops.GUARD, node.dtype, (condition, value))
        simpler = index.resimplify(covered)
        return covered if simpler is None else simpler

    def factor(self, node: Node, scope: Scope) -> Node:
        """A factor of the sum, read where it is kept; what is kept where that is made."""
        if not scope.copying:
            step = self.factors[node]
            reads = [read for read in toposort(node) if is_read(read)]
            where = max(reads, key=lambda read: (len(read.ranges), itemsize(read.dtype)))
            found = self.staged(step, node, where, scope, None)
            if found is not None:
                return found
            scope = Scope(scope.pieces, scope.ranges, scope.early, True)
        if is_element(node):
            return self.read(node, scope)
        self.values(node.src, scope)
        # Zeros need not give 0.
        return guarded(self.limits(by_id(node.ranges), scope), plain(node, scope.done))

    def staged(
        self, step: Staging, node: Node, where: Node, scope: Scope, word: Word | None
    ) -> Node | None:
        """A value through a copy in scratch memory; None if the step's copy does not hold it.

        where: the read that the copy is made in the order of. A guard stays with the copy, so that
        what reads the copy is not guarded.
        """
        used = {name for axis in node.ranges for name, _ in scope.pieces[axis].terms}
        every = [name for name in step.names if name not in self.axes.dead]
        if not every or not used.issuperset(step.names):
            return None
        if where is node and isinstance(step, StageInput) and not in_bounds(node):
            return None
        free = [axis for axis in used if axis not in every and axis not in self.axes.dead]
        around = [scope.ranges[name] for name in free]
        if any(axis.arg.is_tile for axis in around):
            return None
        chunked = frozenset(() if self.axes.chunk is None else (self.axes.chunk[0],))
        merged = self.table.merged
        pieces, ranges, dead = scope.pieces, scope.ranges, self.axes.dead
        regions = regions_of(step, node, pieces, ranges, dead, chunked, merged)
        if regions is None:
            return None
        names = [region.carrier for region in regions]
        key = (step, node, word, *[id(scope.pieces[a]) for a in by_id(node.ranges)], *by_id(around))
        stage = self.copies.get(key)
        if stage is None:
            first = self.axes.first_id()
            gpu = self.table.gpu is not None
            inner = "" if word is None else word.axis
            whole = where.src[0].arg.slot in self.words
            pieces, wide = without_parts(regions, scope.pieces, scope.ranges)
            wide = with_whole_parts(step.axes, wide)
            lanes = step.lanes if isinstance(step, StageInput) else 0
            copy = copy_loops(lanes, where, names, wide, pieces, first, gpu, inner, whole, merged)
            ranges = {**scope.ranges, **copy.ranges}
            self.copied_ranges.append(ranges)
            early = self.masked or copy.pieces is not pieces
            inside = Scope(copy.pieces, ranges, early, True)
            if isinstance(step, StageInput):
                check_room(self.table, step, [region.extent for region in regions])
                value = self.read(node, inside, word)
                space = StageInfo("scratch", ahead=step.ahead)
            else:
                value = self.factor(node, inside)
            value, axes = in_parts(step.axes, value, names, copy.axes)
            if gpu:
                pipelines, space = slots_of(self.table.pipelines, step, value, axes)
                self.applied.update(pipelines)
            stage = self.copies[key] = make_node(Ops.STAGE, value.dtype, (value, *axes), space)
            if space.engine == ENGINE and axes == copy.axes:
                keep_window(stage, walked_box(node, self.axes, inside, axes))
        self.applied.add(step)
        places = {region.carrier: region.place(scope.ranges) for region in regions}
        places_there = copied_places(stage, names, places, step.axes)
        return scalar(Ops.INDEX, stage.dtype, (stage, *places_there))

    def scoped(self, node: Node, scope: Scope) -> Node:
        """A SCAN or STAGE over the parts of its axes.

        That of a SCAN is whole, or is threads and their lanes, outermost first.
        """
        count = node.arg.monoid.arity if node.op is Ops.SCAN else 1
        axes = [child for child in node.src[count:] if child.op is Ops.RANGE]
        pieces = {**scope.pieces, **{axis: self.axes.choices[axis][0] for axis in axes}}
        inside = Scope(pieces, scope.ranges, self.masked, scope.copying)
        values = self.values(node.src[:count], inside)
        if node.op is Ops.SCAN:
            final = [child for axis in axes for child in self.scanned_parts(axis)]
        else:
            final = [part for axis in axes for part in self.axes.parts_of(axis)]
        return make_node(node.op, node.dtype, (*values, *final), node.arg)

    def scanned_parts(self, axis: Node) -> list[Node]:
        """The axes that a scan runs along for one of the kernel's."""
        name = self.table.names[axis]
        if name in self.axes.ranges:
            return [self.axes.ranges[name]]
        parts = self.axes.parts_of(axis)
        binds = [part.arg.bind for part in parts]
        if not parts or binds != sorted(set(binds) & {"thread", "vector"}):
            raise ScheduleError(
                "a scan is split otherwise than for threads and their lanes", found=binds,
                wanted="thread, then vector, or one of them",
            )
        return parts

    def stage_read(self, node: Node, done: dict[Node, Node]) -> Node:
        """A read of a stage, by the parts of its axes."""
        stage, *indices = node.src
        places: list[Node] = []
        for axis, place in zip(stage.src[1:], indices, strict=True):
            sizes = tuple(extent_of(part) for part in self.axes.parts_of(axis))
            places.extend(index.as_node(i) for i in index.unflatten(done[place], sizes))
        return make_node(Ops.INDEX, node.dtype, (done[stage], *places))

    # --- reductions -----------------------------------------------------------------------------

    def reduction(self, node: Node, scope: Scope) -> tuple[Node, ...]:
        """The parts of a REDUCE; several pieces are combined in order."""
        free = by_id(node.ranges)
        key = (node, id(scope.ranges), scope.early, *[id(scope.pieces[axis]) for axis in free])
        found = self.reduced.get(key)
        if found is not None:
            return found
        monoid: Monoid = node.arg.monoid
        own = [child for child in node.src if child.op is Ops.RANGE]
        values = tuple(child for child in node.src if child.op is not Ops.RANGE)
        total: tuple[Node, ...] = ()
        outside = {axis: scope.pieces[axis] for axis in free}
        # What is reduced inside along these axes is computed ahead of the statement that is masked.
        early = self.early or scope.early or (self.masked and moves_reductions(values, own))
        for choice in self.axes.combinations(own):
            inside = self.scope({**outside, **choice}, scope.ranges, early, scope.copying)
            each = self.dotted(node, choice, inside) if self.table.tensorized else ()
            if not each:
                # Ahead of those of copies in it, as its loops are around theirs.
                first = self.axes.first_id()
                one = self.piece(node, choice, inside)
                each = state_parts(self.carried(one, first), monoid)
            total = combined(monoid, total, each) if total else each
        self.reduced[key] = total
        return total

    def piece(self, node: Node, choice: Pieces, scope: Scope) -> Node:
        """One piece of a REDUCE, its own axes being those of `choice`."""
        axes = self.axes.of_pieces(choice)
        new = self.values(tuple([child for child in node.src if child.op is not Ops.RANGE]), scope)
        if self.masked:
            new = partial_tiles.within(node.arg.monoid, new, self.limits(choice, scope))
        if self.narrows and node.mask & Ops.GUARD.bit:
            whole = [a for a in choice if self.panels.isdisjoint(dict(choice[a].terms))]
            finals_of = self.axes.finals_of
            new, axes = narrowed(
                node, whole, scope.pieces, lambda terms: finals_of(terms, scope), new, axes
            )
        return make_node(Ops.REDUCE, node.dtype, (*new, *axes), self.rounding(node))

    # --- words of several numbers ----------------------------------------------------------------

    def dotted(self, node: Node, choice: Pieces, scope: Scope) -> tuple[Node, ...]:
        """A sum of products, a word of numbers at a time; nothing where no instruction is to do so.

        What lies past the end of the numbers is 0 in both factors, unless one is turned over.
        """
        names = {name for piece in choice.values() for name, _ in piece.terms}
        axis = next((name for name in names if name in self.table.tensorized), "")
        if axis and self.table.tiled is not None:
            return (self.multiplied(node, choice, scope, axis),)
        found = word_factors(node.src[0]) if axis else None
        if found is None:
            return ()
        # The factor with lanes is summed by itself where the other is turned over.
        turned, other = sorted(found, key=lambda factor: _has_lanes(factor, scope))
        first = self.read(turned, scope, Word(axis, are_turned(turned.dtype, other.dtype)))
        second = self.read(other, scope, Word(axis))
        product, excess = word_product(first, second, turned.dtype, other.dtype)
        axes = self.axes.of_pieces(choice)
        total, *off = [
            self.carried(
                make_node(Ops.REDUCE, node.dtype, (value, *axes), node.arg), self.axes.first_id()
            )
            for value in (product, excess)
            if value is not None
        ]
        return (alu(Ops.SUB, total, off[0]),) if off else (total,)

    def multiplied(self, node: Node, choice: Pieces, scope: Scope, axis: str) -> Node:
        """A sum of products of words, for a matrix unit. Raises ScheduleError where it cannot.

        What lies past the end of what is summed is 0 in both factors.
        """
        found = word_factors(node.src[0]) or ()
        factors = tuple(sorted(found, key=lambda factor: _has_lanes(factor, scope)))
        words = tuple([self.read(factor, scope, Word(axis)) for factor in factors])
        reduce = sum_of_words(node, factors, words, self.axes.of_pieces(choice))
        total = self.carried(reduce, self.axes.first_id())
        if total is reduce:
            raise without_array(self.table.tiled)
        return total

    def carried(self, node: Node, first: int) -> Node:
        """A REDUCE whose accumulators are kept in scratch memory, if a step says so.

        first: from where on ids are free for the axes that it then runs along.
        """
        for step in self.table.staged_reductions:
            axes = [self.axes.ranges[name] for name in step.axes if name not in self.axes.dead]
            found = kept_in_scratch(node, self.axes.ranges[step.axis], axes, first, self.matrix)
            if found is not None:
                self.applied.add(step)
                return found
        return node

    def packed(self, node: Node, scope: Scope, word: Word) -> Node:
        """The word of the numbers that a read gives along an axis."""
        values = []
        for place in range(in_word(node.dtype)):
            pieces = {axis: at_number(p, word.axis, place) for axis, p in scope.pieces.items()}
            early = scope.early or self.masked
            values.append(self.read(node, Scope(pieces, scope.ranges, early, scope.copying)))
        packed = word_of(values)
        return turned_over(packed) if word.turned else packed


def _has_lanes(node: Node, scope: Scope) -> bool:
    """Whether an axis of lanes moves what a node reads."""
    names = [name for axis in node.ranges for name, _ in scope.pieces[axis].terms]
    return any(scope.ranges[name].arg.bind == "vector" for name in names)
