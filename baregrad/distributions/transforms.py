"""Functions with inverses, and the logarithms of how much they stretch, for densities."""

from __future__ import annotations

import math
from collections.abc import Sequence

from baregrad.base.errors import ArgumentError, ShapeError, UnsupportedError
from baregrad.distributions.base import Number, as_shape, sum_last
from baregrad.tensor import Tensor
from baregrad.tensor.torch_names import broadcast_shapes

_LOG_2 = math.log(2.0)


class Transform:
    """The base of transforms; subclasses write `_call`, `_inverse` and `_log_slope`.

    domain_dim and codomain_dim: how many last axes it works on as a whole. sign: 1 where it rises,
    -1 where it falls, 0 where that is not known; a tensor where parameters say.
    """

    domain_dim = 0
    codomain_dim = 0
    bijective = True
    sign: int | Tensor = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Return the function of x."""
        return self._call(x)

    @property
    def inv(self) -> Transform:
        """The transform the other way."""
        return _Inverse(self)

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no _call()")

    def _inverse(self, y: Tensor) -> Tensor:
        raise UnsupportedError(f"{type(self).__name__} has no inverse")

    def _log_slope(self, x: Tensor, y: Tensor) -> Tensor:
        raise UnsupportedError(f"{type(self).__name__} has no density of its results")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log |dy/dx|, for y the function of x, summed over the axes that it works on."""
        return self._log_slope(x, y)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the function of a tensor of a shape."""
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what has a function of a shape."""
        return tuple(shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Inverse(Transform):
    """A transform the other way."""

    def __init__(self, transform: Transform) -> None:
        self.transform = transform
        self.domain_dim, self.codomain_dim = transform.codomain_dim, transform.domain_dim
        self.sign, self.bijective = transform.sign, transform.bijective

    @property
    def inv(self) -> Transform:
        """The transform itself."""
        return self.transform

    def _call(self, x: Tensor) -> Tensor:
        return self.transform._inverse(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.transform(y)

    def _log_slope(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.transform.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the function of a tensor of a shape."""
        return self.transform.inverse_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what has a function of a shape."""
        return self.transform.forward_shape(shape)


class ComposeTransform(Transform):
    """Transforms one after another."""

    def __init__(self, parts: Sequence[Transform]) -> None:
        self.parts = list(parts)
        deepest = 0
        for part in reversed(self.parts):
            deepest = max(part.domain_dim, deepest + part.domain_dim - part.codomain_dim)
        self.domain_dim = deepest
        self.codomain_dim = deepest + sum(p.codomain_dim - p.domain_dim for p in self.parts)
        self.bijective = all(part.bijective for part in self.parts)
        sign: int | Tensor = 1
        for part in self.parts:
            sign = sign * part.sign
        self.sign = sign

    def _call(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part._inverse(y)
        return y

    def _log_slope(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.parts:
            return x.zeros_like()
        axes, found = self.domain_dim, []
        for part in self.parts:
            here = part(x)
            found.append(sum_last(part.log_abs_det_jacobian(x, here), axes - part.domain_dim))
            axes += part.codomain_dim - part.domain_dim
            x = here
        total = found[0]
        for one in found[1:]:
            total = total + one
        return total

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the function of a tensor of a shape."""
        for part in self.parts:
            shape = part.forward_shape(shape)
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what has a function of a shape."""
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return tuple(shape)


class IndependentTransform(Transform):
    """A transform that counts some more of the last axes as one whole."""

    def __init__(self, base_transform: Transform, reinterpreted_batch_ndims: int) -> None:
        self.base_transform = base_transform
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.domain_dim = base_transform.domain_dim + reinterpreted_batch_ndims
        self.codomain_dim = base_transform.codomain_dim + reinterpreted_batch_ndims
        self.sign, self.bijective = base_transform.sign, base_transform.bijective

    def _call(self, x: Tensor) -> Tensor:
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.base_transform._inverse(y)

    def _log_slope(self, x: Tensor, y: Tensor) -> Tensor:
        found = self.base_transform.log_abs_det_jacobian(x, y)
        return sum_last(found, self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the function of a tensor of a shape."""
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what has a function of a shape."""
        return self.base_transform.inverse_shape(shape)


def _sign(x: Number) -> int | Tensor:
    if isinstance(x, Tensor):
        return x.detach().sign()
    return 1 if x > 0 else -1


class _Elementwise(Transform):
    """What transforms share whose parameters broadcast with what they are given."""

    _PARAMETERS: tuple[str, ...] = ()

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the function of a tensor of a shape."""
        held = [getattr(self, name) for name in self._PARAMETERS]
        own = [one.shape for one in held if isinstance(one, Tensor)]
        return broadcast_shapes(tuple(shape), *own)

    inverse_shape = forward_shape


class AffineTransform(_Elementwise):
    """loc + scale * x."""

    _PARAMETERS = ("loc", "scale")

    def __init__(self, loc: Number, scale: Number, event_dim: int = 0) -> None:
        self.loc, self.scale = loc, scale
        self.domain_dim = self.codomain_dim = event_dim
        self.sign = _sign(scale)

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def _log_slope(self, x: Tensor, y: Tensor) -> Tensor:
        scale = self.scale
        found = scale.abs().log() if isinstance(scale, Tensor) else math.log(abs(scale))
        return sum_last(x.zeros_like() + found, self.domain_dim)


class ExpTransform(Transform):
    """exp(x)."""

    sign = 1

    def _call(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def _log_slope(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class PowerTransform(_Elementwise):
    """x ** exponent, of positive x."""

    _PARAMETERS = ("exponent",)

    def __init__(self, exponent: Number) -> None:
        self.exponent = exponent
        self.sign = _sign(exponent)

    def _call(self, x: Tensor) -> Tensor:
        return x.pow(self.exponent)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.pow(1 / self.exponent)

    def _log_slope(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.exponent * y / x).abs().log()


class SigmoidTransform(Transform):
    """1 / (1 + exp(-x))."""

    sign = 1

    def _call(self, x: Tensor) -> Tensor:
        return x.sigmoid()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log() - (-y).log1p()

    def _log_slope(self, x: Tensor, y: Tensor) -> Tensor:
        return -(-x).softplus() - x.softplus()


class SoftplusTransform(Transform):
    """log(1 + exp(x))."""

    sign = 1

    def _call(self, x: Tensor) -> Tensor:
        return x.softplus()

    def _inverse(self, y: Tensor) -> Tensor:
        return (-(-y).expm1()).log() + y

    def _log_slope(self, x: Tensor, y: Tensor) -> Tensor:
        return -(-x).softplus()


class TanhTransform(Transform):
    """tanh(x), as policies use it, with a density that is precise where it is flat."""

    sign = 1

    def _call(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def _log_slope(self, x: Tensor, y: Tensor) -> Tensor:
        return 2.0 * (_LOG_2 - x - (-2.0 * x).softplus())


class AbsTransform(Transform):
    """|x|; the inverse gives the positive one."""

    bijective = False

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class SoftmaxTransform(Transform):
    """Shares of exponentials along the last axis; no bijection, and without a density."""

    domain_dim = codomain_dim = 1
    bijective = False

    def _call(self, x: Tensor) -> Tensor:
        return x.softmax(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()


class StickBreakingTransform(Transform):
    """n numbers to n + 1 shares, each a share of what those before it left."""

    domain_dim = codomain_dim = 1

    def _left(self, x: Tensor) -> Tensor:
        """How many shares are to come, its logarithm: what makes 0 give equal ones."""
        count = x.shape[-1]
        return Tensor.arange(count, 0, -1, dtype=x.dtype, device=x.device).log()

    def _call(self, x: Tensor) -> Tensor:
        z = (x - self._left(x)).sigmoid()
        rest = (1 - z).cumprod(-1)
        return z.pad((0, 1), value=1.0) * rest.pad((1, 0), value=1.0)

    def _inverse(self, y: Tensor) -> Tensor:
        first = y[..., :-1]
        rest = 1 - first.cumsum(-1)
        return first.log() - rest.log() + self._left(first)

    def _log_slope(self, x: Tensor, y: Tensor) -> Tensor:
        moved = x - self._left(x)
        return (-moved + moved.logsigmoid() + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the function of a tensor of a shape."""
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what has a function of a shape."""
        return (*shape[:-1], shape[-1] - 1)


class ReshapeTransform(Transform):
    """The last axes in another shape. Raises ShapeError where sizes differ."""

    def __init__(self, in_shape: Sequence[int], out_shape: Sequence[int]) -> None:
        self.in_shape, self.out_shape = as_shape(in_shape), as_shape(out_shape)
        if math.prod(self.in_shape) != math.prod(self.out_shape):
            raise ShapeError("shapes of as many elements", found=f"{in_shape}, {out_shape}")
        self.domain_dim, self.codomain_dim = len(self.in_shape), len(self.out_shape)

    def _call(self, x: Tensor) -> Tensor:
        return x.reshape(self.forward_shape(x.shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape(self.inverse_shape(y.shape))

    def _log_slope(self, x: Tensor, y: Tensor) -> Tensor:
        batch = x.shape[: x.ndim - self.domain_dim]
        return Tensor.zeros(*batch, dtype=x.dtype, device=x.device)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the function of a tensor of a shape."""
        return (*self._batch(shape, self.in_shape), *self.out_shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what has a function of a shape."""
        return (*self._batch(shape, self.out_shape), *self.in_shape)

    def _batch(self, shape: Sequence[int], own: tuple[int, ...]) -> tuple[int, ...]:
        if tuple(shape[len(shape) - len(own) :]) != own:
            raise ShapeError("the last axes have another shape", found=list(shape), wanted=own)
        return tuple(shape[: len(shape) - len(own)])


class LowerCholeskyTransform(Transform):
    """A matrix's lower triangle with the exponentials of its diagonal."""

    domain_dim = codomain_dim = 2

    def _call(self, x: Tensor) -> Tensor:
        return x.tril(-1) + x.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.tril(-1) + y.diagonal(dim1=-2, dim2=-1).log().diag_embed()


identity_transform = ComposeTransform(())


def composed(transforms: Transform | Sequence[Transform]) -> list[Transform]:
    """One transform, or several, as a list. Raises ArgumentError."""
    found = [transforms] if isinstance(transforms, Transform) else list(transforms)
    for one in found:
        if not isinstance(one, Transform):
            raise ArgumentError("a transform is wanted", found=f"{type(one).__name__}")
    return found
