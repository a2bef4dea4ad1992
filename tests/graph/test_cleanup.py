"""Markers that have done their work are gone."""

from __future__ import annotations

from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from tests.schedule.graphs import A, param, sink


def test_markers_go() -> None:
    x = param(0, 4)
    detached = A(Node(Ops.DETACH, x.node.dtype, ((x + 1.0).node,)))
    found = canonicalise(sink(detached * 2.0, x.contiguous().contiguous()))
    assert not found.mask & (Ops.DETACH.bit | Ops.CONTIGUOUS.bit)
