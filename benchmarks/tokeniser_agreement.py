"""How a vocabulary's texts are cut beside llama.cpp: the same tokens, family by family.

    python benchmarks/tokeniser_agreement.py FILE --python PYTHON [--seed N] [--count N] [NAME ...]

FILE is a GGUF file with a vocabulary of byte-level pairs, PYTHON a Python that has
llama-cpp-python. For each name of `tokenizer.ggml.pre` (or the NAMEs that are given) random and
hostile texts are encoded by both with FILE's vocabulary cut as that family cuts it, and decoded
again by ours. Told are texts whose tokens differ, by what may be the cause: characters that
Python's table of Unicode does not know (the tables of the two programs are of other versions),
combining marks (llama.cpp has none in some of its classes), or neither, of which some are shown.
The exit status is 1 where one differs for neither reason, or does not decode to what it was.
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
from collections.abc import Iterator, Sequence

from baregrad.io.gguf import GgufFile, TypedValue, write_gguf
from baregrad.llm.text import Tokenizer, tokenizer_of
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
    with tempfile.NamedTemporaryFile(suffix=".gguf") as made:
        kind = file.values[PRE].kind
        write_gguf(made.name, {**file.values, PRE: TypedValue(name, kind)}, {})
        done = subprocess.run(
            [chosen.python, "-c", _PEER], input=json.dumps({"file": made.name, "texts": texts}),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
        )  # fmt: skip
    theirs = json.loads(done.stdout)
    tokenizer = tokenizer_of({**file.metadata, PRE: name})
    begin = "" if tokenizer.bos is None else tokenizer.decode([tokenizer.bos], specials=True)
    causes: Counter[str] = Counter()
    for text, wanted in zip(texts, theirs, strict=True):
        found = tokenizer.encode(text, specials=True)
        again = tokenizer.decode(found, specials=True)
        if again not in (text, begin + text) and not has_unspelled(tokenizer, text):
            causes["lost"] += 1
            print(f"{name}: {text!r} is {again!r} again")
        if found != wanted:
            cause = cause_of(text)
            causes[cause] += 1
            if cause == "neither" and causes[cause] < 4:
                print(f"{name}: {text!r}\n  ours   {found}\n  theirs {wanted}")
    told = ", ".join(f"{cause} {count}" for cause, count in sorted(causes.items()))
    print(f"{name}: {chosen.count} texts, {told or 'all the same'}", flush=True)
    return causes["neither"] + causes["lost"]


def has_unspelled(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a text has characters that the vocabulary spells no bytes of."""
    alone = {each: tokenizer.encode(each, add_bos=False) for each in text}
    return any(tokenizer.decode(tokens) != each for each, tokens in alone.items())


def cause_of(text: str) -> str:
    """What of a text the tables of two programs may not agree on."""
    kinds = {unicodedata.category(letter) for letter in text}
    if "Cn" in kinds:
        return "unknown characters"
    return "marks" if kinds & {"Mn", "Mc", "Me"} else "neither"


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
