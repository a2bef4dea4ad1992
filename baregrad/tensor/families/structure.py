"""What is read along axes and moved between places: reductions, sorting, shapes, indexing."""

from __future__ import annotations

from baregrad.tensor.array.put_off import put_off_property
from baregrad.tensor.array.tensor_like import TensorLike
from baregrad.tensor.ops import (
    indexing,
    joining,
    picking,
    reductions,
    scans,
    shapes,
    sorting,
)
from baregrad.tensor.special import complex_numbers


class Structure(TensorLike):
    """Methods that read along axes, or move elements between places."""

    __slots__ = ()

    # --- reductions -------------------------------------------------------------------------------

    sum = reductions.sum
    prod = reductions.prod
    mean = reductions.mean
    nansum = reductions.nansum
    nanmean = reductions.nanmean
    all = reductions.all
    any = reductions.any
    count_nonzero = reductions.count_nonzero
    amax = reductions.amax
    amin = reductions.amin
    aminmax = reductions.aminmax
    max = reductions.max
    min = reductions.min
    argmax = reductions.argmax
    argmin = reductions.argmin
    var = reductions.var
    std = reductions.std
    var_mean = reductions.var_mean
    std_mean = reductions.std_mean
    norm = reductions.norm
    logsumexp = reductions.logsumexp
    softmax = reductions.softmax
    softmin = reductions.softmin
    log_softmax = reductions.log_softmax

    cumsum = scans.cumsum
    cumprod = scans.cumprod
    cummax = scans.cummax
    cummin = scans.cummin
    logcumsumexp = scans.logcumsumexp
    diff = scans.diff
    argsort = sorting.argsort
    sort = sorting.sort
    topk = sorting.topk
    kthvalue = sorting.kthvalue
    median = sorting.median
    quantile = sorting.quantile
    unique = sorting.unique

    # --- shapes -----------------------------------------------------------------------------------

    reshape = shapes.reshape
    view = shapes.view
    view_as = shapes.view_as
    reshape_as = shapes.reshape_as
    bitcast = shapes.bitcast
    flatten = shapes.flatten
    ravel = shapes.ravel
    unflatten = shapes.unflatten
    squeeze = shapes.squeeze
    unsqueeze = shapes.unsqueeze
    permute = shapes.permute
    transpose = swapaxes = swapdims = shapes.transpose
    t = shapes.t
    H = put_off_property(complex_numbers.adjoint)
    mH = put_off_property(complex_numbers.adjoint)  # noqa: N815 - PyTorch's name
    adjoint = complex_numbers.adjoint
    T = put_off_property(shapes.reversed_axes)
    mT = put_off_property(shapes.matrix_transpose)  # noqa: N815 - PyTorch's name
    movedim = moveaxis = shapes.movedim
    expand = shapes.expand
    expand_as = shapes.expand_as
    broadcast_to = shapes.broadcast_to
    repeat = shapes.repeat
    tile = shapes.tile
    repeat_interleave = shapes.repeat_interleave
    flip = shapes.flip
    narrow = shapes.narrow
    select = shapes.select
    unfold = shapes.unfold
    pixel_shuffle = shapes.pixel_shuffle
    diagonal = shapes.diagonal
    roll = shapes.roll
    contiguous = shapes.contiguous
    is_contiguous = shapes.is_contiguous
    stride = shapes.stride
    dim = shapes.dim
    numel = nelement = shapes.numel
    size = shapes.size
    element_size = shapes.element_size
    nbytes = property(shapes.nbytes)
    cat = concat = concatenate = joining.cat
    stack = joining.stack
    hstack = joining.hstack
    vstack = joining.vstack
    split = unsafe_split = joining.split
    chunk = unsafe_chunk = joining.chunk
    tensor_split = joining.tensor_split
    unbind = joining.unbind
    meshgrid = joining.meshgrid
    pad = joining.pad
    tril = joining.tril
    triu = joining.triu
    diag = joining.diag
    diag_embed = joining.diag_embed

    # --- indexing ---------------------------------------------------------------------------------

    __getitem__ = indexing.getitem
    __setitem__ = indexing.setitem

    gather = picking.gather
    take = picking.take
    take_along_dim = picking.take_along_dim
    scatter = picking.scatter
    scatter_add = picking.scatter_add
    scatter_reduce = picking.scatter_reduce
    index_select = picking.index_select
    index_add = picking.index_add
    index_copy = picking.index_copy
    index_fill = picking.index_fill
    embedding = picking.embedding
    masked_fill = picking.masked_fill
    masked_select = picking.masked_select
    nonzero = picking.nonzero
    one_hot = picking.one_hot
    bincount = picking.bincount
