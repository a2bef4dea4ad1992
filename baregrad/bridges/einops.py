"""einops on our tensors: importing this module is all that its functions need.

    import baregrad.bridges.einops
    from einops import rearrange

einops asks every backend that it knows of whether an array is its own; here is ours. The layers
`Rearrange`, `Reduce` and `EinMix` are modules of ours: they come from here, where those of PyTorch
come from `einops.layers.torch`. The functions can be imported from here, too. Raises
MissingDependency where there is no einops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from baregrad import nn
from baregrad.base.errors import MissingDependency
from baregrad.tensor import Tensor

_FUNCTIONS = ("einsum", "pack", "parse_shape", "rearrange", "reduce", "repeat", "unpack")
# What einops calls a reduction, and what we do: `max` and `min` by axes give values alone.
_REDUCTIONS = MappingProxyType({"max": "amax", "min": "amin"})


def _backend_of(abstract: Any) -> type:
    """Our backend, which einops finds among the classes that are made of its abstract one."""

    class BaregradBackend(abstract):  # type: ignore[misc]
        """What einops does to arrays, by methods of ours."""

        framework_name = "baregrad"

        def is_appropriate_type(self, tensor: object) -> bool:
            return isinstance(tensor, Tensor)

        def from_numpy(self, x: Any) -> Tensor:
            return Tensor(x)

        def to_numpy(self, x: Tensor) -> Any:
            return x.detach().numpy()

        def arange(self, start: int, stop: int) -> Tensor:
            return Tensor.arange(start, stop)

        def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
            return x.permute(*axes)

        def reduce(self, x: Tensor, operation: str, axes: Sequence[int]) -> Tensor:
            over = tuple(axes)
            if operation != "prod":
                found: Tensor = getattr(x, _REDUCTIONS.get(operation, operation))(over)
                return found
            for axis in sorted(over, reverse=True):
                x = x.prod(axis)
            return x

        def stack_on_zeroth_dimension(self, tensors: Sequence[Tensor]) -> Tensor:
            return Tensor.stack(list(tensors))

        def add_axes(self, x: Tensor, n_axes: int, pos2len: Mapping[int, int]) -> Tensor:
            for place in sorted(pos2len):
                x = x.unsqueeze(place)
            # Repeated elements are a view.
            return x.expand(*[pos2len.get(axis, -1) for axis in range(n_axes)])

        def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
            return Tensor.cat(list(tensors), axis)

        def is_float_type(self, x: Tensor) -> bool:
            return x.dtype.kind in ("float", "complex")

        def einsum(self, pattern: str, *x: Tensor) -> Tensor:
            return Tensor.einsum(pattern, *x)

    return BaregradBackend


def _layers() -> dict[str, Any]:
    """The layers of einops, as modules of ours."""
    from einops.layers import RearrangeMixin, ReduceMixin
    from einops.layers._einmix import _EinmixMixin

    class Rearrange(RearrangeMixin, nn.Module):  # type: ignore[misc]
        """`rearrange` as a layer."""

        def forward(self, x: Tensor) -> Tensor:
            """Return `x` with its axes in the pattern's order."""
            found: Tensor = self._apply_recipe(x)
            return found

    class Reduce(ReduceMixin, nn.Module):  # type: ignore[misc]
        """`reduce` as a layer."""

        def forward(self, x: Tensor) -> Tensor:
            """Return `x` reduced as the pattern says."""
            found: Tensor = self._apply_recipe(x)
            return found

    class EinMix(_EinmixMixin, nn.Module):  # type: ignore[misc]
        """A linear layer whose sums a pattern names."""

        def _create_parameters(
            self, weight_shape: Sequence[int], weight_bound: float,
            bias_shape: Sequence[int] | None, bias_bound: float,
        ) -> None:
            weight = Tensor.empty(*weight_shape).uniform_(-weight_bound, weight_bound)
            self.weight = nn.Parameter(weight)
            self.bias = None
            if bias_shape is not None:
                bias = Tensor.empty(*bias_shape).uniform_(-bias_bound, bias_bound)
                self.bias = nn.Parameter(bias)

        def _create_rearrange_layers(
            self, pre_reshape_pattern: str | None, pre_reshape_lengths: dict[str, int] | None,
            post_reshape_pattern: str | None, post_reshape_lengths: dict[str, int] | None,
        ) -> None:
            self.before = self.behind = None
            if pre_reshape_pattern is not None:
                self.before = Rearrange(pre_reshape_pattern, **(pre_reshape_lengths or {}))
            if post_reshape_pattern is not None:
                self.behind = Rearrange(post_reshape_pattern, **(post_reshape_lengths or {}))

        def forward(self, x: Tensor) -> Tensor:
            """Return the sums of products of `x` and the weight, with the bias."""
            if self.before is not None:
                x = self.before(x)
            result = Tensor.einsum(self.einsum_pattern, x, self.weight)
            if self.bias is not None:
                result = result + self.bias
            found: Tensor = result if self.behind is None else self.behind(result)
            return found

    made = {"Rearrange": Rearrange, "Reduce": Reduce, "EinMix": EinMix}
    for name, kind in made.items():
        # Pickles find them here.
        kind.__module__, kind.__qualname__ = __name__, name
    return made


def _names() -> dict[str, Any]:
    try:
        import einops
        from einops._backends import AbstractBackend
    except ImportError as error:
        raise MissingDependency(
            "einops 0.8 or later is not installed", hint="pip install einops", found=str(error)
        ) from error
    backend = _backend_of(AbstractBackend)
    return {"BaregradBackend": backend, **{name: getattr(einops, name) for name in _FUNCTIONS},
            **_layers()}  # fmt: skip


# Held, as einops looks among the classes that live.
globals().update(_names())
