"""Convolutions: sliding windows contracted with a weight."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Pad, Window
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.axes import plain
from baregrad.tensor.array.operands import accumulator, common_dtype, result
from baregrad.tensor.array.tensor_like import Tensor
from baregrad.tensor.ops.products import contract

PerAxis = int | Sequence[int]
# Inputs of a transposed convolution whose sum is worth being made before windows are added up.
LEAST_INPUTS = 8


def per_axis(value: PerAxis, count: int, what: str) -> tuple[int, ...]:
    """One number for each spatial axis. Raises ShapeError for a wrong count."""
    value = plain(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return _in_range((value,) * count, what)
    if not isinstance(value, Sequence):
        raise ShapeError(
            f"{what} is of integers", found=f"{type(value).__name__} {value!r:.40}",
            wanted="an int, or one for each axis",
        )
    found = tuple(map(plain, value))
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in found):
        raise ShapeError(f"{what} is of integers", found=f"{list(found)!r:.60}")
    if len(found) == 1:
        found *= count
    if len(found) != count:
        raise ShapeError(
            f"{what} wants one number, or one for each axis", found=list(found), wanted=count
        )
    return _in_range(found, what)


# Of what is counted in elements how many there are at least; what a stride is, windows say.
_LEAST = MappingProxyType({"kernel_size": 1, "padding": 0, "output_padding": 0, "output_size": 1})


def _in_range(found: tuple[int, ...], what: str) -> tuple[int, ...]:
    least = _LEAST.get(what)
    if least is not None and any(one < least or one >> 62 for one in found):
        raise ShapeError(f"{what} is out of range", found=list(found), wanted=f"{least} or more")
    return found


def _check(x: Tensor, weight: Tensor, count: int, groups: int, channels: int) -> None:
    if x.ndim != count + 2 or weight.ndim != count + 2:
        raise ShapeError(
            f"a convolution over {count} axes wants (N, C, ...) and a weight of as many axes",
            found=f"{list(x.shape)} and {list(weight.shape)}",
            wanted=f"{count + 2} axes each",
        )
    if x.shape[1] != channels:
        raise ShapeError(
            "the channels of input and weight differ",
            found=f"{list(x.shape)} with weight {list(weight.shape)} and {groups} groups",
            wanted=f"{channels} channels",
        )


def _edges(
    padding: PerAxis | str,
    taps: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> list[tuple[int, int]]:
    """(before, after) of each spatial axis."""
    if padding == "valid":
        return [(0, 0)] * len(taps)
    if padding == "same":
        if any(step != 1 for step in stride):
            raise ShapeError("padding 'same' wants a stride of 1", found=list(stride))
        totals = [d * (k - 1) for k, d in zip(taps, dilation, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    if isinstance(padding, str):
        raise ArgumentError(f"padding is numbers, 'same' or 'valid', not {padding!r}")
    return [(amount, amount) for amount in per_axis(padding, len(taps), "padding")]


def windows(
    x: Node,
    axes: Sequence[int],
    taps: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Node:
    """`x` with several axes as sliding windows; their taps are the last axes, in order."""
    for axis, k, s, d in zip(axes, taps, stride, dilation, strict=True):
        if min(k, s, d) < 1:
            raise ShapeError(
                "a window's size, stride and dilation are positive",
                found=f"size {k}, stride {s}, dilation {d}",
                wanted="1 or more",
            )
        span = d * (k - 1) + 1
        extent = x.shape[axis]
        if isinstance(extent, int) and extent < span:
            raise ShapeError(
                "the window is larger than the padded input",
                found=f"a window of {span} on an axis of {extent}",
                hint="use more padding or a smaller kernel",
            )
        x = nodes.window(x, axis, k, s, d)
    return x


def _convolve(
    x: Node, weight: Node, groups: int, stride: tuple[int, ...], dilation: tuple[int, ...]
) -> Node:
    """(N, G*C, *S) with a weight (G*O, C, *K) -> (N, G*O, *P); padding is done already."""
    count = len(stride)
    taps = weight.shape[2:]
    batch, channels = x.shape[0], weight.shape[1]
    slid = windows(x, range(2, 2 + count), taps, stride, dilation)
    places = slid.shape[2 : 2 + count]
    grouped = nodes.reshape(slid, (batch, groups, channels, *places, *taps))
    # (N, G, *P, C, *K), so that what is summed comes last.
    order = (0, 1, *range(3, 3 + count), 2, *range(3 + count, 3 + 2 * count))
    rows = nodes.unsqueeze(nodes.permute(grouped, order), 2)
    outputs = weight.shape[0] // groups
    columns = nodes.reshape(weight, (groups, outputs, *(1,) * count, channels, *taps))
    summed = tuple(range(3 + count, 4 + 2 * count))
    found = contract(rows, columns, summed)
    return nodes.reshape(found, (batch, groups * outputs, *places))


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    count: int,
    stride: PerAxis,
    padding: PerAxis | str,
    dilation: PerAxis,
    groups: int,
) -> Tensor:
    """A convolution over the last `count` axes; see `conv2d`."""
    if x.ndim == count + 1:
        single = convolution(x.unsqueeze(0), weight, bias, count, stride, padding, dilation, groups)
        return single.squeeze(0)
    _check(x, weight, count, groups, weight.shape[1] * groups if weight.ndim > 1 else 0)
    if weight.shape[0] % groups:
        raise ShapeError(
            "the outputs do not divide into groups", found=f"{weight.shape[0]}, {groups}"
        )
    steps, spread = per_axis(stride, count, "stride"), per_axis(dilation, count, "dilation")
    dtype = common_dtype((x, weight))
    edges = _edges(padding, weight.shape[2:], steps, spread)
    pads = (Pad(), Pad(), *(Pad(lo, hi) for lo, hi in edges))
    padded = nodes.pad(nodes.cast(x.node, dtype), pads)
    node = _convolve(padded, nodes.cast(weight.node, dtype), groups, steps, spread)
    return _with_bias(result(node, x, weight), bias, count)


def _with_bias(y: Tensor, bias: Tensor | None, count: int) -> Tensor:
    if bias is None:
        return y
    if bias.shape != y.shape[1:2]:
        raise ShapeError(
            "the bias has one number for each output channel",
            found=list(bias.shape),
            wanted=list(y.shape[1:2]),
        )
    return y + bias.reshape(1, -1, *(1,) * count)


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """Return the cross-correlation (N, C, L), (O, C/groups, K) -> (N, O, L')."""
    return convolution(x, weight, bias, 1, stride, padding, dilation, groups)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """Return the cross-correlation (N, C, H, W), (O, C/groups, K, L) -> (N, O, H', W').

    padding: numbers, "same" (for a stride of 1) or "valid". A missing batch axis is allowed.
    Raises ShapeError when channels, groups or the bias do not fit.
    """
    return convolution(x, weight, bias, 2, stride, padding, dilation, groups)


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """Return the cross-correlation over three spatial axes."""
    return convolution(x, weight, bias, 3, stride, padding, dilation, groups)


# --- transposed ---------------------------------------------------------------------------------


def transposed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    count: int,
    stride: PerAxis,
    padding: PerAxis,
    output_padding: PerAxis,
    groups: int,
    dilation: PerAxis,
) -> Tensor:
    """The adjoint of a convolution over the last `count` axes; see `conv_transpose2d`."""
    if x.ndim == count + 1:
        single = transposed(
            x.unsqueeze(0), weight, bias, count, stride, padding, output_padding, groups, dilation
        )
        return single.squeeze(0)
    _check(x, weight, count, groups, weight.shape[0] if weight.ndim else 0)
    steps, spread = per_axis(stride, count, "stride"), per_axis(dilation, count, "dilation")
    edges = per_axis(padding, count, "padding")
    extra = per_axis(output_padding, count, "output_padding")
    if min(steps) < 1 or min(spread) < 1:
        raise ShapeError(
            "the stride and the dilation of a convolution are positive",
            found=f"stride {list(steps)}, dilation {list(spread)}", wanted="1 or more",
        )
    taps = weight.shape[2:]
    dtype = common_dtype((x, weight))
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    kernel = nodes.reshape(nodes.cast(weight.node, dtype), (groups, inputs, outputs, *taps))
    made = nodes.cast(x.node, dtype)
    room = [d * (k - 1) for d, k in zip(spread, taps, strict=True)]
    if _is_folded(made, inputs, steps, spread):
        node = _folded(made, kernel, steps, spread, room, extra)
        for i, edge in enumerate(edges):
            node = nodes.cut(node, 2 + i, edge, node.shape[2 + i] - edge)
    else:
        turned = nodes.permute(kernel, (0, 2, 1, *range(3, 3 + count)))
        turned = nodes.reshape(turned, (groups * outputs, inputs, *taps))
        turned = nodes.flip(turned, tuple(range(2, 2 + count)))
        for i in range(count):
            around = room[i] - edges[i]
            made = _pad_or_cut(made, 2 + i, around, around + extra[i], steps[i] - 1)
        node = _convolve(made, turned, groups, (1,) * count, spread)
    return _with_bias(result(node, x, weight), bias, count)


