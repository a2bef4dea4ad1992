"""PyTorch as what a program is compared with: whole arrays, node by node, in the node's dtype.

What PyTorch has no function for (our draws, sorts of several words, windows) is computed as the
reference device does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.base.errors import MissingDependency
from baregrad.dtypes import DType
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.evaluate.alu import working_dtype
from baregrad.ir.evaluate.tensor_level import TENSOR_RULES, TensorRule

_UNARY = MappingProxyType({
    Ops.NEG: "neg", Ops.ABS: "abs", Ops.SQRT: "sqrt", Ops.RECIPROCAL: "reciprocal",
    Ops.EXP: "exp", Ops.EXP2: "exp2", Ops.LOG: "log", Ops.LOG2: "log2", Ops.SIN: "sin",
    Ops.COS: "cos", Ops.TANH: "tanh", Ops.ERF: "erf", Ops.ATAN: "atan", Ops.FLOOR: "floor",
    Ops.CEIL: "ceil", Ops.TRUNC: "trunc", Ops.RINT: "round",
})  # fmt: skip
_BINARY = MappingProxyType({
    Ops.ADD: "add", Ops.SUB: "sub", Ops.MUL: "mul", Ops.MAX: "maximum", Ops.MIN: "minimum",
    Ops.CMPLT: "lt", Ops.CMPLE: "le", Ops.CMPEQ: "eq", Ops.CMPNE: "ne", Ops.AND: "bitwise_and",
    Ops.OR: "bitwise_or", Ops.XOR: "bitwise_xor", Ops.POW: "pow",
})  # fmt: skip
# By the op of their monoid; those of several values are ours.
_REDUCED = MappingProxyType({Ops.ADD: "sum", Ops.MUL: "prod", Ops.MAX: "amax", Ops.MIN: "amin"})
_RUNNING = MappingProxyType({Ops.ADD: "cumsum", Ops.MUL: "cumprod"})
_DTYPES = frozenset({
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool",
})  # fmt: skip


def torch_rules() -> Mapping[Op, TensorRule]:
    """Return the evaluator's rules with PyTorch's functions; raises MissingDependency."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise MissingDependency("PyTorch is not installed", package="torch") from error
    found: dict[Op, TensorRule] = dict(TENSOR_RULES)

    def put(op: Op, function: Callable[[Node, list[Any]], Any]) -> None:
        found[op] = _rule(torch, function, TENSOR_RULES[op])

    for op, name in (*_UNARY.items(), *_BINARY.items()):
        put(op, partial(_called, getattr(torch, name)))
    put(Ops.DIV, lambda node, given: given[0] / given[1])
    put(Ops.WHERE, lambda node, given: torch.where(*given))
    put(Ops.FMA, lambda node, given: torch.addcmul(given[2], given[0], given[1]))
    for op in (Ops.GELU, Ops.GELU_NEAR):
        put(op, lambda node, given: torch.nn.functional.gelu(given[0]))
    put(Ops.REDUCE, lambda node, given: _reduced(torch, node, given))
    put(Ops.SCAN, lambda node, given: _running(torch, node, given))
    return MappingProxyType(found)


def _called(function: Callable[..., Any], node: Node, given: list[Any]) -> Any:
    return function(*given)


class _OursError(Exception):
    """PyTorch has no function for a node."""


def _rule(torch: Any, function: Callable[[Node, list[Any]], Any], ours: TensorRule) -> TensorRule:
    """A rule that computes with PyTorch what it has a dtype and a function for."""

    def rule(node: Node, operands: list[Any], inputs: Any) -> Any:
        kinds = [_dtype(torch, one.dtype) for one in (node, *node.src)]
        if None in kinds or any(isinstance(one, tuple) for one in operands):
            return ours(node, operands, inputs)
        given = [
            torch.from_numpy(np.array(data)).to(kind)
            for data, kind in zip(operands, kinds[1:], strict=True)
        ]
        if node.op in (Ops.REDUCE, Ops.SCAN):
            shape = inputs.shape(node.src[0].shape)
            given = [one.expand(shape) for one in given]
        try:
            result = function(node, given)
        except (_OursError, RuntimeError, TypeError):
            # Also what it has no kernel for in this dtype.
            return ours(node, operands, inputs)
        wide = torch.float32 if node.dtype.is_float and node.dtype.bits < 32 else kinds[0]
        return result.to(kinds[0]).to(wide).numpy().astype(working_dtype(node.dtype), copy=False)

    return rule


def _dtype(torch: Any, dtype: DType) -> Any:
    return getattr(torch, dtype.name) if dtype.name in _DTYPES else None


def _reduced(torch: Any, node: Node, given: list[Any]) -> Any:
    name, axes = _REDUCED.get(node.arg.monoid.primitive), tuple(node.arg.axes)
    if name is None or len(given) != 1:
        raise _OursError
    result, dtype = given[0], given[0].dtype
    if name == "prod":
        for axis in sorted(axes, reverse=True):
            result = result.prod(axis, dtype=dtype)
        return result
    if not axes or not all(result.shape[axis] for axis in axes):
        raise _OursError
    return result.sum(axes, dtype=dtype) if name == "sum" else getattr(torch, name)(result, axes)


def _running(torch: Any, node: Node, given: list[Any]) -> Any:
    name = _RUNNING.get(node.arg.monoid.primitive)
    if name is None or len(given) != 1:
        raise _OursError
    return getattr(torch, name)(given[0], node.arg.axis, dtype=given[0].dtype)
