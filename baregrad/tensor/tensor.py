"""The class `Tensor`: an index of every method, each a function of its family's module."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from baregrad.base.errors import DTypeError, ShapeError
from baregrad.tensor.array import grad_mode
from baregrad.tensor.array.arguments import explain_arguments
from baregrad.tensor.array.core import Array
from baregrad.tensor.array.link import session
from baregrad.tensor.array.put_off import put_off
from baregrad.tensor.array.tensor_like import TensorLike
from baregrad.tensor.autograd import backward as autograd
from baregrad.tensor.ops import (
    convert,
    convolution,
    creation,
    distances,
    elementwise,
    functions,
    indexing,
    inplace,
    joining,
    losses,
    normalisation,
    picking,
    pooling,
    products,
    random,
    reductions,
    scans,
    shapes,
    sorting,
    special,
)

_P = ParamSpec("_P")


def _made(
    function: Callable[Concatenate[type[Tensor], _P], Tensor],
) -> classmethod[Tensor, _P, Tensor]:
    """A function that makes a tensor of a class, as a method of that class."""
    return classmethod(function)


def _known(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of a tensor alone, whose calls are put off where they are known."""

    @wraps(function)
    def found(x: Tensor) -> Tensor:
        made: Tensor = put_off(function, (x,), {})
        return made

    return found


