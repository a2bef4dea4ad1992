"""Attention that streams: one pass over the keys keeps a running maximum, sum and output."""

from __future__ import annotations

from baregrad.dtypes import dtypes
from baregrad.ir.analysis.stream import merge_streams
from baregrad.ir.core import index
from baregrad.ir.core.node import Node, alu, const, range_node
from baregrad.ir.core.op import Ops
from baregrad.kernel import Schedule
from baregrad.kernel.language.schedule import parallelise, split, unroll, vectorise
from baregrad.testing.examples.levels import (
    Levels,
    at,
    contracted,
    expanded,
    fold,
    kernel,
    lowered,
    out,
    param,
    reduced,
)

F32 = dtypes.float32


def attention_tensor(queries: int, keys: int, depth: int) -> Node:
    """softmax(q k^T) v for q (queries, depth), k and v (keys, depth), arguments 1, 2 and 3."""
    q = param(1, queries, depth, name="q")
    k = param(2, keys, depth, name="k")
    v = param(3, keys, depth, name="v")
    scores = contracted(q, k)
    top = expanded(reduced(Ops.MAX, scores, 1), queries, keys)
    power = alu(Ops.EXP, alu(Ops.SUB, scores, top))
    weights = alu(Ops.DIV, power, expanded(reduced(Ops.ADD, power, 1), queries, keys))
    return contracted(weights, Node(Ops.PERMUTE, F32, (v,), (1, 0)))


def attention_in_passes(queries: int, keys: int, depth: int, causal: bool = False) -> Node:
    """The kernel level before the law of streams: three passes over the keys.

    causal: query i sees keys 0 to i - 1 only, so that query 0 sees none and gives NaN (0 / 0).
    """
    i, d = range_node(queries, 0, "i"), range_node(depth, 1, "d")
    q = param(1, queries, depth, name="q")
    k = param(2, keys, depth, name="k")
    v = param(3, keys, depth, name="v")

    def score(j: Node, c: Node) -> Node:
        found = fold(Ops.ADD, alu(Ops.MUL, at(q, i, c), at(k, j, c)), c)
        if not causal:
            return found
        return alu(Ops.WHERE, index.less(j, i), found, const(float("-inf"), F32))

    c = range_node(depth, 5, "c")
    j1, j2, j3 = (range_node(keys, 2 + number, f"j{number}") for number in range(3))
    top = fold(Ops.MAX, score(j1, c), j1)
    total = fold(Ops.ADD, alu(Ops.EXP, alu(Ops.SUB, score(j2, c), top)), j2)
    power = alu(Ops.EXP, alu(Ops.SUB, score(j3, c), top))
    value = fold(Ops.ADD, alu(Ops.MUL, alu(Ops.DIV, power, total), at(v, j3, d)), j3)
    return kernel("attention", out(param(0, queries, depth, name="o"), value, i, d))


def attention_schedule() -> Schedule:
    """Queries over threads, the output's columns in vectors of 16, keys one after another."""
    return Schedule(
        (
            parallelise("i"),
            split("d", outer="do", du=2, dv=16),
            unroll("du"),
            vectorise("dv"),
        )
    )


def attention_levels(queries: int = 4, keys: int = 24, depth: int = 32) -> Levels:
    """The four levels: the kernel level is one stream by rewriting, the rest by the passes."""
    tensor = attention_tensor(queries, keys, depth)
    streamed = merge_streams(attention_in_passes(queries, keys, depth))
    return lowered("attention", tensor, streamed, attention_schedule())
