"""Layers without state, by the names and arguments of PyTorch's `nn.functional`.

Most are methods of `Tensor`; what that has not is in this folder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from baregrad.base.namespaces import unknown_name
from baregrad.nn.functional.activations import gumbel_softmax, in_place_too, rrelu, rrelu_
from baregrad.nn.functional.counting import ctc_loss
from baregrad.nn.functional.dropping import (
    alpha_dropout,
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    feature_alpha_dropout,
)
from baregrad.nn.functional.looking_up import bilinear, embedding, embedding_bag
from baregrad.nn.functional.losses import (
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    pdist,
    triplet_margin_with_distance_loss,
)
from baregrad.nn.functional.pooling import (
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    local_response_norm,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
    max_unpool1d,
    max_unpool2d,
    max_unpool3d,
)
from baregrad.nn.functional.resampling import (
    affine_grid,
    channel_shuffle,
    grid_sample,
    pixel_unshuffle,
    upsample,
    upsample_bilinear,
    upsample_nearest,
)
from baregrad.nn.functional.windows import (
    conv_tbc,
    fractional_max_pool2d,
    fractional_max_pool3d,
)
from baregrad.tensor import Tensor

if TYPE_CHECKING:
    from baregrad.nn.functional.attention import (
        multi_head_attention_forward as multi_head_attention_forward,
    )

    # The signature of each of `_IN_PLACE`.
    def _in_place(x: Tensor, *args: Any, **kwargs: Any) -> Tensor: ...

    celu = elu = hardsigmoid = hardswish = hardtanh = leaky_relu = _in_place
    mish = relu = relu6 = selu = silu = threshold = _in_place

unfold, fold = Tensor.im2col, Tensor.col2im
native_channel_shuffle = channel_shuffle

# What is a method of the same name.
_METHODS = (
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "batch_norm", "binary_cross_entropy", "binary_cross_entropy_with_logits", "conv1d", "conv2d",
    "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cosine_embedding_loss",
    "cosine_similarity", "cross_entropy", "gaussian_nll_loss", "gelu", "glu", "group_norm",
    "hardshrink", "hinge_embedding_loss", "huber_loss", "instance_norm", "interpolate", "kl_div",
    "l1_loss", "layer_norm", "linear", "log_softmax", "logsigmoid", "margin_ranking_loss",
    "max_pool1d", "max_pool2d", "max_pool3d", "mse_loss", "nll_loss", "normalize", "one_hot", "pad",
    "pairwise_distance", "pixel_shuffle", "poisson_nll_loss", "prelu", "rms_norm",
    "scaled_dot_product_attention", "sigmoid", "smooth_l1_loss", "soft_margin_loss", "softmax",
    "softmin", "softplus", "softshrink", "softsign", "tanh", "tanhshrink", "triplet_margin_loss",
    "relu_",
)  # fmt: skip
# What may write over what it is given, as its last argument says.
_IN_PLACE = (
    "celu", "elu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish", "relu", "relu6",
    "selu", "silu", "threshold",
)  # fmt: skip

_WITH_INDICES = tuple(f"{name}_with_indices" for name in (
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "fractional_max_pool2d",
    "fractional_max_pool3d", "max_pool1d", "max_pool2d", "max_pool3d",
))  # fmt: skip

__all__ = [
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "affine_grid",
    "alpha_dropout",
    "bilinear",
    "channel_shuffle",
    "conv_tbc",
    "ctc_loss",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "embedding",
    "embedding_bag",
    "feature_alpha_dropout",
    "fold",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
    "grid_sample",
    "gumbel_softmax",
    "local_response_norm",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "multi_head_attention_forward",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "native_channel_shuffle",
    "pdist",
    "pixel_unshuffle",
    "rrelu",
    "rrelu_",
    "triplet_margin_with_distance_loss",
    "unfold",
    "upsample",
    "upsample_bilinear",
    "upsample_nearest",
]


def _with_indices(name: str) -> Callable[..., Any]:
    """The pooling of a name, with the places of what it found."""

    def pool(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        pooling = globals().get(name) or getattr(Tensor, name)
        return pooling(x, *args, **{**kwargs, "return_indices": True})

    pool.__name__ = pool.__qualname__ = f"{name}_with_indices"
    pool.__doc__ = f"Return what `{name}` gives, and where each was found."
    return pool


def __getattr__(name: str) -> Callable[..., Any]:
    if name in _METHODS:
        found: Callable[..., Any] = getattr(Tensor, name)
    elif name in _IN_PLACE:
        found = in_place_too(name)
    elif name in _WITH_INDICES:
        found = _with_indices(name.removesuffix("_with_indices"))
    elif name == "multi_head_attention_forward":
        # Not before somebody calls it: few do by hand.
        from baregrad.nn.functional import attention

        found = attention.multi_head_attention_forward
    elif name.endswith("_") and name[:-1] in _IN_PLACE:
        found = in_place_too(name[:-1], always=True)
    else:
        raise unknown_name("baregrad.nn.functional", name, [*__all__, *_METHODS, *_IN_PLACE,
                                                        *_WITH_INDICES])
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_METHODS, *_IN_PLACE, *_WITH_INDICES})
