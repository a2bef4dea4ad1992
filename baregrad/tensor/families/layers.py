"""What networks are made of: products of matrices, convolutions, norms, losses."""

from __future__ import annotations

from baregrad.tensor.array.tensor_like import TensorLike
from baregrad.tensor.ops import (
    convolution,
    distances,
    losses,
    normalisation,
    pooling,
    products,
)


class Layers(TensorLike):
    """Methods that multiply matrices, and those that networks are made of."""

    __slots__ = ()

    # --- linear algebra ---------------------------------------------------------------------------

    matmul = __matmul__ = products.matmul
    __rmatmul__ = products.rmatmul
    dot = products.dot
    dot_bytes = products.dot_bytes
    fma = products.fma
    mm = products.mm
    mv = products.mv
    bmm = products.bmm
    outer = products.outer
    addmm = products.addmm
    baddbmm = products.baddbmm
    linear = products.linear
    trace = products.trace
    kron = products.kron
    einsum = staticmethod(products.einsum)

    # --- neural networks --------------------------------------------------------------------------

    conv1d = convolution.conv1d
    conv2d = convolution.conv2d
    conv3d = convolution.conv3d
    conv_transpose1d = convolution.conv_transpose1d
    conv_transpose2d = convolution.conv_transpose2d
    conv_transpose3d = convolution.conv_transpose3d
    im2col = convolution.im2col
    col2im = convolution.col2im
    max_pool1d = pooling.max_pool1d
    max_pool2d = pooling.max_pool2d
    max_pool3d = pooling.max_pool3d
    avg_pool1d = pooling.avg_pool1d
    avg_pool2d = pooling.avg_pool2d
    avg_pool3d = pooling.avg_pool3d
    adaptive_avg_pool1d = pooling.adaptive_avg_pool1d
    adaptive_avg_pool2d = pooling.adaptive_avg_pool2d
    adaptive_max_pool2d = pooling.adaptive_max_pool2d
    interpolate = pooling.interpolate
    layer_norm = normalisation.layer_norm
    rms_norm = normalisation.rms_norm
    batch_norm = normalisation.batch_norm
    group_norm = normalisation.group_norm
    instance_norm = normalisation.instance_norm
    normalize = normalisation.normalize
    scaled_dot_product_attention = normalisation.scaled_dot_product_attention
    mse_loss = losses.mse_loss
    l1_loss = losses.l1_loss
    smooth_l1_loss = losses.smooth_l1_loss
    huber_loss = losses.huber_loss
    binary_cross_entropy = losses.binary_cross_entropy
    binary_cross_entropy_with_logits = losses.binary_cross_entropy_with_logits
    kl_div = losses.kl_div
    nll_loss = losses.nll_loss
    cross_entropy = losses.cross_entropy
    gaussian_nll_loss = losses.gaussian_nll_loss
    poisson_nll_loss = losses.poisson_nll_loss
    soft_margin_loss = losses.soft_margin_loss
    cosine_similarity = distances.cosine_similarity
    pairwise_distance = distances.pairwise_distance
    cdist = distances.cdist
    cosine_embedding_loss = distances.cosine_embedding_loss
    triplet_margin_loss = distances.triplet_margin_loss
    margin_ranking_loss = distances.margin_ranking_loss
    hinge_embedding_loss = distances.hinge_embedding_loss
