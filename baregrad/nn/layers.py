"""Layers without structure: linear, embedding, dropout, shapes."""

from __future__ import annotations

from baregrad.base.errors import ArgumentError, IndexOutOfRange, ShapeError
from baregrad.nn import init
from baregrad.nn.module import Module
from baregrad.tensor import Tensor
from baregrad.tensor.array.axes import plain
from baregrad.tensor.ops.random import dropout


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

    def forward(self, x: Tensor) -> Tensor:
        """Return x @ weight.T + bias. Raises ShapeError unless the last axes agree."""
        return x.linear(self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class Embedding(Module):
    """A table of vectors looked up by number: (...) integers -> (..., embedding_dim).

    weight (num_embeddings, embedding_dim) begins standard normal. The row `padding_idx` begins as
    zeros and gets no gradient.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = self._row(padding_idx)
        self.weight = Tensor.randn(num_embeddings, embedding_dim, dtype=dtype, device=device)
        if self.padding_idx is not None:
            self.weight = self._is_padding().where(0, self.weight)
        self.weight.requires_grad_()

    def _row(self, padding_idx: int | None) -> int | None:
        if padding_idx is None:
            return None
        if not -self.num_embeddings <= padding_idx < self.num_embeddings:
            raise IndexOutOfRange(
                "padding_idx", found=padding_idx, wanted=f"below {self.num_embeddings}"
            )
        return padding_idx % self.num_embeddings

    def _is_padding(self) -> Tensor:
        rows = Tensor.arange(self.num_embeddings, device=self.weight.device)
        return rows.eq(self.padding_idx or 0).unsqueeze(1)

    def forward(self, index: Tensor) -> Tensor:
        """Return the rows of the table. Raises DTypeError unless `index` is of integers."""
        if self.padding_idx is None or not self.weight.requires_grad:
            return self.weight.embedding(index)
        found = self.weight.embedding(index)
        return index.eq(self.padding_idx).unsqueeze(-1).where(found.detach(), found)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.num_embeddings}, {self.embedding_dim}"


class Dropout(Module):
    """Zero elements with probability p while training, and scale the rest by 1/(1 - p)."""

    def __init__(self, p: float = 0.5) -> None:
        if not isinstance(plain(p), int | float) or not 0 <= p <= 1:
            raise ArgumentError(f"a probability is a number from 0 to 1, not {p!r}")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with elements dropped, or `x` itself outside training."""
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"p={self.p}"


class _ChannelDropout(Dropout):
    """Zero whole channels of (N, C, ...) with probability p, and scale the rest by 1/(1 - p)."""

    _AXES = 0

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with channels dropped, or `x` itself outside training. Raises ShapeError."""
        if x.ndim not in (self._AXES + 1, self._AXES + 2):
            raise ShapeError(
                f"{type(self).__name__} wants another number of axes",
                found=list(x.shape),
                wanted=f"{self._AXES + 2} axes, or {self._AXES + 1} without a batch",
            )
        if not self.training or self.p == 0:
            return x
        ones = Tensor.ones(*x.shape[: -self._AXES], *(1,) * self._AXES, dtype=x.dtype,
                           device=x.device)
        return x * dropout(ones, self.p)


class Dropout1d(_ChannelDropout):
    """Zero whole channels of (N, C, L) with probability p, and scale the rest by 1/(1 - p)."""

    _AXES = 1


class Dropout2d(_ChannelDropout):
    """Zero whole channels of (N, C, H, W) with probability p, and scale the rest by 1/(1 - p)."""

    _AXES = 2


class Dropout3d(_ChannelDropout):
    """Zero whole channels of (N, C, D, H, W) with probability p; scale the rest by 1/(1 - p)."""

    _AXES = 3


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
