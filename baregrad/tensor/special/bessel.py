"""Modified Bessel functions of the first kind, of the orders 0 and 1, scaled by exp(-|x|) or not.

By Chebyshev series for |x| up to 8, and beyond for sqrt(|x|) times the scaled function of 8 / |x|;
coefficients of interpolation at 64 points, with 50 digits, as far as they count in float64.
"""

from __future__ import annotations

from baregrad.tensor.array.operands import derived
from baregrad.tensor.array.tensor_like import Tensor
from baregrad.tensor.ops.functions import exp
from baregrad.tensor.special.gamma import in_float64

_I0_NEAR = (
    0.33839763720473803, -0.3046826723431984, 0.17162090152220877, -0.09490109704804764,
    0.04930528423967071, -0.02373741480589947, 0.010546460394594998, -0.004324309995050576,
    0.0016394756169413357, -0.0005763755745385824, 0.00018850288509584165, -5.754195010082104e-05,
    1.6448448070728896e-05, -4.4167383584587505e-06, 1.1173875391201037e-06,
    -2.670793853940612e-07, 6.046995022541919e-08, -1.300025009986248e-08, 2.6598237246823866e-09,
    -5.189795601635263e-10, 9.675809035373237e-11, -1.726826291441556e-11, 2.95505266312964e-12,
    -4.856446783111929e-13, 7.676185498604936e-14, -1.1685332877993451e-14, 1.715391285555133e-15,
    -2.431279846547955e-16, 3.3307945188222384e-17,
)
_I0_FAR = (
    0.4022452055070544, 0.0033691164782556943, 6.889758346916825e-05, 2.8913705208347567e-06,
    2.0489185894690638e-07, 2.266668990498178e-08, 3.3962320257083865e-09, 4.94060238822497e-10,
    1.1889147107846439e-11, -3.1499165279632416e-11, -1.3215811840447713e-11,
    -1.7941785315068062e-12, 7.180124451383666e-13, 3.8527783827421426e-13, 1.54008621752141e-14,
    -4.150569347287222e-14, -9.554846698828307e-15, 3.8116806693526224e-15, 1.7725601330565263e-15,
    -3.425485619677219e-16, -2.8276239805165836e-16, 3.461222867697461e-17, 4.46562142029676e-17,
)
# Of order 1 the function over x is what has a series near 0.
_I1_NEAR = (
    0.12629359322181682, -0.17641651835783406, 0.1026436586898471, -0.05294598120809499,
    0.024726449030626516, -0.010564084894626197, 0.004156422944312888, -0.0015135724506312532,
    0.0005122859561685758, -0.00016176081582589674, 4.781565107550054e-05, -1.3273163656039436e-05,
    3.4702513081376785e-06, -8.568720264695455e-07, 2.0032947535521353e-07, -4.445059128796328e-08,
    9.381537386495773e-09, -1.8872497517228294e-09, 3.625590281552117e-10, -6.663489723502027e-11,
    1.1736186298890901e-11, -1.9839743977649436e-12, 3.223793365945575e-13, -5.042185504727912e-14,
    7.600684294735408e-15, -1.1055969477353862e-15, 1.5536319577362005e-16, -2.111421214358166e-17,
)
_I1_FAR = (
    0.38928811750914005, -0.009761097491361469, -0.00011058893876262371, -3.882564808877691e-06,
    -2.512236237870209e-07, -2.6314688468895196e-08, -3.835380385964237e-09,
    -5.589743462196584e-10, -1.8974958123505413e-11, 3.2526035830154884e-11,
    1.4125807436613782e-11, 2.0356285441470896e-12, -7.198551776245908e-13,
    -4.0835511110921974e-13, -2.1015418427726643e-14, 4.272440016711951e-14,
    1.0420276984128802e-14, -3.8144030724370075e-15, -1.8803547755107825e-15,
    3.3082023109209285e-16, 2.96262899764595e-16, -3.209525921993424e-17, -4.6503053684893586e-17,
)
_BORDER = 8.0


def _series(x: Tensor, terms: tuple[float, ...]) -> Tensor:
    """A Chebyshev series at x in [-1, 1], by Clenshaw's recurrence."""
    before, last = x * 0.0, x * 0.0
    for term in reversed(terms[1:]):
        before, last = last, 2.0 * x * last - before + term
    return x * last - before + terms[0]


def _scaled(x: Tensor, near: tuple[float, ...], far: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """The two series where they count, and where the first one does."""
    size = x.abs()
    short = size <= _BORDER
    inside = short.where(size, 0.0)
    outside = short.where(_BORDER, size)
    first = _series(inside / 4.0 - 1.0, near)
    second = _series(16.0 / outside - 1.0, far) * outside.rsqrt()
    return first, second


def _over_x(x: Tensor) -> Tensor:
    """exp(-|x|) times the function of order 1, over x."""
    first, second = _scaled(x, _I1_NEAR, _I1_FAR)
    near = x.abs() <= _BORDER
    return near.where(first, second / near.where(_BORDER, x.abs()))


# Each derivative is of the functions themselves, and the incoming gradient's factor.


@in_float64
def i0e(x: Tensor) -> Tensor:
    """Return exp(-|x|) times the modified Bessel function of order 0."""
    first, second = _scaled(x, _I0_NEAR, _I0_FAR)
    found = (x.abs() <= _BORDER).where(first, second)
    return derived(found, x, lambda g, x, y: g * (i1e(x) - x.sign() * y))


@in_float64
def i1e(x: Tensor) -> Tensor:
    """Return exp(-|x|) times the modified Bessel function of order 1."""
    first, second = _scaled(x, _I1_NEAR, _I1_FAR)
    far = (x < 0).where(-second, second)
    found = (x.abs() <= _BORDER).where(first * x, far)
    return derived(found, x, lambda g, x, y: g * (i0e(x) - _over_x(x) - x.sign() * y))


@in_float64
def i0(x: Tensor) -> Tensor:
    """Return the modified Bessel function of order 0."""
    return derived(i0e(x) * exp(x.abs()), x, lambda g, x, y: g * i1(x))


@in_float64
def i1(x: Tensor) -> Tensor:
    """Return the modified Bessel function of order 1."""
    grown = exp(x.abs())
    return derived(
        i1e(x) * grown, x, lambda g, x, y, grown: g * ((i0e(x) - _over_x(x)) * grown), grown
    )
