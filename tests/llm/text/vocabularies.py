"""Small vocabularies that tests make themselves, and the plainest forms of what uses them."""

from __future__ import annotations

import itertools
import random
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from baregrad.llm.text.byte_letters import LETTER_BYTES

SAMPLE = (
    "The quick brown fox jumps over the lazy dog. It isn't that we're late, they'd say; I'll go. "
    "In 2024 there were 365 days, 1234567 hours of rain, and many words: weather, feather, "
    "father, other, another, mother, brother, bother. def main(args): return args[0] + 12\n\n"
    "Über die Straße gehen schöne Bäume. Привет, мир! Как дела? 你好，世界。 こんにちは 한국어 "
)
BYTE_LETTERS = {byte: letter for letter, byte in LETTER_BYTES.items()}


def letters_of(text: str) -> str:
    """Return the letters of a text's bytes."""
    return "".join(BYTE_LETTERS[byte] for byte in text.encode())


def is_letter(letter: str) -> bool:
    return unicodedata.category(letter).startswith("L")


def is_number(letter: str) -> bool:
    return unicodedata.category(letter).startswith("N")


def space_end(text: str, at: int) -> int:
    """Return where the white space from a place on is cut: before its last, where more follows."""
    stop = at
    while stop < len(text) and text[stop].isspace():
        stop += 1
    return stop - 1 if stop < len(text) and stop - at > 1 else stop


def gpt_words(text: str) -> list[str]:
    """Cut a text as GPT-2 does, by hand."""
    words = []
    at = 0
    while at < len(text):
        found = next((e for e in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
                      if text.startswith(e, at)), None)
        start = at + (text[at] == " " and at + 1 < len(text) and not text[at + 1].isspace())
        if found:
            stop = at + len(found)
        elif text[start].isspace():
            stop = space_end(text, at)
        else:
            kind = (is_letter(text[start]), is_number(text[start]))
            stop = start
            while stop < len(text) and not text[stop].isspace() and kind == (
                is_letter(text[stop]), is_number(text[stop])
            ):
                stop += 1
        words.append(text[at:stop])
        at = stop
    return words


def merge_bytes(word: str, metadata: dict[str, Any]) -> list[int]:
    """Return a word's tokens by merging the best pair again and again."""
    ranks = {tuple(pair.split(" ")): rank
             for rank, pair in enumerate(metadata["tokenizer.ggml.merges"])}
    ids = {text: index for index, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    parts = list(letters_of(word))
    while True:
        pairs = [(ranks[pair], at) for at, pair in enumerate(itertools.pairwise(parts))
                 if pair in ranks]
        if not pairs:
            return [ids[part] for part in parts]
        at = min(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@cache
def byte_pairs(count: int = 300) -> tuple[list[str], list[str]]:
    """Return tokens and merges, learnt from the sample by counting pairs."""
    tokens = list(LETTER_BYTES)
    merges = []
    words = Counter(tuple(letters_of(word)) for word in gpt_words(SAMPLE))
    for _ in range(count):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += times
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(" ".join(best))
        if "".join(best) not in tokens:
            tokens.append("".join(best))
        words = Counter({_joined(word, best): times for word, times in words.items()})
    return tokens, merges


def _joined(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for part in word:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return tuple(out)


def byte_metadata(
    pre: str = "gpt-2", controls: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    """Return the metadata of a byte-level vocabulary with a few special tokens.

    `controls` are further texts that control tokens have, instead of plain ones.
    """
    tokens, merges = byte_pairs()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    specials += controls or ["<tool_call>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens + specials,
        "tokenizer.ggml.token_type": (
            [1] * len(tokens) + [3] * 3 + [3 if controls else 4] * (len(specials) - 3)
        ),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens),
        **{"tokenizer.ggml." + key: value for key, value in more.items()},
    }


@cache
def _scored_words() -> tuple[str, ...]:
    text = "▁" + SAMPLE.replace(" ", "▁").replace("\n", "")
    counts = Counter(text[at : at + length] for length in range(2, 7)
                     for at in range(len(text) - length))
    best = [part for part, times in counts.most_common(400) if "▁" not in part[1:]]
    return (*best, "▁▁", "▁▁▁▁", *sorted(set(text)))


def scored_metadata(**more: Any) -> dict[str, Any]:
    """Return the metadata of a SentencePiece vocabulary with bytes."""
    words = _scored_words()
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *names, *words, "<|im_end|>"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(n) for n in range(len(words))] + [0.0],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words) + [3],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{"tokenizer.ggml." + key: value for key, value in more.items()},
    }


def merge_scores(text: str, metadata: dict[str, Any]) -> list[int]:
    """Return the tokens of a text without special ones, by merging what scores best."""
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"]
    scores = metadata["tokenizer.ggml.scores"]
    ids = {token: index for index, token in enumerate(tokens) if kinds[index] == 1}
    parts = list(" ".join(["", text]).replace(" ", "▁"))
    while True:
        pairs = [(-scores[ids[a + b]], at)
                 for at, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in ids]
        if not pairs:
            break
        at = min(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    found = []
    for part in parts:
        found += [ids[part]] if part in ids else [3 + byte for byte in part.encode()]
    return found


def random_text(seed: int) -> str:
    """Return a text of words of the sample, odd characters, digits, spaces and special tokens."""
    rng = random.Random(seed)
    words = SAMPLE.split(" ")
    odd = ["😀", "👨‍👩‍👧", "é",
           "e\u0301", "\u00a0", "\t", "\n\n", "  ", "      ", "\x00", "ﬀ", "𝔘", "한",
           "<|im_end|>", "<s>", "<tool_call>", "<0x0A>", "<|", "'S", "'ll", "…", "\ufffd", "\ufeff"]
    parts = []
    for _ in range(rng.randrange(1, 14)):
        kind = rng.randrange(6)
        if kind < 2:
            parts.append(rng.choice(words))
        elif kind == 2:
            parts.append(rng.choice(odd))
        elif kind == 3:
            parts.append(str(rng.randrange(10 ** rng.randrange(1, 9))))
        elif kind == 4:
            parts.append(rng.choice("ab=- \n") * rng.randrange(1, 9))
        else:
            parts.append(chr(rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)))))
    return rng.choice(("", " ")).join(parts)
