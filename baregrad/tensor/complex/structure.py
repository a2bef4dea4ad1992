"""Views, moves, joins, reductions and products of complex tensors, on their pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from baregrad.base.errors import DTypeError, ShapeError
from baregrad.dtypes import DType, as_dtype, complex_of
from baregrad.tensor.complex import arithmetic
from baregrad.tensor.complex.complex_tensor import ComplexTensor
from baregrad.tensor.complex.pairs import (
    as_pairs,
    axes_of,
    axis_of,
    common_dtype,
    new_axis_of,
    operands,
    turned,
)
from baregrad.tensor.ops import indexing
from baregrad.tensor.ops.shapes import as_format, contiguous_format, laid_out
from baregrad.tensor.tensor import Tensor


def pairs_of(x: Tensor) -> Tensor:
    """The pairs of a complex tensor."""
    assert isinstance(x, ComplexTensor)
    return x.pairs()


_of = ComplexTensor.of_pairs


def _listed(given: tuple[Any, ...]) -> list[Any]:
    """The numbers of f(2, 3) and of f((2, 3))."""
    first = given[0] if len(given) == 1 else given
    return list(first) if isinstance(first, Sequence) else list(given)


# --- views ----------------------------------------------------------------------------------------


def reshape(x: Tensor, *shape: Any) -> Tensor:
    """The elements under another shape."""
    return _of(_fitting(x, "reshape", *shape))


def _fitting(x: Tensor, name: str, *shape: Any) -> Tensor:
    """The pairs of what a method gives for a shape; errors show shapes without the pairs' axis."""
    try:
        return getattr(pairs_of(x), name)(*_listed(shape), 2)  # type: ignore[no-any-return]
    except ShapeError as error:
        raise ShapeError(
            f"{name}: the shape does not fit", found=str(list(x.shape)), wanted=str(_listed(shape))
        ) from error


def view(x: Tensor, *shape: Any) -> Tensor:
    """The same under another shape, aliased."""
    if len(shape) == 1 and isinstance(shape[0], DType):
        raise DTypeError("complex numbers under another dtype", hint="use view_as_real()")
    return _of(_fitting(x, "view", *shape))


