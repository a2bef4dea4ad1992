"""Every rule: its example, and a fuzzer that evaluates both sides on special and random values."""

from __future__ import annotations

import itertools
import math
import random
import re

import numpy as np
import pytest

from baregrad.dtypes import ALL, COMPUTED, DType, dtypes, round_scalar
from baregrad.ir.algebra.casts import lossless
from baregrad.ir.algebra.positions import INDEX_RULES
from baregrad.ir.algebra.rewrite import Pattern, Rule, RuleSet, watched
from baregrad.ir.algebra.rules import ALGEBRA, simplify
from baregrad.ir.core.attrs import Param
from baregrad.ir.core.monoid import slot
from baregrad.ir.core.node import Node, alu, const, range_node, toposort
from baregrad.ir.core.op import ALU, COMPARE, Ops
from baregrad.ir.evaluate.alu import apply_scalar_op, cast_array, constant, round_to, working_dtype
from baregrad.ir.evaluate.tensor_level import evaluate

RULES = ALGEBRA.rules
BOOL = dtypes.bool


def names(rule: Rule) -> str:
    return rule.name


def special_values(dtype: DType) -> np.ndarray:
    """Values at which laws break: zeros, limits, NaN, infinities, and some random ones."""
    rng = np.random.default_rng(7)
    if dtype is BOOL:
        return np.array([False, True])
    if dtype.kind == "float":
        form = dtype.format
        tiny = math.ldexp(1.0, form.least_exponent - form.mantissa_bits)
        values = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, tiny, -tiny, form.largest]
        values += [-form.largest, 0.5, 2.5, -2.5, 3.0, math.ldexp(1.0, form.least_exponent), 1e-3]
        values += list(rng.standard_normal(8) * 10.0 ** rng.integers(-3, 4, 8))
        with np.errstate(over="ignore"):
            return round_to(np.array(values), dtype)
    low, high = int(dtype.min), int(dtype.max)
    values = [0, 1, 2, 3, 7, 8, low, low + 1, high, high - 1, high // 2]
    values += [-1, -2, -8] if low else []
    values += [rng.integers(low, high, dtype=working_dtype(dtype)) for _ in range(6)]
    return np.array([int(v) for v in values], working_dtype(dtype))


def run(root: Node, slots: list[np.ndarray]) -> np.ndarray:
    """An independent little evaluator of scalar graphs over SLOT leaves."""
    values: dict[Node, np.ndarray] = {}
    for node in toposort(root):
        if node.op is Ops.SLOT:
            values[node] = slots[node.arg]
        elif node.op is Ops.RANGE:
            # Every range runs along an axis of its own.
            count = int(node.src[0].arg)
            values[node] = np.arange(count).reshape(-1, *(1,) * (1 + node.arg.id))
        elif node.op is Ops.CONST:
            values[node] = constant(node)
        elif node.op is Ops.GUARD:
            cond, value = (values[child] for child in node.src)
            values[node] = np.where(cond, value, np.zeros((), value.dtype))
        else:
            values[node] = apply_scalar_op(node, *(values[child] for child in node.src))
    shape = slots[0].shape if slots else ()
    return np.broadcast_to(values[root], np.broadcast_shapes(values[root].shape, shape))


def inputs_for(*roots: Node) -> list[np.ndarray]:
    """Every combination of special values over the slots (at most about 30,000 points)."""
    found = {n.arg: n.dtype for root in roots for n in toposort(root) if n.op is Ops.SLOT}
    kinds = [found.get(i, dtypes.bool) for i in range(max(found, default=-1) + 1)]
    rows = [special_values(kind) for kind in kinds]
    while rows and math.prod(map(len, rows)) > 30_000:
        widest = max(range(len(rows)), key=lambda i: len(rows[i]))
        rows[widest] = rows[widest][::2]
    grids = np.meshgrid(*rows, indexing="ij") if rows else []
    return [grid.reshape(-1) for grid in grids]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f":
        return bool((a == b).all())
    both_nan = np.isnan(a) & np.isnan(b)
    return bool((both_nan | ((a == b) & (np.signbit(a) == np.signbit(b)))).all())


def assert_same(before: Node, after: Node, rule: Rule) -> None:
    slots = inputs_for(before, after)
    left, right = np.broadcast_arrays(run(before, slots), run(after, slots))
    # Which zero MAX and MIN return for zeros of both signs is not defined.
    if before.has(Ops.MAX, Ops.MIN) and left.dtype.kind == "f":
        left, right = left + 0.0, right + 0.0
    assert before.dtype is after.dtype
    assert same_bits(left, right), f"{rule.name}: {before} and {after} differ"


# --- instances of patterns ---------------------------------------------------------------------


class Instance:
    """Random nodes that match a pattern."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.positions = 0.0
        self.named: dict[str, Node] = {}
        self.slots = 0

    def make(self, pattern: Pattern, dtype: DType) -> Node | None:
        if pattern.name in self.named and pattern.name:
            known = self.named[pattern.name]
            return known if known.dtype is dtype else None
        if pattern.kinds is not None and not pattern.kinds(dtype):
            return None
        made = self.fresh(pattern, dtype)
        if made is not None and pattern.name:
            self.named[pattern.name] = made
        return made

    def fresh(self, pattern: Pattern, dtype: DType) -> Node | None:
        if not pattern.ops:
            return self.anything(dtype)
        op = self.rng.choice(pattern.ops)
        if op is Ops.CONST:
            return self.constant(pattern, dtype)
        if pattern.each is not None:
            arity = op.arity[0]
            patterns: tuple[Pattern, ...] = (pattern.each,) * arity
        else:
            patterns = pattern.src or ()
        kinds = self.operand_dtypes(op, dtype, len(patterns))
        if kinds is None:
            return None
        src = [self.make(p, kind) for p, kind in zip(patterns, kinds, strict=True)]
        if any(s is None for s in src):
            return None
        if op.commutative and self.rng.random() < 0.5:
            src.reverse()
        return Node(op, dtype, tuple(s for s in src if s is not None))

    def anything(self, dtype: DType) -> Node:
        """A slot, seldom a constant, a position, or a slot of a narrower dtype cast."""
        choice = self.rng.random()
        if dtype.kind in ("int", "uint") and choice < self.positions:
            count = self.rng.randrange(1, 9)
            place = Node(Ops.CAST, dtype, (range_node(count, self.rng.randrange(2) * 10 + count),))
            scale = const(self.rng.choice((1, 2, 3, -1)), dtype)
            op = self.rng.choice((Ops.ADD, Ops.MUL, Ops.SUB, Ops.FLOORDIV, Ops.MOD, Ops.MAX))
            return self.rng.choice((place, alu(op, place, scale)))
        if choice < 0.2:
            return const(self.rng.choice(special_values(dtype).tolist()), dtype)
        self.slots += 1
        if choice < 0.4 and dtype.kind in ("int", "uint"):
            return Node(Ops.CAST, dtype, (slot(self.slots - 1, dtypes.bool),))
        return slot(self.slots - 1, dtype)

    def constant(self, pattern: Pattern, dtype: DType) -> Node | None:
        pool = [*special_values(dtype).tolist(), 0, 1, -1, 2, 8, 0.25, -0.0, 16]
        if dtype.kind != "float":
            pool = [int(v) if dtype is not BOOL else bool(v) for v in pool]
        nodes = [const(round_scalar(v, dtype), dtype) for v in pool]
        if pattern.value is not None:
            nodes = [n for n in nodes if pattern.value(n.arg)]
        return self.rng.choice(nodes) if nodes else None

    def operand_dtypes(self, op, dtype: DType, count: int) -> list[DType] | None:
        if op in COMPARE:
            if dtype is not BOOL:
                return None
            return [self.rng.choice(COMPUTED)] * count
        if op is Ops.CAST:
            return [self.rng.choice(COMPUTED)]
        if op is Ops.BITCAST:
            return [self.rng.choice([d for d in COMPUTED if d.bits == dtype.bits])]
        if op is Ops.GUARD:
            return [BOOL, dtype]
        if op is Ops.WHERE:
            return [BOOL, dtype, dtype]
        if dtype.kind not in op.kinds or (op is Ops.THREEFRY and dtype is not dtypes.uint64):
            return None
        return [dtype] * count


@pytest.mark.property
@pytest.mark.parametrize("rule", RULES, ids=names)
def test_law_holds_on_special_values(rule: Rule) -> None:
    rng = random.Random(rule.name)
    fired = 0
    for _ in range(600):
        truth = all(op in COMPARE for op in rule.pattern.ops)
        instance = Instance(rng)
        kind = BOOL if truth else rng.choice(COMPUTED)
        if rule in INDEX_RULES:
            instance.positions, kind = 0.8, BOOL if truth else dtypes.index
        before = instance.make(rule.pattern, kind)
        if before is None:
            continue
        after = rule(before)
        if after is None:
            continue
        fired += 1
        assert_same(before, after, rule)
        if fired >= 25:
            break
    assert fired >= 1, "no instance of the pattern was found"


@pytest.mark.parametrize("rule", RULES, ids=names)
def test_example(rule: Rule) -> None:
    before, after = rule.before, rule.after
    assert rule(before) is after
    assert_same(before, after, rule)
    # The set as a whole must not undo it or loop on it.
    done = ALGEBRA.rewrite(before)
    assert ALGEBRA.rewrite(done) is done


def test_rules_are_documented() -> None:
    for rule in RULES:
        assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", rule.name)
        assert "→" in rule.law
        assert len(rule.reason) > 15


def test_names_must_differ() -> None:
    rule = RULES[0]
    with pytest.raises(ValueError, match="names must differ"):
        RuleSet("twice", (rule, rule))


# --- laws that do not hold ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8, dtypes.int64, dtypes.uint64], ids=str)
def test_what_is_beside_a_limit_of_integers_is_known(dtype: DType) -> None:
    x, low, high = slot(0, dtype), const(dtype.min, dtype), const(dtype.max, dtype)
    assert simplify(alu(Ops.MIN, x, low)) is simplify(alu(Ops.MIN, low, x)) is low
    assert simplify(alu(Ops.MAX, x, high)) is simplify(alu(Ops.MAX, high, x)) is high
    assert simplify(alu(Ops.WHERE, alu(Ops.CMPLT, x, low), x, low)) is low
    assert simplify(alu(Ops.WHERE, alu(Ops.CMPLE, low, x), x, high)) is x
    assert simplify(alu(Ops.WHERE, alu(Ops.CMPLT, high, x), low, x)) is x
    assert simplify(alu(Ops.WHERE, alu(Ops.CMPLE, x, high), x, low)) is x
    for kept in (alu(Ops.CMPLT, low, x), alu(Ops.CMPLE, x, low), alu(Ops.CMPLT, x, high)):
        assert simplify(kept) is kept
    zero = const(0, dtype)
    for op in (Ops.FLOORDIV, Ops.TRUNCDIV, Ops.MOD):
        assert simplify(alu(op, x, zero)) is zero


def test_float_laws_that_do_not_hold_are_not_applied() -> None:
    x, y = slot(0, dtypes.float32), slot(1, dtypes.float32)
    zero = const(0.0, dtypes.float32)
    kept = [
        alu(Ops.ADD, x, zero),
        alu(Ops.MUL, x, zero),
        alu(Ops.SUB, x, x),
        alu(Ops.DIV, x, x),
        alu(Ops.CMPEQ, x, x),
        alu(Ops.SUB, x, const(-0.0, dtypes.float32)),
        alu(Ops.DIV, x, const(3.0, dtypes.float32)),
        alu(Ops.NEG, alu(Ops.SUB, x, y)),
        alu(Ops.ADD, alu(Ops.ADD, x, const(1.0, dtypes.float32)), const(2.0, dtypes.float32)),
        alu(Ops.NOT, alu(Ops.CMPLT, x, y)),
    ]
    for node in kept:
        assert simplify(node) is node, node


def test_division_by_a_power_whose_inverse_is_no_float_is_kept() -> None:
    x = slot(0, dtypes.float16)
    huge = const(2.0**15, dtypes.float16)
    tiny = const(2.0**-24, dtypes.float16)
    assert simplify(alu(Ops.DIV, x, huge)).op is Ops.MUL
    assert simplify(alu(Ops.DIV, x, tiny)).op is Ops.DIV


# --- whole graphs ------------------------------------------------------------------------------


def test_shape_is_kept_at_the_tensor_level() -> None:
    x = Node(Ops.PARAM, dtypes.int32, (), Param(0, (2, 3)))
    node = alu(Ops.MUL, x, const(0, dtypes.int32))
    done = simplify(node)
    assert done.shape == (2, 3)
    assert Ops.MUL.bit & done.mask == 0
    value = evaluate(done, {0: np.arange(6, dtype=np.int32)})
    assert (value == np.zeros((2, 3))).all()


def test_rewrites_meet_in_one_walk() -> None:
    x = slot(0, dtypes.int32)

    def c(value: int) -> Node:
        return const(value, dtypes.int32)

    node = alu(Ops.ADD, c(3), alu(Ops.MUL, alu(Ops.ADD, x, alu(Ops.SUB, c(2), c(2))), c(1)))
    node = alu(Ops.SUB, node, c(3))
    fired: list[str] = []
    with watched(lambda rule, before, after: fired.append(rule.name)):
        assert simplify(node) is x
    assert fired[0] == "fold-constants" and "regroup-add" in fired


def test_what_changed_is_shared_between_roots() -> None:
    x = slot(0, dtypes.float32)
    same = alu(Ops.MUL, x, const(1.0, dtypes.float32))
    first, second = alu(Ops.EXP, same), alu(Ops.SQRT, same)
    changed: dict[Node, Node] = {}
    assert ALGEBRA.walk(toposort(first), changed) is alu(Ops.EXP, x)
    assert ALGEBRA.walk(toposort(second), changed) is alu(Ops.SQRT, x)
    assert changed[same] is x


def random_graph(rng: random.Random, size: int) -> Node:
    """A random scalar graph over three slots of each of four dtypes."""
    kinds = (dtypes.float32, dtypes.int32, dtypes.uint8, BOOL, dtypes.bfloat16)
    pools: dict[DType, list[Node]] = {}
    for kind in kinds:
        pools[kind] = [slot(kinds.index(kind), kind)]
        for value in (0, 1, -1, 2, -0.0):
            if kind.kind == "float" or not isinstance(value, float):
                pools[kind].append(const(round_scalar(value, kind), kind))
    skipped = (Ops.THREEFRY, Ops.POW, Ops.FMA)
    ops = sorted((op for op in ALU if op not in skipped), key=lambda op: op.name)
    last = pools[BOOL][0]
    for _ in range(size):
        kind, op = rng.choice(kinds), rng.choice((*ops, Ops.CAST, Ops.WHERE, Ops.WHERE))
        if op is Ops.CAST:
            made = Node(Ops.CAST, kind, (rng.choice(pools[rng.choice(kinds)]),))
        elif op is Ops.WHERE:
            a, b = rng.choices(pools[kind], k=2)
            made = alu(op, rng.choice(pools[BOOL]), a, b)
        elif kind.kind not in op.kinds:
            continue
        else:
            made = alu(op, *rng.choices(pools[kind], k=op.arity[0]))
        pools[made.dtype].append(made)
        last = made
    return last


@pytest.mark.property
def test_random_graphs_keep_their_values() -> None:
    rng = random.Random(11)
    changed = 0
    for _ in range(250):
        node = random_graph(rng, 30)
        done = simplify(node)
        changed += done is not node
        points = 400
        generator = np.random.default_rng(3)
        slots = [
            generator.choice(special_values(kind), points)
            for kind in (dtypes.float32, dtypes.int32, dtypes.uint8, BOOL, dtypes.bfloat16)
        ]
        left, right = run(node, slots), run(done, slots)
        if left.dtype.kind == "f":
            # Which zero MAX and MIN return is open, so zeros and what they divide are not compared.
            left, right = left + 0.0, right + 0.0
            if node.has(Ops.MAX, Ops.MIN) and node.has(Ops.DIV, Ops.RECIPROCAL, Ops.BITCAST):
                continue
        assert same_bits(left, right), node
    assert changed > 100


def test_lossless_agrees_with_every_value_of_small_dtypes() -> None:
    small = [d for d in ALL if d.bits and (d.bits <= 8 or d in (dtypes.float16, dtypes.bfloat16))]
    for source, target in itertools.product(small, ALL):
        if not target.bits:
            continue
        if source.kind == "bool":
            every = np.array([False, True])
        elif source.kind == "float":
            codes = np.arange(1 << source.bits).astype(source.storage)
            from baregrad.dtypes import decode

            every = decode(codes, source)
            every = every[~np.isnan(every)]
        else:
            every = np.arange(int(source.min), int(source.max) + 1).astype(working_dtype(source))
        there = cast_array(every, source, target)
        back = cast_array(there, target, source)
        kept = bool((back == every).all())
        exact = kept and bool((there.astype(np.float64) == every.astype(np.float64)).all())
        if lossless(source, target):
            assert exact, (source, target)
        elif source.kind != "float" or np.isfinite(every).all():
            assert not exact, (source, target)
