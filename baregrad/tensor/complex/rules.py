"""Which function computes an operation of complex operands: a table, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from baregrad.base.errors import DTypeError
from baregrad.tensor.complex import arithmetic, functions, structure
from baregrad.tensor.complex.pairs import of_real_and_imag, refuse_order
from baregrad.tensor.composed import arithmetic as composed
from baregrad.tensor.composed import arranging
from baregrad.tensor.ops import (
    convert,
    elementwise,
    indexing,
    joining,
    picking,
    products,
    reductions,
    scans,
    shapes,
    sorting,
)
from baregrad.tensor.ops import functions as real_functions
from baregrad.tensor.special import complex_numbers

Rule = Callable[..., Any]

_ELEMENTS: Mapping[Rule, Rule] = MappingProxyType({
    convert.cast: arithmetic.cast,
    convert.clone: arithmetic.clone,
    convert.to_float: arithmetic.to_double,
    convert.to_double: arithmetic.to_double,
    convert.to_half: arithmetic.to_double,
    convert.to_bfloat16: arithmetic.to_double,
    convert.to_int: arithmetic.to_double,
    convert.to_long: arithmetic.to_double,
    convert.to_bool: arithmetic.to_bool,
    elementwise.add: arithmetic.add,
    elementwise.sub: arithmetic.sub,
    elementwise.rsub: arithmetic.rsub,
    elementwise.mul: arithmetic.mul,
    elementwise.div: arithmetic.div,
    elementwise.rdiv: arithmetic.rdiv,
    elementwise.neg: arithmetic.neg,
    elementwise.positive: arithmetic.positive,
    elementwise.abs: arithmetic.absolute,
    elementwise.sign: arithmetic.sign,
    elementwise.square: arithmetic.square,
    elementwise.reciprocal: arithmetic.reciprocal,
    elementwise.pow: functions.power,
    elementwise.rpow: functions.rpower,
    elementwise.where: arithmetic.where,
    elementwise.eq: arithmetic.eq,
    elementwise.ne: arithmetic.ne,
    elementwise.isnan: arithmetic.isnan,
    elementwise.isinf: arithmetic.isinf,
    elementwise.isfinite: arithmetic.isfinite,
    elementwise.isclose: arithmetic.isclose,
    elementwise.allclose: elementwise.allclose,
    elementwise.equal: elementwise.equal,
    elementwise.logical_not: arithmetic.logical_not,
    elementwise.logical_and: arithmetic.logical_and,
    elementwise.logical_or: arithmetic.logical_or,
    elementwise.logical_xor: arithmetic.logical_xor,
    **dict.fromkeys((
        elementwise.lt, elementwise.le, elementwise.gt, elementwise.ge, elementwise.maximum,
        elementwise.minimum, elementwise.clamp, reductions.amax, reductions.amin, reductions.max,
        reductions.min, reductions.argmax, reductions.argmin, reductions.aminmax, sorting.sort,
        sorting.argsort, sorting.topk, sorting.median, sorting.kthvalue, sorting.quantile,
        scans.cummax, scans.cummin,
    ), refuse_order),
    real_functions.exp: functions.exp,
    real_functions.exp2: functions.exp2,
    real_functions.expm1: functions.expm1,
    real_functions.log: functions.log,
    real_functions.log2: functions.log2,
    real_functions.log10: functions.log10,
    real_functions.log1p: functions.log1p,
    real_functions.sqrt: functions.sqrt,
    real_functions.rsqrt: functions.rsqrt,
    real_functions.sin: functions.sin,
    real_functions.cos: functions.cos,
    real_functions.tan: functions.tan,
    real_functions.sinh: functions.sinh,
    real_functions.cosh: functions.cosh,
    real_functions.tanh: functions.tanh,
    real_functions.asin: functions.asin,
    real_functions.acos: functions.acos,
    real_functions.atan: functions.atan,
    real_functions.asinh: functions.asinh,
    real_functions.acosh: functions.acosh,
    real_functions.atanh: functions.atanh,
    real_functions.sigmoid: functions.sigmoid,
    real_functions.lerp: arithmetic.lerp,
    real_functions.addcmul: arithmetic.addcmul,
    real_functions.addcdiv: arithmetic.addcdiv,
})

_PLACES: Mapping[Rule, Rule] = MappingProxyType({
    indexing.getitem: structure.getitem,
    shapes.reshape: structure.reshape,
    shapes.view: structure.view,
    shapes.view_as: structure.like_shape,
    shapes.reshape_as: structure.like_shape,
    shapes.flatten: structure.flatten,
    shapes.ravel: structure.ravel,
    shapes.unflatten: structure.unflatten,
    shapes.squeeze: structure.squeeze,
    shapes.unsqueeze: structure.unsqueeze,
    shapes.permute: structure.permute,
    shapes.transpose: structure.transpose,
    shapes.t: structure.two_axes_reversed,
    shapes.reversed_axes: structure.reversed_axes,
    shapes.matrix_transpose: structure.matrix_transpose,
    shapes.movedim: structure.movedim,
    shapes.expand: structure.expand,
    shapes.expand_as: structure.expand_as,
    shapes.broadcast_to: structure.expand,
    shapes.repeat: structure.repeat,
    shapes.tile: structure.tile,
    shapes.flip: structure.flip,
    shapes.narrow: structure.narrow,
    shapes.select: structure.select,
    shapes.unfold: structure.unfold,
    shapes.diagonal: structure.diagonal,
    shapes.roll: structure.roll,
    shapes.contiguous: structure.contiguous,
    joining.cat: structure.cat,
    joining.stack: structure.stack,
    joining.meshgrid: joining.meshgrid,
    joining.hstack: structure.hstack,
    joining.vstack: structure.vstack,
    joining.split: structure.parted(joining.split),
    joining.chunk: structure.parted(joining.chunk),
    joining.tensor_split: structure.parted(joining.tensor_split),
    joining.unbind: structure.parted(joining.unbind),
    picking.index_select: structure.index_select,
    **{one: of_real_and_imag(one) for one in (
        joining.tril, joining.triu, joining.diag, joining.diag_embed, joining.pad, picking.gather,
        picking.take, picking.take_along_dim, picking.scatter, picking.scatter_add,
        picking.index_add, picking.index_copy, picking.index_fill, picking.masked_select,
        picking.embedding, shapes.repeat_interleave, picking.masked_fill,
    )},
    indexing.index_put: indexing.index_put,
    picking.nonzero: structure.of_nonzero(picking.nonzero),
})

_TOGETHER: Mapping[Rule, Rule] = MappingProxyType({
    reductions.sum: structure.total,
    reductions.mean: structure.mean,
    reductions.prod: structure.prod,
    reductions.norm: structure.norm,
    reductions.var: structure.var,
    reductions.std: structure.std,
    **{one: structure.of_nonzero(one) for one in (
        reductions.all, reductions.any, reductions.count_nonzero,
    )},
    scans.cumsum: structure.cumsum,
    scans.cumprod: structure.cumprod,
    scans.diff: structure.diff,
    products.matmul: structure.matmul,
    products.rmatmul: structure.rmatmul,
    products.einsum: structure.einsum,
    # Made of others.
    **{one: one for one in (
        products.mm, products.mv, products.bmm, products.dot, products.outer, products.addmm,
        products.baddbmm, products.linear, products.trace, products.kron, composed.addmv,
        composed.addr, composed.addbmm, composed.renorm, arranging.masked_scatter,
        complex_numbers.real, complex_numbers.imag, complex_numbers.conj, complex_numbers.angle,
        complex_numbers.adjoint, complex_numbers.isreal, complex_numbers.view_as_real,
    )},
})

RULES: Mapping[Rule, Rule] = MappingProxyType({**_ELEMENTS, **_PLACES, **_TOGETHER})


def rule_of(function: Rule) -> Rule:
    """What computes an operation of complex operands; what refuses them where nothing does."""
    return RULES.get(function) or _refusal(function)


def _refusal(function: Rule) -> Rule:
    def refuse(*_: Any, **__: Any) -> Any:
        raise DTypeError(
            f"{function.__name__.strip('_')} is not defined for complex numbers here",
            hint="work on the parts: .real and .imag, .abs() and .angle(), or view_as_real()",
        )

    return refuse