def like_shape(x: Tensor, other: Tensor) -> Tensor:
    """The elements under the shape of another tensor."""
    return reshape(x, *other.shape)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Axes joined to one."""
    if not x.ndim:
        return reshape(x, 1)
    first, last = axis_of(x, start_dim), axis_of(x, end_dim)
    return _of(pairs_of(x).flatten(first, last))


def ravel(x: Tensor) -> Tensor:
    """All axes joined to one."""
    return reshape(x, -1)


def unflatten(x: Tensor, dim: int, sizes: Any) -> Tensor:
    """An axis parted in several."""
    axis = axis_of(x, dim)
    return _of(_fitting(x, "reshape", *x.shape[:axis], *_listed((sizes,)), *x.shape[axis + 1 :]))


def squeeze(x: Tensor, dim: Any = None) -> Tensor:
    """Without axes of extent 1."""
    if isinstance(dim, list | tuple) and not dim:
        return x
    axes = [axis for axis in axes_of(x, dim) if x.shape[axis] == 1]
    return _of(pairs_of(x).squeeze(axes)) if axes else x


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """With a new axis of extent 1."""
    return _of(pairs_of(x).unsqueeze(new_axis_of(x, dim)))


def permute(x: Tensor, *dims: Any) -> Tensor:
    """Axes in another order."""
    order = [axis_of(x, dim) for dim in _listed(dims)]
    if sorted(order) != list(range(x.ndim)):
        raise ShapeError("permute wants each axis once", found=f"{order}", wanted=f"{x.ndim} axes")
    return _of(pairs_of(x).permute(*order, x.ndim))


def transpose(x: Tensor, dim0: int = 1, dim1: int = 0) -> Tensor:
    """Two axes exchanged."""
    return _of(pairs_of(x).transpose(axis_of(x, dim0), axis_of(x, dim1)))


def reversed_axes(x: Tensor) -> Tensor:
    """All axes in the opposite order."""
    return permute(x, *reversed(range(x.ndim)))


def two_axes_reversed(x: Tensor) -> Tensor:
    """A matrix on its side; a vector itself."""
    if x.ndim > 2:
        raise ShapeError("t() is of matrices", found=f"{x.ndim} axes", hint="use transpose()")
    return reversed_axes(x)


def matrix_transpose(x: Tensor) -> Tensor:
    """The last two axes exchanged."""
    if x.ndim < 2:
        raise ShapeError("mT is of matrices", found=f"{x.ndim} axes")
    return transpose(x, -1, -2)


def movedim(x: Tensor, source: Any, destination: Any) -> Tensor:
    """Axes moved to other places."""
    places = [
        [axis_of(x, one) for one in ((given,) if isinstance(given, int) else given)]
        for given in (source, destination)
    ]
    return _of(pairs_of(x).movedim(*places))


def expand(x: Tensor, *shape: Any) -> Tensor:
    """Axes of extent 1 repeated, and new ones in front."""
    return _of(_fitting(x, "expand", *shape))


def expand_as(x: Tensor, other: Tensor) -> Tensor:
    """`expand` to the shape of another tensor."""
    return expand(x, *other.shape)


def narrow(x: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    """A part of an axis."""
    return _of(pairs_of(x).narrow(axis_of(x, dim), start, length))


def select(x: Tensor, dim: int, index: int) -> Tensor:
    """One place of an axis."""
    return _of(pairs_of(x).select(axis_of(x, dim), index))


def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows along an axis, as a new last axis."""
    return _of(pairs_of(x).unfold(axis_of(x, dimension), size, step).movedim(-1, -2))


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal of two axes, as the last axis."""
    found = pairs_of(x).diagonal(offset, axis_of(x, dim1), axis_of(x, dim2))
    return _of(found.movedim(-1, -2))


def flip(x: Tensor, *dims: Any) -> Tensor:
    """Axes backwards."""
    axes = [axis_of(x, dim) for dim in _listed(dims)]
    return _of(pairs_of(x).flip(*axes)) if axes else x


def contiguous(x: Tensor, memory_format: object = contiguous_format) -> Tensor:
    """The elements in row-major order, or in that of a layout."""
    wanted = as_format(memory_format)
    if wanted is not contiguous_format:
        return laid_out(x, wanted)
    pairs = pairs_of(x)
    stored = pairs.contiguous()
    return x if stored is pairs else _of(stored)


def parted(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """A function that parts a tensor along an axis, `dim`, for complex tensors."""

    @wraps(function)
    def method(x: Tensor, *how: Any, dim: int = 0) -> tuple[Tensor, ...]:
        if len(how) == 2 or (how and function.__name__ == "unbind"):
            *rest, dim = how
            how = tuple(rest)
        return tuple([_of(one) for one in function(pairs_of(x), *how, dim=axis_of(x, dim))])

    return method


def getitem(x: Tensor, key: Any) -> Tensor:
    """x[key], a view where that of a real tensor is one."""
    return _of(pairs_of(x)[indexing.paired_key(x, key)])


# --- moves ----------------------------------------------------------------------------------------


def roll(x: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """Elements moved along axes, from the end to the start."""
    if dims is None:
        return reshape(roll(ravel(x), shifts, 0), *x.shape)
    axes = [axis_of(x, dim) for dim in ((dims,) if isinstance(dims, int) else dims)]
    return _of(pairs_of(x).roll(shifts, axes if not isinstance(dims, int) else axes[0]))


def repeat(x: Tensor, *counts: Any) -> Tensor:
    """The tensor repeated whole."""
    times = _listed(counts)
    if len(times) < x.ndim:
        raise ShapeError(
            "repeat wants a count for each axis", found=f"{times}", wanted=f"{x.ndim} or more"
        )
    return _of(pairs_of(x).repeat(*times, 1))


def tile(x: Tensor, *counts: Any) -> Tensor:
    """The tensor repeated as NumPy's tile does."""
    times = _listed(counts)
    return repeat(x, *[1] * (x.ndim - len(times)), *times)


