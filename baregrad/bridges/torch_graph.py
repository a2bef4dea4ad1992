"""Running one graph of PyTorch's operators as a jitted function of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from baregrad.base.errors import UnsupportedDevice
from baregrad.bridges.aten import OPERATORS, Operator
from baregrad.bridges.aten.strides import STRIDED, layout_of, refused
from baregrad.bridges.torch_memory import dtype_of, give, lend
from baregrad.engine.session import current_session
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

# What they check is a result of ours beside the graph's, and is looked at after the run.
_CHECKS = ("_assert_async", "_assert_scalar", "_functional_assert_async")


def missing(graph: Any) -> Counter[str]:
    """How often a traced graph calls each operator that we have no function for."""
    found: Counter[str] = Counter()
    for node in graph.graph.nodes:
        if node.op != "call_function" or _is_check(node):
            continue
        if _operator(node.target) is None or (_packet(node.target) in STRIDED and refused(node)):
            found[_name(node.target)] += 1
    return found


def _name(target: Any) -> str:
    return str(target) if hasattr(target, "overloadpacket") else getattr(target, "__name__", "?")


def _packet(target: Any) -> str:
    """The operator's name without its overload."""
    return str(getattr(target, "overloadpacket", "")).rpartition(".")[2]


def _is_check(node: Any) -> bool:
    """Whether a node computes nothing but stops the program unless its first argument holds."""
    return node.op == "call_function" and _packet(node.target) in _CHECKS


def _operator(target: Any) -> Operator | None:
    if not hasattr(target, "overloadpacket"):
        # Python's own functions of sizes and of tuples; PyTorch's other functions take tensors.
        module = getattr(target, "__module__", "")
        return target if module in ("_operator", "math", "builtins") else None
    packet = _packet(target)
    return OPERATORS.get(f"{packet}.{target._overloadname}") or OPERATORS.get(packet)


class TorchGraph:
    """A traced graph that computes with our kernels; called with and returning PyTorch's tensors.

    Numbers among the arguments (sizes that change) are part of what a call is known by: each set of
    them has a capture of its own. An argument that is a result is returned itself. Results of other
    nodes lie apart, as they do where PyTorch copies: who writes to one changes no other, nor what
    is kept for the backward pass. calls: how often it ran.
    """

    def __init__(self, graph: Any) -> None:
        self.calls = 0
        self._nodes = list(graph.graph.nodes)
        self._placeholders = [node for node in self._nodes if node.op == "placeholder"]
        (results,) = next(node.args for node in self._nodes if node.op == "output")
        self._results = list(results) if isinstance(results, (list, tuple)) else [results]
        self._checks = [node for node in self._nodes if _is_check(node)]
        self._constants = {
            node.target: _attribute(graph, node.target)
            for node in self._nodes
            if node.op == "get_attr"
        }
        self._jitted: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> list[Any]:
        """Run the graph. Raises RuntimeError, as PyTorch does, if what it asserts does not hold."""
        import torch

        self.calls += 1
        tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
        _check(tensors)
        device = current_session().default_device()
        numbers = tuple(
            None if isinstance(one, torch.Tensor) else one for one in arguments
        )
        jitted = self._jitted.get(numbers)
        if jitted is None:
            jitted = self._jitted[numbers] = self._function(numbers)
        constants = [lend(one, device) for one in self._constants.values()]
        results = jitted([lend(one, device) for one in tensors], constants)
        ours = [one for one in results if isinstance(one, Tensor)]
        if ours:
            ours[0].realize(*ours[1:])
        count = len(self._results)
        for node, holds in zip(self._checks, results[count:], strict=True):
            if not (holds.item() if isinstance(holds, Tensor) else holds):
                raise RuntimeError(_message(node))
        return self._given(
            dict(zip(self._placeholders, arguments, strict=True)), results[:count]
        )

    def _given(self, arguments: Mapping[Any, Any], results: Sequence[Any]) -> list[Any]:
        """The results as PyTorch's, those of two nodes in memory of their own."""
        given: dict[Any, Any] = {}
        places: set[int] = set()
        for node, one in zip(self._results, results, strict=True):
            if node in arguments:
                given[node] = arguments[node]
            elif isinstance(one, Tensor) and node not in given:
                made = give(one)
                place = made.untyped_storage().data_ptr()
                given[node] = made.clone() if place in places and made.numel() else made
                places.add(place)
        return [
            given.get(node, one) for node, one in zip(self._results, results, strict=True)
        ]

    def _function(self, numbers: tuple[Any, ...]) -> Callable[..., Any]:
        """The graph over our tensors, for these numbers in the places of those that are None."""

        def run(tensors: list[Tensor], constants: list[Tensor]) -> list[Any]:
            left = iter(tensors)
            arguments = [next(left) if one is None else one for one in numbers]
            return self._run(arguments, dict(zip(self._constants, constants, strict=True)))

        return jit(run)

    def _run(self, arguments: Sequence[Any], constants: Mapping[str, Tensor]) -> list[Any]:
        values: dict[Any, Any] = {}
        left = iter(arguments)

        def known(one: Any) -> Any:
            if isinstance(one, (list, tuple)):
                return type(one)(known(each) for each in one)
            if isinstance(one, dict):
                return {key: known(each) for key, each in one.items()}
            return values[one] if type(one).__name__ == "Node" else one

        for node in self._nodes:
            if node.op == "placeholder":
                values[node] = next(left)
            elif node.op == "get_attr":
                values[node] = constants[node.target]
            elif _is_check(node):
                # The functional one gives its token on.
                values[node] = known(node.args[-1])
            elif node.op != "output":
                function = _operator(node.target)
                if function is None:
                    raise UnsupportedDevice("no such operator", found=_name(node.target))
                arguments_of = tuple(known(one) for one in node.args)
                named = {key: known(one) for key, one in node.kwargs.items()}
                if _packet(node.target) in STRIDED:
                    named["layout"] = layout_of(node.args[0].meta["val"])
                values[node] = _as_traced(function(*arguments_of, **named), node.meta.get("val"))
        checked = [known(node.args[0]) for node in self._checks]
        return [None if _is_placeholder(one) else known(one) for one in self._results] + checked


def _message(node: Any) -> str:
    told = [one for one in (*node.args, *node.kwargs.values()) if isinstance(one, str)]
    return told[0] if told else f"{_name(node.target)}: the condition does not hold"


def _as_traced(result: Any, traced: Any) -> Any:
    """A result in the dtype that PyTorch traced the rest of the graph with."""
    if isinstance(result, tuple) and isinstance(traced, (list, tuple)):
        return tuple(map(_as_traced, result, traced))
    if isinstance(result, Tensor) and hasattr(traced, "dtype"):
        return result.cast(dtype_of(traced.dtype))
    return result


def _is_placeholder(one: Any) -> bool:
    return getattr(one, "op", "") == "placeholder"


def _attribute(graph: Any, name: str) -> Any:
    found = graph
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _check(tensors: Sequence[Any]) -> None:
    """Refuse tensors that lie elsewhere than in host memory. Raises UnsupportedDevice."""
    for one in tensors:
        if one.device.type != "cpu":
            raise UnsupportedDevice(
                "PyTorch's tensor does not lie on the CPU", found=one.device, wanted="cpu",
                hint="keep the model on the CPU; `BAREGRAD_DEVICE` says where we compute",
            )
