"""The tokeniser of a Hugging Face folder, told in the keys of GGUF metadata."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from baregrad.base.errors import FileFormatError, UnsupportedError
from baregrad.llm.text.engines import SPACE
from baregrad.llm.text.folder import tokenizer_of_folder
from baregrad.llm.text.splits import SPLITS
from baregrad.llm.text.vocabulary import PREFIX, TokenKind

# How GPT-2's words are cut where the step that spells bytes does it (`use_regex`).
_BYTE_LEVEL = SPLITS["gpt-2"].passes
_DIGIT = r"\p{N}"
_BYTE = re.compile("<0x[0-9A-F]{2}>")


def vocabulary_metadata(path: str | os.PathLike[str], size: int) -> dict[str, Any]:
    """Return what a GGUF file would say of the folder's tokeniser, for a model of `size` words.

    Byte-level BPE is told, and that of SentencePiece. Raises UnsupportedError for other tokenisers
    and for texts that are cut in a way that has no name, and FileFormatError for broken files.
    """
    folder = Path(path)
    tokenizer = tokenizer_of_folder(folder)
    described = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    model = described["model"]
    if model.get("type") != "BPE":
        raise UnsupportedError(
            f"the tokeniser of {str(folder)!r} cannot be written to a GGUF file",
            found=str(model.get("type")), wanted="BPE, of bytes or of SentencePiece",
        )  # fmt: skip
    has_bytes = bool(model.get("byte_fallback"))
    texts = dict(enumerate(f"[PAD{index}]" for index in range(size)))
    kinds = dict.fromkeys(texts, int(TokenKind.UNUSED))
    for text, index in model["vocab"].items():
        is_byte = has_bytes and _BYTE.fullmatch(text) is not None
        texts[index] = text
        kinds[index] = int(TokenKind.BYTE if is_byte else TokenKind.NORMAL)
    for token in described.get("added_tokens") or ():
        special = TokenKind.CONTROL if token.get("special") else TokenKind.USER_DEFINED
        if has_bytes and token.get("normalized") and not token.get("special"):
            raise UnsupportedError(
                "a word is looked for in texts that were changed before, which GGUF has no key for",
                found=repr(token.get("content")),
            )
        texts[token["id"]], kinds[token["id"]] = token["content"], int(special)
    if len(texts) > size:
        raise FileFormatError(
            f"{str(folder)!r}: the tokeniser knows more words than the model",
            found=len(texts), wanted=size,
        )  # fmt: skip
    words = [texts[index] for index in range(size)]
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    found: dict[str, Any] = {"tokens": words, "add_bos_token": tokenizer.adds_bos}
    if has_bytes:
        unknown = model["vocab"].get(model.get("unk_token"))
        if unknown is not None:
            found["unknown_token_id"], kinds[unknown] = unknown, int(TokenKind.UNKNOWN)
        found |= {
            "model": "llama", "pre": "default", "scores": _scores(words, kinds, pairs),
            "add_space_prefix": _has_prefix(described, words),
            "add_eos_token": tokenizer.adds_eos,
        }  # fmt: skip
    else:
        found |= {"model": "gpt2", "pre": _name_of_split(described), "merges": pairs}
    found["token_type"] = [kinds[index] for index in range(size)]
    for name, index in (("bos", tokenizer.bos), ("eos", tokenizer.eos)):
        if index is not None:
            found[f"{name}_token_id"] = index
    return {f"{PREFIX}{name}": value for name, value in found.items()}


def _scores(words: Sequence[str], kinds: Mapping[int, int], pairs: Sequence[str]) -> list[float]:
    """The score of each word: the sooner pairs merge into it, the higher.

    Files of SentencePiece merge whatever makes a word of the best score. Raises UnsupportedError
    for pairs of which that does not tell the order.
    """
    places: dict[str, int] = {}
    latest = None
    for place, pair in enumerate(pairs):
        word = pair.replace(" ", "")
        if places.setdefault(word, place) != place and word != latest:
            raise UnsupportedError("pairs are merged in an order that scores cannot tell",
                                   found=repr(pair))  # fmt: skip
        latest = word
    spoken = {word for at, word in enumerate(words) if kinds[at] == TokenKind.NORMAL}
    for word in spoken - places.keys():
        if any(word[:at] in spoken and word[at:] in spoken for at in range(1, len(word))):
            raise UnsupportedError("a word that no pair makes would be made", found=repr(word))
    return [-float(places.get(word, len(pairs))) for word in words]


def _has_prefix(described: Mapping[str, Any], words: Sequence[str]) -> bool:
    """Whether a space is put before texts. Raises UnsupportedError where more is done to them."""
    has_prefix = is_escaped = False
    for step in (described.get("normalizer"), described.get("pre_tokenizer")):
        for part in _steps(step):
            kind, scheme = part.get("type"), part.get("prepend_scheme", "always")
            pattern = (part.get("pattern") or {}).get("String")
            if kind == "Prepend" and part.get("prepend") == SPACE:
                has_prefix = True
            elif kind == "Replace" and pattern == " " and part.get("content") == SPACE:
                is_escaped = True
            elif kind == "Metaspace" and scheme == "never" and not (
                part.get("split", True) and any(SPACE in word.lstrip(SPACE) for word in words)
            ):
                is_escaped = True
            elif kind != "Split" or pattern != " " or not is_escaped:
                # Files put a space before each text, or before none: not before the first word
                # alone ("first"), nor before those alone that begin without one ("always").
                raise UnsupportedError(
                    "texts are changed in a way that GGUF has no key for", found=f"{part!r:.200}"
                )
    if not is_escaped:
        raise UnsupportedError("spaces stay as they are", wanted=f"{SPACE} in their place")
    return has_prefix


def _steps(step: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The steps that a step is made of, or itself."""
    if step is not None and step.get("type") == "Sequence":
        for part in step.get("normalizers") or step.get("pretokenizers") or ():
            yield from _steps(part)
    elif step is not None:
        yield step


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
