"""What a model takes in memory, before any of its weights is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from baregrad.base.errors import ArgumentError
from baregrad.base.options import options
from baregrad.dtypes import DType, as_dtype, dtypes
from baregrad.engine.session import Session, current_session, use_session
from baregrad.io.gguf import GgmlType, PackedWeight
from baregrad.ir.core.attrs import BufferRef
from baregrad.llm.models.cache import ContiguousCache
from baregrad.llm.models.decoder import LanguageModel
from baregrad.llm.models.traits import DecoderTraits
from baregrad.runtime.host_memory import size_class
from baregrad.tensor import Tensor
from baregrad.tensor.array.storage import Storage, buffer_node

_NOWHERE = "NULL"


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Bytes of weights, of a cache, and of what a call needs meanwhile."""

    weights: int
    cache: int
    workspace: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.cache + self.workspace


class PlannedWeights:
    """Weights of the shapes that traits want and of given types, on a device without memory."""

    def __init__(self, traits: DecoderTraits, types: Mapping[str, GgmlType]) -> None:
        self.shapes = traits.shapes()
        self.types = types

    def weight(self, name: str) -> PackedWeight:
        """Return a matrix, or a stack of them, that nothing is known of but its shape and type."""
        kind, shape = self.types[name], self.shapes[name]
        if kind.dtype is not None:
            numbers = _unallocated(shape, kind.dtype)
        else:
            numbers = _unallocated((*shape[:-1], kind.row_nbytes(shape[-1])), dtypes.uint8)
        return PackedWeight(kind, shape, numbers)

    def vector(self, name: str) -> Tensor:
        """Return a tensor in float32."""
        return _unallocated(self.shapes[name], dtypes.float32)


def _unallocated(shape: tuple[int, ...], dtype: DType) -> Tensor:
    """An array of its own that takes no memory; empty tensors of one shape may be one array."""
    nbytes = prod(shape) * dtype.itemsize
    buffer = current_session().backend(_NOWHERE).device.allocate(nbytes)
    node = buffer_node(BufferRef(buffer, shape, _NOWHERE), dtype)
    return Tensor._on(Storage(node, _NOWHERE))


def memory_of(
    traits: DecoderTraits,
    types: Mapping[str, GgmlType],
    context: int,
    *,
    chunk: int = 256,
    dtype: object = dtypes.float32,
    cache_dtype: object = dtypes.float32,
) -> MemoryFigures:
    """Return what a model takes for one sequence of `context` tokens, read `chunk` at a time.

    `types` are those of its tensors in the file, by name. Activations are of `dtype`. The workspace
    is that of planned kernels for this machine's processor. Raises ArgumentError for a context that
    holds less than a chunk.
    """
    if not 1 <= chunk <= context:
        raise ArgumentError("tokens that are read at a time", found=chunk, wanted=f"1 to {context}")

    def call(decoder: LanguageModel) -> None:
        cache = ContiguousCache(decoder.traits, context, cache_dtype, _NOWHERE)
        cache.place(context - chunk)
        places = Tensor.arange(context - chunk, context, device=_NOWHERE)
        words = Tensor.empty(chunk, dtype=dtypes.int32, device=_NOWHERE)
        hidden = decoder(words, places, cache.layers)
        cache.realize(decoder.logits(hidden[chunk - 1 :]))

    return MemoryFigures(
        weights_nbytes(traits, types),
        cache_nbytes(traits, context, cache_dtype),
        workspace_nbytes(traits, types, call, dtype=dtype),
    )


def weights_nbytes(traits: DecoderTraits, types: Mapping[str, GgmlType]) -> int:
    """Return the bytes of a model's weights: packed matrices, and vectors in float32."""
    total = 0
    for name, shape in traits.shapes().items():
        if len(shape) == 1:
            total += 4 * shape[0]
            continue
        rows = 1
        for extent in shape[:-1]:
            rows *= extent
        total += rows * types[name].row_nbytes(shape[-1])
    return total


def cache_nbytes(traits: DecoderTraits, tokens: int, dtype: object = dtypes.float32) -> int:
    """Return the bytes of keys and values of so many tokens in all layers."""
    count = sum(layer.cache_row.count for layer in traits.layers)
    return count * tokens * as_dtype(dtype).itemsize


def workspace_nbytes(
    traits: DecoderTraits,
    types: Mapping[str, GgmlType],
    work: Callable[[LanguageModel], None],
    *,
    dtype: object = dtypes.float32,
) -> int:
    """Return the bytes that all of some work needs beside weights and what it keeps.

    `work` computes with a decoder whose weights are on the device NULL, where it has to put all it
    makes; each thing that it computes keeps its memory. Of layers that are alike three are enough,
    since each takes over what the one before it left.
    """
    traits, types = _shortened(traits, types)
    needs: list[int] = []

    def note(run: Any) -> None:
        nbytes = run.executable.arena_nbytes(run.program.variables)
        # Rounded as the host's allocator rounds it.
        needs.append(size_class(nbytes) if nbytes else 0)

    with use_session(Session()) as session, options.override(device=_NOWHERE):
        decoder = LanguageModel(traits, PlannedWeights(traits, types), dtype=dtype, device=_NOWHERE)
        session.watching.observers.append(note)
        work(decoder)
    return sum(needs)


def _shortened(
    traits: DecoderTraits, types: Mapping[str, GgmlType]
) -> tuple[DecoderTraits, Mapping[str, GgmlType]]:
    """The model with three of each kind of layer, and the types of their tensors."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for number, layer in enumerate(traits.layers):
        names = traits.layer_shapes(layer)
        kind = (layer, *(types.get(f"blk.{number}.{name}") for name in names))
        kinds.setdefault(kind, []).append(number)
    kept = sorted(number for numbers in kinds.values() for number in numbers[:3])
    found = {name: kind for name, kind in types.items() if not name.startswith("blk.")}
    for place, number in enumerate(kept):
        for name in traits.layer_shapes(traits.layers[number]):
            found[f"blk.{place}.{name}"] = types[f"blk.{number}.{name}"]
    return replace(traits, layers=tuple(traits.layers[number] for number in kept)), found
