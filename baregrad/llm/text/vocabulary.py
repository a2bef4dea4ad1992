"""The words of a language model as a GGUF file's metadata states them, checked.

Keys are those of `tokenizer.ggml.*` (the GGUF specification). What tokens end an answer is told by
their text, as files often name one of several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import cast

from baregrad.base.errors import FileFormatError, UnsupportedError

PREFIX = "tokenizer.ggml."
MODELS = ("gpt2", "gemma4", "llama", "bert", "t5")
# Some writers say "no such token" by the largest number.
NO_TOKEN = 2**32 - 1

# Texts of tokens that end an answer, of all the families that we know.
END_TEXTS = frozenset((
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
))
# Those that end a file rather than a turn, where a model of code was trained to fill gaps.
GAP_ENDS = MappingProxyType({
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
})
# Marks around a gap to fill: never a user's words, whatever kind a file gives them.
GAP_MARKS = frozenset((
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
    "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
    "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
    "<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", "<|prefix|>", "<|suffix|>",
    "<|middle|>",
))
# A token is no end where all of the others are there: it ends a message, or is a plain word.
NOT_ENDS = (
    ("<|end|>", frozenset(("<|return|>", "<|call|>"))),
    ("<|end|>", frozenset(("<|flush|>", "<|calls|>"))),
    ("<|end|>", frozenset(("<|flush|>", "<|call|>"))),
    ("</s>", frozenset(("<|tool_response>",))),
    ("</s>", frozenset(("<|plamo:eos|>",))),
)


class TokenKind(IntEnum):
    """What `tokenizer.ggml.token_type` says of a token."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """The checked metadata of a tokeniser.

    `model` is `tokenizer.ggml.model` and `pre` the pre-tokeniser's name, None where the file has
    none. `texts` and `kinds` have one entry a token; `scores` too, or none. `adds_bos` and the
    like are None where the file leaves it to the model.
    """

    model: str
    pre: str | None
    texts: Sequence[str]
    kinds: Sequence[int]
    scores: Sequence[float] | None
    merges: Sequence[tuple[str, str]] | None
    ids: Mapping[str, int]
    bos: int | None
    eos: int | None
    unknown: int | None
    separator: int | None
    mask: int | None
    ends: frozenset[int]
    adds_bos: bool | None
    adds_eos: bool | None
    metadata: Mapping[str, object]

    @property
    def size(self) -> int:
        """The number of tokens."""
        return len(self.texts)

    def flag(self, name: str, otherwise: bool) -> bool:
        """Return the flag `tokenizer.ggml.<name>`, or what a file without it means."""
        found = _flag(self.metadata, name)
        return otherwise if found is None else found


def read_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    """Return the vocabulary of a GGUF file's metadata.

    Raises FileFormatError for what is missing, of the wrong kind or length, or out of range, and
    UnsupportedError, with its name, for a tokeniser that is not one of ours.
    """
    model = metadata.get(PREFIX + "model")
    if model is None:
        raise FileFormatError("the file names no tokeniser", wanted=f"the key {PREFIX}model")
    if model not in MODELS:
        raise UnsupportedError(
            f"the tokeniser {model!r} is not offered", wanted=f"one of {', '.join(MODELS)}"
        )
    pre = metadata.get(PREFIX + "pre")
    if pre is not None and not isinstance(pre, str):
        raise FileFormatError(f"{PREFIX}pre is no text", found=repr(pre))
    texts = _texts(metadata)
    ids = dict(zip(texts, range(len(texts)), strict=True))
    if len(ids) < len(texts):
        twice = next(text for index, text in enumerate(texts) if ids[text] != index)
        raise FileFormatError("two tokens have one text", found=repr(twice))
    kinds = _kinds(metadata, len(texts))
    scores = _scores(metadata, len(texts), needed=model in ("llama", "t5"))
    named = {
        name: _token_id(metadata, name, len(texts))
        for name in (
            "bos", "cls", "eos", "eot", "eom", "unknown", "seperator", "separator", "mask",
            "fim_pad", "fim_rep", "fim_sep",
        )
    }
    ends = _ends(ids, named)
    gaps = {text for texts_of_gap in GAP_ENDS.values() for text in texts_of_gap}
    for index in ends | {ids[text] for text in GAP_MARKS | gaps if text in ids}:
        # Some files mark what ends an answer as a plain word, by mistake.
        kinds[index] = TokenKind.CONTROL
    defaults = _default_ids(str(model), len(texts))
    separator = named["separator"] if named["seperator"] is None else named["seperator"]
    return Vocabulary(
        model=str(model),
        pre=pre,
        texts=texts,
        kinds=kinds,
        scores=scores,
        merges=_merges(metadata) if model in ("gpt2", "gemma4") else None,
        ids=MappingProxyType(ids),
        bos=_first(named["bos"], named["cls"] if model == "bert" else None, defaults.get("bos")),
        eos=_first(named["eos"], defaults.get("eos")),
        unknown=_first(named["unknown"], defaults.get("unknown")),
        separator=_first(separator, defaults.get("separator")),
        mask=_first(named["mask"], defaults.get("mask")),
        ends=ends,
        adds_bos=_flag(metadata, "add_bos_token"),
        adds_eos=_flag(metadata, "add_eos_token"),
        metadata=metadata,
    )


def end_ids(ids: Mapping[str, int]) -> frozenset[int]:
    """Return the tokens that end an answer, as their texts tell."""
    found = {text for text in END_TEXTS if text in ids}
    for names in GAP_ENDS.values():
        found |= {text for text in names if text in ids}
    for text, company in NOT_ENDS:
        if all(other in ids for other in company):
            found.discard(text)
    return frozenset(ids[text] for text in found)


def _ends(ids: Mapping[str, int], named: Mapping[str, int | None]) -> frozenset[int]:
    """Return the tokens that end an answer: by text, and those that the file names."""
    ends = set(end_ids(ids))
    for name, spellings in GAP_ENDS.items():
        if named[name] is not None:
            # The file's own word replaces the guess by text.
            ends -= {ids[text] for text in spellings if text in ids}
            ends.add(named[name])  # type: ignore[arg-type]
    ends |= {index for name in ("eos", "eot", "eom") if (index := named[name]) is not None}
    for text, company in NOT_ENDS:
        if {ids.get(other, -1) for other in company} <= ends:
            ends.discard(ids.get(text, -1))
    return frozenset(ends)


def _default_ids(model: str, size: int) -> dict[str, int]:
    """Return the ids that a file of a model means where it names none."""
    rows = {
        "llama": {"bos": 1, "eos": 2, "unknown": 0},
        "bert": {"bos": 101, "unknown": 100, "separator": 102, "mask": 103},
        "t5": {"eos": 1, "unknown": 2},
    }
    return {name: index for name, index in rows.get(model, {}).items() if index < size}


def _first(*candidates: int | None) -> int | None:
    return next((found for found in candidates if found is not None), None)


def _array(metadata: Mapping[str, object], name: str) -> Sequence[object] | None:
    """Return the array of a key as a sequence of plain values, or None where it is missing."""
    value = metadata.get(PREFIX + name)
    if value is None:
        return None
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise FileFormatError(f"{PREFIX}{name} is no array", found=type(value).__name__)
    return value


def _texts(metadata: Mapping[str, object]) -> list[str]:
    """Return the text of each token; an empty one gets a text that no other has."""
    found = _array(metadata, "tokens")
    if not found:
        raise FileFormatError("the file has no tokens", wanted=f"the array {PREFIX}tokens")
    if not all(issubclass(kind, str) for kind in set(map(type, found))):
        raise FileFormatError(f"{PREFIX}tokens holds something else than texts")
    texts = cast(Sequence[str], found)
    # Readers hand on what is no UTF-8 as halves of surrogate pairs.
    if not _is_sound("".join(texts)):
        index = next(index for index, text in enumerate(texts) if not _is_sound(text))
        raise FileFormatError(f"token {index} is no UTF-8", found=repr(texts[index]))
    if all(texts):
        return list(texts)
    return [text or f"[EMPTY_{index}]" for index, text in enumerate(texts)]


def _is_sound(text: str) -> bool:
    """Whether UTF-8 can hold a text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _numbers(metadata: Mapping[str, object], name: str, size: int) -> Sequence[object] | None:
    """Return an array of one number a token; longer ones are cut, as readers commonly do."""
    found = _array(metadata, name)
    if found is None:
        return None
    if len(found) < size:
        raise FileFormatError(
            f"{PREFIX}{name} is too short", found=len(found), wanted=f"{size}, one for each token"
        )
    if not all(issubclass(kind, int | float) for kind in set(map(type, found))):
        raise FileFormatError(f"{PREFIX}{name} holds something else than numbers")
    return found[:size]