def _is_folded(
    x: Node, inputs: Dim, steps: Sequence[int], spread: Sequence[int]
) -> bool:
    """Whether a transposed convolution is the sum of overlapping windows, each of many inputs.

    With zeros between elements, all but one of stride products would be 0.
    """
    if not isinstance(inputs, int) or inputs < LEAST_INPUTS:
        return False
    known = all(isinstance(extent, int) and extent > 0 for extent in x.shape[2:])
    one_way = all(step == 1 or wide == 1 for step, wide in zip(steps, spread, strict=True))
    return known and one_way and max(steps) > 1 and x.dtype is not dtypes.bool


def _folded(
    x: Node, kernel: Node, steps: Sequence[int], spread: Sequence[int], room: Sequence[int],
    extra: Sequence[int],
) -> Node:
    """(N, G*C, *S) with (G, C, O, *K) -> (N, G*O, *L): each element's window, added up.

    L is all that windows reach, and `extra` more.
    """
    count = len(steps)
    batch, places = x.shape[0], x.shape[2:]
    groups, inputs, outputs, *taps = kernel.shape
    wide = accumulator(x.dtype)
    rows = nodes.reshape(x, (batch, groups, inputs, 1, *places, *(1,) * count))
    columns = nodes.reshape(kernel, (1, groups, inputs, outputs, *(1,) * count, *taps))
    product = nodes.mul(nodes.cast(rows, wide), nodes.cast(columns, wide))
    node = nodes.reduce(Ops.ADD, product, (2,))
    node = nodes.reshape(node, (batch, groups * outputs, *places, *taps))
    for i in reversed(range(count)):
        # As much more as makes room for a window of its own is no part of a FOLD.
        more = min(extra[i], steps[i] - 1)
        extent = (places[i] - 1) * steps[i] + room[i] + 1 + more
        arg = Window(2 + i, taps[i], steps[i], spread[i], extent)
        node = _pad_or_cut(Node(Ops.FOLD, wide, (node,), arg), 2 + i, 0, extra[i] - more, 0)
    return nodes.cast(node, x.dtype)


