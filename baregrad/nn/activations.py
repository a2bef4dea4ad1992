"""Activation functions as modules; each is the function of the same name."""

from __future__ import annotations

from baregrad.base.errors import ShapeError
from baregrad.dtypes import default_float
from baregrad.nn import functional
from baregrad.nn.module import Module
from baregrad.nn.parameter import parameter
from baregrad.tensor import Tensor


class _InPlace(Module):
    """What may write its result over what it is given."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace


class ReLU(_InPlace):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return functional.relu(x, self.inplace)


class ReLU6(_InPlace):
    """min(max(x, 0), 6)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return functional.relu6(x, self.inplace)


class LeakyReLU(_InPlace):
    """x, times `negative_slope` below 0."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return functional.leaky_relu(x, self.negative_slope, self.inplace)


class PReLU(Module):
    """x, times a learned weight below 0: one, or one for each channel of axis 1."""

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        found = default_float() if dtype is None else dtype
        made = Tensor.full((num_parameters,), init, dtype=found, device=device)
        self.num_parameters, self.init = num_parameters, init
        self.weight = parameter(made)

    def reset_parameters(self) -> None:
        """Begin anew."""
        with Tensor.no_grad():
            self.weight.fill_(self.init)

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element. Raises ShapeError for other channels."""
        return x.prelu(self.weight)


class GLU(Module):
    """The first half of an axis times the sigmoid of the second half."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Return half as many elements. Raises ShapeError for an odd extent."""
        return x.glu(self.dim)


class ELU(_InPlace):
    """x, and alpha*(exp(x) - 1) below 0."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return functional.elu(x, self.alpha, self.inplace)


class GELU(Module):
    """x times the normal distribution function of x; approximate: "none" or "tanh"."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.gelu(self.approximate)


class SiLU(_InPlace):
    """x*sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return functional.silu(x, self.inplace)


class Mish(_InPlace):
    """x*tanh(softplus(x))."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return functional.mish(x, self.inplace)


class Sigmoid(Module):
    """1/(1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.sigmoid()


class LogSigmoid(Module):
    """log(sigmoid(x))."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.logsigmoid()


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.tanh()


class Softplus(Module):
    """log(1 + exp(beta*x))/beta, and x itself where beta*x is above `threshold`."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta = beta
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.softplus(self.beta, self.threshold)


class Hardtanh(_InPlace):
    """x held between two numbers."""

    def __init__(
        self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
    ) -> None:
        super().__init__(inplace)
        self.min_val = min_val
        self.max_val = max_val

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return functional.hardtanh(x, self.min_val, self.max_val, self.inplace)


class Hardsigmoid(_InPlace):
    """x/6 + 1/2 held between 0 and 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return functional.hardsigmoid(x, self.inplace)


class Hardswish(_InPlace):
    """x*hardsigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return functional.hardswish(x, self.inplace)


class Softmax(Module):
    """exp(x) divided by its sum along an axis."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Return the shares, which sum to 1 along the axis."""
        return x.softmax(self.dim)


class LogSoftmax(Module):
    """The logarithm of softmax along an axis."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Return the logarithms of the shares."""
        return x.log_softmax(self.dim)


class SELU(_InPlace):
    """`ELU` with the two constants that keep a mean of 0 and a variance of 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return functional.selu(x, self.inplace)


class CELU(_InPlace):
    """x, and alpha*(exp(x/alpha) - 1) below 0."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return functional.celu(x, self.alpha, self.inplace)


class Softsign(Module):
    """x/(1 + |x|)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.softsign()


class Tanhshrink(Module):
    """x - tanh(x)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.tanhshrink()


class Softshrink(Module):
    """x moved towards 0 by `lambd`, and 0 where it is within that."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.softshrink(self.lambd)


class Hardshrink(Module):
    """x, and 0 where it is within `lambd` of 0."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.hardshrink(self.lambd)


class Threshold(_InPlace):
    """x, and `value` where it is not above `threshold`."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.threshold = threshold
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return functional.threshold(x, self.threshold, self.value, self.inplace)


class Softmin(Module):
    """exp(-x) divided by its sum along an axis."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Return the shares, which sum to 1 along the axis."""
        return x.softmin(self.dim)


class Softmax2d(Module):
    """Softmax over the channels of (N, C, H, W), or of (C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the shares, which sum to 1 over the channels. Raises ShapeError."""
        if x.ndim not in (3, 4):
            raise ShapeError("Softmax2d is of images", found=list(x.shape), wanted="3 or 4 axes")
        return x.softmax(-3)


class RReLU(_InPlace):
    """x, times a slope below 0 that is drawn for each element while training, else the mean."""

    def __init__(
        self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False
    ) -> None:
        super().__init__(inplace)
        self.lower = lower
        self.upper = upper

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return functional.rrelu(x, self.lower, self.upper, self.training, self.inplace)