def _kinds(metadata: Mapping[str, object], size: int) -> list[int]:
    found = _numbers(metadata, "token_type", size)
    if found is None:
        return [int(TokenKind.NORMAL)] * size
    known = frozenset(map(int, TokenKind))
    return [int(kind) if kind in known else 0 for kind in found]


def _scores(
    metadata: Mapping[str, object], size: int, *, needed: bool
) -> Sequence[float] | None:
    found = _numbers(metadata, "scores", size)
    if found is None:
        if needed:
            raise FileFormatError("the tokens have no scores", wanted=f"the array {PREFIX}scores")
        return None
    scores = [float(score) for score in found]  # type: ignore[arg-type]
    for index, score in enumerate(scores):
        if score != score:
            raise FileFormatError("a token's score is no number", found=f"token {index}")
    return scores


def _merges(metadata: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the pairs to merge, best first; a pair is cut at its first space but a leading one."""
    found = _array(metadata, "merges")
    if found is None:
        raise FileFormatError("the file has no merges", wanted=f"the array {PREFIX}merges")
    merges = []
    # The first of equal pairs counts.
    for text in dict.fromkeys(found):
        left, space, right = text.partition(" ") if isinstance(text, str) else ("", "", "")
        if not left and space:
            left, space, right = right.partition(" ")
            left = " " + left
        if not space:
            raise FileFormatError(
                f"merge {found.index(text)} is no pair", found=repr(text),
                wanted="two texts and a space",
            )
        merges.append((left, right))
    return merges


def _token_id(metadata: Mapping[str, object], name: str, size: int) -> int | None:
    """Return the id of a token that the file names, or None where it names none."""
    key = f"{PREFIX}{name}_token_id"
    found = metadata.get(key)
    if found is None or found in (NO_TOKEN, -1):
        return None
    if isinstance(found, bool) or not isinstance(found, int):
        raise FileFormatError(f"{key} is no number", found=repr(found))
    if not 0 <= found < size:
        raise FileFormatError(f"{key} is no token", found=found, wanted=f"less than {size}")
    return found


def _flag(metadata: Mapping[str, object], name: str) -> bool | None:
    found = metadata.get(PREFIX + name)
    if found is None:
        return None
    if not isinstance(found, bool):
        raise FileFormatError(f"{PREFIX}{name} is no flag", found=repr(found))
    return found
