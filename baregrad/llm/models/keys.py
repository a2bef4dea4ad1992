"""The keys of one architecture in a file's metadata, each asked for by its kind of value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baregrad.base.errors import FileFormatError, UnsupportedError
from baregrad.io.excerpt import excerpt

ARCHITECTURE = "general.architecture"
# Keys that say nothing about what is computed.
_IRRELEVANT = frozenset({
    "vocab_size", "block_count", "context_length", "embedding_length", "rope.scaling.finetuned",
    "expert_shared_count", "pooling_type", "tensor_data_layout",
    "use_parallel_residual", "rope.scaling.original_context_length", "rope.freq_base",
    "rope.dimension_count", "nextn_predict_layers", "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon", "interleave_moe_layer_step", "features_length",
})


def architecture_of(metadata: Mapping[str, Any]) -> str:
    """Return the name of a file's architecture. Raises FileFormatError where there is none."""
    found = metadata.get(ARCHITECTURE)
    if not isinstance(found, str) or not found:
        raise FileFormatError(
            f"the file does not say what model it holds, under {ARCHITECTURE!r}",
            found=excerpt(found), wanted="the name of an architecture",
        )
    return found


class Keys:
    """Metadata under the name of an architecture: `keys.count("block_count")` and the like.

    Each getter raises FileFormatError for a value of another kind, and for a missing key without a
    default. `refuse_rest` raises for keys that nobody asked for.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata
        self.architecture = architecture_of(metadata)
        self._asked: set[str] = set()

    def value(self, key: str) -> Any:
        """Return the value under a key, None where there is none."""
        self._asked.add(key)
        return self.metadata.get(f"{self.architecture}.{key}")

    def count(self, key: str, default: int | None = None, lowest: int = 1) -> int:
        """Return an integer of at least `lowest`."""
        return self._count(key, self._found(key, default), lowest)

    def counts(self, key: str, depth: int, default: int | None = None) -> tuple[int, ...]:
        """Return an integer for each layer, of one for all or a list."""
        found = self._found(key, default)
        if not isinstance(found, list | tuple):
            return (self._count(key, found, 0),) * depth
        if len(found) < depth:
            raise self.error(key, found, f"a number for each of {depth} layers")
        return tuple(self._count(key, each, 0) for each in found[:depth])

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number."""
        found = self._found(key, default)
        if (isinstance(found, bool) or not isinstance(found, int | float)
                or not abs(found) < 1e30):  # fmt: skip
            raise self.error(key, found, "a number")
        return float(found)

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a finite number above 0."""
        found = self.number(key, default)
        if found <= 0:
            raise self.error(key, found, "a number above 0")
        return found

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value."""
        found = self._found(key, default)
        if not isinstance(found, bool):
            raise self.error(key, found, "true or false")
        return found

    def choice(self, key: str, choices: Mapping[Any, str], default: Any) -> str:
        """Return what a value stands for. Raises UnsupportedError for values that are no choice."""
        found = self._found(key, default)
        if isinstance(found, bool) or not isinstance(found, str | int) or found not in choices:
            raise UnsupportedError(
                f"{self.architecture}.{key}", found=excerpt(found),
                wanted=" or ".join(repr(each) for each in choices),
            )
        return choices[found]

    def refuse_rest(self) -> None:
        """Raise UnsupportedError for a key that was not asked for and may matter."""
        prefix = f"{self.architecture}."
        for key in self.metadata:
            name = key.removeprefix(prefix)
            if name != key and name not in self._asked and name not in _IRRELEVANT:
                raise UnsupportedError(
                    f"{key!r} describes something that no decoder here does",
                    found=excerpt(self.metadata[key]),
                    hint="such a model would run and give wrong answers, so it is refused",
                )

    def error(self, key: str, found: object, wanted: str) -> FileFormatError:
        """Return the error for a value that is none."""
        return FileFormatError(
            f"metadata {self.architecture}.{key}", found=excerpt(found), wanted=wanted
        )

    def _found(self, key: str, default: object) -> Any:
        found = self.value(key)
        if found is None and default is None:
            name = f"{self.architecture}.{key}"
            raise FileFormatError(f"metadata {name}", found="nothing", wanted="a value")
        return default if found is None else found

    def _count(self, key: str, found: object, lowest: int) -> int:
        if isinstance(found, bool) or not isinstance(found, int) or not lowest <= found < 1 << 31:
            raise self.error(key, found, f"an integer from {lowest} to {(1 << 31) - 1}")
        return found