def _several(x: Any, others: tuple[Any, ...], dim: int) -> tuple[list[Tensor], int]:
    """Tensors of a call, alone or in a list, and the axis, which may come behind them."""
    if others and not isinstance(others[-1], Tensor):
        others, dim = others[:-1], others[-1]
    return [*((x,) if isinstance(x, Tensor) else x), *others], dim


def cat(x: Any, *others: Any, dim: int = 0) -> Tensor:
    """Tensors one after the other along an axis."""
    several, dim = _several(x, others, dim)
    dtype = common_dtype(*several)
    kept = [one for one in several if one.shape != (0,)] or several[:1]
    axis = axis_of(kept[0], dim)
    rest = [(*one.shape[:axis], *one.shape[axis + 1 :]) for one in kept]
    if any(each != rest[0] for each in rest):
        raise ShapeError(
            f"cat along axis {axis} wants equal extents in the other axes",
            found=f"{[list(one.shape) for one in kept]}",
        )
    return _of(Tensor.cat([as_pairs(one, dtype, one.device) for one in kept], dim=axis))


def stack(x: Any, *others: Any, dim: int = 0) -> Tensor:
    """Tensors along a new axis."""
    several, dim = _several(x, others, dim)
    dtype = common_dtype(*several)
    axis = new_axis_of(several[0], dim)
    if any(one.shape != several[0].shape for one in several):
        raise ShapeError("stack wants one shape", found=f"{[list(one.shape) for one in several]}")
    return _of(Tensor.stack([as_pairs(one, dtype, one.device) for one in several], dim=axis))


def hstack(x: Any, *others: Tensor) -> Tensor:
    """Tensors along axis 1, or axis 0 where they have one axis."""
    several = [*((x,) if isinstance(x, Tensor) else x), *others]
    wide = [one if one.ndim else one.reshape(1) for one in several]
    return cat(wide, dim=0 if wide[0].ndim == 1 else 1)


