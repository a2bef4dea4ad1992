"""Layers, losses and modules with PyTorch's names, initial values and state keys."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from baregrad.base.namespaces import unknown_name
from baregrad.nn import functional, init, parameter
from baregrad.nn.activations import (
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    RReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softmax2d,
    Softmin,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
)
from baregrad.nn.attention import MultiheadAttention
from baregrad.nn.containers import (
    DataParallel,
    ModuleDict,
    ModuleList,
    ParameterDict,
    ParameterList,
    Sequential,
)
from baregrad.nn.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from baregrad.nn.hooks import IncompatibleKeys
from baregrad.nn.layers import (
    AlphaDropout,
    Bilinear,
    Dropout,
    Dropout1d,
    Dropout2d,
    Dropout3d,
    Embedding,
    EmbeddingBag,
    FeatureAlphaDropout,
    Flatten,
    Identity,
    Linear,
    Unflatten,
)
from baregrad.nn.losses import (
    BCELoss,
    BCEWithLogitsLoss,
    CosineEmbeddingLoss,
    CosineSimilarity,
    CrossEntropyLoss,
    CTCLoss,
    GaussianNLLLoss,
    HingeEmbeddingLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MarginRankingLoss,
    MSELoss,
    MultiLabelMarginLoss,
    MultiLabelSoftMarginLoss,
    MultiMarginLoss,
    NLLLoss,
    PairwiseDistance,
    PoissonNLLLoss,
    SmoothL1Loss,
    SoftMarginLoss,
    TripletMarginLoss,
    TripletMarginWithDistanceLoss,
)
from baregrad.nn.module import Module
from baregrad.nn.normalisation import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
    SyncBatchNorm,
)
from baregrad.nn.padding import (
    CircularPad1d,
    CircularPad2d,
    CircularPad3d,
    ConstantPad1d,
    ConstantPad2d,
    ConstantPad3d,
    Fold,
    ReflectionPad1d,
    ReflectionPad2d,
    ReflectionPad3d,
    ReplicationPad1d,
    ReplicationPad2d,
    ReplicationPad3d,
    Unfold,
    ZeroPad1d,
    ZeroPad2d,
    ZeroPad3d,
)
from baregrad.nn.parameter import Buffer, Parameter
from baregrad.nn.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    ChannelShuffle,
    FractionalMaxPool2d,
    FractionalMaxPool3d,
    LocalResponseNorm,
    LPPool1d,
    LPPool2d,
    LPPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    MaxUnpool1d,
    MaxUnpool2d,
    MaxUnpool3d,
    PixelShuffle,
    PixelUnshuffle,
    Upsample,
    UpsamplingBilinear2d,
    UpsamplingNearest2d,
)
from baregrad.nn.recurrent import (
    GRU,
    LSTM,
    RNN,
    GRUCell,
    LSTMCell,
    RNNBase,
    RNNCell,
    RNNCellBase,
)
from baregrad.nn.state import get_parameters, get_state_dict, load_state_dict
from baregrad.nn.transformer import (
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)

if TYPE_CHECKING:
    from baregrad.nn import utils as utils
    from baregrad.nn.adaptive_softmax import (
        AdaptiveLogSoftmaxWithLoss as AdaptiveLogSoftmaxWithLoss,
    )
    from baregrad.nn.block_scaled import BlockScaled as BlockScaled
    from baregrad.nn.block_scaled import quantize_blocks as quantize_blocks
    from baregrad.nn.block_scaled import scaled_matmul as scaled_matmul
    from baregrad.nn.float8 import Float8Linear as Float8Linear
    from baregrad.nn.float8 import to_float8 as to_float8
    from baregrad.nn.lazy import LazyBatchNorm1d as LazyBatchNorm1d
    from baregrad.nn.lazy import LazyBatchNorm2d as LazyBatchNorm2d
    from baregrad.nn.lazy import LazyBatchNorm3d as LazyBatchNorm3d
    from baregrad.nn.lazy import LazyConv1d as LazyConv1d
    from baregrad.nn.lazy import LazyConv2d as LazyConv2d
    from baregrad.nn.lazy import LazyConv3d as LazyConv3d
    from baregrad.nn.lazy import LazyConvTranspose1d as LazyConvTranspose1d
    from baregrad.nn.lazy import LazyConvTranspose2d as LazyConvTranspose2d
    from baregrad.nn.lazy import LazyConvTranspose3d as LazyConvTranspose3d
    from baregrad.nn.lazy import LazyInstanceNorm1d as LazyInstanceNorm1d
    from baregrad.nn.lazy import LazyInstanceNorm2d as LazyInstanceNorm2d
    from baregrad.nn.lazy import LazyInstanceNorm3d as LazyInstanceNorm3d
    from baregrad.nn.lazy import LazyLinear as LazyLinear
    from baregrad.nn.lazy import UninitializedBuffer as UninitializedBuffer
    from baregrad.nn.lazy import UninitializedParameter as UninitializedParameter

# What few programs use, by file: that is imported with the first of its names.
_LATER = (
    ("adaptive_softmax", ("AdaptiveLogSoftmaxWithLoss",)),
    ("block_scaled", ("BlockScaled", "quantize_blocks", "scaled_matmul")),
    ("float8", ("Float8Linear", "to_float8")),
    ("lazy", (
        "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d", "LazyConv1d", "LazyConv2d",
        "LazyConv3d", "LazyConvTranspose1d", "LazyConvTranspose2d", "LazyConvTranspose3d",
        "LazyInstanceNorm1d", "LazyInstanceNorm2d", "LazyInstanceNorm3d", "LazyLinear",
        "UninitializedBuffer", "UninitializedParameter",
    )),
)

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "GRU",
    "LSTM",
    "RNN",
    "SELU",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveLogSoftmaxWithLoss",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AlphaDropout",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Bilinear",
    "BlockScaled",
    "Buffer",
    "CTCLoss",
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CosineEmbeddingLoss",
    "CosineSimilarity",
    "CrossEntropyLoss",
    "DataParallel",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Embedding",
    "EmbeddingBag",
    "FeatureAlphaDropout",
    "Flatten",
    "Float8Linear",
    "Fold",
    "FractionalMaxPool2d",
    "FractionalMaxPool3d",
    "GRUCell",
    "GaussianNLLLoss",
    "GroupNorm",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "Identity",
    "IncompatibleKeys",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "KLDivLoss",
    "L1Loss",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "LSTMCell",
    "LayerNorm",
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "LazyBatchNorm3d",
    "LazyConv1d",
    "LazyConv2d",
    "LazyConv3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "LazyInstanceNorm1d",
    "LazyInstanceNorm2d",
    "LazyInstanceNorm3d",
    "LazyLinear",
    "LeakyReLU",
    "Linear",
    "LocalResponseNorm",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MarginRankingLoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "MultiheadAttention",
    "NLLLoss",
    "PReLU",
    "PairwiseDistance",
    "Parameter",
    "ParameterDict",
    "ParameterList",
    "PixelShuffle",
    "PixelUnshuffle",
    "PoissonNLLLoss",
    "RMSNorm",
    "RNNBase",
    "RNNCell",
    "RNNCellBase",
    "RReLU",
    "ReLU",
    "ReLU6",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "SyncBatchNorm",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
    "Unflatten",
    "Unfold",
    "UninitializedBuffer",
    "UninitializedParameter",
    "Upsample",
    "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
    "functional",
    "get_parameters",
    "get_state_dict",
    "init",
    "load_state_dict",
    "parameter",
    "quantize_blocks",
    "scaled_matmul",
    "to_float8",
    "utils",
]


def __getattr__(name: str) -> object:
    if name in ("utils", "modules", "parallel", "common_types"):
        return importlib.import_module(f"{__name__}.{name}")
    for file, names in _LATER:
        if name in names:
            found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{file}"), name)
            return found
    raise unknown_name("baregrad.nn", name, __all__)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
