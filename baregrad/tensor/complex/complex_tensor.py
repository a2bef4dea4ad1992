"""The class of complex tensors: a view of pairs of floats, which are the last axis of its storage.

Nothing below knows of complex numbers. A complex tensor shows a storage of real numbers whose last
axis is (real part, imaginary part), and hides that axis; its operations are real ones on the pairs
(`rules`). So kernels, devices, replays and gradients need nothing new: the derivatives by the two
parts, as a pair, are the gradient by PyTorch's convention. What has no rule raises DTypeError, and
so does whatever reads such a tensor as if it were real.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

import numpy as np

from baregrad.base.errors import DTypeError, GradientError
from baregrad.dtypes import DType, complex_of
from baregrad.ir.core.node import Node
from baregrad.tensor.array.arguments import explain_arguments
from baregrad.tensor.array.core import Array
from baregrad.tensor.ops import convert
from baregrad.tensor.tensor import Tensor


class ComplexTensor(Tensor):
    """A tensor of complex numbers, which `Tensor` makes where its data or dtype are complex."""

    __slots__ = ()
    __hash__ = object.__hash__
    is_paired: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, without the axis of pairs."""
        return cast("tuple[int, ...]", Array.shape.__get__(self)[:-1])

    @property
    def dtype(self) -> DType:
        """complex64 where the parts are float32, complex128 where they are float64."""
        return complex_of(Array.dtype.__get__(self))

    @classmethod
    def _real(cls) -> type[Any]:
        return Tensor

    def pairs(self) -> Tensor:
        """The parts along a last axis of 2, aliased; the same object as long as this is a value."""
        held: Tensor | None = getattr(self, "_pairs", None)
        if held is None or held._steps is not self._steps or held._storage is not self._storage:
            held = Tensor._on(self._storage, self._steps)
            held._look = self._look
            self._pairs = held
        return held

    @classmethod
    def of_pairs(cls, pairs: Tensor) -> ComplexTensor:
        """The complex tensor whose parts are along the last axis of `pairs`, aliased."""
        made = cls._on(pairs._storage, pairs._steps)
        made._look = pairs._look
        return made

    def pairs_like(self, value: Any) -> Tensor:
        """The pairs of a value, in this tensor's dtype and on its device."""
        if not isinstance(value, Tensor):
            value = Tensor(value, device=self.device)
        made = value.cast(self.dtype)
        assert isinstance(made, ComplexTensor)
        return made.pairs()

    # --- what reads it as if it were real ---------------------------------------------------------

    def _refuse(self, *_: Any) -> NoReturn:
        raise DTypeError(
            "this is not defined for complex numbers", found=self.dtype,
            hint="work on its parts: .real and .imag, .abs() and .angle(), or view_as_real()",
        )

    @property
    def node(self) -> Node:
        """Not had: operations of real tensors would take the pairs for an axis."""
        self._refuse()

    if not TYPE_CHECKING:
        _view = _write = _write_whole = _strides = _refuse

    # --- values -----------------------------------------------------------------------------------

    def _raw(self) -> np.ndarray[Any, Any]:
        pairs = np.ascontiguousarray(convert.numpy(self.pairs()))
        assert self.dtype.numpy is not None
        return pairs.view(self.dtype.numpy).reshape(self.shape)

    def stride(self, dim: int | None = None) -> Any:
        """Return the steps between elements along each axis, or along one, in elements."""
        found = tuple([each // 2 for each in self.pairs().stride()[:-1]])
        return found if dim is None else found[dim]


    def __float__(self) -> float:
        """Refuse: a complex number is no real one."""
        self._refuse()

    def __int__(self) -> int:
        """Refuse: a complex number is no real one."""
        self._refuse()

    def __deepcopy__(self, memo: dict[int, Any]) -> ComplexTensor:
        """Return an independent leaf of the same value."""
        if not self.is_leaf:
            raise GradientError(
                "only leaves are copied deeply", hint="copy detach() of it, or use clone()"
            )
        made = self.of_pairs(self.pairs().detach().clone())
        if self._gradient is not None:
            made._gradient = self.of_pairs(self._gradient.pairs().detach().clone())
        memo[id(self)] = made
        return made.requires_grad_() if self.requires_grad else made

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make the tensor again, as pickle wants it; computes it."""
        return rebuild, (self.pairs().detach(), self.requires_grad and self.is_leaf)

    # --- gradients --------------------------------------------------------------------------------

    def backward(self, gradient: Tensor | None = None, *, create_graph: bool = False) -> None:
        """Add the gradient of this tensor to `grad` of every leaf that it depends on.

        Raises DTypeError without `gradient`: a loss is real.
        """
        self.pairs().backward(self._seed(gradient), create_graph=create_graph)

    def gradient(
        self, *tensors: Tensor, grad_outputs: Tensor | None = None, create_graph: bool = True,
        allow_unused: bool = False,
    ) -> tuple[Any, ...]:
        """Return the gradients of this tensor by `tensors`; `grad_outputs` must be given."""
        return self.pairs().gradient(
            *tensors, grad_outputs=self._seed(grad_outputs), create_graph=create_graph,
            allow_unused=allow_unused,
        )

    def _seed(self, gradient: Tensor | None) -> Tensor:
        if gradient is None:
            raise DTypeError(
                "the gradient of a complex result must be given", found=self.dtype,
                hint="differentiate a real number, for example abs().square().sum()",
            )
        return self.pairs_like(gradient)


def rebuild(pairs: Tensor, requires_grad: bool) -> ComplexTensor:
    """Return the tensor that `__reduce__` took apart."""
    made = ComplexTensor.of_pairs(pairs)
    return made.requires_grad_() if requires_grad else made


explain_arguments(ComplexTensor)
