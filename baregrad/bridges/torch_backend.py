"""`torch.compile(model, backend="baregrad")`: PyTorch's models, forward and backward, by us.

PyTorch traces a model, splits it into a forward and a backward graph of its core operators and
hands them here. A graph with an operator that we have no function for is left to PyTorch as a
whole: a warning names the operators, and `report` counts such graphs.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from baregrad.bridges.torch_graph import TorchGraph, missing


@dataclass(slots=True)
class Report:
    """What became of the graphs that PyTorch handed over.

    compiled: those that we run. left: those that PyTorch runs. missing: how often the operators
    that we lack were called for.
    """

    compiled: int = 0
    left: int = 0
    missing: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """One line, and one for each missing operator."""
        lines = [f"{self.compiled} graphs compiled, {self.left} left to PyTorch"]
        lines += [f"  {name}: {count} times" for name, count in self.missing.most_common()]
        return "\n".join(lines)


class MissingOperators(UserWarning):
    """A graph is run by PyTorch, since we lack some of its operators."""


# Operators that PyTorch would take apart, whose backward pass it then does not find again.
KEPT_WHOLE = ("_scaled_dot_product_flash_attention_for_cpu",)
_lock = threading.Lock()
_report = Report()


def report() -> Report:
    """A copy of the counts of this process so far."""
    with _lock:
        return Report(_report.compiled, _report.left, Counter(_report.missing))


def baregrad(graph: Any, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The backend itself: what PyTorch calls with a traced graph and example arguments.

    Raises nothing of its own: what cannot be compiled is left to PyTorch, with a warning.
    """
    import torch
    from torch._decomp import core_aten_decompositions
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    decompositions = core_aten_decompositions()
    for whole in KEPT_WHOLE:
        decompositions.pop(getattr(torch.ops.aten, whole).default, None)
    compiled = aot_autograd(
        fw_compiler=_compile, bw_compiler=_compile_backward, inference_compiler=_compile,
        decompositions=decompositions, partition_fn=min_cut_rematerialization_partition,
    )
    made: Callable[..., Any] = compiled(graph, examples, **options)
    return made


def _shown() -> int | None:
    """How many results of the forward graph at hand, the first ones, are not for its backward pass.

    None for all of them.
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    told = None if context is None else context.fw_metadata
    return None if told is None else told.num_forward_returns


def _compile(graph: Any, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    return _compiled(graph, _shown())


def _compile_backward(
    graph: Any, examples: Sequence[Any], **options: Any
) -> Callable[..., Any]:
    # Gradients may lie as they like.
    return _compiled(graph, 0)


def _compiled(graph: Any, shown: int | None) -> Callable[..., Any]:
    from functorch.compile import make_boxed_func

    lacking = missing(graph)
    with _lock:
        _report.missing.update(lacking)
        if lacking:
            _report.left += 1
        else:
            _report.compiled += 1
    if lacking:
        names = ", ".join(f"{name} ({count})" for name, count in lacking.most_common())
        warnings.warn(
            f"PyTorch runs this graph itself, since we have no function for {names}",
            MissingOperators, stacklevel=2,
        )
    function: Callable[..., Any] = make_boxed_func(
        graph.forward if lacking else TorchGraph(graph, shown)
    )
    return function
