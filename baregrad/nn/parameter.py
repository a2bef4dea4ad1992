"""Tensors that modules train, leaves of floats, and those that they hold beside them."""

from __future__ import annotations

import weakref

from baregrad.base.errors import DTypeError, GradientError
from baregrad.dtypes import DType
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained
from baregrad.tensor.ops.shapes import MemoryFormat, laid_out


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


class _Marked(type):
    """Tells tensors that were made as buffers."""

    def __init__(cls, *args: object) -> None:
        super().__init__(*args)
        # By the ids of tensors that there are: each, and whether it belongs to the state.
        cls.marks: dict[int, tuple[weakref.ref[Tensor], bool]] = {}

    def __instancecheck__(cls, value: object) -> bool:
        return cls.is_persistent(value) is not None

    def is_persistent(cls, value: object) -> bool | None:
        """Whether a buffer belongs to the state; None for what is no buffer."""
        mark = cls.marks.get(id(value))
        return mark[1] if mark is not None and mark[0]() is value else None


class _Buffer(metaclass=_Marked):
    """A tensor that a module holds and does not train: `self.x = Buffer(data)` registers it.

    What it gives is a `Tensor` of the values of `data`, which share its memory. persistent: whether
    it belongs to the module's state.
    """

    # What it makes is a tensor.
    def __new__(  # type: ignore[misc]
        cls, data: Tensor | None = None, *, persistent: bool = True
    ) -> Tensor:
        """Return the tensor."""
        made = (Tensor.zeros(0) if data is None else data).detach()
        key = id(made)
        cls.marks[key] = weakref.ref(made, lambda _: cls.marks.pop(key, None)), persistent
        return made


Buffer = _Buffer


def in_place_of(
    tensor: Tensor, dtype: DType | None, device: str | None, layout: MemoryFormat
) -> Tensor:
    """What a module holds in a tensor's place once it is moved; dtype: of those that are floats."""
    if dtype is not None and dtype.kind != "float":
        raise DTypeError("a module's parameters are of floating-point dtypes", found=dtype)
    cast_to = dtype if tensor.dtype.kind == "float" else None
    made = tensor.detach().to(dtype=cast_to, device=device)
    if layout.ndim in (0, made.ndim):
        made = laid_out(made, layout)
    return made.requires_grad_() if tensor.requires_grad else made