def _pad_or_cut(x: Node, axis: int, before: int, after: int, interior: int) -> Node:
    """`x` with room around an axis, or less of it where an amount is negative."""
    pads = [Pad() for _ in x.shape]
    pads[axis] = Pad(max(before, 0), max(after, 0), interior)
    wide = nodes.pad(x, tuple(pads))
    extent = wide.shape[axis]
    return nodes.cut(wide, axis, max(-before, 0), index.as_dim(index.sub(extent, max(-after, 0))))


def conv_transpose1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Tensor:
    """Return the adjoint of `conv1d`: (N, C, L), (C, O/groups, K) -> (N, O, L')."""
    return transposed(x, weight, bias, 1, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Tensor:
    """Return the adjoint of `conv2d`: (N, C, H, W), (C, O/groups, K, L) -> (N, O, H', W')."""
    return transposed(x, weight, bias, 2, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Tensor:
    """Return the adjoint of `conv3d`."""
    return transposed(x, weight, bias, 3, stride, padding, output_padding, groups, dilation)


# --- windows as columns -------------------------------------------------------------------------


def im2col(
    x: Tensor,
    kernel_size: PerAxis,
    dilation: PerAxis = 1,
    padding: PerAxis = 0,
    stride: PerAxis = 1,
) -> Tensor:
    """Return the windows of an image as columns: (N, C, H, W) -> (N, C*K*L, windows).

    PyTorch's `functional.unfold`. A missing batch axis is allowed. Raises ShapeError for another
    number of axes or windows larger than the padded image.
    """
    if x.ndim == 3:
        return im2col(x.unsqueeze(0), kernel_size, dilation, padding, stride).squeeze(0)
    if x.ndim != 4:
        raise ShapeError("windows are of images", found=list(x.shape), wanted="(N, C, H, W)")
    taps, spread = per_axis(kernel_size, 2, "kernel_size"), per_axis(dilation, 2, "dilation")
    steps, edges = per_axis(stride, 2, "stride"), per_axis(padding, 2, "padding")
    padded = nodes.pad(x.node, (Pad(), Pad(), *(Pad(edge, edge) for edge in edges)))
    slid = nodes.permute(windows(padded, (2, 3), taps, steps, spread), (0, 1, 4, 5, 2, 3))
    batch, channels, *_, rows, columns = slid.shape
    shape = (batch, channels * taps[0] * taps[1], rows * columns)
    return result(nodes.reshape(slid, shape), x)


def col2im(
    x: Tensor,
    output_size: PerAxis,
    kernel_size: PerAxis,
    dilation: PerAxis = 1,
    padding: PerAxis = 0,
    stride: PerAxis = 1,
) -> Tensor:
    """Return the image whose windows are columns, summed where they overlap: `im2col`'s adjoint.

    (N, C*K*L, windows) -> (N, C, *output_size); PyTorch's `functional.fold`. A missing batch axis
    is allowed. Raises ShapeError unless rows and columns are those that `im2col` makes.
    """
    if x.ndim == 2:
        whole = col2im(x.unsqueeze(0), output_size, kernel_size, dilation, padding, stride)
        return whole.squeeze(0)
    taps, spread = per_axis(kernel_size, 2, "kernel_size"), per_axis(dilation, 2, "dilation")
    steps, edges = per_axis(stride, 2, "stride"), per_axis(padding, 2, "padding")
    sizes = tuple(
        size + 2 * edge
        for size, edge in zip(per_axis(output_size, 2, "output_size"), edges, strict=True)
    )
    # Says what is wrong with the sizes.
    blank = windows(nodes.full(0, sizes, x.dtype), (0, 1), taps, steps, spread)
    rows, columns = blank.shape[:2]
    area = taps[0] * taps[1]
    if x.ndim != 3 or x.shape[1] % area or x.shape[2] != rows * columns:
        raise ShapeError(
            "the columns are not the windows of such an image",
            found=list(x.shape),
            wanted=f"(N, a multiple of {area}, {rows * columns})",
        )
    batch, channels = x.shape[0], x.shape[1] // area
    wide = accumulator(x.dtype)
    apart = nodes.reshape(nodes.cast(x.node, wide), (batch, channels, *taps, rows, columns))
    image = nodes.permute(apart, (0, 1, 4, 5, 2, 3))
    for axis in (1, 0):
        arg = Window(2 + axis, taps[axis], steps[axis], spread[axis], sizes[axis])
        image = Node(Ops.FOLD, wide, (image,), arg)
    for axis, edge in enumerate(edges):
        image = nodes.cut(image, 2 + axis, edge, sizes[axis] - edge)
    return result(nodes.cast(image, x.dtype), x)
