"""Layers without structure: linear, tables of vectors, dropout, shapes."""

from __future__ import annotations

from typing import Any, Self

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.nn import functional, init
from baregrad.nn.functional.looking_up import row_of
from baregrad.nn.init import begin, redraw
from baregrad.nn.module import Module
from baregrad.nn.parameter import parameter
from baregrad.tensor import Tensor
from baregrad.tensor.array.axes import plain


class Linear(Module):
    """x @ weight.T + bias: (..., in_features) -> (..., out_features).

    weight (out, in) and bias (out,) begin uniform within 1/sqrt(in_features) of 0.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        if not all(isinstance(n, int) and n >= 0 for n in (in_features, out_features)):
            raise ShapeError(
                "a layer's widths are integers from 0 on",
                found=f"{in_features!r}, {out_features!r}",
            )
        self.in_features = in_features
        self.out_features = out_features
        self.weight = init.drawn(
            out_features, in_features, fan=in_features, dtype=dtype, device=device
        )
        self.bias = (
            init.drawn(out_features, fan=in_features, dtype=dtype, device=device) if bias else None
        )
        begin(self, Linear)

    def reset_parameters(self) -> None:
        """Draw first values anew."""
        redraw(self.in_features, self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return x @ weight.T + bias. Raises ShapeError unless the last axes agree."""
        return x.linear(self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class _Table(Module):
    """A table of vectors, weight (num_embeddings, embedding_dim), which begins standard normal."""

    weight: Tensor

    def _fill(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None,
        weight: Tensor | None, device: str | None, dtype: object,
    ) -> None:
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        if weight is not None:
            self.weight = weight if weight.is_leaf else parameter(weight)
            self.padding_idx = row_of(padding_idx, self.weight)
            return
        self.weight = Tensor.randn(num_embeddings, embedding_dim, dtype=dtype, device=device)
        self.padding_idx = row_of(padding_idx, self.weight)
        if self.padding_idx is not None:
            rows = Tensor.arange(num_embeddings, device=self.weight.device)
            self.weight = rows.eq(self.padding_idx).unsqueeze(1).where(0, self.weight)
        self.weight.requires_grad_()
        begin(self, _Table)

    def reset_parameters(self) -> None:
        """Draw first values anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with Tensor.no_grad():
                self.weight[self.padding_idx] = 0

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, **settings: Any) -> Self:
        """Return a layer whose table is a matrix, which is not trained unless `freeze` is false."""
        if embeddings.ndim != 2:
            raise ShapeError("a table is a matrix", found=list(embeddings.shape))
        kind: Any = cls
        made: Self = kind(*embeddings.shape, _weight=embeddings, **settings)
        made.weight.requires_grad_(not freeze)
        return made

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.num_embeddings}, {self.embedding_dim}"


class Embedding(_Table):
    """A table of vectors looked up by number: (...) integers -> (..., embedding_dim).

    weight (num_embeddings, embedding_dim) begins standard normal. The row `padding_idx` begins as
    zeros and gets no gradient. max_norm, norm_type, scale_grad_by_freq: see `functional.embedding`.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self._fill(num_embeddings, embedding_dim, padding_idx, _weight, device, dtype)
        if _freeze:
            self.weight.requires_grad_(False)

    def forward(self, index: Tensor) -> Tensor:
        """Return the rows of the table. Raises DTypeError unless `index` is of integers."""
        return functional.embedding(
            index, self.weight, self.padding_idx, self.max_norm, self.norm_type,
            self.scale_grad_by_freq, self.sparse,
        )


class EmbeddingBag(_Table):
    """Sums, means or maxima of bags of rows of a table: see `functional.embedding_bag`."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self._fill(num_embeddings, embedding_dim, padding_idx, _weight, device, dtype)
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(
        self, x: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Return a vector for each bag. Raises ShapeError, ArgumentError."""
        return functional.embedding_bag(
            x, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq,
            self.mode, self.sparse, per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset, padding_idx=self.padding_idx,
        )


class Bilinear(Module):
    """x . weight[k] . other + bias[k] for each k: (..., A), (..., B) -> (..., out_features).

    weight (out, A, B) and bias (out,) begin uniform within 1/sqrt(A) of 0.
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        kind: Any = {"fan": in1_features, "dtype": dtype, "device": device}
        self.weight = init.drawn(out_features, in1_features, in2_features, **kind)
        self.bias = init.drawn(out_features, **kind) if bias else None
        begin(self, Bilinear)

    def reset_parameters(self) -> None:
        """Draw first values anew."""
        redraw(self.weight.shape[1], self.weight, self.bias)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the bilinear form. Raises ShapeError for other widths."""
        return functional.bilinear(x, other, self.weight, self.bias)


class Dropout(Module):
    """Zero elements with probability p while training, and scale the rest by 1/(1 - p)."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        if not isinstance(plain(p), int | float) or not 0 <= p <= 1:
            raise ArgumentError(f"a probability is a number from 0 to 1, not {p!r}")
        self.p = p
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with elements dropped, or `x` itself outside training."""
        return functional.dropout(x, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"p={self.p}"


class Dropout1d(Dropout):
    """Zero whole channels of (N, C, L) with probability p, and scale the rest by 1/(1 - p)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with channels dropped, or `x` itself outside training. Raises ShapeError."""
        return functional.dropout1d(x, self.p, self.training, self.inplace)


class Dropout2d(Dropout):
    """Zero whole channels of (N, C, H, W) with probability p, and scale the rest by 1/(1 - p)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with channels dropped, or `x` itself outside training. Raises ShapeError."""
        return functional.dropout2d(x, self.p, self.training, self.inplace)


class Dropout3d(Dropout):
    """Zero whole channels of (N, C, D, H, W) with probability p; scale the rest by 1/(1 - p)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with channels dropped, or `x` itself outside training. Raises ShapeError."""
        return functional.dropout3d(x, self.p, self.training, self.inplace)


class AlphaDropout(Dropout):
    """Put elements at SELU's lowest value with probability p, such that mean and variance stay."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with elements dropped, or `x` itself outside training."""
        return functional.alpha_dropout(x, self.p, self.training, self.inplace)


class FeatureAlphaDropout(Dropout):
    """`AlphaDropout` of whole channels of (N, C, ...)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with channels dropped, or `x` itself outside training. Raises ShapeError."""
        return functional.feature_alpha_dropout(x, self.p, self.training, self.inplace)


class Flatten(Module):
    """Merge the axes from start_dim to end_dim into one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with axes merged."""
        return x.flatten(self.start_dim, self.end_dim)


class Unflatten(Module):
    """Split one axis into several."""

    def __init__(self, dim: int, unflattened_size: tuple[int, ...]) -> None:
        self.dim = dim
        self.unflattened_size = tuple(unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with the axis split."""
        return x.unflatten(self.dim, self.unflattened_size)


class Identity(Module):
    """Return what it is given; takes and ignores any arguments."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        """Return `x`."""
        return x
