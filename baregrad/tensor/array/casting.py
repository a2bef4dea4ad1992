"""Operands inside `autocast`: which functions take narrow floats, and which take float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baregrad.dtypes import DType, dtypes
from baregrad.tensor.array.core import Array
from baregrad.tensor.array.grad_mode import cast_dtype

_NARROW = frozenset({
    "addmm", "baddbmm", "addbmm", "addmv", "addr", "bmm", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "einsum", "linear", "matmul", "mm",
    "mv", "rmatmul", "scaled_dot_product_attention",
})  # fmt: skip
_WIDE = frozenset({
    "acos", "asin", "binary_cross_entropy", "binary_cross_entropy_with_logits", "cdist", "cosh",
    "cosine_embedding_loss", "cosine_similarity", "cross_entropy", "cumprod", "cumsum", "erfinv",
    "exp", "expm1", "gaussian_nll_loss", "group_norm", "hinge_embedding_loss", "huber_loss",
    "instance_norm", "kl_div", "l1_loss", "layer_norm", "log", "log10", "log1p", "log2",
    "log_softmax", "logsumexp", "margin_ranking_loss", "mse_loss", "nll_loss", "norm", "normalize",
    "pairwise_distance", "poisson_nll_loss", "pow", "prod", "reciprocal", "rms_norm", "rpow",
    "rsqrt", "sinh", "smooth_l1_loss", "soft_margin_loss", "softmax", "softmin", "softplus", "std",
    "tan", "triplet_margin_loss", "var",
})  # fmt: skip


def cast_operands(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The operands of a function as `autocast` has them."""
    name = function.__name__
    dtype = cast_dtype() if name in _NARROW else dtypes.float32 if name in _WIDE else None
    if dtype is None:
        return args, kwargs
    wide = dtype is dtypes.float32
    return (
        tuple([_cast(one, dtype, wide) for one in args]),
        {key: _cast(one, dtype, wide) for key, one in kwargs.items()},
    )


def _cast(one: Any, dtype: DType, wide: bool) -> Any:
    if isinstance(one, list | tuple):
        return type(one)([_cast(each, dtype, wide) for each in one])
    if not isinstance(one, Array) or one.dtype is dtype:
        return one
    given = one.dtype
    narrow = given in (dtypes.bfloat16, dtypes.float16)
    if narrow or (not wide and given is dtypes.float32):
        return one.cast(dtype)  # type: ignore[attr-defined]
    return one
