"""The table of realised values: an entry lives as long as its node, and as its memory is intact."""

from __future__ import annotations

import gc

import numpy as np

from baregrad.dtypes import dtypes
from baregrad.engine.realised import Realised
from baregrad.engine.session import Run, current_session
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node, alu
from baregrad.ir.core.op import Ops
from baregrad.tensor import Tensor


class Memory:
    """A buffer, as far as this table asks for one."""

    nbytes = 12


def leaf(memory: Memory) -> Node:
    return Node(Ops.BUFFER, dtypes.float32, (), BufferRef(memory, (3,), "CPU"))


def test_a_graph_is_at_home_where_its_leaves_lie() -> None:
    table = Realised()
    source = leaf(Memory())
    node = alu(Ops.NEG, source)
    copy = Node(Ops.COPY, dtypes.float32, (node,), "NV")
    assert table.home(node) == "CPU"
    assert table.home(alu(Ops.NEG, copy)) == "NV"
    assert table.home(Node(Ops.CONST, dtypes.float32, (), 1.0)) is None
    table.set(node, BufferRef(Memory(), (3,), "REF"))
    assert table.home(alu(Ops.EXP2, node)) == "REF"


def test_an_entry_goes_with_its_node() -> None:
    table = Realised()
    source = leaf(Memory())
    node = alu(Ops.NEG, source)
    ref = BufferRef(Memory(), (3,), "CPU")
    table.set(node, ref)
    assert table.get(node) is ref
    assert table.on("CPU")(node) is ref
    assert table.on("NV")(node) is None
    del node
    gc.collect()
    assert list(table.items()) == []
    assert table.get(alu(Ops.NEG, source)) is None


def test_what_lies_in_overwritten_memory_is_forgotten() -> None:
    table = Realised()
    source, memory, other = leaf(Memory()), Memory(), Memory()
    nodes = [alu(op, source) for op in (Ops.NEG, Ops.SIN, Ops.COS)]
    for node, place in zip(nodes, (memory, memory, other), strict=True):
        table.set(node, BufferRef(place, (3,), "CPU"))
    table.set(nodes[1], BufferRef(other, (3,), "CPU"))
    table.forget((id(memory),))
    found = [table.get(node) for node in nodes]
    assert [None if ref is None else ref.handle for ref in found] == [None, other, other]


def test_a_buffer_that_was_overwritten_is_another_leaf() -> None:
    ref = BufferRef(Memory(), (3,), "CPU")
    again = ref.renewed()
    assert again.handle is ref.handle
    assert again != ref != ref.renewed() != again
    assert ref == BufferRef(ref.handle, (3,), "CPU")


def test_what_a_realised_value_reshapes_is_not_computed_again() -> None:
    """A gradient keeps the product's expression, and a view of it leaves its last reshape out."""
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal(31), requires_grad=True)
    product = (x * 2) @ Tensor(rng.standard_normal((5, 31))).mT
    shown = product.unsqueeze(0).realize()
    runs: list[Run] = []
    session = current_session()
    session.watching.observers.append(runs.append)
    try:
        assert shown.numpy().shape == (1, 5)
        np.testing.assert_array_equal((shown + 1).numpy()[0], product.numpy() + 1)
    finally:
        session.watching.observers.remove(runs.append)
    assert runs
    assert not any(run.program.sink.mask & Ops.REDUCE.bit for run in runs)
