"""What is a short composition of other methods, and forms that write over their operand."""

from __future__ import annotations

from baregrad.tensor.array.tensor_like import TensorLike
from baregrad.tensor.composed import arithmetic, arranging, lent, memory, searching
from baregrad.tensor.ops import elementwise, functions, products, random, scans, special
from baregrad.tensor.ops.inplace import in_place
from baregrad.tensor.special import bessel, complex_numbers, gamma, normal


class Conveniences(TensorLike):
    """Methods composed of others, and twins in place."""

    __slots__ = ()

    fliplr = arranging.fliplr
    flipud = arranging.flipud
    rot90 = arranging.rot90
    hsplit = arranging.hsplit
    vsplit = arranging.vsplit
    dsplit = arranging.dsplit
    narrow_copy = arranging.narrow_copy
    split_with_sizes = unsafe_split_with_sizes = arranging.split_with_sizes
    diagflat = arranging.diagflat
    argwhere = arranging.argwhere
    msort = arranging.msort
    select_scatter = arranging.select_scatter
    slice_scatter = arranging.slice_scatter
    diagonal_scatter = arranging.diagonal_scatter
    masked_scatter = arranging.masked_scatter
    sum_to_size = arranging.sum_to_size
    is_same_size = arranging.is_same_size
    squeeze_ = arranging.squeeze_
    unsqueeze_ = arranging.unsqueeze_
    transpose_ = swapaxes_ = swapdims_ = arranging.transpose_
    t_ = arranging.t_
    detach_ = arranging.detach_

    clamp_min = arithmetic.clamp_min
    clamp_max = arithmetic.clamp_max
    fmax = arithmetic.fmax
    fmin = arithmetic.fmin
    isposinf = arithmetic.isposinf
    isneginf = arithmetic.isneginf
    float_power = arithmetic.float_power
    logaddexp2 = arithmetic.logaddexp2
    ldexp = arithmetic.ldexp
    inner = arithmetic.inner
    vdot = arithmetic.vdot
    cross = arithmetic.cross
    ger = arithmetic.ger
    addmv = arithmetic.addmv
    addr = arithmetic.addr
    addbmm = arithmetic.addbmm
    dist = arithmetic.dist
    cov = arithmetic.cov
    corrcoef = arithmetic.corrcoef
    renorm = arithmetic.renorm

    gcd = arithmetic.gcd
    lcm = arithmetic.lcm
    nextafter = arithmetic.nextafter
    tensordot = arithmetic.tensordot
    trapezoid = trapz = arithmetic.trapezoid
    cumulative_trapezoid = arithmetic.cumulative_trapezoid
    put = arranging.put
    as_strided = arranging.as_strided
    index_reduce = arranging.index_reduce

    searchsorted = searching.searchsorted
    bucketize = searching.bucketize
    isin = searching.isin
    histc = searching.histc
    mode = searching.mode
    nanmedian = searching.nanmedian
    nanquantile = searching.nanquantile
    unique_consecutive = searching.unique_consecutive
    unravel_index = searching.unravel_index
    nonzero_static = searching.nonzero_static
    combinations = searching.combinations

    cholesky = lent.cholesky
    cholesky_inverse = lent.cholesky_inverse
    cholesky_solve = lent.cholesky_solve
    lu_solve = lent.lu_solve
    triangular_solve = lent.triangular_solve
    geqrf = lent.geqrf
    orgqr = lent.orgqr
    ormqr = lent.ormqr
    qr = lent.qr
    svd = lent.svd
    logdet = lent.logdet
    det = lent.det
    slogdet = lent.slogdet
    inverse = lent.inverse
    pinverse = lent.pinverse
    matrix_power = lent.matrix_power
    matrix_exp = lent.matrix_exp
    stft = lent.stft
    istft = lent.istft

    storage = untyped_storage = memory.storage
    storage_offset = memory.storage_offset
    data_ptr = const_data_ptr = memory.data_ptr
    is_set_to = memory.is_set_to
    share_memory_ = memory.share_memory_
    record_stream = memory.record_stream
    grad_fn = property(memory.grad_fn)
    name = property(memory.no_name)
    output_nr = property(memory.first_output)
    layout = property(memory.strided)
    apply_ = memory.apply_
    map_ = memory.map_
    resize_ = memory.resize_
    resize_as_ = memory.resize_as_
    set_ = memory.set_
    new_empty_strided = memory.new_empty_strided
    as_strided_scatter = memory.as_strided_scatter
    frexp = memory.frexp
    cfloat = memory.to_complex64
    cdouble = memory.to_complex128
    histogram = memory.histogram
    dim_order = memory.dim_order

    fill_diagonal_ = arranging.fill_diagonal_
    put_ = in_place(arranging.put, "put_")
    index_reduce_ = in_place(arranging.index_reduce, "index_reduce_")
    lgamma_ = in_place(gamma.lgamma, "lgamma_")
    digamma_ = in_place(gamma.digamma, "digamma_")
    polygamma_ = in_place(gamma.nth_polygamma, "polygamma_")
    mvlgamma_ = in_place(gamma.multigammaln, "mvlgamma_")
    erfinv_ = in_place(normal.erfinv, "erfinv_")
    i0_ = in_place(bessel.i0, "i0_")
    conj_physical_ = in_place(complex_numbers.conj, "conj_physical_")
    gcd_ = in_place(arithmetic.gcd, "gcd_")
    lcm_ = in_place(arithmetic.lcm, "lcm_")
    nextafter_ = in_place(arithmetic.nextafter, "nextafter_")
    ldexp_ = in_place(arithmetic.ldexp, "ldexp_")
    float_power_ = in_place(arithmetic.float_power, "float_power_")
    exponential_ = random.exponential_
    geometric_ = random.geometric_
    cauchy_ = random.cauchy_
    log_normal_ = random.log_normal_
    random_ = random.random_
    clamp_min_ = in_place(arithmetic.clamp_min, "clamp_min_")
    clamp_max_ = in_place(arithmetic.clamp_max, "clamp_max_")
    renorm_ = in_place(arithmetic.renorm, "renorm_")
    masked_scatter_ = in_place(arranging.masked_scatter, "masked_scatter_")
    addmm_ = in_place(products.addmm, "addmm_")
    baddbmm_ = in_place(products.baddbmm, "baddbmm_")
    addmv_ = in_place(arithmetic.addmv, "addmv_")
    addr_ = in_place(arithmetic.addr, "addr_")
    addbmm_ = in_place(arithmetic.addbmm, "addbmm_")
    absolute_ = in_place(elementwise.abs, "absolute_")
    multiply_ = in_place(elementwise.mul, "multiply_")
    subtract_ = in_place(elementwise.sub, "subtract_")
    divide_ = true_divide_ = in_place(elementwise.div, "divide_")
    negative_ = in_place(elementwise.neg, "negative_")
    reciprocal_ = in_place(elementwise.reciprocal, "reciprocal_")
    square_ = in_place(elementwise.square, "square_")
    sign_ = sgn_ = in_place(elementwise.sign, "sign_")
    copysign_ = in_place(elementwise.copysign, "copysign_")
    fmod_ = in_place(elementwise.fmod, "fmod_")
    nan_to_num_ = in_place(elementwise.nan_to_num, "nan_to_num_")
    eq_ = in_place(elementwise.eq, "eq_")
    ne_ = not_equal_ = in_place(elementwise.ne, "ne_")
    lt_ = less_ = in_place(elementwise.lt, "lt_")
    le_ = less_equal_ = in_place(elementwise.le, "le_")
    gt_ = greater_ = in_place(elementwise.gt, "gt_")
    ge_ = greater_equal_ = in_place(elementwise.ge, "ge_")
    logical_not_ = in_place(elementwise.logical_not, "logical_not_")
    logical_and_ = in_place(elementwise.logical_and, "logical_and_")
    logical_or_ = in_place(elementwise.logical_or, "logical_or_")
    logical_xor_ = in_place(elementwise.logical_xor, "logical_xor_")
    bitwise_not_ = in_place(elementwise.bitwise_not, "bitwise_not_")
    bitwise_left_shift_ = in_place(elementwise.bitwise_left_shift, "bitwise_left_shift_")
    bitwise_right_shift_ = in_place(elementwise.bitwise_right_shift, "bitwise_right_shift_")
    sin_ = in_place(functions.sin, "sin_")
    cos_ = in_place(functions.cos, "cos_")
    tan_ = in_place(functions.tan, "tan_")
    asin_ = arcsin_ = in_place(functions.asin, "asin_")
    acos_ = arccos_ = in_place(functions.acos, "acos_")
    atan_ = arctan_ = in_place(functions.atan, "atan_")
    atan2_ = arctan2_ = in_place(functions.atan2, "atan2_")
    sinh_ = in_place(functions.sinh, "sinh_")
    cosh_ = in_place(functions.cosh, "cosh_")
    asinh_ = arcsinh_ = in_place(functions.asinh, "asinh_")
    acosh_ = arccosh_ = in_place(functions.acosh, "acosh_")
    atanh_ = arctanh_ = in_place(functions.atanh, "atanh_")
    exp2_ = in_place(functions.exp2, "exp2_")
    expm1_ = in_place(functions.expm1, "expm1_")
    log2_ = in_place(functions.log2, "log2_")
    log10_ = in_place(functions.log10, "log10_")
    log1p_ = in_place(functions.log1p, "log1p_")
    logit_ = in_place(functions.logit, "logit_")
    erf_ = in_place(functions.erf, "erf_")
    erfc_ = in_place(special.erfc, "erfc_")
    xlogy_ = in_place(special.xlogy, "xlogy_")
    hypot_ = in_place(special.hypot, "hypot_")
    sinc_ = in_place(functions.sinc, "sinc_")
    deg2rad_ = in_place(functions.deg2rad, "deg2rad_")
    rad2deg_ = in_place(functions.rad2deg, "rad2deg_")
    ceil_ = in_place(functions.ceil, "ceil_")
    trunc_ = fix_ = in_place(functions.trunc, "trunc_")
    frac_ = in_place(functions.frac, "frac_")
    heaviside_ = in_place(functions.heaviside, "heaviside_")
    cumsum_ = in_place(scans.cumsum, "cumsum_")
    cumprod_ = in_place(scans.cumprod, "cumprod_")
