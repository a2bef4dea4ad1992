"""The class `Tensor`: gradients, makers and conversions, and what it has of its families."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from baregrad.base.errors import DTypeError, ShapeError
from baregrad.base.namespaces import unknown_name
from baregrad.dtypes import complex_of
from baregrad.tensor.array import grad_mode
from baregrad.tensor.array.arguments import explain_arguments
from baregrad.tensor.array.core import Array
from baregrad.tensor.array.link import session
from baregrad.tensor.array.put_off import put_off
from baregrad.tensor.array.random_state import manual_seed
from baregrad.tensor.array.views import assign_gradient, data_of
from baregrad.tensor.autograd import backward as autograd
from baregrad.tensor.autograd import hooks
from baregrad.tensor.families.arithmetic import Arithmetic
from baregrad.tensor.families.conveniences import Conveniences
from baregrad.tensor.families.layers import Layers
from baregrad.tensor.families.structure import Structure
from baregrad.tensor.ops import convert, creation, indexing, random, shapes
from baregrad.tensor.special import complex_numbers

_P = ParamSpec("_P")
# What is nearest by meaning to methods of PyTorch's that are not here.
_MEANT = MappingProxyType({
    "to_sparse": "nonzero", "symeig": "svd", "eig": "svd", "solve": "inverse", "lstsq": "pinverse",
})  # fmt: skip


def _made(
    function: Callable[Concatenate[type[Tensor], _P], Tensor],
) -> classmethod[Tensor, _P, Tensor]:
    """A function that makes a tensor of a class, as a method of that class."""
    return classmethod(function)


class Tensor(Arithmetic, Structure, Layers, Conveniences):
    """An array of numbers or bools on a device, lazily computed and differentiable.

    Tensor(data) copies data: numbers, nested lists, NumPy arrays, PyTorch tensors, buffers. Python
    ints become int64, floats float32; arrays keep their dtype. `device` is a name such as "CPU".
    With `requires_grad` gradients are accumulated in `grad` by `backward()`. Two to four integers
    are sizes, as PyTorch has it: Tensor(2, 3) holds floats that are not to be relied on.
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
        real = type(self)._real()
        if data.__class__ is int and dtype.__class__ is int:
            given: list[Any] = [data, dtype, device, requires_grad]
            sizes = [one for one in given if one.__class__ is int]
            made = real.empty(*sizes, device=device if isinstance(device, str) else None)
            requires_grad = requires_grad is True
        else:
            made = creation.build(real, data, dtype, device)
        if self.is_paired and not made.is_paired:
            made = made.cast(complex_of(made.dtype))
        if made.is_paired:
            self.__class__ = type(made)
        self._storage = made._storage
        self._steps = made._steps
        self._cached = None
        self._layout = None
        self._look = None
        self._gradient = None
        if requires_grad:
            self.requires_grad_()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say what there is in the place of a name that is not there."""
            if hasattr(type(self), name):
                # A property that failed: asked again, so that its own error is raised.
                return object.__getattribute__(self, name)
            if name.startswith("_"):
                raise AttributeError(f"a tensor has no {name!r}", name=name, obj=self)
            names = [each for each in dir(type(self)) if not each.startswith("_")]
            raise unknown_name("a tensor", name, names, _MEANT)

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
        assign_gradient(self, value)
        if value is not None and not value._storage.grad:
            # Computed along with what it shares a backward pass with, which would be run again.
            session().watching.companions.append(weakref.ref(value._storage))

    @property
    def data(self) -> Tensor:
        """The same values, aliased, at which gradients stop; set, it is written over.

        What is written into it is recorded for no gradients.
        """
        return type(self)._on(self._storage, data_of(self._steps))

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
        assign_gradient(self, None)

    backward = autograd.backward
    gradient = autograd.gradient
    register_hook = hooks.register_hook
    register_post_accumulate_grad_hook = hooks.register_post_accumulate_grad_hook
    retain_grad = hooks.retain_grad
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
    new = creation.made_beside
    from_numpy = _made(convert.from_numpy)
    from_dlpack = _made(convert.from_dlpack)

    # --- random numbers ---------------------------------------------------------------------------

    manual_seed = staticmethod(manual_seed)
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

    # --- conversions ------------------------------------------------------------------------------

    cast = type = convert.cast
    to = convert.to
    cpu = convert.cpu
    cuda = convert.cuda
    pin_memory = convert.pin_memory
    is_cuda = property(convert.is_cuda)
    is_cpu = property(convert.is_cpu)
    is_meta = is_mps = is_xpu = is_sparse = is_quantized = property(convert.is_not)
    is_ipu = is_maia = is_mkldnn = is_mtia = is_nested = is_sparse_csr = is_meta
    is_vulkan = is_xla = is_meta
    is_signed = convert.is_signed
    is_pinned = is_coalesced = is_distributed = is_shared = convert.is_lazily
    to_dense = coalesce = convert.itself
    is_conj = is_neg = is_inference = convert.is_lazily
    resolve_neg = convert.itself
    get_device = convert.get_device
    is_nonzero = convert.truth
    ndimension = shapes.dim
    itemsize = property(shapes.element_size)
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
    __format__ = convert.as_format_spec
    __contains__ = convert.contains
    __reversed__ = convert.backwards
    __float__ = convert.as_float
    __int__ = convert.as_int
    __complex__ = convert.as_complex
    __deepcopy__ = convert.deep_copy
    __reduce__ = convert.reduce


_MAKERS = frozenset(
    f"baregrad.tensor.ops.{name}"
    for name in (
        "convolution", "distances", "elementwise", "functions", "joining",
        "losses", "normalisation", "picking", "pooling", "products", "reductions", "scans",
        "shapes", "sorting", "special",
    )
)  # fmt: skip
_SPECIAL = "baregrad.tensor.special."
_OTHER_MAKERS: frozenset[Callable[..., Any]] = frozenset({
    convert.cast, convert.clone, convert.to_float, convert.to_double, convert.to_half,
    convert.to_bfloat16, convert.to_int, convert.to_long, convert.to_bool, indexing.getitem,
})  # fmt: skip
# What looks at a shape alone.
_LOOKS: frozenset[Callable[..., Any]] = frozenset({
    complex_numbers.is_complex, shapes.dim, shapes.element_size, shapes.numel, shapes.size,
    shapes.stride, shapes.is_contiguous,
})  # fmt: skip


def _makes_tensors(function: Callable[..., Any]) -> bool:
    """Whether a function makes new values, or views, of tensors.

    Of these those that read or draw numbers are found out when they are called; those that write
    over their operand are told by their names.
    """
    room = function.__module__
    made = room in _MAKERS or room.startswith(_SPECIAL) or function in _OTHER_MAKERS
    return made and function not in _LOOKS and not function.__name__.endswith("_")


explain_arguments(Array)
explain_arguments(Arithmetic, put_off, _makes_tensors)
explain_arguments(Structure, put_off, _makes_tensors)
explain_arguments(Layers, put_off, _makes_tensors)
explain_arguments(Conveniences, put_off, _makes_tensors)
explain_arguments(Tensor, put_off, _makes_tensors)
