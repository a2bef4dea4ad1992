"""One use of an operator: its inputs and attributes, as the functions of the table ask for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from baregrad.base.errors import FileFormatError, UnsupportedError
from baregrad.dtypes import DType
from baregrad.io.onnx.graph import GraphDef, NodeDef
from baregrad.io.onnx.values import HostArray, Value, as_ints, dims
from baregrad.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable


class GraphScope(Protocol):
    """What runs graphs, as the functions of operators see it."""

    device: str

    def tensor(self, value: Value) -> Tensor:
        """A value on the device."""

    def host(self, value: Value, name: str) -> HostArray:
        """A value on the host, which a tensor is downloaded to."""

    def subgraph(self, graph: GraphDef, values: Sequence[Value]) -> list[Value]:
        """The results of a graph among the attributes, with the names around it in sight."""

    def attempted(self, compute: Callable[[], Any]) -> Any:
        """What `compute` returns, None where it needs values on the host that are not there."""

    def cached(self, key: object, make: Callable[[], Any]) -> Any:
        """What `make` returned first for a key, which lives as long as the model."""


class NodeCall:
    """A node about to be computed: `inputs` are its values, None where one is left out."""

    def __init__(self, node: NodeDef, inputs: Sequence[Value], scope: GraphScope) -> None:
        self.node = node
        self.inputs = list(inputs)
        self.scope = scope

    @property
    def version(self) -> int:
        """The version of the operator's domain that the model asks for."""
        return self.node.version

    @property
    def device(self) -> str:
        """Where tensors are."""
        return self.scope.device

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute, or `default` where the node has none of that name."""
        return self.node.attributes.get(name, default)

    def wanted(self, name: str) -> Any:
        """An attribute that must be there. Raises FileFormatError."""
        found = self.node.attributes.get(name)
        if found is None:
            raise FileFormatError(f"{self} lacks the attribute {name!r}")
        return found

    def graph(self, name: str) -> GraphDef:
        """A graph among the attributes."""
        found = self.wanted(name)
        assert isinstance(found, GraphDef)
        return found

    def has(self, at: int) -> bool:
        """Whether input `at` is given."""
        return at < len(self.inputs) and self.inputs[at] is not None

    def value(self, at: int) -> Value:
        """Input `at` as it came, None where it is left out."""
        return self.inputs[at] if at < len(self.inputs) else None

    def __getitem__(self, at: int) -> Tensor:
        """Input `at` on the device. Raises FileFormatError where it is left out."""
        value = self.value(at)
        if value is None:
            raise FileFormatError(f"{self} lacks its input {at}")
        return self.scope.tensor(value)

    def maybe(self, at: int) -> Tensor | None:
        """Input `at` on the device, or None."""
        return self[at] if self.has(at) else None

    def tensors(self) -> list[Tensor]:
        """All inputs on the device."""
        return [self[at] for at in range(len(self.inputs))]

    def operand(self, at: int) -> Any:
        """Input `at` as a number, where the host knows one of the dtype at hand, or a tensor."""
        value = self.value(at)
        if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf":
            return value.item()
        return self[at]

    def host(self, at: int) -> HostArray:
        """Input `at` on the host."""
        value = self.value(at)
        if value is None:
            raise FileFormatError(f"{self} lacks its input {at}")
        return self.scope.host(value, self.node.inputs[at])

    def integers(self, at: int) -> list[Any]:
        """Input `at` as a list of integers, of which some may be symbolic."""
        return as_ints(self.host(at))

    def number(self, at: int, default: Any = None) -> Any:
        """Input `at` as one number on the host, or `default` where it is left out."""
        if not self.has(at):
            return default
        found = self.host(at).reshape(-1)
        return found[0] if found.dtype == object else found[0].item()

    def slice_bounds(self) -> tuple[Any, Any, Any, Any]:
        """The starts, ends, axes and steps of a Slice: attributes before opset 10, then inputs.

        Axes and steps are None where the model leaves them out.
        """
        if self.version < 10:
            return self.wanted("starts"), self.wanted("ends"), self.attribute("axes"), None
        axes = self.integers(3) if self.has(3) else None
        steps = self.integers(4) if self.has(4) else None
        return self.integers(1), self.integers(2), axes, steps

    def axes(self, name: str = "axes", at: int = 1) -> list[int] | None:
        """A list that older operators have as an attribute and newer ones as an input."""
        found = self.attribute(name)
        if found is not None:
            return list(found)
        return self.integers(at) if self.has(at) else None

    def shape(self, at: int) -> tuple[Any, ...]:
        """The shape of input `at`."""
        value = self.value(at)
        assert isinstance(value, Tensor | np.ndarray)
        return tuple(value.shape)

    def dtype(self, at: int) -> DType:
        """The dtype of input `at`."""
        value = self.value(at)
        if isinstance(value, Tensor):
            return value.dtype
        return self[at].dtype

    def refuse(self, what: str, found: object = None, hint: str | None = None) -> UnsupportedError:
        """An error for a form of the operator that is not offered, to be raised."""
        return UnsupportedError(f"{self} {what}", found=found, hint=hint)

    def broken(self, what: str, found: object = None) -> FileFormatError:
        """An error for a node that the standard does not allow, to be raised."""
        return FileFormatError(f"{self} {what}", found=found)

    def __str__(self) -> str:
        name = f" {self.node.name!r}" if self.node.name else ""
        domain = f"{self.node.domain}." if self.node.domain else ""
        return f"{domain}{self.node.op}{name}"


# A value, or a tuple of one for each output.
Result = Any
Function = Callable[[NodeCall], Result]
Key = tuple[str, str]
Table = Mapping[Key, Function]


def of_tensor(function: Callable[[Tensor], Tensor]) -> Function:
    """An operator that is a function of one tensor."""
    return lambda call: function(call[0])


def standard(functions: Mapping[str, Function]) -> dict[Key, Function]:
    """Rows of the standard's own domain."""
    return {("", name): function for name, function in functions.items()}


def of_domain(domain: str, functions: Mapping[str, Function]) -> dict[Key, Function]:
    """Rows of another domain."""
    return {(domain, name): function for name, function in functions.items()}


def shape_of(value: Value) -> HostArray:
    """The shape of a value, as a vector on the host."""
    assert isinstance(value, Tensor | np.ndarray)
    return dims(tuple(value.shape))


def own_axis(axis: int, ndim: int) -> int:
    """An axis counted from the front."""
    return axis + ndim if axis < 0 else axis


def slice_of(extent: int, start: int, end: int, step: int) -> slice:
    """The part of an axis that Slice names, as Python does.

    Going back, a start before the first element is the first one, which Python has as no element.
    """
    if step > 0:
        return slice(start, end, step)
    return slice(max(start, -extent), end if end >= -extent else None, step)


def broadcast_ranks(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Tensors with as many axes as the one of most, those that are added in front."""
    found = list(tensors)
    ndim = max(one.ndim for one in found)
    return [one.reshape((1,) * (ndim - one.ndim) + tuple(one.shape)) for one in found]
