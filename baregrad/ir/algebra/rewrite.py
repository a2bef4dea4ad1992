"""Pattern matching and bounded rewriting.

A rule has a name, a law, a reason and an example that runs as a test. A rule set walks a graph
once, sources first; at each node it applies the first rule that matches, then looks at what came
out, a fixed number of times. There is no fixpoint: what a rule builds below its result is not
visited, so a rule that makes constants folds them itself.
"""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.index import resimplify
from baregrad.ir.core.node import Node, alu, const, make_node, toposort
from baregrad.ir.core.op import ALU, COMPARE, Op, Ops

Captures = dict[str, Node]
Build = Callable[[Captures, Node], Node | None]
Kinds = Callable[[DType], bool]
Test = Callable[[Any], bool]  # of a constant's value

REAPPLICATIONS = 8

# --- which dtypes ------------------------------------------------------------------------------


def integers(dtype: DType) -> bool:
    """User integers, which wrap around."""
    return dtype.kind in ("int", "uint")


def floats(dtype: DType) -> bool:
    """Floats that are computed with."""
    return dtype.kind == "float"


def booleans(dtype: DType) -> bool:
    """The truth type."""
    return dtype.kind == "bool"


def exact(dtype: DType) -> bool:
    """Everything without rounding, NaN or two zeros: bool and user integers."""
    return dtype.kind in ("bool", "int", "uint")


def values(dtype: DType) -> bool:
    """Everything that users see: not `index`, which `ir.index` keeps canonical, nor `token`."""
    return dtype.kind in ("bool", "int", "uint", "float")


# --- patterns ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a node must look like.

    ops: its op is one of these; empty for any. src: patterns of its sources; None for any. each: a
    pattern for every source, when `src` is None. name: under which it is captured; the same name
    twice must be the same node. kinds: of its dtype. value: a test of a constant's value. ordered:
    sources are taken in order even where the op commutes.
    """

    ops: tuple[Op, ...] = ()
    src: tuple[Pattern, ...] | None = None
    each: Pattern | None = None
    name: str = ""
    kinds: Kinds | None = None
    value: Test | None = None
    ordered: bool = False

    def matches(self, node: Node, found: Captures) -> bool:
        """Whether `node` fits, adding what is captured to `found`."""
        if self.ops and node.op not in self.ops:
            return False
        if self.kinds is not None and not self.kinds(node.dtype):
            return False
        if self.value is not None and not self.value(node.arg):
            return False
        if self.name:
            known = found.setdefault(self.name, node)
            if known is not node:
                return False
        if self.each is not None:
            return all(self.each.matches(child, found) for child in node.src)
        return self.src is None or self._sources(node, found)

    def _sources(self, node: Node, found: Captures) -> bool:
        src, children = self.src, node.src
        assert src is not None
        if len(src) != len(children):
            return False
        if len(src) == 2:
            # Most patterns fail here, on an op or a constant: no captures are copied for that.
            (first, second), (a, b) = src, children
            if first.may_match(a) and second.may_match(b) and _match_all(src, children, found):
                return True
            if self.ordered or not node.op.commutative:
                return False
            if first.may_match(b) and second.may_match(a):
                return _match_all(src, (b, a), found)
            return False
        return _match_all(src, children, found)

    def may_match(self, node: Node) -> bool:
        """Whether the op and a constant's value fit, which is quick to ask."""
        if self.ops and node.op not in self.ops:
            return False
        return self.value is None or self.value(node.arg)

    def could_match(
        self, op: Op, dtype: DType, child_ops: tuple[Op, ...], same: bool = False
    ) -> bool:
        """Whether a node with sources of these ops could match: what dispatch asks.

        same: that there are two sources, one and the same node.
        """
        if self.ops and op not in self.ops:
            return False
        if self.kinds is not None and not self.kinds(dtype):
            return False
        if self.each is not None:
            return all(not self.each.ops or child in self.each.ops for child in child_ops)
        src = self.src
        if src is None:
            return True
        if len(src) != len(child_ops):
            return False
        if not _ops_fit(src, child_ops):
            both = len(src) == 2 and op.commutative and not self.ordered
            if not both or not _ops_fit(src[::-1], child_ops):
                return False
        if len(src) == 2 and not same and src[0].name and src[0].name == src[1].name:
            return False
        if op not in _ONE_DTYPE:
            return True
        return all(one.kinds is None or one.kinds(dtype) for one in src)


    def tested(self, child_ops: tuple[Op, ...]) -> tuple[int, Test | None]:
        """Which source of a node with sources of these ops holds a constant, and its value's test.

        (0, None) where there is no test, or several constants that might be the one it is about.
        """
        if child_ops.count(Ops.CONST) == 1:
            for pattern in self.src or ():
                if pattern.value is not None:
                    return child_ops.index(Ops.CONST), pattern.value
        return 0, None


