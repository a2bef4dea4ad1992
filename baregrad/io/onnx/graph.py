"""A model as plain data: graphs of nodes by name, read once from the file's messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Dim = int | str | None


@dataclass(frozen=True, slots=True)
class ValueType:
    """The declared type of an input or output.

    kind: `tensor`, `sequence`, `optional` or `map`. dtype: an element's name, as NumPy and
    ml_dtypes call it, or `str`. shape: None where the rank is unknown; an extent is a number, the
    name of a symbolic one, or None.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[Dim, ...] | None

    def __str__(self) -> str:
        shape = "?" if self.shape is None else ", ".join("?" if d is None else str(d)
                                                         for d in self.shape)  # fmt: skip
        text = f"{self.dtype} [{shape}]"
        return text if self.kind == "tensor" else f"{self.kind} of {text}"


@dataclass(frozen=True, eq=False)
class NodeDef:
    """One node. `version` is that of its domain's operators that the model asks for.

    Attributes are Python numbers, strings, lists of these, arrays, or graphs. `message` is the
    node as the file has it, for the standard's own definitions of composite operators.
    """

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    version: int
    message: Any = None

    @property
    def key(self) -> tuple[str, str]:
        """What the table of operators calls it."""
        return ("" if self.domain == "ai.onnx" else self.domain, self.op)

    def graphs(self) -> Iterator[GraphDef]:
        """Yield the graphs among its attributes: branches and bodies of loops."""
        for value in self.attributes.values():
            if isinstance(value, GraphDef):
                yield value


@dataclass(frozen=True, eq=False)
class GraphDef:
    """Nodes in the order in which they are computed, and what goes in and out."""

    name: str
    inputs: tuple[ValueType, ...]
    outputs: tuple[ValueType, ...]
    constants: Mapping[str, np.ndarray[Any, Any]]
    nodes: tuple[NodeDef, ...]

    def outer_names(self) -> set[str]:
        """Names that it takes from around it."""
        known = {value.name for value in self.inputs} | set(self.constants)
        taken: set[str] = set()
        for node in self.nodes:
            wanted = set(node.inputs)
            for graph in node.graphs():
                wanted |= graph.outer_names()
            taken |= wanted - known
            known.update(node.outputs)
        taken |= {value.name for value in self.outputs} - known
        return taken - {""}

    def every_node(self) -> Iterator[NodeDef]:
        """Yield the nodes of this graph and of the graphs in it."""
        for node in self.nodes:
            yield node
            for graph in node.graphs():
                yield from graph.every_node()
