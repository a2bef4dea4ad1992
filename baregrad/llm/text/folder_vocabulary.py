"""The tokeniser of a Hugging Face folder, told in the keys of GGUF metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from baregrad.base.errors import FileFormatError, UnsupportedError
from baregrad.llm.text.folder import tokenizer_of_folder
from baregrad.llm.text.splits import SPLITS
from baregrad.llm.text.vocabulary import PREFIX, TokenKind

# How GPT-2's words are cut where the step that spells bytes does it (`use_regex`).
_BYTE_LEVEL = SPLITS["gpt-2"].passes
_DIGIT = r"\p{N}"


def vocabulary_metadata(path: str | os.PathLike[str], size: int) -> dict[str, Any]:
    """Return what a GGUF file would say of the folder's tokeniser, for a model of `size` words.

    Byte-level BPE is told. Raises UnsupportedError for other tokenisers and for words that are cut
    in a way that has no name, and FileFormatError for broken files.
    """
    folder = Path(path)
    tokenizer = tokenizer_of_folder(folder)
    described = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    model = described["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise UnsupportedError(
            f"the tokeniser of {str(folder)!r} cannot be written to a GGUF file",
            found=str(model.get("type")), wanted="byte-level BPE",
        )  # fmt: skip
    texts = dict(enumerate(f"[PAD{index}]" for index in range(size)))
    kinds = dict.fromkeys(texts, int(TokenKind.UNUSED))
    for text, index in model["vocab"].items():
        texts[index], kinds[index] = text, int(TokenKind.NORMAL)
    for token in described.get("added_tokens") or ():
        special = TokenKind.CONTROL if token.get("special") else TokenKind.USER_DEFINED
        texts[token["id"]], kinds[token["id"]] = token["content"], int(special)
    if len(texts) > size:
        raise FileFormatError(
            f"{str(folder)!r}: the tokeniser knows more words than the model",
            found=len(texts), wanted=size,
        )  # fmt: skip
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    found: dict[str, Any] = {
        "model": "gpt2", "pre": _name_of_split(described), "merges": pairs,
        "tokens": [texts[index] for index in range(size)],
        "token_type": [kinds[index] for index in range(size)],
        "add_bos_token": tokenizer.adds_bos,
    }
    for name, index in (("bos", tokenizer.bos), ("eos", tokenizer.eos)):
        if index is not None:
            found[f"{name}_token_id"] = index
    return {f"{PREFIX}{name}": value for name, value in found.items()}


def _name_of_split(described: Mapping[str, Any]) -> str:
    """The name of the way in which words are cut. Raises UnsupportedError where it has none."""
    passes = tuple(_passes(described.get("pre_tokenizer") or {}))
    whole = bool(described["model"].get("ignore_merges"))
    named = [name for name, split in SPLITS.items() if split.passes == passes and split.in_bytes]
    exact = [name for name in named if SPLITS[name].whole_words_first is whole]
    if exact:
        return exact[0]
    raise UnsupportedError(
        "words are cut in a way that GGUF has no name for", found=f"{passes!r:.200}"
    )


def _passes(step: Mapping[str, Any]) -> Iterator[str]:
    """The patterns of a step that cuts words, and of those that it is made of."""
    kind = step.get("type")
    if kind == "Sequence":
        for part in step.get("pretokenizers") or ():
            yield from _passes(part)
    elif kind == "Split":
        pattern = step.get("pattern") or {}
        yield str(pattern.get("Regex", pattern.get("String")))
    elif kind == "Digits" and step.get("individual_digits"):
        yield _DIGIT
    elif kind == "ByteLevel":
        if step.get("use_regex", True):
            yield from _BYTE_LEVEL
    elif kind is not None:
        yield str(kind)
