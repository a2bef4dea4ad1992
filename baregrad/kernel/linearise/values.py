"""Expressions of the loop level as instructions: tile ranges become lanes and points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.linearise.access import MemoryUse
from baregrad.kernel.linearise.lazy import OPAQUE, is_transparent, shared_by_guards
from baregrad.kernel.linearise.reader import EvaluationPlan, Operands, Reader, Step, Where
from baregrad.kernel.linearise.rules import COMPUTED, RULES, direct_rule, known, rule_of

_CONST = Ops.CONST
_LOAD = Ops.LOAD
_INDEX = dtypes.index
_LEAVES = frozenset((Ops.CONST, Ops.VAR))
# Of values that masks change.
READS = Ops.LOAD.bit | Ops.GUARD.bit


class Values(Reader):
    """Emits the instructions that compute expressions, each by the rule of its op."""

    def __init__(self, memory: MemoryUse, block: tuple[int, ...] = ()) -> None:
        super().__init__(memory, block)
        self._plans: dict[Node | tuple[Node, tuple[Node, ...]], EvaluationPlan] = {}
        self._wheres: dict[tuple[Node, ...], Where] = {(): None}

    def value(self, root: Node) -> Any:
        """The linear value of an expression at the current point: a node, or parts of a tuple."""
        rule = direct_rule(root.op)
        if rule is not None:
            return rule(self, root, ())
        key = self.key(root)
        found = self.scopes.memo.get(key)
        if found is None:
            found = self.fresh(root)
            self.scopes.remember(key, found)
        return found

    def fresh(self, root: Node) -> Any:
        """`value` of an expression that is not asked for again at this point."""
        rule = direct_rule(root.op)
        if rule is not None:
            return rule(self, root, ())
        # What is the same at all points, without guards, needs no plan.
        if not (root.mask & Ops.GUARD.bit or self.shared or self.tiles.axes_of(root.ranges)):
            return self.once(root)
        return self._evaluate(self._plans.get(self._plan_key(root)) or self._plan(root))

    def once(self, root: Node) -> Any:
        """The value of an expression that is the same at all points, or is wanted for all."""
        if root.op in OPAQUE:
            return rule_of(root)(self, root, ())
        # As `toposort` walks, sources first: what is walked is computed at once.
        done: dict[Node, Any] = {}
        value_of = done.__getitem__
        compute = self.compute
        path: list[tuple[Node, Iterator[Node]]] = []
        node, sources = root, iter(root.src)
        while True:
            for child in sources:
                if child in done:
                    continue
                if child.src and child.op not in OPAQUE:
                    path.append((node, sources))
                    node, sources = child, iter(child.src)
                    break
                op = child.op
                if op is _LOAD and not self.masks:
                    done[child] = self.load(child, None)
                elif op is _CONST and child.dtype is not _INDEX:
                    done[child] = child
                else:
                    done[child] = rule_of(child)(self, child, ())
            else:
                op, dtype, src = node.op, node.dtype, node.src
                operands = tuple(map(value_of, src))
                if op in COMPUTED and dtype is not _INDEX and src[-1].dtype is not _INDEX:
                    found = compute(op, dtype, operands, node.arg)
                else:
                    found = rule_of(node)(self, node, operands)
                if not path:
                    return found
                done[node] = found
                node, sources = path.pop()

    def _evaluate(self, plan: EvaluationPlan) -> Any:
        """The value of a plan's expression."""
        scopes, point = self.scopes, self.point
        memo = scopes.memo
        before, self.plan = self.plan, plan
        done: list[Any] = [*plan.leaves]
        for node, rule, operands, kept, where in plan.steps:
            if not kept:
                # It differs from point to point as the root does: nobody will ask again.
                done.append(rule(self, node, () if operands is None else operands(done)))
                continue
            key = node if where is None else (node, where(point))
            found = memo.get(key)
            if found is None:
                found = rule(self, node, () if operands is None else operands(done))
                scopes.remember(key, found)
            done.append(found)
        self.plan = before
        return done[-1]

    def key(self, node: Node) -> Any:
        """What a node's value is remembered by at the current point."""
        where = self._where(self._axes_of(node))
        return node if where is None else (node, where(self.point))

    def _axes_of(self, node: Node) -> tuple[Node, ...]:
        """The axes along which a node's value differs from point to point.

        What is read under conditions is read anew where one of them is another.
        """
        ranges = node.ranges
        if self.masks and node.mask & READS:
            ranges = ranges | self.mask_ranges()
        return self.tiles.axes_of(ranges)

    def _where(self, axes: tuple[Node, ...]) -> Where:
        """What takes the coordinates along some axes from a point."""
        if axes not in self._wheres:
            self._wheres[axes] = itemgetter(*axes)
        return self._wheres[axes]

    def _plan_key(self, root: Node) -> Node | tuple[Node, tuple[Node, ...]]:
        """What an expression's plan is kept by: its steps differ in what they are remembered by."""
        return (root, self.masks) if self.masks and self.point else root

    def _plan(self, root: Node) -> EvaluationPlan:
        """The steps that evaluate an expression."""
        shared = self.shared
        if shared:
            order = toposort(
                root, enter=lambda n: is_transparent(n) and (n is root or n not in shared)
            )
        else:
            order = toposort(root, enter=is_transparent)
        if root.mask & Ops.GUARD.bit:
            self.shared.update(shared_by_guards(order))
        own = self._axes_of(root)
        places: dict[Node, int] = {}
        values: list[Any] = []
        for node in order:
            if node.op in _LEAVES:
                places[node] = len(values)
                values.append(RULES[node.op](self, node, ()))
        steps: list[Step] = []
        for node in order:
            op = node.op
            if op in _LEAVES:
                continue
            same = node.ranges is root.ranges and not self.masks
            theirs = own if same else self._axes_of(node)
            # Guards of one condition are found together, so one may be known when its turn comes.
            kept = theirs != own or op is Ops.GUARD or (node in shared and node is not root)
            operands = None
            rule = rule_of(node)
            if op not in OPAQUE:
                try:
                    operands = _picker([places[child] for child in node.src])
                except KeyError:
                    rule = known
            places[node] = len(places)
            steps.append((node, rule, operands, kept, self._where(theirs) if kept else None))
        found = self._plans[self._plan_key(root)] = EvaluationPlan(values, steps)
        return found

























def _picker(places: list[int]) -> Callable[[list[Any]], Operands]:
    """What takes the items at some places; a slice, since itemgetter makes no sequence of one."""
    if len(places) == 1:
        return itemgetter(slice(places[0], places[0] + 1))
    return itemgetter(*places)
