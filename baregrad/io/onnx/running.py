"""Runs a graph node by node, which builds the lazy graph of tensors that an engine then computes.

What depends on constants alone is computed once. What the host must know, such as a new shape, is
computed there as far as it follows from shapes; a value that it must know and that depends on data
is downloaded, which is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from baregrad.base.errors import BaregradError, FileFormatError, OutOfMemory, UnsupportedError
from baregrad.io.onnx.call import NodeCall, Result
from baregrad.io.onnx.graph import GraphDef, NodeDef
from baregrad.io.onnx.host import HOST, LOOKS_AT_SHAPES, NotOnHost
from baregrad.io.onnx.ops.table import NOT_CONSTANT, OPERATORS
from baregrad.io.onnx.standard_functions import function_of
from baregrad.io.onnx.values import (
    MOST_ON_HOST,
    HostArray,
    Value,
    array_of,
    is_native,
    tensor_of,
)
from baregrad.tensor import Tensor

# A constant that takes more than this for each byte it is made of is made anew at each run.
MOST_GROWTH = 16

# What operators raise of inputs and attributes that the standard does not allow.
HOSTILE = (
    ArithmeticError, AssertionError, AttributeError, LookupError, StopIteration, TypeError,
    ValueError,
)  # fmt: skip


class Runner:
    """Runs graphs of one model on one device; `downloaded` names what the host had to know."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.downloaded: set[str] = set()
        self._tensors: dict[int, tuple[HostArray, Tensor]] = {}
        self._cached: dict[object, Any] = {}
        self._scopes: list[dict[str, Value]] = []

    # --- as the functions of operators see it -----------------------------------------------

    def tensor(self, value: Value) -> Tensor:
        """A value on the device; of an array that the model keeps, always the same tensor."""
        if isinstance(value, Tensor):
            return value
        if not isinstance(value, np.ndarray):
            raise FileFormatError("a tensor is wanted", found=f"{type(value).__name__}")
        kept = self._tensors.get(id(value))
        if kept is not None:
            return kept[1]
        return tensor_of(value, self.device)

    def keep(self, array: HostArray) -> None:
        """Make a tensor of an array that lives as long as the model."""
        if id(array) not in self._tensors and is_native(array.dtype):
            self._tensors[id(array)] = (array, tensor_of(array, self.device).realize())

    def host(self, value: Value, name: str) -> HostArray:
        """A value on the host."""
        if isinstance(value, np.ndarray):
            return value
        if not isinstance(value, Tensor):
            raise FileFormatError("a tensor is wanted", found=f"{type(value).__name__}")
        self.downloaded.add(name)
        found: HostArray = array_of(value)
        return found

    def subgraph(self, graph: GraphDef, values: Sequence[Value]) -> list[Value]:
        """The results of a graph with values for its inputs."""
        names = [one.name for one in graph.inputs]
        return self.run(graph, dict(zip(names, values, strict=False)))

    def attempted(self, compute: Callable[[], Any]) -> Any:
        """What `compute` returns, None where it needs values on the host that are not there.

        It computes nothing yet: what is not possible is found out before anything ran.
        """
        downloaded = set(self.downloaded)
        try:
            return compute()
        except OutOfMemory:
            raise
        except BaregradError:
            # What is wrong with the model is so where it is computed step by step as well.
            self.downloaded = downloaded
            return None

    def cached(self, key: object, make: Callable[[], Any]) -> Any:
        """What `make` returned first for a key."""
        if key not in self._cached:
            self._cached[key] = make()
        return self._cached[key]

    # --- graphs -----------------------------------------------------------------------------

    def run(self, graph: GraphDef, values: Mapping[str, Value]) -> list[Value]:
        """The outputs of a graph, of values by name; those known already are not computed."""
        around = self._scopes[-1] if self._scopes else {}
        inside: dict[str, Value] = {**around, **self._constants(graph), **values, "": None}
        self._scopes.append(inside)
        try:
            for node in graph.nodes:
                if not all(name in values for name in node.outputs):
                    self._step(node, inside)
            return [self._named(inside, one.name) for one in graph.outputs]
        finally:
            self._scopes.pop()

    def _constants(self, graph: GraphDef) -> Mapping[str, Value]:
        def make() -> Mapping[str, Value]:
            found: dict[str, Value] = {}
            for name, array in graph.constants.items():
                if array.size > MOST_ON_HOST and is_native(array.dtype):
                    found[name] = tensor_of(array, self.device)
                else:
                    self.keep(array)
                    found[name] = array
            return found

        result: Mapping[str, Value] = self.cached(("constants", id(graph)), make)
        return result

    def fold(self, graph: GraphDef, known: Mapping[str, Value]) -> dict[str, Value]:
        """Every value that follows from constants and `known` alone, computed now."""
        values: dict[str, Value] = {**self._constants(graph), **known, "": None}
        self._scopes.append(values)
        try:
            for node in graph.nodes:
                if node.key in NOT_CONSTANT or any(node.graphs()):
                    continue
                if all(name in values for name in node.inputs):
                    self._step(node, values)
                    self._settle(node, values)
        finally:
            self._scopes.pop()
        return values

    def _settle(self, node: NodeDef, values: dict[str, Value]) -> None:
        """Realise what a node gave, and note small arrays on the host as well."""
        used = sum(_nbytes(values[name]) for name in node.inputs)
        for name in node.outputs:
            value = values.get(name)
            if isinstance(value, np.ndarray):
                self.keep(value)
            if not name or not isinstance(value, Tensor):
                continue
            if _nbytes(value) > MOST_GROWTH * max(used, MOST_ON_HOST):
                del values[name]
                continue
            values[name] = value = value.realize()
            if value.numel() <= MOST_ON_HOST and value.dtype.numpy is not None:
                array = value.numpy()
                self._tensors[id(array)] = (array, value)
                values[name] = array

    def _step(self, node: NodeDef, values: dict[str, Value]) -> None:
        inputs = [self._named(values, name) for name in node.inputs]
        call = NodeCall(node, inputs, self)
        try:
            results = self._result(call)
        except BaregradError as error:
            if not hasattr(error, "operator"):
                error.operator = str(call)  # type: ignore[attr-defined]
                error.add_note(f"in the operator {call}")
            raise
        except HOSTILE as error:
            # NumPy's and Python's, of indices, shapes and attributes that do not fit.
            raise FileFormatError(
                f"the operator {call} does not fit its inputs",
                found=f"{type(error).__name__}: {error}",
            ) from error
        except MemoryError as error:
            raise OutOfMemory(f"no room for what the operator {call} makes", found=error) from error
        found = results if isinstance(results, tuple) else (results,)
        if sum(map(bool, node.outputs)) > len(found):
            raise UnsupportedError(f"{call} has outputs that are not offered", found=len(found))
        values.update((name, value) for name, value in zip(node.outputs, found, strict=False)
                      if name)  # fmt: skip

    def _result(self, call: NodeCall) -> Result:
        key = call.node.key
        on_host = HOST.get(key)
        if on_host is not None and (
            key in LOOKS_AT_SHAPES
            or all(one is None or isinstance(one, np.ndarray) for one in call.inputs)
        ):
            try:
                return on_host(call)
            except NotOnHost:
                pass
        function = OPERATORS.get(key)
        if function is not None:
            return function(call)
        body = function_of(call)
        if body is None:
            raise UnsupportedError(f"the operator {call} is not offered")
        values = [*call.inputs, *[None] * (len(body.inputs) - len(call.inputs))]
        return tuple(self._apart(body, values))

    def _apart(self, graph: GraphDef, values: Sequence[Value]) -> list[Value]:
        """The results of a graph that sees no names around it."""
        scopes, self._scopes = self._scopes, []
        try:
            return self.subgraph(graph, values)
        finally:
            self._scopes = scopes

    def _named(self, values: Mapping[str, Value], name: str) -> Value:
        if name not in values:
            raise FileFormatError(
                "a node uses a value that no node before it makes", found=repr(name)
            )
        return values[name]


def _nbytes(value: Value) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, Tensor) and all(isinstance(e, int) for e in value.shape):
        return int(value.nbytes)
    return 0