def _ops_fit(patterns: tuple[Pattern, ...], ops: tuple[Op, ...]) -> bool:
    """Whether nodes of these ops may match, one after the other."""
    for pattern, op in zip(patterns, ops, strict=True):
        if pattern.ops and op not in pattern.ops:
            return False
    return True


def _match_all(patterns: tuple[Pattern, ...], nodes: tuple[Node, ...], found: Captures) -> bool:
    trial = dict(found)
    for pattern, node in zip(patterns, nodes, strict=True):
        if not pattern.matches(node, trial):
            return False
    found.update(trial)
    return True


# The operands of these ops have the dtype of the result.
_ONE_DTYPE = ALU - COMPARE - {Ops.WHERE}


def var(name: str, kinds: Kinds | None = None) -> Pattern:
    """Any node."""
    return Pattern(name=name, kinds=kinds)


def number(
    name: str, kinds: Kinds | None = None, value: Test | None = None
) -> Pattern:
    """Any constant whose value passes the test."""
    return Pattern(ops=(Ops.CONST,), name=name, kinds=kinds, value=value)


def literal(wanted: bool | int | float) -> Pattern:
    """A constant that equals `wanted`; 0.0 and -0.0 differ."""
    sign = math.copysign(1.0, wanted)

    def same(value: Any) -> bool:
        return bool(value == wanted) and (value != 0 or math.copysign(1.0, value) == sign)

    return Pattern(ops=(Ops.CONST,), value=same)


def term(
    ops: Op | Iterable[Op], *src: Pattern, name: str = "", kinds: Kinds | None = None
) -> Pattern:
    """A node of one of these ops over these sources; commutative ops match in either order."""
    return Pattern((ops,) if isinstance(ops, Op) else tuple(ops), src, None, name, kinds)


# --- rules -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """One rewrite: `law` holds bit for bit, NaNs counting as one, for every dtype it matches.

    name: unique. law: `before → after, if condition`. reason: why it is worth it. pattern: of the
    node that is replaced. build: makes the replacement, or None when the condition does not hold.
    before, after: an example over SLOT leaves: a node that it changes, and what it becomes.
    """

    name: str
    law: str
    reason: str
    pattern: Pattern
    build: Build
    before: Node
    after: Node

    def __call__(self, node: Node) -> Node | None:
        """The replacement of `node`, or None where the rule does not apply."""
        found: Captures = {}
        if not self.pattern.matches(node, found):
            return None
        result = self.build(found, node)
        return None if result is None or result is node else _shaped(result, node)


def equation(
    name: str, law: str, reason: str, before: Node, after: Node,
    kinds: Kinds | None = None, ops: tuple[Op, ...] = (),
) -> Rule:
    """The rule that makes `after` of `before`, terms in which SLOTs stand for any values.

    kinds: of SLOT 0. ops: other ops of which the law holds with that of `before`.
    """
    pattern = _pattern_of(before, kinds)
    if ops:
        pattern = replace(pattern, ops=ops)
    return Rule(name, law, reason, pattern, _build_of(after), before, after)


def _pattern_of(before: Node, kinds: Kinds | None) -> Pattern:
    if before.op is Ops.SLOT:
        return var(f"x{before.arg}", None if before.arg else kinds)
    if before.op is Ops.CONST:
        return literal(before.arg)
    return term(before.op, *[_pattern_of(child, kinds) for child in before.src])


def _build_of(after: Node) -> Callable[[Captures, Node], Node]:
    """What makes `after` of captures; its constants have the dtype of the node that is replaced."""
    op, value = after.op, after.arg
    if op is Ops.SLOT:
        name = f"x{value}"
        return lambda found, node: found[name]
    if op is Ops.CONST:
        return lambda found, node: const(value, node.dtype)
    parts = [_build_of(child) for child in after.src]
    return lambda found, node: alu(op, *[part(found, node) for part in parts])


def _shaped(result: Node, node: Node) -> Node:
    """A scalar that replaces an array is repeated over the array's shape (tensor level only)."""
    shape = node.shape
    if result.shape == shape:
        return result
    ones = Node(Ops.RESHAPE, result.dtype, (result,), (1,) * len(shape))
    return Node(Ops.EXPAND, result.dtype, (ones,), shape)


