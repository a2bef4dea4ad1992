"""Tables of vectors: rows by number, and sums of bags of rows; and the bilinear form."""

from __future__ import annotations

from baregrad.base.errors import ArgumentError, IndexOutOfRange, ShapeError, UnsupportedError
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained
from baregrad.tensor.ops.reductions import check_integer


def row_of(padding_idx: int | None, weight: Tensor) -> int | None:
    """The row that gets no gradient, counted from the first. Raises IndexOutOfRange."""
    count = weight.shape[0]
    if padding_idx is None:
        return None
    if not -count <= padding_idx < count:
        raise IndexOutOfRange("padding_idx", found=padding_idx, wanted=f"below {count}")
    return padding_idx % count


def _prepare(
    x: Tensor, weight: Tensor, max_norm: float | None, norm_type: float, sparse: bool
) -> None:
    """Scale the rows that are read down to `max_norm`, in place."""
    if sparse:
        raise UnsupportedError(
            "an embedding without `sparse` is what there is", hint="gradients are whole tensors"
        )
    if max_norm is None:
        return
    check_integer(x, "indices")
    with Tensor.no_grad():
        norms = weight.norm(norm_type, dim=1, keepdim=True)
        is_long = (_counts(x, weight) > 0).unsqueeze(1) & (norms > max_norm)
        # What is added is PyTorch's.
        weight.copy_(is_long.where(weight * (max_norm / (norms + 1e-7)), weight))


def _counts(x: Tensor, weight: Tensor) -> Tensor:
    """How often indices name each row."""
    flat = x.reshape(-1).cast("int64")
    blank = Tensor.zeros(weight.shape[0], dtype="int64", device=weight.device)
    return blank.scatter_add(0, flat, flat.ones_like())


def _by_frequency(found: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Rows that were read, whose gradients are divided by how often each was."""
    often = _counts(x, weight).embedding(x).cast(found.dtype).unsqueeze(-1)
    scaled = found / often
    return found.detach() + (scaled - scaled.detach())


@explained
def embedding(
    x: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:
    """Return the rows of `weight` (N, D) that integers (...) name: (..., D).

    The row `padding_idx` gets no gradient. max_norm: rows that are read and whose norm of
    `norm_type` is above it are scaled down to it first, in place. scale_grad_by_freq: gradients are
    divided by how often their row is read. Raises UnsupportedError for `sparse`.
    """
    _prepare(x, weight, max_norm, norm_type, sparse)
    found = weight.embedding(x)
    row = row_of(padding_idx, weight)
    if not weight.requires_grad:
        return found
    if scale_grad_by_freq:
        found = _by_frequency(found, x, weight)
    if row is None:
        return found
    return x.eq(row).unsqueeze(-1).where(found.detach(), found)


@explained
def embedding_bag(
    x: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean",
    sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:
    """Return the sum, mean or maximum of bags of rows of `weight` (N, D): (bags, D).

    Bags are the rows of `x` (bags, length), or begin at `offsets` in `x` (all,); an empty one gives
    zeros, and the row `padding_idx` counts for nothing. `per_sample_weights`, of the shape of `x`,
    scale the rows of sums. Raises ShapeError, ArgumentError, and
    UnsupportedError for `scale_grad_by_freq` and `sparse`.
    """
    if scale_grad_by_freq:
        raise UnsupportedError("bags have gradients as they are", found="scale_grad_by_freq=True",
                               hint="functional.embedding takes it")  # fmt: skip
    _prepare(x, weight, max_norm, norm_type, sparse)
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"mode is 'sum', 'mean' or 'max', not {mode!r}")
    if per_sample_weights is not None and mode != "sum":
        raise ArgumentError("only sums are weighted", found=f"mode {mode!r}", wanted="mode 'sum'")
    check_integer(x, "indices")
    row = row_of(padding_idx, weight)
    if x.ndim == 2 and offsets is None:
        counted = Tensor.ones(*x.shape, dtype="bool", device=x.device)
        bags: Tensor | None = None
    elif x.ndim == 1 and offsets is not None:
        check_integer(offsets, "offsets")
        starts = offsets[:-1] if include_last_offset else offsets
        # The bag of an element is the last one that begins at or before it.
        places = Tensor.arange(x.shape[0], device=x.device)
        bags = (starts.unsqueeze(0) <= places.unsqueeze(1)).cast("int64").sum(1) - 1
        counted = bags >= 0
        if include_last_offset:
            counted = counted & (places < offsets[-1])
    else:
        raise ShapeError(
            "bags are the rows of two axes, or begin at offsets in one", found=list(x.shape),
            wanted="(bags, length) without offsets, or (all,) with them",
        )
    if row is not None:
        counted = counted & x.ne(row)
    rows = weight.embedding(x)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if bags is None:
        return _over_rows(rows, counted, mode)
    return _over_offsets(rows, counted, bags, starts.shape[0], mode)


def _over_rows(rows: Tensor, counted: Tensor, mode: str) -> Tensor:
    """Bags that are rows: (bags, length, D) -> (bags, D)."""
    held = counted.unsqueeze(-1)
    if mode == "max":
        highest = held.where(rows, float("-inf")).amax(1)
        return held.any(1).where(highest, 0.0)
    total = held.where(rows, 0.0).sum(1)
    return total if mode == "sum" else total / counted.sum(1, True).clamp(min=1).cast(rows.dtype)


def _over_offsets(rows: Tensor, counted: Tensor, bags: Tensor, count: int, mode: str) -> Tensor:
    """Bags by the number of each row's bag: (all, D) -> (bags, D)."""
    held = counted.unsqueeze(-1)
    at = bags.clamp(min=0)
    if mode == "max":
        blank = Tensor.full((count, rows.shape[1]), float("-inf"), dtype=rows.dtype,
                            device=rows.device)
        index = at.unsqueeze(1).expand(*rows.shape)
        highest = blank.scatter_reduce(0, index, held.where(rows, float("-inf")), "amax")
        return (highest > float("-inf")).where(highest, 0.0)
    blank = Tensor.zeros(count, rows.shape[1], dtype=rows.dtype, device=rows.device)
    total = blank.index_add(0, at, held.where(rows, 0.0))
    if mode == "sum":
        return total
    none = Tensor.zeros(count, dtype=rows.dtype, device=rows.device)
    return total / none.index_add(0, at, counted.cast(rows.dtype)).clamp(min=1).unsqueeze(1)


@explained
def bilinear(x: Tensor, other: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x . weight[k] . other for each k: (..., A), (..., B), (K, A, B) -> (..., K)."""
    if weight.ndim != 3 or x.shape[-1] != weight.shape[1] or other.shape[-1] != weight.shape[2]:
        raise ShapeError(
            "the widths are those of the weight (K, A, B)",
            found=f"{list(x.shape)}, {list(other.shape)} and {list(weight.shape)}",
        )
    lead = x.shape[:-1]
    flat, beside = x.reshape(-1, x.shape[-1]), other.reshape(-1, other.shape[-1])
    made = Tensor.einsum("na,kab,nb->nk", flat, weight, beside)
    made = made if bias is None else made + bias
    return made.reshape(*lead, weight.shape[0])
