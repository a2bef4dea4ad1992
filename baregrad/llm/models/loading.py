"""A model with all that its file or folder says about its use."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from baregrad.base.errors import ArgumentError, FileFormatError
from baregrad.dtypes import dtypes
from baregrad.io.gguf import GgufFile
from baregrad.llm.models.architectures import read_traits
from baregrad.llm.models.decoder import LanguageModel
from baregrad.llm.models.encoder import ENCODER, TextEncoder, read_encoder_traits
from baregrad.llm.models.folder_config import family_of, metadata_of, read_config
from baregrad.llm.models.folder_weights import FolderWeights
from baregrad.llm.models.keys import architecture_of
from baregrad.llm.models.weights import GgufWeights, WeightSource

_SAMPLING = "general.sampling."
# What generation_config.json calls defaults of sampling, and GGUF files call them.
_DEFAULTS = MappingProxyType({
    "temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What a path holds, before a weight is read.

    `metadata` is that of a GGUF file, or tells a folder's config in its keys. `folder`: where a
    tokenizer.json lies, None for GGUF files, whose metadata has the vocabulary. `template`: the
    text of the chat template, None where there is none. `sampling`: the author's defaults, as GGUF
    files name them ("temp", "top_k", "top_p", "min_p", "penalty_repeat").
    """

    path: Path
    metadata: Mapping[str, Any]
    source: WeightSource
    rope: str | None = None
    folder: Path | None = None
    template: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_encoder(self) -> bool:
        """Whether the model turns texts into vectors rather than guessing words."""
        return architecture_of(self.metadata) == ENCODER

    def decoder(self, *, context: int | None = None, dtype: object = dtypes.float32,
                device: str | None = None, exact: bool = False) -> LanguageModel:  # fmt: skip
        """Return the decoder; `context` is as in `read_traits`. Raises as that does.

        exact: products take activations as they are, where processors would round them to bytes.
        """
        traits = read_traits(
            self.metadata, self.source.shapes, context=context, rope=self.rope
        )
        return LanguageModel(traits, self.source, dtype=dtype, device=device, exact=exact)

    def encoder(self, *, dtype: object = dtypes.float32) -> TextEncoder:
        """Return the encoder. Raises as `read_traits` does."""
        traits = read_encoder_traits(self.metadata, self.source.shapes)
        return TextEncoder(traits, self.source, dtype=dtype)


def open_model(path: str | os.PathLike[str], device: str | None = None) -> ModelFiles:
    """Open a GGUF file or a Hugging Face folder, whose weights will be on a device.

    Raises ArgumentError for a path that is neither, and what reading either raises.
    """
    place = Path(path)
    if place.is_dir():
        return _open_folder(place, device)
    if not place.exists():
        raise ArgumentError("no model there", found=str(place), wanted="a GGUF file or a folder")
    file = GgufFile.open(place)
    template = file.metadata.get("tokenizer.chat_template")
    sampling = {
        key.removeprefix(_SAMPLING): float(value)
        for key, value in file.metadata.items()
        if key.startswith(_SAMPLING) and isinstance(value, int | float)
    }
    return ModelFiles(
        place, file.metadata, GgufWeights(file, device), None, None,
        template if isinstance(template, str) else None, sampling,
    )  # fmt: skip


def _open_folder(folder: Path, device: str | None) -> ModelFiles:
    config = read_config(folder)
    family = family_of(config)
    metadata, factors = metadata_of(config)
    if family.architecture == ENCODER:
        metadata |= _pooling(folder)
    is_tied = config.get("tie_word_embeddings", family.is_tied)
    source = FolderWeights(folder, family, factors, is_tied=bool(is_tied), device=device)
    return ModelFiles(
        folder, metadata, source, family.rope, folder, _template(folder), _sampling(folder)
    )


def _json(path: Path) -> Mapping[str, Any]:
    """The object of a JSON file, {} where there is no file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{str(path)!r}", found=str(error), wanted="JSON") from error
    if not isinstance(found, dict):
        raise FileFormatError(f"{str(path)!r}", found=type(found).__name__, wanted="an object")
    return found


def _template(folder: Path) -> str | None:
    alone = folder / "chat_template.jinja"
    if alone.is_file():
        return alone.read_text(encoding="utf-8")
    found = _json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _sampling(folder: Path) -> dict[str, float]:
    table = _json(folder / "generation_config.json")
    found = {name: table.get(key) for key, name in _DEFAULTS.items()}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def _pooling(folder: Path) -> dict[str, int]:
    """How an encoder's folder pools, which is the mean where it does not say."""
    table = _json(folder / "1_Pooling" / "config.json")
    kinds = {"pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}
    found = next((number for key, number in kinds.items() if table.get(key) is True), 1)
    return {f"{ENCODER}.pooling_type": found}