class Tensor(TensorLike):
    """An array of numbers or bools on a device, lazily computed and differentiable.

    Tensor(data) copies data: numbers, nested lists, NumPy arrays, PyTorch tensors, buffers. Python
    ints become int64, floats float32; arrays keep their dtype. `device` is a name such as "CPU".
    With `requires_grad` gradients are accumulated in `grad` by `backward()`.
    """

    __slots__ = ()
    __array_ufunc__ = None  # so that `array + tensor` asks the tensor
    __hash__ = object.__hash__

    def __init__(
        self,
        data: Any = (),
        dtype: object = None,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> None:
        made = creation.build(type(self), data, dtype, device)
        self._storage = made._storage
        self._steps = made._steps
        self._cached = None
        self._layout = None
        self._look = None
        self._gradient = None
        if requires_grad:
            self.requires_grad_()

    # --- gradients --------------------------------------------------------------------------------

    @property
    def grad(self) -> Tensor | None:
        """The gradient that `backward()` has accumulated; None before, and on results."""
        found: Tensor | None = self._gradient
        return found

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None and not isinstance(value, Tensor):
            raise DTypeError(
                "a gradient is a tensor, or None", found=f"{type(value).__name__} {value!r:.40}"
            )
        if value is not None and value.shape != self.shape:
            raise ShapeError(
                "a gradient has the shape of its tensor",
                found=str(list(value.shape)),
                wanted=str(list(self.shape)),
            )
        if value is not None and value.dtype is not self.dtype:
            raise DTypeError(
                "a gradient has the dtype of its tensor", found=value.dtype, wanted=self.dtype
            )
        self._gradient = value
        if value is not None and not value._storage.grad:
            # Computed along with what it shares a backward pass with, which would be run again.
            session().watching.companions.append(weakref.ref(value._storage))

    @property
    def data(self) -> Tensor:
        """The same values, aliased, at which gradients stop; set, it is written over."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        if value.shape != self.shape:
            raise ShapeError(
                "values written over a tensor have its shape",
                found=str(list(value.shape)),
                wanted=str(list(self.shape)),
            )
        with grad_mode.no_grad():
            self.copy_(value)

    def zero_grad(self) -> None:
        """Forget the accumulated gradient: `grad` becomes None."""
        self._gradient = None

    backward = autograd.backward
    gradient = autograd.gradient
    no_grad = staticmethod(grad_mode.no_grad)
    enable_grad = staticmethod(grad_mode.enable_grad)
    set_grad_enabled = staticmethod(grad_mode.set_grad_enabled)
    is_grad_enabled = staticmethod(grad_mode.is_grad_enabled)

    # --- creation ---------------------------------------------------------------------------------

    full = _made(creation.full)
    zeros = _made(creation.zeros)
    ones = _made(creation.ones)
    empty = _made(creation.empty)
    arange = _made(creation.arange)
    linspace = _made(creation.linspace)
    eye = _made(creation.eye)
    full_like = creation.full_like
    zeros_like = creation.zeros_like
    ones_like = creation.ones_like
    empty_like = creation.empty_like
    new_full = creation.new_full
    new_zeros = new_empty = creation.new_zeros
    new_ones = creation.new_ones
    new_tensor = creation.new_tensor
    from_numpy = _made(convert.from_numpy)
    from_dlpack = _made(convert.from_dlpack)

    # --- random numbers ---------------------------------------------------------------------------

    manual_seed = staticmethod(random.manual_seed)
    rand = _made(random.rand)
    randn = _made(random.randn)
    uniform = _made(random.uniform)
    normal = _made(random.normal)
    randint = _made(random.randint)
    randperm = _made(random.randperm)
    rand_like = random.rand_like
    randn_like = random.randn_like
    bernoulli = random.bernoulli
    multinomial = random.multinomial
    dropout = random.dropout

    # --- arithmetic -------------------------------------------------------------------------------

    add = __add__ = __radd__ = elementwise.add
    sub = subtract = __sub__ = elementwise.sub
    __rsub__ = elementwise.rsub
    mul = multiply = __mul__ = __rmul__ = elementwise.mul
    div = divide = true_divide = __truediv__ = elementwise.div
    __rtruediv__ = elementwise.rdiv
    floor_divide = __floordiv__ = elementwise.floor_divide
    __rfloordiv__ = elementwise.rfloor_divide
    remainder = __mod__ = elementwise.remainder
    __rmod__ = elementwise.rremainder
    fmod = elementwise.fmod
    pow = __pow__ = elementwise.pow
    __rpow__ = elementwise.rpow
    neg = negative = __neg__ = elementwise.neg
    positive = __pos__ = elementwise.positive
    abs = absolute = __abs__ = elementwise.abs
    sign = elementwise.sign
    signbit = elementwise.signbit
    copysign = elementwise.copysign
    square = elementwise.square
    reciprocal = elementwise.reciprocal
    maximum = elementwise.maximum
    minimum = elementwise.minimum
    clamp = clip = elementwise.clamp
    where = elementwise.where
    lerp = functions.lerp
    addcmul = functions.addcmul
    addcdiv = functions.addcdiv
    nan_to_num = elementwise.nan_to_num

    # --- comparisons and logic --------------------------------------------------------------------

    eq = __eq__ = elementwise.eq
    ne = not_equal = __ne__ = elementwise.ne
    lt = less = __lt__ = elementwise.lt
    le = less_equal = __le__ = elementwise.le
    gt = greater = __gt__ = elementwise.gt
    ge = greater_equal = __ge__ = elementwise.ge
    isnan = elementwise.isnan
    isinf = elementwise.isinf
    isfinite = elementwise.isfinite
    isclose = elementwise.isclose
    allclose = elementwise.allclose
    equal = elementwise.equal
    logical_not = elementwise.logical_not
    logical_and = elementwise.logical_and
    logical_or = elementwise.logical_or
    logical_xor = elementwise.logical_xor
    bitwise_not = __invert__ = elementwise.bitwise_not
    bitwise_and = __and__ = __rand__ = elementwise.bitwise_and
    bitwise_or = __or__ = __ror__ = elementwise.bitwise_or
    bitwise_xor = __xor__ = __rxor__ = elementwise.bitwise_xor
    bitwise_left_shift = __lshift__ = elementwise.bitwise_left_shift
    bitwise_right_shift = __rshift__ = elementwise.bitwise_right_shift
    __rlshift__ = elementwise.rlshift
    __rrshift__ = elementwise.rrshift

    # --- functions --------------------------------------------------------------------------------

    exp = functions.exp
    exp2 = functions.exp2
    expm1 = functions.expm1
    log = functions.log
    log2 = functions.log2
    log10 = functions.log10
    log1p = functions.log1p
    logaddexp = functions.logaddexp
    logit = functions.logit
    sqrt = functions.sqrt
    rsqrt = functions.rsqrt
    sin = functions.sin
    cos = functions.cos
    tan = functions.tan
    asin = arcsin = functions.asin
    acos = arccos = functions.acos
    atan = arctan = functions.atan
    atan2 = arctan2 = functions.atan2
    sinh = functions.sinh
    cosh = functions.cosh
    tanh = functions.tanh
    asinh = arcsinh = functions.asinh
    acosh = arccosh = functions.acosh
    atanh = arctanh = functions.atanh
    erf = functions.erf
    erfc = special.erfc
    xlogy = special.xlogy
    hypot = special.hypot
    sinc = functions.sinc
    deg2rad = functions.deg2rad
    rad2deg = functions.rad2deg
    floor = functions.floor
    ceil = functions.ceil
    trunc = fix = functions.trunc
    round = functions.round
    frac = functions.frac
    heaviside = functions.heaviside
    relu = functions.relu
    relu6 = functions.relu6
    sigmoid = functions.sigmoid
    logsigmoid = functions.logsigmoid
    silu = swish = functions.silu
    gelu = functions.gelu
    softplus = functions.softplus
    elu = functions.elu
    selu = functions.selu
    celu = functions.celu
    leaky_relu = functions.leaky_relu
    prelu = functions.prelu
    glu = functions.glu
    hardtanh = functions.hardtanh
    hardsigmoid = functions.hardsigmoid
    hardswish = functions.hardswish
    mish = functions.mish
    softsign = functions.softsign
    tanhshrink = functions.tanhshrink
    softshrink = special.softshrink
    hardshrink = special.hardshrink
    threshold = functions.threshold

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
    T = property(_known(shapes.reversed_axes))
    mT = property(_known(shapes.matrix_transpose))  # noqa: N815 - PyTorch's name
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
    split = joining.split
    chunk = joining.chunk
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

    # --- in place ---------------------------------------------------------------------------------

    assign = inplace.assign
    copy_ = inplace.copy_
    fill_ = inplace.fill_
    zero_ = inplace.zero_
    masked_fill_ = inplace.masked_fill_
    add_ = __iadd__ = inplace.in_place(elementwise.add, "add_")
    sub_ = __isub__ = inplace.in_place(elementwise.sub, "sub_")
    mul_ = __imul__ = inplace.in_place(elementwise.mul, "mul_")
    div_ = __itruediv__ = inplace.in_place(elementwise.div, "div_")
    floor_divide_ = __ifloordiv__ = inplace.in_place(elementwise.floor_divide, "floor_divide_")
    remainder_ = __imod__ = inplace.in_place(elementwise.remainder, "remainder_")
    pow_ = __ipow__ = inplace.in_place(elementwise.pow, "pow_")
    bitwise_and_ = __iand__ = inplace.in_place(elementwise.bitwise_and, "bitwise_and_")
    bitwise_or_ = __ior__ = inplace.in_place(elementwise.bitwise_or, "bitwise_or_")
    bitwise_xor_ = __ixor__ = inplace.in_place(elementwise.bitwise_xor, "bitwise_xor_")
    __ilshift__ = inplace.in_place(elementwise.bitwise_left_shift, "bitwise_left_shift_")
    __irshift__ = inplace.in_place(elementwise.bitwise_right_shift, "bitwise_right_shift_")
    clamp_ = clip_ = inplace.in_place(elementwise.clamp, "clamp_")
    lerp_ = inplace.in_place(functions.lerp, "lerp_")
    addcmul_ = inplace.in_place(functions.addcmul, "addcmul_")
    addcdiv_ = inplace.in_place(functions.addcdiv, "addcdiv_")
    neg_ = inplace.in_place(elementwise.neg, "neg_")
    abs_ = inplace.in_place(elementwise.abs, "abs_")
    exp_ = inplace.in_place(functions.exp, "exp_")
    log_ = inplace.in_place(functions.log, "log_")
    sqrt_ = inplace.in_place(functions.sqrt, "sqrt_")
    rsqrt_ = inplace.in_place(functions.rsqrt, "rsqrt_")
    relu_ = inplace.in_place(functions.relu, "relu_")
    sigmoid_ = inplace.in_place(functions.sigmoid, "sigmoid_")
    tanh_ = inplace.in_place(functions.tanh, "tanh_")
    floor_ = inplace.in_place(functions.floor, "floor_")
    round_ = inplace.in_place(functions.round, "round_")
    tril_ = inplace.in_place(joining.tril, "tril_")
    triu_ = inplace.in_place(joining.triu, "triu_")
    scatter_ = inplace.in_place(picking.scatter, "scatter_")
    scatter_add_ = inplace.in_place(picking.scatter_add, "scatter_add_")
    scatter_reduce_ = inplace.in_place(picking.scatter_reduce, "scatter_reduce_")
    index_add_ = inplace.in_place(picking.index_add, "index_add_")
    index_put = indexing.index_put
    index_put_ = inplace.in_place(indexing.index_put, "index_put_")
    index_copy_ = inplace.in_place(picking.index_copy, "index_copy_")
    index_fill_ = inplace.in_place(picking.index_fill, "index_fill_")
    uniform_ = random.uniform_
    normal_ = random.normal_
    bernoulli_ = random.bernoulli_

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

    # --- conversions ------------------------------------------------------------------------------

    cast = type = convert.cast
    to = convert.to
    cpu = convert.cpu
    type_as = convert.type_as
    is_floating_point = convert.is_floating_point
    float = convert.to_float
    double = convert.to_double
    half = convert.to_half
    bfloat16 = convert.to_bfloat16
    int = convert.to_int
    long = convert.to_long
    short = convert.to_short
    char = convert.to_char
    byte = convert.to_byte
    bool = convert.to_bool
    clone = convert.clone
    numpy = convert.numpy
    tolist = convert.tolist
    item = convert.item
    __array__ = convert.__array__
    __array_namespace__ = convert.__array_namespace__
    to_device = convert.to_device
    __dlpack__ = convert.__dlpack__
    __dlpack_device__ = convert.__dlpack_device__
    __bool__ = convert.truth
    __index__ = convert.as_index
    __len__ = convert.length
    __iter__ = convert.iterate
    __repr__ = convert.text
    __float__ = convert.as_float
    __int__ = convert.as_int
    __complex__ = convert.as_complex
    __deepcopy__ = convert.deep_copy
    __reduce__ = convert.reduce


_MAKERS = frozenset(
    module.__name__
    for module in (
        convolution, distances, elementwise, functions, joining, losses, normalisation, picking,
        pooling, products, reductions, scans, shapes, sorting, special,
    )
)
_OTHER_MAKERS: frozenset[Callable[..., Any]] = frozenset({
    convert.cast, convert.clone, convert.to_float, convert.to_double, convert.to_half,
    convert.to_bfloat16, convert.to_int, convert.to_long, convert.to_bool, indexing.getitem,
})  # fmt: skip
# What looks at a shape alone.
_LOOKS: frozenset[Callable[..., Any]] = frozenset({
    shapes.dim, shapes.element_size, shapes.is_contiguous, shapes.numel, shapes.size, shapes.stride,
})  # fmt: skip


def _makes_tensors(function: Callable[..., Any]) -> bool:
    """Whether a function makes new values, or views, of tensors.

    Of these those that read or draw numbers are found out when they are called; those that write
    over their operand are told by their names.
    """
    made = function.__module__ in _MAKERS or function in _OTHER_MAKERS
    return made and function not in _LOOKS and not function.__name__.endswith("_")


explain_arguments(Array)
explain_arguments(Tensor, put_off, _makes_tensors)
