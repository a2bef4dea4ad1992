"""A loaded model: what it takes and gives, and calls of it.

The first call runs node by node. What it had to know on the host decides how later calls go: they
are captured and replayed as one list of kernels, where need be once for each value of the small
inputs that shapes or branches depend on; where they depend on larger data, every call runs node by
node.
"""

from __future__ import annotations

import math
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from baregrad.base.errors import ArgumentError, JitError, ShapeError, UnsupportedError
from baregrad.base.locks import give_lock
from baregrad.dtypes import dtypes
from baregrad.engine.canonical import bind
from baregrad.io.onnx.graph import GraphDef, NodeDef, ValueType
from baregrad.io.onnx.host import HOST, LOOKS_AT_SHAPES
from baregrad.io.onnx.ops.table import OPERATORS
from baregrad.io.onnx.reading import ModelDef, read_model
from baregrad.io.onnx.running import Runner
from baregrad.io.onnx.standard_functions import has_function
from baregrad.io.onnx.values import Value, is_native, is_symbolic
from baregrad.ir.core.index import sub, upper, variable
from baregrad.ir.core.node import Node
from baregrad.tensor import Tensor
from baregrad.tensor.array.grad_mode import no_grad
from baregrad.tensor.jit.jit import Jit, jit
from baregrad.tensor.ops.creation import choose_device

Path = str | os.PathLike[str]
# Inputs of more elements than this are data, not settings.
MOST_SETTINGS = 64
# Values of settings for which a capture is kept.
MOST_CAPTURES = 16


def load_onnx(
    source: Path | bytes | Any,
    device: str | None = None,
    dimensions: Mapping[str, tuple[int, int]] | None = None,
) -> OnnxModel:
    """Load an ONNX model, from a file (with external data beside it), its bytes or a ModelProto.

    dimensions: bounds of symbolic dimensions by name, both included; one capture then serves all
    their sizes. Others are captured once for each size. Raises UnsupportedError with every
    operator that is not offered, FileFormatError for a broken file, and MissingDependency without
    the package `onnx`.
    """
    return OnnxModel(read_model(source), choose_device(device), dimensions or {})


def missing_operators(graph: GraphDef) -> Counter[str]:
    """How often the graph uses each operator that is not offered, by domain and name."""
    missing: Counter[str] = Counter()
    for node in graph.every_node():
        if node.key not in OPERATORS and node.key not in HOST and not has_function(node):
            missing[f"{node.domain}.{node.op}" if node.domain else node.op] += 1
    return missing


