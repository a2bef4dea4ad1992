"""Activation functions as modules; each is the method of `Tensor` of the same name."""

from __future__ import annotations

from baregrad.nn.module import Module, parameter
from baregrad.tensor import Tensor


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.relu()


class ReLU6(Module):
    """min(max(x, 0), 6)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.relu6()


class LeakyReLU(Module):
    """x, times `negative_slope` below 0."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.leaky_relu(self.negative_slope)


class PReLU(Module):
    """x, times a learned weight below 0: one, or one for each channel of axis 1."""

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        found = "float32" if dtype is None else dtype
        made = Tensor.full((num_parameters,), init, dtype=found, device=device)
        self.weight = parameter(made)

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


class ELU(Module):
    """x, and alpha*(exp(x) - 1) below 0."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.elu(self.alpha)


class GELU(Module):
    """x times the normal distribution function of x; approximate: "none" or "tanh"."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.gelu(self.approximate)


class SiLU(Module):
    """x*sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.silu()


class Mish(Module):
    """x*tanh(softplus(x))."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.mish()


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


class Hardtanh(Module):
    """x held between two numbers."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        self.min_val = min_val
        self.max_val = max_val

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.hardtanh(self.min_val, self.max_val)


class Hardsigmoid(Module):
    """x/6 + 1/2 held between 0 and 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.hardsigmoid()


class Hardswish(Module):
    """x*hardsigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.hardswish()


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


class SELU(Module):
    """`ELU` with the two constants that keep a mean of 0 and a variance of 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.selu()


class CELU(Module):
    """x, and alpha*(exp(x/alpha) - 1) below 0."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.celu(self.alpha)


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


class Threshold(Module):
    """x, and `value` where it is not above `threshold`."""

    def __init__(self, threshold: float, value: float) -> None:
        self.threshold = threshold
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of each element."""
        return x.threshold(self.threshold, self.value)


class Softmin(Module):
    """exp(-x) divided by its sum along an axis."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Return the shares, which sum to 1 along the axis."""
        return x.softmin(self.dim)
