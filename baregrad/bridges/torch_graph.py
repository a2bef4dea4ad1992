"""Running one graph of PyTorch's operators as a jitted function of ours."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from baregrad.base.errors import UnsupportedDevice
from baregrad.base.locks import give_lock
from baregrad.bridges.aten import OPERATORS, REFUSED, Operator
from baregrad.bridges.aten.strides import STRIDED, layout_of
from baregrad.bridges.torch_memory import dtype_of
from baregrad.bridges.torch_program import TorchProgram
from baregrad.engine.session import current_session
from baregrad.tensor import Tensor

# Sets of sizes whose captures a graph keeps; the one that was used last stays longest.
PROGRAMS_KEPT = 64
# What they check is a result of ours beside the graph's, and is looked at after the run.
_CHECKS = ("_assert_async", "_assert_scalar", "_functional_assert_async")


def missing(graph: Any) -> Counter[str]:
    """How often a traced graph calls each operator that we have no function for."""
    found: Counter[str] = Counter()
    for node in graph.graph.nodes:
        if node.op != "call_function" or _is_check(node):
            continue
        refused = REFUSED.get(_packet(node.target))
        if _operator(node.target) is None or (refused is not None and refused(node)):
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
    them has a capture of its own, the last `PROGRAMS_KEPT` of which are kept. An argument that is
    a result is returned itself. All other results lie apart, also where one node is two of them, of
    which one is kept for the backward pass: who writes to one changes no other. calls: how often it
    ran.

    shown: how many results PyTorch looks at, all by default. Elements of those lie in the order
    that the graph was traced with, since PyTorch may take views of them by strides.
    """

    lock: threading.RLock

    def __init__(self, graph: Any, shown: int | None = None) -> None:
        self.calls = 0
        self._nodes = list(graph.graph.nodes)
        placeholders = [node for node in self._nodes if node.op == "placeholder"]
        (results,) = next(node.args for node in self._nodes if node.op == "output")
        several = results if isinstance(results, (list, tuple)) else [results]
        self._checks = [node for node in self._nodes if _is_check(node)]
        # What is computed, and the results: the place of an argument, or of what is computed, or a
        # value that the graph has.
        self._made = [one for one in several if _is_node(one) and not _is_placeholder(one)]
        given = {node: ("argument", place) for place, node in enumerate(placeholders)}
        places = iter(range(len(self._made)))
        self._results = [
            ("value", one) if not _is_node(one) else given.get(one) or ("made", next(places))
            for one in several
        ]
        self._orders = [_order_of(one) for one in self._made]
        seen = [one for one in several[:shown] if _is_node(one) and not _is_placeholder(one)]
        self._orders[len(seen):] = [None] * (len(self._made) - len(seen))
        self._made += [node.args[0] for node in self._checks]
        self._constants = {
            node.target: _attribute(graph, node.target)
            for node in self._nodes
            if node.op == "get_attr"
        }
        self._programs: OrderedDict[tuple[Any, ...], TorchProgram] = OrderedDict()
        give_lock(self)

    def _program(self, device: str, numbers: tuple[Any, ...]) -> TorchProgram:
        """The program of a set of sizes, which threads may ask for at once."""
        with self.lock:
            program = self._programs.get(key := (device, *numbers))
            if program is None:
                program = self._programs[key] = TorchProgram(self._function(numbers), device)
                if len(self._programs) > PROGRAMS_KEPT:
                    self._programs.popitem(last=False)
            self._programs.move_to_end(key)
            return program

    def __call__(self, *arguments: Any) -> list[Any]:
        """Run the graph. Raises RuntimeError, as PyTorch does, if what it asserts does not hold."""
        import torch

        self.calls += 1
        tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
        _check(tensors)
        device = current_session().default_device()
        numbers = tuple(
            None if isinstance(one, torch.Tensor) else one for one in arguments
        ) if len(tensors) < len(arguments) else ()
        made = self._program(device, numbers)([*self._constants.values(), *tensors])
        for place, order in enumerate(self._orders):
            if order is not None:
                # No view to PyTorch, as in `TorchProgram`.
                made[place] = made[place].permute(_inverse(order)).data
        first = len(self._made) - len(self._checks)
        for node, holds in zip(self._checks, made[first:], strict=True):
            if not (holds.item() if isinstance(holds, torch.Tensor) else holds):
                raise RuntimeError(_message(node))
        return [
            arguments[one] if kind == "argument" else made[one] if kind == "made" else one
            for kind, one in self._results
        ]

    def _function(self, numbers: tuple[Any, ...]) -> Callable[..., list[Any]]:
        """The graph over our tensors, constants first, with numbers where those are not None."""

        def run(*tensors: Tensor) -> list[Any]:
            left = iter(tensors)
            constants = {name: next(left) for name in self._constants}
            arguments = [next(left) if one is None else one for one in numbers] or [*left]
            return self._run(arguments, constants)

        return run

    def _run(self, arguments: Sequence[Any], constants: Mapping[str, Tensor]) -> list[Any]:
        values: dict[Any, Any] = {}
        left = iter(arguments)

        def known(one: Any) -> Any:
            if isinstance(one, (list, tuple)):
                return type(one)(known(each) for each in one)
            if isinstance(one, dict):
                return {key: known(each) for key, each in one.items()}
            return values[one] if _is_node(one) else one

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
        found = [known(one) for one in self._made]
        for place, order in enumerate(self._orders):
            if order is not None:
                found[place] = found[place].permute(*order)
        return found


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


def _order_of(node: Any) -> tuple[int, ...] | None:
    """The axes of a result from the outermost inwards, None where they lie in their order."""
    traced = node.meta.get("val")
    layout = layout_of(traced) if hasattr(traced, "stride") else None
    order = None if layout is None else layout.order
    return None if order is None or order == tuple(range(len(order))) else order


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _is_node(one: Any) -> bool:
    return type(one).__name__ == "Node"


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
        if not one.is_cpu:
            raise UnsupportedDevice(
                "PyTorch's tensor does not lie on the CPU", found=one.device, wanted="cpu",
                hint="keep the model on the CPU; `BAREGRAD_DEVICE` says where we compute",
            )