class OnnxModel:
    """A model that is called with its inputs, by position or name.

    `inputs` and `outputs` are their declared types by name, `operators` how often it uses each.
    `way` says how calls run: `first`, `captured`, `captured for each value of NAMES` or
    `node by node, since NAMES depends on data`. Threads may share it; one at a time is served.
    """

    lock: threading.RLock

    def __init__(
        self, model: ModelDef, device: str, dimensions: Mapping[str, tuple[int, int]]
    ) -> None:
        missing = missing_operators(model.graph)
        if missing:
            raise UnsupportedError(
                "the model has operators that are not offered",
                found=", ".join(f"{name} ({count})" for name, count in missing.most_common()),
            )
        give_lock(self)
        self.definition = model
        self.device = device
        self.inputs: dict[str, ValueType] = {one.name: one for one in model.graph.inputs}
        self.outputs: dict[str, ValueType] = {one.name: one for one in model.graph.outputs}
        self.operators = Counter(
            f"{one.domain}.{one.op}" if one.domain else one.op for one in model.graph.every_node()
        )
        self.way = "first"
        self._variables = {name: variable(name, lo, hi) for name, (lo, hi) in dimensions.items()}
        self._check_dimensions()
        self._runner = Runner(device)
        self._settings: tuple[str, ...] | None = None
        self._captured: dict[Any, Jit[..., list[Value]]] = {}
        self._folded: dict[str, Value] | None = None

    def _check_dimensions(self) -> None:
        named = {dim for one in self.inputs.values() for dim in one.shape or ()}
        for name in self._variables:
            if name not in named:
                known = ", ".join(repr(one) for one in sorted(map(str, named)) if not one.isdigit())
                raise ArgumentError(
                    "the model has no dimension of that name", found=repr(name), wanted=known
                )

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Value]:
        """Return the outputs by name: tensors; arrays of strings; lists for sequences.

        Inputs are tensors, arrays or numbers. Raises ArgumentError for inputs that are missing or
        unknown, ShapeError for shapes that do not fit.
        """
        given = self._given(args, kwargs)
        with self.lock, no_grad():
            values = {name: self._input(self.inputs[name], one) for name, one in given.items()}
            results = self._run(values)
        return dict(zip(self.outputs, map(self._output, results), strict=True))

    # --- inputs -----------------------------------------------------------------------------

    def _given(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        if len(args) == 1 and isinstance(args[0], Mapping) and not kwargs:
            given = dict(args[0])
        elif len(args) > len(self.inputs):
            raise ArgumentError("too many inputs", found=len(args), wanted=len(self.inputs))
        else:
            given = dict(zip(self.inputs, args, strict=False)) | kwargs
        unknown = [name for name in given if name not in self.inputs]
        needed = [one.name for one in self.inputs.values() if not one.kind.startswith("optional")]
        absent = [name for name in needed if name not in given]
        if unknown or absent:
            raise ArgumentError(
                "the inputs are not those of the model",
                found=", ".join(map(repr, unknown or given)) or "none",
                wanted=", ".join(map(repr, self.inputs)),
            )
        return {name: given.get(name) for name in self.inputs}

    def _input(self, declared: ValueType, value: Any) -> Value:
        if value is None:
            return None
        if declared.name in (self._settings or ()) and not isinstance(value, Tensor):
            array = np.asarray(value)
            if array.dtype == declared.dtype and _fits(declared.shape, array.shape):
                return array
        if isinstance(value, list) and "sequence" in declared.kind:
            return [self._element(declared, one) for one in value]
        return self._element(declared, value)

    def _element(self, declared: ValueType, value: Any) -> Value:
        if declared.dtype == "str":
            return np.array(value, str)
        if not isinstance(value, Tensor):
            try:
                array = np.asarray(value)
                if array.dtype != declared.dtype and not isinstance(value, np.ndarray):
                    array = array.astype(declared.dtype)
            except (TypeError, ValueError) as error:
                raise ArgumentError(
                    f"the input {declared.name!r} is not an array", found=str(error)
                ) from error
            if not is_native(array.dtype):
                return array
            value = Tensor(array, device=self.device)
        elif value.device != self.device:
            value = value.to(self.device)
        if declared.dtype and value.dtype.name != declared.dtype:
            raise ArgumentError(
                f"the input {declared.name!r} is of another dtype",
                found=value.dtype.name, wanted=declared.dtype,
            )
        return self._shaped(declared, value)

    def _shaped(self, declared: ValueType, value: Tensor) -> Tensor:
        """An input with its symbolic dimensions bound. Raises ShapeError."""
        wanted: tuple[Any, ...] | None = declared.shape
        if wanted is None or declared.kind != "tensor":
            return value
        if not _fits(wanted, value.shape):
            raise ShapeError(
                f"the input {declared.name!r} is of another shape",
                found=list(value.shape), wanted=str(declared),
            )
        if not any(dim in self._variables for dim in wanted):
            return value
        shape = tuple(
            bind(self._variables[dim], e) if dim in self._variables and isinstance(e, int) else e
            for dim, e in zip(wanted, value.shape, strict=True)
        )
        return value.reshape(shape)

    def _output(self, value: Value) -> Value:
        if isinstance(value, list):
            return [self._output(one) for one in value]
        if isinstance(value, np.ndarray) and (is_symbolic(value) or is_native(value.dtype)):
            return self._runner.tensor(value)
        return value

    # --- runs -------------------------------------------------------------------------------

    def _run(self, values: dict[str, Value]) -> list[Value]:
        graph = self.definition.graph
        if self._folded is None:
            self._folded = self._runner.fold(graph, {})
        if self._settings is None:
            found = self._runner.run(graph, {**self._folded, **values})
            self._settle(values)
            return found
        if self.way.startswith("node"):
            return self._runner.run(graph, {**self._folded, **values})
        try:
            return self._capture(dict(values))
        except JitError:
            # Another branch than before, or another size, has to know more on the host.
            known = self._settings
            self._settle(values)
            if known == self._settings and not self.way.startswith("node"):
                raise
            self._captured.clear()
            return self._run(values)

    def _settle(self, values: Mapping[str, Value]) -> None:
        """Choose the way of later calls by what the first one had to know on the host."""
        plain = all(isinstance(one, Tensor) or name in (self._settings or ())
                    for name, one in values.items())  # fmt: skip
        declared = all(
            one.kind == "tensor" and (not one.dtype or one.dtype in vars(dtypes))
            for one in self.outputs.values()
        )
        sources = _sources(self.definition.graph, self._runner.downloaded)
        data = [name for name in sources if not _is_setting(values.get(name))]
        self._settings = tuple(name for name in self.inputs if name in sources)
        if not plain or not declared:
            self.way = "node by node, since it has strings, sequences or types of the host"
        elif data or (self._runner.downloaded and not sources):
            names = ", ".join(sorted(self._runner.downloaded)[:3])
            self.way = f"node by node, since {names} depends on data"
        elif self._settings:
            self.way = f"captured for each value of {', '.join(self._settings)}"
        else:
            self.way = "captured"

    def _capture(self, values: dict[str, Value]) -> list[Value]:
        assert self._settings is not None and self._folded is not None
        known: dict[str, Value] = {}
        for name in self._settings:
            value = values.pop(name)
            known[name] = value.numpy() if isinstance(value, Tensor) else value
        key = tuple((name, one.tobytes(), one.shape) for name, one in known.items()
                    if isinstance(one, np.ndarray))  # fmt: skip
        function = self._captured.get(key)
        if function is None:
            if len(self._captured) >= MOST_CAPTURES:
                self._captured.pop(next(iter(self._captured)))
            function = self._captured[key] = self._made(known, tuple(values))
        sizes = self._sizes(values)
        # One after the other, by which `jit` knows a call that is like the last one soonest.
        return function(*map(_roomy, values.values()), *sizes.values())

    def _sizes(self, values: Mapping[str, Value]) -> dict[str, Node]:
        """The symbolic dimensions of inputs with their values. Raises ShapeError for two of one."""
        found: dict[str, Node] = {}
        for value in values.values():
            shape: tuple[Any, ...] = value.shape if isinstance(value, Tensor) else ()
            for extent in shape:
                if not isinstance(extent, Node):
                    continue
                first = found.setdefault(extent.arg.name, extent)
                if first is not extent:
                    raise ShapeError(
                        "inputs have two sizes of one dimension", found=f"{first} and {extent}"
                    )
        return found

    def _made(self, known: dict[str, Value], names: tuple[str, ...]) -> Jit[..., list[Value]]:
        graph = self.definition.graph
        runner = self._runner
        folded = self._folded or {}
        if known:
            folded = runner.fold(graph, {**folded, **known})

        inputs = [self.inputs[name] for name in names]

        def run(*args: Any) -> list[Value]:
            known = {size.arg.name: size for size in args[len(inputs) :]}
            given = zip(args, inputs, strict=False)
            cut = [_cut(one, declared, known) for one, declared in given]
            found = runner.run(graph, {**folded, **dict(zip(names, cut, strict=True))})
            return [runner.tensor(one) for one in found]

        return jit(run)


def _roomy(value: Value) -> Value:
    """An input with symbolic extents in an array of the largest, whose shape is always the same."""
    assert isinstance(value, Tensor)
    shape: tuple[Any, ...] = value.shape
    if not any(isinstance(extent, Node) for extent in shape):
        return value
    amounts = []
    for extent in reversed(shape):
        amounts += [0, sub(upper(extent), extent) if isinstance(extent, Node) else 0]
    return value.pad(amounts)


def _cut(value: Tensor, declared: ValueType, sizes: Mapping[str, Node]) -> Tensor:
    """The part of such an array that is filled."""
    for axis, dim in enumerate(declared.shape or ()):
        if isinstance(dim, str) and dim in sizes:
            value = value.narrow(axis, 0, sizes[dim])
    return value


def _fits(wanted: tuple[Any, ...] | None, shape: Sequence[Any]) -> bool:
    """Whether a shape is one that is declared, as far as its numbers say."""
    return wanted is None or (len(wanted) == len(shape) and all(
        not isinstance(dim, int) or not isinstance(e, int) or e == dim
        for dim, e in zip(wanted, shape, strict=True)
    ))


def _is_setting(value: Value) -> bool:
    return (
        isinstance(value, Tensor | np.ndarray)
        and all(isinstance(e, int) for e in value.shape)
        and math.prod(value.shape) <= MOST_SETTINGS
    )


def _sources(graph: GraphDef, wanted: set[str]) -> set[str]:
    """The inputs whose elements values depend on, shapes aside."""
    # Two branches may give one name to values of their own.
    makers: dict[str, list[NodeDef]] = {}
    for node in graph.every_node():
        taken = [one.name for inner in node.graphs() for one in inner.inputs]
        for name in (*node.outputs, *taken):
            makers.setdefault(name, []).append(node)
    found: set[str] = set()
    seen: set[str] = set()
    pending = list(wanted)
    inputs = {one.name for one in graph.inputs}
    while pending:
        name = pending.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        if name in inputs:
            found.add(name)
            continue
        for maker in makers.get(name, ()):
            if maker.key in LOOKS_AT_SHAPES:
                continue
            pending += maker.inputs
            for inner in maker.graphs():
                pending += inner.outer_names()
                pending += [one.name for one in inner.outputs]
    return found
