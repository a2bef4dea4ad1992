"""How a vocabulary's texts are cut beside llama.cpp: the same tokens, family by family.

    python benchmarks/tokeniser_agreement.py FILE --python PYTHON [--seed N] [--count N] [NAME ...]

FILE is a GGUF file with a vocabulary of byte-level pairs, PYTHON a Python that has
llama-cpp-python. For each name of `tokenizer.ggml.pre` (or the NAMEs that are given) random and
hostile texts are encoded by both with FILE's vocabulary cut as that family cuts it, and decoded
again by ours. Told are texts whose tokens differ, by the cause:

- `their pattern`: llama.cpp does not cut as the family's published pattern says. How it does is
  written in THEIRS as another pattern, and with that one ours are its tokens exactly.
- `unknown characters`: the text holds some that Python's table of Unicode does not know, and the
  tables of the two programs are of other versions. With characters of no meaning in their places
  it is compared again, and is to be the same.
- `other`: whatever else, of which some are shown.

The exit status is 1 where one differs for another cause, or does not decode to what it was.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from unittest import mock

from baregrad.io.gguf import GgufFile, TypedValue, write_gguf
from baregrad.llm.text import Tokenizer, engines, tokenizer_of
from baregrad.llm.text.splits import SPLITS

PRE = "tokenizer.ggml.pre"
_PEER = """
import ctypes, json, sys
from llama_cpp import llama_cpp as lib
job = json.loads(sys.stdin.read())
settings = lib.llama_model_default_params()
settings.vocab_only = True
model = lib.llama_model_load_from_file(job["file"].encode(), settings)
vocabulary = lib.llama_model_get_vocab(model)
room = (lib.llama_token * 100_000)()
found = []
for text in job["texts"]:
    data = text.encode()
    count = lib.llama_tokenize(vocabulary, data, len(data), room, len(room), True, True)
    assert count >= 0
    found.append(room[:count])