Trace = Callable[[Rule, Node, Node], None]

# Called for each rule that fires, in any rule set.
_watchers: contextvars.ContextVar[tuple[Trace, ...]] = contextvars.ContextVar(
    "watchers", default=()
)


@contextmanager
def watched(trace: Trace) -> Iterator[None]:
    """Call `trace` for each rule that fires inside the block: the rule, the old node, the new one.

    For reports: what is rewritten does not depend on it.
    """
    token = _watchers.set((*_watchers.get(), trace))
    try:
        yield
    finally:
        _watchers.reset(token)


# A rule that a node may match; which source holds a constant, and the test that it must pass first.
Candidate = tuple[Rule, int, Test | None]


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules in order of preference, found by the ops of a node and of its sources."""

    name: str
    rules: tuple[Rule, ...]
    mask: int = field(init=False, default=0)
    _found: dict[tuple[Any, ...], tuple[Candidate, ...]] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )
    _of_op: dict[Op, tuple[Rule, ...]] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        names = [rule.name for rule in self.rules]
        if len(set(names)) != len(names):
            raise ValueError(f"rule set {self.name}: names must differ, found {sorted(names)}")
        mask = 0
        for rule in self.rules:
            for op in rule.pattern.ops:
                mask |= op.bit
        object.__setattr__(self, "mask", mask)

    def __hash__(self) -> int:
        return hash((self.name, self.rules))

    def candidates(self, node: Node) -> tuple[Candidate, ...]:
        """The rules that `node` could match, going by its dtype, its op and its sources' ops."""
        child_ops = tuple([child.op for child in node.src])
        same = len(child_ops) == 2 and node.src[0] is node.src[1]
        key = (node.op, node.dtype, same, *child_ops)
        found = self._found.get(key)
        if found is None:
            rules = self._of_op.get(node.op)
            if rules is None:
                rules = self._of_op[node.op] = tuple(
                    [one for one in self.rules if not one.pattern.ops or node.op in one.pattern.ops]
                )
            found = self._found[key] = tuple(
                [
                    (rule, *rule.pattern.tested(child_ops))
                    for rule in rules
                    if rule.pattern.could_match(node.op, node.dtype, child_ops, same)
                ]
            )
        return found

    def apply(self, node: Node, candidates: tuple[Candidate, ...] | None = None) -> Node:
        """`node` after at most REAPPLICATIONS rules at its top; its sources stay as they are.

        candidates: those of `node`, where the caller has them.
        """
        rules = candidates
        for _ in range(REAPPLICATIONS):
            for rule, place, test in self.candidates(node) if rules is None else rules:
                if test is not None and not test(node.src[place].arg):
                    continue
                result = rule(node)
                if result is not None:
                    for watcher in _watchers.get():
                        watcher(rule, node, result)
                    node, rules = result, None
                    break
            else:
                return node
        return node

    def rewrite(self, root: Node) -> Node:
        """`root` after one walk, sources first; index arithmetic is simplified on the way."""
        mask = self.mask
        return self.walk(toposort(root, enter=lambda n: n.mask & mask != 0), {})

    def walk(self, order: list[Node], moved: dict[Node, Node]) -> Node:
        """What `rewrite` gives for the last of `order`, which lists sources before their users.

        moved: receives what each changed node became; what it has already is not looked at.
        """
        mask, known, apply = self.mask, self._found.get, self.apply
        for node in order:
            src = node.src
            if not src:
                continue
            current = node
            if moved:
                if node in moved:
                    continue
                for child in src:
                    if child in moved:
                        current = self._rebuilt(node, moved)
                        src = current.src
                        break
            op = current.op
            if op.bit & mask:
                if len(src) == 2:
                    first, second = src
                    rules = known((op, current.dtype, first is second, first.op, second.op))
                else:
                    rules = known((op, current.dtype, False, *[child.op for child in src]))
                if rules is None or rules:
                    current = apply(current, rules)
            if current is not node:
                moved[node] = current
        return moved.get(order[-1], order[-1])

    def _rebuilt(self, node: Node, moved: Mapping[Node, Node]) -> Node:
        src = tuple([moved.get(child, child) for child in node.src])
        current = make_node(node.op, node.dtype, src, node.arg)
        if node.dtype is dtypes.index or node.dtype is dtypes.bool or node.op is Ops.GUARD:
            simpler = resimplify(current)
            return current if simpler is None else _shaped(simpler, current)
        return current
