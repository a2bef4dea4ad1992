"""Tensors that modules train: leaves of floats, made of the values of others."""

from __future__ import annotations

from baregrad.base.errors import GradientError
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained


@explained
def parameter(data: Tensor, requires_grad: bool = True) -> Tensor:
    """Return a leaf of the values of `data` that a module can hold as a parameter."""
    if requires_grad and not (data.dtype.is_float or data.dtype.is_complex):
        raise GradientError(
            "a parameter is of floats", found=f"{data.dtype}, shape {list(data.shape)}",
            hint="cast it first; of a size it is made by Tensor.empty(n): Tensor(n) is the number n"
            if not data.ndim else "cast it first, for example with float()",
        )
    return data.detach().clone().requires_grad_(requires_grad)


class _LeafOfFloats(type):
    """Tells tensors that are parameters by what they are."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Tensor) and value.dtype.is_float and value.is_leaf \
            and value.requires_grad


class _Parameter(metaclass=_LeafOfFloats):
    """A leaf of the values of a tensor, trained: Parameter(data) is `parameter(data)`.

    What it gives is a `Tensor`; each leaf of floats that requires gradients is an instance.
    """

    # What it makes is a tensor.
    def __new__(  # type: ignore[misc]
        cls, data: Tensor | None = None, requires_grad: bool = True
    ) -> Tensor:
        """Return the leaf."""
        return parameter(Tensor.zeros(0) if data is None else data, requires_grad)


Parameter = _Parameter
