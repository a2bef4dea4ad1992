"""Running the worked examples, and breaking them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, rebuild
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.alu import to_array, to_raw
from baregrad.ir.text.dump import dump, parse
from baregrad.testing.examples.levels import Levels

Array = np.ndarray[Any, Any]


def assert_round_trip(levels: Levels) -> None:
    """Each level obeys its grammar and parses back from its text to the same nodes."""
    levels.verify()
    for node in (levels.tensor, levels.kernel, levels.loop, levels.linear):
        assert parse(dump(node)) is node


def bf16(values: Any) -> Array:
    """Raw codes of bfloat16."""
    return to_raw(np.asarray(values), dtypes.bfloat16)


def from_bf16(raw: Array) -> Array:
    """The values of raw codes of bfloat16."""
    return to_array(raw, dtypes.bfloat16).astype(np.float64)


def without(kernel: Node, wrong: Callable[[Node], bool]) -> Node:
    """The kernel without the statements for which `wrong` holds."""

    def visit(node: Node) -> Node | None:
        if node.op in (Ops.SEQ, Ops.KERNEL) and any(wrong(child) for child in node.src):
            return node.replace(src=tuple(child for child in node.src if not wrong(child)))
        return None

    return rebuild(kernel, visit)


def changed(kernel: Node, change: Callable[[Node], Node | None]) -> Node:
    """The kernel with some nodes replaced."""
    return rebuild(kernel, change)