json.dump(found, sys.stdout)
"""
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
# `unicode_cpt_is_han` of llama.cpp: without radicals, numerals and what is newer.
_HAN = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}\x{F900}-\x{FAFF}"
    r"\x{2F800}-\x{2FA1F}"
)
_WIDE, _WIDE_MARKS = "一-龥ࠀ-一가-퟿", "!-/:-~！-／：-～‘-‟　-。"
# Families, and what of their patterns llama.cpp reads otherwise (src/unicode.cpp and
# src/llama-vocab.cpp): capitals are told from small letters in ASCII alone, or nowhere; marks are
# no letters; white space outside of ASCII becomes a tab before a class is asked; a text before
# digits stays with the first of their groups.
_ROWS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("tekken gpt-4o llama4 kanana2 talkie minimax-m2", (
        (f"[{_UPPER}]", r"[\p{L}&&[^a-z]]"), (f"[{_LOWER}]", r"[\p{L}&&[^A-Z]]"))),
    ("granite-embed-multi-97m", (
        (f"[{_UPPER}]", r"[\p{L}\p{M}&&[^a-z]]"), (f"[{_LOWER}]", r"[\p{L}\p{M}&&[^A-Z]]"))),
    ("tiny_aya cohere2moe", (
        (f"[{_UPPER}]", r"[\p{L}\p{M}]"), (f"[{_LOWER}]", r"[\p{L}\p{M}]"),
        (r"\d{1,3}(?=(?:\d{3})*\b)", r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"))),
    ("kimi-k2", (
        (_UPPER, r"\p{L}"), (_LOWER, r"\p{L}"), (r"\p{Han}+", f"[{_HAN}]+"),
        (r"[^\p{Han}]", f"[^{_HAN}]"))),
    ("deepseek-llm", (
        (f"[{_WIDE}]", rf"[{_WIDE}&&[^\s]]"), (f"[{_WIDE_MARKS}]", rf"[{_WIDE_MARKS}&&[^\s]]"))),
    ("deepseek-coder", ((f"[{_WIDE}]", rf"[{_WIDE}&&[^\s]]"),)),
)
THEIRS: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType({
    name: changes for names, changes in _ROWS for name in names.split()
})
# Of private use: no letter, mark, number or space to anybody.
_MEANINGLESS = "\ue000"
WORDS = (
    "The quick brown fox isn't it's we'Re I'LL they'd 'S ' '' HTTPServer camelCase snake_case "
    "Über Straße Привет мир 你好世界 こんにちは カタカナ 한국어 สวัสดี नमस्ते مرحبا שלום Ελλάδα ﬁn "
    "0 7 12 123 1234 1234567 3.14 1,000 ٣٤ ४५ ² ½ Ⅷ ①"
)
ODD = (
    "😀", "👨‍👩‍👧", "🇩🇪", "é", "e\u0301", "क्षि", "\u0301", "\u00a0", "\u3000", "\u2028",
    "\u200b", "\u00ad", "\t", "\n", "\r\n", "\n\n", "\n \n", "  ", "   \n", "\x00", "\x7f",
    "ﬀ", "𝔘", "ǅ", "ʰ", "…", "\ufffd", "\ufeff", "\ue000", "<|im_end|>", "<|im_start|>", "<s>",
    "<0x0A>", "<|", "|>", "//", "/*", "!=", "{}", "「", "」", "．", "！", "１２３", "IMGIMGABCDZ",
    "<sentinel:7>", "#", "$", "^", "~", "`", "(", "&", "&&",
)


def main(argv: Sequence[str]) -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20_000)
    chosen = parser.parse_intermixed_args(argv)
    names = chosen.names or [name for name, split in SPLITS.items() if split.in_bytes]
    wrong = 0
    for name in names:
        wrong += compare(chosen, name)
    return 1 if wrong else 0


def compare(chosen: argparse.Namespace, name: str) -> int:
    """Print what differs of a family, and return how many texts do for no known reason."""
    file = GgufFile.open(chosen.file)
    texts = list(random_texts(chosen.seed, chosen.count))
    texts += [known for text in texts if (known := known_alone(text)) != text]
    with tempfile.NamedTemporaryFile(suffix=".gguf") as made:
        kind = file.values[PRE].kind
        write_gguf(made.name, {**file.values, PRE: TypedValue(name, kind)}, {})
        done = subprocess.run(
            [chosen.python, "-c", _PEER], input=json.dumps({"file": made.name, "texts": texts}),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
        )  # fmt: skip
    theirs = json.loads(done.stdout)
    metadata = {**file.metadata, PRE: name}
    tokenizer, as_theirs = tokenizer_of(metadata), cut_as_theirs(metadata)
    begin = "" if tokenizer.bos is None else tokenizer.decode([tokenizer.bos], specials=True)
    causes: Counter[str] = Counter()
    for text, wanted in zip(texts, theirs, strict=True):
        found = tokenizer.encode(text, specials=True)
        again = tokenizer.decode(found, specials=True)
        if again not in (text, begin + text) and not has_unspelled(tokenizer, text):
            causes["lost"] += 1
            print(f"{name}: {text!r} is {again!r} again")
        if found != wanted:
            cause = "other"
            if as_theirs is not None and as_theirs.encode(text, specials=True) == wanted:
                cause = "their pattern"
            elif known_alone(text) != text:
                cause = "unknown characters"
            causes[cause] += 1
            if cause == "other" and causes[cause] < 4:
                print(f"{name}: {text!r}\n  ours   {found}\n  theirs {wanted}")
    told = ", ".join(f"{cause} {count}" for cause, count in sorted(causes.items()))
    print(f"{name}: {len(texts)} texts, {told or 'all the same'}", flush=True)
    return causes["other"] + causes["lost"]


def cut_as_theirs(metadata: Mapping[str, object]) -> Tokenizer | None:
    """Return the tokeniser with llama.cpp's way of cutting; None where it is the published one."""
    name = str(metadata[PRE])
    if name not in THEIRS:
        return None
    passes = SPLITS[name].passes
    for published, read in THEIRS[name]:
        passes = tuple(each.replace(published, read) for each in passes)
    split = replace(SPLITS[name], passes=passes)
    with mock.patch.object(engines, "SPLITS", {**SPLITS, name: split}):
        return tokenizer_of(metadata)


def has_unspelled(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a text has characters that the vocabulary spells no bytes of."""
    alone = {each: tokenizer.encode(each, add_bos=False) for each in text}
    return any(tokenizer.decode(tokens) != each for each, tokens in alone.items())


def known_alone(text: str) -> str:
    """A text with a character of no meaning for each that Python's table does not know."""
    return "".join(
        _MEANINGLESS if unicodedata.category(letter) == "Cn" else letter for letter in text
    )


def random_texts(seed: int, count: int) -> Iterator[str]:
    """Texts of words, odd characters, digits, spaces and any characters there are."""
    rng, words = random.Random(seed), WORDS.split()
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 12)):
            kind = rng.randrange(7)
            if kind < 2:
                parts.append(rng.choice(words))
            elif kind == 2:
                parts.append(rng.choice(ODD) * rng.choice((1, 1, 2, 3)))
            elif kind == 3:
                parts.append(str(rng.randrange(10 ** rng.randrange(1, 12))))
            elif kind == 4:
                parts.append(rng.choice("ab=-_.,'/\\ \n\t\r") * rng.randrange(1, 9))
            elif kind == 5:
                parts.append(chr(rng.randrange(0x20, 0x3000)))
            else:
                places = rng.randrange(0xD800), rng.randrange(0xE000, 0x20000)
                parts.append(chr(rng.choice(places)))
        yield rng.choice(("", "", " ")).join(parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
