"""What is computed element by element: arithmetic, comparisons, functions; also in place."""

from __future__ import annotations

from baregrad.tensor.array.put_off import put_off_property
from baregrad.tensor.array.tensor_like import TensorLike
from baregrad.tensor.ops import (
    elementwise,
    functions,
    indexing,
    inplace,
    joining,
    picking,
    random,
    special,
)
from baregrad.tensor.special import bessel, complex_numbers, gamma, normal


class Arithmetic(TensorLike):
    """Methods that compute each element by itself, as new values and in place."""

    __slots__ = ()
    __hash__ = object.__hash__

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

    # --- complex numbers --------------------------------------------------------------------------

    complex = complex_numbers.complex
    polar = complex_numbers.polar
    view_as_complex = complex_numbers.view_as_complex
    view_as_real = complex_numbers.view_as_real
    real = put_off_property(complex_numbers.real)
    imag = put_off_property(complex_numbers.imag)
    conj = conj_physical = complex_numbers.conj
    resolve_conj = elementwise.positive
    angle = complex_numbers.angle
    isreal = complex_numbers.isreal
    is_complex = complex_numbers.is_complex
    sgn = elementwise.sign

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
    erfinv = normal.erfinv
    lgamma = gamma.lgamma
    digamma = gamma.digamma
    polygamma = gamma.nth_polygamma
    mvlgamma = gamma.multigammaln
    i0 = bessel.i0
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
