"""Faults planted in other operations: of images, integers, random numbers and bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from baregrad import graph
from baregrad.apps.diff.judging import candidates
from baregrad.apps.diff.main import compare
from baregrad.ir.core.node import Node, const, rebuild
from baregrad.ir.core.op import Op, Ops
from baregrad.tensor.array import nodes

PROGRAMS = MappingProxyType({
    "images": """
import numpy as np
from baregrad import Tensor
rng = np.random.default_rng(0)
def weights(*shape): return Tensor((rng.normal(size=shape) / 3).astype(np.float32))
x = weights(2, 3, 12, 12)
x = x.conv2d(weights(6, 3, 3, 3), padding=1).relu()
x = x.max_pool2d(2)
x = x.conv2d(weights(8, 6, 3, 3)).sigmoid()
x = x.avg_pool2d(2)
x = x.flatten(1) @ weights(32, 10)
x = x - x.logsumexp(-1, keepdim=True)
print(x.numpy().sum())
""",
    "integers": """
import numpy as np
from baregrad import Tensor, dtypes
x = Tensor(np.random.default_rng(0).integers(-1000, 1000, (5, 40)).astype(np.int32))
y = x * 3 + 7
y = y // 5
y = y % 17
y = y ^ (x & 255)
y = (y << 3) | 1
z = y.cumsum(1)
g = z.gather(1, (x % 40).cast(dtypes.int64))
s = g.sort(1)[0]
print(s.numpy().sum())
""",
    "random": """
import baregrad
from baregrad import Tensor
baregrad.manual_seed(7)
x = Tensor.rand(16, 24)
y = x.dropout(0.3)
z = Tensor.randn(16, 24) * y
e = z.softmax(-1).log()
w = (e * e).mean().sqrt().reciprocal()
print(w.item())
""",
    "short": """
import numpy as np
from baregrad import Tensor, dtypes
rng = np.random.default_rng(0)
h = Tensor(rng.normal(size=(8, 32)).astype(np.float32)).cast(dtypes.bfloat16)
for _ in range(6):
    w = Tensor((rng.normal(size=(32, 32)) / 4).astype(np.float32)).cast(dtypes.bfloat16)
    a = (h @ w).tanh()
    h = h + a * 0.5
    h = h / h.abs().amax(-1, keepdim=True)
print(h.float().numpy().sum())
""",
})  # fmt: skip


def scaled(factor: float) -> Callable[[Node], Node]:
    def make(node: Node) -> Node:
        constant = nodes.broadcast(const(factor, node.dtype), node.shape)
        return Node(Ops.MUL, node.dtype, (node, constant))

    return make


def one_more(node: Node) -> Node:
    return Node(Ops.ADD, node.dtype, (node, nodes.broadcast(const(1, node.dtype), node.shape)))


def swapped(node: Node) -> Node:
    one, two, *rest = node.src
    return Node(node.op, node.dtype, (two, one, *rest), node.arg)


def first_source(node: Node) -> Node:
    return node.src[0]


def as_op(op: Op) -> Callable[[Node], Node]:
    return lambda node: Node(op, node.dtype, node.src, node.arg)


# The program, a part of the line, the operation of it that goes wrong, which of its kind that is,
# and what becomes of it.
FAULTS: MappingProxyType[str, tuple[str, str, Op, int, Callable[[Node], Node]]] = MappingProxyType({
    "a sum of a convolution": ("images", "padding=1", Ops.REDUCE, 0, scaled(1.01)),
    "a rectifier the wrong way round": ("images", "padding=1", Ops.CMPLE, 0, swapped),
    "a maximum of a window": ("images", "max_pool", Ops.PROJ, 0, scaled(0.9)),
    "a second convolution": ("images", "6, 3, 3)).sig", Ops.REDUCE, 1, scaled(0.999)),
    "an exponential of another sign": ("images", "sigmoid", Ops.NEG, 0, first_source),
    "a mean by another count": ("images", "avg_pool", Ops.DIV, 1, scaled(9 / 8)),
    "a lost logarithm": ("images", "logsumexp", Ops.LOG, 0, first_source),
    "a product of integers": ("integers", "x * 3", Ops.MUL, 0, one_more),
    "a quotient cut towards zero": ("integers", "// 5", Ops.FLOORDIV, 0, one_more),
    "a remainder": ("integers", "% 17", Ops.MOD, 0, one_more),
    "an or for an exclusive or": ("integers", "^ (x", Ops.XOR, 0, as_op(Ops.OR)),
    "a shift by too much": ("integers", "<< 3", Ops.SHL, 0, lambda node: as_op(Ops.SHL)(
        Node(Ops.SHL, node.dtype, (node, nodes.broadcast(const(1, node.dtype), node.shape))))),
    "a running sum": ("integers", "cumsum", Ops.SCAN, 0, one_more),
    "a wrong row": ("integers", "gather", Ops.GATHER, 0, one_more),
    "an order": ("integers", "sort", Ops.SORT, 0, one_more),
    "random bits": ("random", "rand(16", Ops.THREEFRY, 2, one_more),
    "a dropped factor of dropout": ("random", "dropout", Ops.WHERE, 0, lambda node: node.src[1]),
    "an angle": ("random", "randn", Ops.COS, 0, scaled(0.97)),
    "a denominator": ("random", "softmax", Ops.RECIPROCAL, 0, scaled(1.01)),
    "a root": ("random", "mean()", Ops.SQRT, 1, first_source),
    "a bfloat16 sum": ("short", "h @ w", Ops.REDUCE, 6, scaled(1.03)),
    "a bfloat16 quotient": ("short", "amax", Ops.DIV, 4, scaled(0.96)),
})  # fmt: skip
QUICK = ("a maximum of a window", "an order", "random bits", "a bfloat16 quotient")


@pytest.mark.parametrize("fault", [
    fault if fault in QUICK else pytest.param(fault, marks=pytest.mark.slow) for fault in FAULTS
])  # fmt: skip
def test_a_fault_is_found_where_it_is(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, part, op, at, make = FAULTS[fault]
    original, most = graph.canonicalise, 0

    def wrong(sink: Node, *rest: Any, **named: Any) -> Node:
        nonlocal most
        looked = candidates(sink)
        most = max(most, len(looked))
        alike = [one for one in looked if one.op is op]
        place = alike[at] if len(alike) > at else None
        return original(
            rebuild(sink, lambda node: make(node) if node is place else None), *rest, **named
        )

    monkeypatch.setattr(graph, "canonicalise", wrong)
    script = tmp_path / "program.py"
    script.write_text(PROGRAMS[program])
    found, counts = compare(script, [], "REF", None, False)
    assert found is not None and found.op.startswith(f"{op.name} ") and not found.within
    line = next(number for number, text in enumerate(PROGRAMS[program].splitlines(), 1)
                if part in text)  # fmt: skip
    assert found.where.endswith(f"program.py:{line}")
    assert counts["runs"] <= log2(most) + 3


@pytest.mark.parametrize("program", [
    "images",
    *(pytest.param(one, marks=pytest.mark.slow) for one in ("integers", "random", "short")),
])  # fmt: skip
def test_a_program_in_order_has_no_difference(program: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAMS[program])
    found, counts = compare(script, [], "REF", None, False)
    assert found is None and counts["compared"] == 1