def vstack(x: Any, *others: Tensor) -> Tensor:
    """Tensors along axis 0, each of two axes at least."""
    several = [*((x,) if isinstance(x, Tensor) else x), *others]
    return cat([one if one.ndim > 1 else one.reshape(1, -1) for one in several])


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The places of an axis that an index names."""
    return _of(pairs_of(x).index_select(axis_of(x, dim), index))


# --- reductions -----------------------------------------------------------------------------------


def _as(x: Tensor, dtype: object) -> Tensor:
    return x if dtype is None else arithmetic.cast(x, as_dtype(dtype))


def total(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: object = None) -> Tensor:
    """The sum over axes, all by default."""
    x = _as(x, dtype)
    axes = axes_of(x, dim)
    return _of(pairs_of(x).sum(axes, keepdim)) if axes else x.clone()


def mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: object = None) -> Tensor:
    """The mean over axes, all by default."""
    x = _as(x, dtype)
    axes = axes_of(x, dim)
    return _of(pairs_of(x).mean(axes, keepdim)) if axes else x.clone()


def prod(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: object = None) -> Tensor:
    """The product over axes, all by default: of halves, again and again."""
    x = _as(x, dtype)
    axes = axes_of(x, dim)
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    rest = [x.shape[axis] for axis in kept]
    work = reshape(permute(x, *axes, *kept), math.prod(x.shape[axis] for axis in axes), *rest)
    if not work.shape[0]:
        work = Tensor.ones(1, *rest, dtype=x.dtype, device=x.device)
    while work.shape[0] > 1:
        half = work.shape[0] // 2
        made = arithmetic.mul(work[:half], work[half : 2 * half])
        work = made if work.shape[0] == 2 * half else cat([made, work[2 * half :]])
    shape = [1 if axis in axes else e for axis, e in enumerate(x.shape)] if keepdim else rest
    return reshape(work, shape) if shape else reshape(work, ())


def cumsum(x: Tensor, dim: int, *, dtype: object = None) -> Tensor:
    """The running sum along an axis."""
    x = _as(x, dtype)
    return _of(pairs_of(x).cumsum(axis_of(x, dim))) if x.ndim else x.clone()


def cumprod(x: Tensor, dim: int, *, dtype: object = None) -> Tensor:
    """The running product along an axis: in each step of twice as many factors."""
    x = _as(x, dtype)
    if not x.ndim:
        return x.clone()
    work, reach = movedim(x, dim, 0), 1
    while reach < work.shape[0]:
        made = arithmetic.mul(work[reach:], work[:-reach])
        work = cat([work[:reach], made])
        reach *= 2
    return movedim(work, 0, dim)


def diff(
    x: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """The differences of neighbours along an axis, n times."""
    if n > 0 and (prepend is not None or append is not None):
        x = cat([one for one in (prepend, x, append) if one is not None], dim=dim)
    return _of(pairs_of(x).diff(n, axis_of(x, dim)))


def of_nonzero(function: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction of whether elements are not 0, for complex tensors."""

    @wraps(function)
    def method(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return function(arithmetic.ne(x, 0), *args, **kwargs)

    return method


def norm(x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The norm of the sizes over axes."""
    return arithmetic.absolute(x).norm(p, dim, keepdim)


def var(x: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    """The variance: that of the real parts and that of the imaginary ones, together."""
    if not x.ndim:
        return var(x.reshape(1), *args, **kwargs)
    return pairs_of(x).var(axes_of(x, dim), *args, **kwargs).sum(-1)


def std(x: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    """The square root of the variance."""
    return var(x, dim, *args, **kwargs).sqrt()


# --- products -------------------------------------------------------------------------------------


def matmul(x: Tensor, other: Any, out_dtype: Any = None) -> Tensor:
    """The matrix product, as one of real matrices: each row's pairs by pairs of columns."""
    if out_dtype is not None:
        raise DTypeError("a complex product in another dtype", hint="cast the operands")
    if not x.ndim or not other.ndim:
        raise ShapeError("matmul wants at least one axis each", hint="use * for a scalar")
    row, column = x.ndim == 1, other.ndim == 1
    a, b = operands(x, other)[1]
    a = a.unsqueeze(0) if row else a
    b = b.unsqueeze(1) if column else b
    if a.shape[-2] != b.shape[-3]:
        raise ShapeError(
            "the inner extents of a matrix product differ",
            found=f"{list(x.shape)} and {list(other.shape)}", wanted="(..., M, K) and (..., K, N)",
        )
    made = pairs_product(a, b)
    if row:
        made = made.select(-3, 0)
    return _of(made.select(-2, 0) if column else made)


def pairs_product(a: Tensor, b: Tensor) -> Tensor:
    """The pairs (..., M, N, 2) of the product of pairs (..., M, K, 2) and (..., K, N, 2)."""
    return (a.flatten(-2) @ real_form(b)).unflatten(-1, (b.shape[-2], 2))


def real_form(b: Tensor) -> Tensor:
    """The real matrix (..., 2K, 2N) that multiplies rows of pairs as the complex (K, N) does."""
    return b.stack(turned(b), dim=-3).flatten(-4, -3).flatten(-2)


def rmatmul(x: Tensor, other: Any) -> Tensor:
    """other @ x."""
    return matmul(other if isinstance(other, Tensor) else Tensor(other, device=x.device), x)


def einsum(equation: str, *given: Tensor) -> Tensor:
    """Sums of products: real ones of the parts, with those of i*i taken off."""
    dtype = complex_of(common_dtype(*given))
    split = []
    for one in given:
        pairs = as_pairs(one, dtype, one.device)
        split.append((pairs[..., 0], pairs[..., 1] if one.is_paired else None))
    found: list[Tensor | None] = [None, None]
    for chosen in range(1 << len(split)):
        sources = [pair[chosen >> place & 1] for place, pair in enumerate(split)]
        if any(one is None for one in sources):
            continue
        made = Tensor.einsum(equation, *[one for one in sources if one is not None])
        turns = chosen.bit_count()
        made = -made if turns & 2 else made
        known = found[turns & 1]
        found[turns & 1] = made if known is None else known + made
    real, imag = found
    assert real is not None and imag is not None
    return _of(real.stack(imag, dim=-1))
