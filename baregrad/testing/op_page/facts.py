"""What is found out of an operation by calling it: dtypes that it takes and gives, gradients."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from baregrad.base.errors import BaregradError
from baregrad.base.options import options
from baregrad.engine.session import current_session
from baregrad.tensor import Tensor
from baregrad.testing.op_page.samples import call_of

# One dtype of each kind, and what it stands for on the page.
KINDS = (("float32", "floats"), ("bfloat16", "narrow floats"), ("int64", "integers"),
         ("uint8", "unsigned"), ("bool", "bools"), ("complex64", "complex"))  # fmt: skip
FLOATS = ("x", "y", "m", "v", "p", "s", "img", "line", "cube", "w1", "w2", "w3")


class OpFacts(NamedTuple):
    """An operation as the page tells it."""

    name: str
    family: str
    signature: str
    sentence: str
    call: str
    shape: str
    takes: str
    gives: str
    gradient: str
    reads: bool


def arrays(random: np.random.Generator, dtype: str = "float32") -> dict[str, Any]:
    """The arrays that the samples name; floats are drawn, and cast to a dtype afterwards."""
    shapes = {"x": (2, 3), "y": (2, 3), "m": (3, 4), "v": (3,), "s": (3, 3), "line": (1, 2, 6),
              "img": (1, 2, 6, 6), "cube": (1, 2, 4, 4, 4), "w1": (3, 2, 3), "w2": (3, 2, 3, 3),
              "w3": (3, 2, 3, 3, 3)}  # fmt: skip
    found: dict[str, Any] = {name: random.standard_normal(shape) * 2
                             for name, shape in shapes.items()}  # fmt: skip
    found["p"] = random.random((2, 3)) * 0.8 + 0.1
    found["n"] = random.integers(0, 2, (2, 3))
    found["k"] = random.integers(1, 4, (2, 3))
    found["b"] = random.random((2, 3)) < 0.5
    found["i"] = random.permutation(2)
    found["ids"] = random.integers(0, 3, 2)
    if dtype in ("int64", "uint8", "bool"):
        found = {name: np.abs(value) if name in FLOATS else value
                 for name, value in found.items()}  # fmt: skip
    return found


def run_call(call: str, made: dict[str, Any], kind: Callable[..., Any]) -> Any:
    """Run the text of a sample over tensors; `kind` is their class."""
    return eval(call, {"__builtins__": {}}, {**made, "T": kind})  # noqa: S307 - our own texts


def _tensors(dtype: str, grad: bool = False) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the samples name, and the leaves that of these the floats are made of."""
    made: dict[str, Any] = {}
    leaves: dict[str, Tensor] = {}
    for name, value in arrays(np.random.default_rng(0), dtype).items():
        x = Tensor(value)
        if name in FLOATS:
            x = leaves[name] = x.cast(dtype).detach().requires_grad_(grad)
            x = x * 1 if grad else x
        made[name] = x
    return made, leaves


def _first(result: Any) -> Any:
    while isinstance(result, tuple | list) and result:
        result = result[0]
    return result


def facts_of(name: str) -> OpFacts:
    """Call an operation with each kind of dtype, and once for its gradient.

    Nothing is computed but what the operation itself reads.
    """
    method = getattr(Tensor, name)
    call = call_of(name)
    takes, gives, shape = [], [], ""
    reads: list[object] = []
    watching = current_session().watching.downloads
    watching.append(reads.append)
    try:
        with options.override(device="REF"):
            for dtype, title in KINDS if _named(call) else KINDS[:1]:
                try:
                    result = _first(run_call(call, _tensors(dtype)[0], Tensor))
                    found = str(getattr(result, "dtype", type(result).__name__))
                except (BaregradError, TypeError):
                    continue
                shape = shape or str(list(getattr(result, "shape", ())))
                takes.append(title)
                if found != dtype:
                    gives.append(f"{title} → {found}")
            gradient = _gradient(call)
    finally:
        watching.remove(reads.append)
    if not _named(call):
        takes = ["integers"] if call.startswith("n.") else []
    if len(takes) == len(KINDS):
        takes = ["all"]
    sentence = (inspect.getdoc(method) or "").split("\n\n")[0].replace("\n", " ")
    return OpFacts(
        name, method.__module__.rpartition(".")[2], _signature(method), sentence, call, shape,
        ", ".join(takes), "; ".join(gives), gradient, bool(reads),
    )


def _named(call: str) -> list[str]:
    """The tensors of floats that a call names."""
    words = re.findall(r"\b\w+\b", call)
    return [name for name in FLOATS if name in words]


def _gradient(call: str) -> str:
    """Whether gradients pass an operation: "yes" or "no"."""
    made, leaves = _tensors("float32", True)
    try:
        result = _first(run_call(call, made, Tensor))
        if not isinstance(result, Tensor) or not result.requires_grad:
            return "no"
        result = result.abs() if result.dtype.kind == "complex" else result
        total = result.sum()
    except (BaregradError, TypeError):
        return "no"
    for name in _named(call):
        try:
            total.gradient(leaves[name])
        except BaregradError:
            continue
        return "yes"
    return "no"


def _signature(method: Any) -> str:
    signature = inspect.signature(method)
    parts = [_parameter(one) for one in signature.parameters.values()]
    if inspect.isfunction(method):
        parts = parts[1:] if parts[:1] and "*" not in parts[0] else parts
    return f"({', '.join(parts)})"


def _parameter(one: inspect.Parameter) -> str:
    stars: dict[object, str] = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}
    star = stars.get(one.kind, "")
    return f"{star}{one.name}" if one.default is one.empty else f"{one.name}={one.default!r}"
