"""How near a model's scores are to llama.cpp's: the Kullback-Leibler divergence, token by token.

    python benchmarks/llm_agreement.py FILE --python PYTHON [--exact | --blas]

FILE is a GGUF file, PYTHON a Python that has llama-cpp-python. Twenty texts go through both, with
keys and values in float32; what is compared is the distribution of the next token after each token.
Then both continue each text by its best tokens (`--tokens 0`: they do not), and every product of
the first text is computed of the numbers that llama.cpp multiplied: it rounds as we do if all are
the same but for the order of sums. These numbers as bytes, with their scales and sums, have to be
those of llama.cpp to the bit.

Activations that are rounded to bytes turn the last bit of a number into a step of a byte
somewhere, so scores differ even between two orders of the same sums. How much is measured beside:
llama.cpp's scores are compared with its own where it attends by tiles of keys, which changes the
order of some sums alone, and our own with those whose embeddings are off by NOISE. With --exact
both sides take the same weights as float32 numbers, from a file that is written for it: then
neither rounds activations, and what is left is the order of sums. With --blas PYTHON's library was
built with BLAS (CMAKE_ARGS="-DGGML_BLAS=ON -DGGML_BLAS_VENDOR=OpenBLAS"): of BATCH tokens at once
it multiplies what FILE packs, as numbers, with activations as they are. So each text, with what
ours continues it by, is computed at once, and compared with ours, exact.

The exit status is 1 where the mean divergence from llama.cpp is 1e-3 or more, and more than that of
llama.cpp from itself; where a product is off by more than SUMS, or a byte is another; with --exact
where texts part though the best two scores do not lie CLOSE; and with --blas where a token of ours
is not the best of llama.cpp's, and does not lie CLOSE to it.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from baregrad.apps.llm_suite.main import CLOSE, LlamaCppSide, OurSide
from baregrad.io.gguf import GgufFile, Kind, TypedValue, by_name, write_gguf
from baregrad.io.gguf.byte_products import quantised_rows
from baregrad.llm.commands.quantize import of_file
from baregrad.llm.generation.opened import EngineSettings, open_to_ask
from baregrad.llm.models.cache import ContiguousCache
from baregrad.llm.models.decoder import LanguageModel
from baregrad.llm.models.weights import DeviceWeights, GgufWeights
from baregrad.llm.text import tokenizer_of
from baregrad.tensor import Tensor

MOST = 1e-3
NOISE = 1e-7
# How far apart two orders of a sum are, of float32: of the largest number of a product.
SUMS = 1e-5
# Rows from which on llama.cpp leaves products to BLAS.
BATCH = 32
TEXTS = (
    "The capital of France is Paris, and the river that flows through it is the Seine.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 3))\n",
    "Water boils at 100 degrees Celsius at sea level, but on a mountain it boils earlier.",
    "Once upon a time there was a small house at the edge of a dark forest.",
    "The derivative of x squared is two times x.",
    "Dear Sir or Madam, I am writing to ask about the position that you advertised last week.",
    "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89",
    "In 1969 the first people walked on the moon.",
    "Photosynthesis is how plants make sugar of light, water and carbon dioxide.",
    "He opened the door, looked left and right, and stepped into the rain.",
    "SELECT name, age FROM users WHERE age > 30 ORDER BY name;",
    "La maison est grande et le jardin est petit.",
    "To make bread you need flour, water, salt and yeast.",
    "The stock market fell sharply on Monday after the central bank raised its rates.",
    "If all cats are animals and all animals breathe, then all cats breathe.",
    "She said that she would come, but nobody believed her.",
    "The quick brown fox jumps over the lazy dog.",
    "A triangle whose sides are 3, 4 and 5 has a right angle.",
    "Please remember to turn off the lights before you leave the office.",
    "for i in range(10):\n    if i % 2 == 0:\n        print(i)\n",
)
_PEER = """
import json, sys
import llama_cpp, numpy
job = json.loads(sys.stdin.read())
for by_tiles in job["ways"]:
    model = llama_cpp.Llama(job["file"], n_ctx=512, logits_all=True, verbose=False,
                            flash_attn=by_tiles, type_k=llama_cpp.GGML_TYPE_F32,
                            type_v=llama_cpp.GGML_TYPE_F32)
    for number, tokens in enumerate(job["tokens"]):
        model.reset()
        model.eval(tokens + [0] * (job["least"] - len(tokens)))
        numpy.save(f"{job['out']}/{by_tiles:d}-{number}.npy", model.scores[: len(tokens)])
"""
# A tensor of ggml's: kind, buffer, sizes, strides, operation with its settings, flags, operands.
# Whatever lies elsewhere in another version has no such names.
_WATCHER = """
import ctypes, glob, json, os, sys
import llama_cpp, numpy
from llama_cpp import llama_cpp as lib
job = json.loads(sys.stdin.read())
ggml = ctypes.CDLL(glob.glob(os.path.dirname(llama_cpp.__file__) + "/lib/libggml-base.*")[0])
class Tensor(ctypes.Structure): pass
Tensor._fields_ = [
    ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("sizes", ctypes.c_int64 * 4),
    ("strides", ctypes.c_size_t * 4), ("op", ctypes.c_int), ("settings", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32), ("operands", ctypes.POINTER(Tensor) * 10),
]
ggml.ggml_get_name.restype = ggml.ggml_op_desc.restype = ctypes.c_char_p
ggml.ggml_nbytes.restype = ctypes.c_size_t
ggml.ggml_backend_tensor_get.argtypes = [
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t,
]
found = {}
def numbers(tensor):
    out = numpy.empty(ggml.ggml_nbytes(tensor) // 4, numpy.float32)
    ggml.ggml_backend_tensor_get(
        ctypes.cast(tensor, ctypes.c_void_p), out.ctypes.data, 0, out.nbytes
    )
    return out.reshape(-1, tensor.contents.sizes[0])
def look(address, asks, _):
    tensor = ctypes.cast(address, ctypes.POINTER(Tensor))
    if ggml.ggml_op_desc(tensor) != b"MUL_MAT":
        return not asks
    name = ggml.ggml_get_name(tensor.contents.operands[0]).decode()
    if not asks and name.endswith(".weight"):
        found[name + ":in"] = numbers(tensor.contents.operands[1])
        found[name + ":out"] = numbers(tensor)
    return True
watch = lib.ggml_backend_sched_eval_callback(look)
model = lib.llama_model_load_from_file(job["file"].encode(), lib.llama_model_default_params())
settings = lib.llama_context_default_params()
settings.n_ctx, settings.cb_eval = 512, watch
context = lib.llama_init_from_model(model, settings)
tokens = (lib.llama_token * len(job["tokens"]))(*job["tokens"])
assert lib.llama_decode(context, lib.llama_batch_get_one(tokens, len(tokens))) == 0
numpy.savez(job["out"] + "/products.npz", **found)
"""
# Rows as the library rounds them: blocks of so many bytes.
_ROUNDER = """
import ctypes, glob, json, os, sys
import llama_cpp, numpy
job = json.loads(sys.stdin.read())
ggml = ctypes.CDLL(glob.glob(os.path.dirname(llama_cpp.__file__) + "/lib/libggml-cpu.*")[0])
ggml.ggml_cpu_init()
found = {}
products = numpy.load(job["out"] + "/products.npz")
for name in products:
    rows = products[name]
    for kind, (size, nbytes) in job["blocks"].items():
        if name.endswith(":in") and rows.shape[1] % size == 0:
            found[f"{name}:{kind}"] = out = numpy.zeros((rows.size // size, nbytes), numpy.uint8)
            getattr(ggml, "quantize_row_" + kind)(
                ctypes.c_void_p(rows.ctypes.data), ctypes.c_void_p(out.ctypes.data),
                ctypes.c_int64(rows.size),
            )
numpy.savez(job["out"] + "/bytes.npz", **found)
"""
# What a block has beside its codes (`codes`): what one stands for, and their sum.
_BLOCKS: Mapping[str, np.dtype[np.void]] = MappingProxyType({
    "q8_0": np.dtype([("step", "<f2"), ("codes", "i1", 32)]),
    "q8_1": np.dtype([("step", "<f2"), ("sum", "<f2"), ("codes", "i1", 32)]),
    "q8_K": np.dtype([("step", "<f4"), ("codes", "i1", 256), ("sums", "<i2", 16)]),
})
Floats, Scores = npt.NDArray[np.float64], npt.NDArray[np.float32]


def main(argv: list[str]) -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--python", default=sys.executable)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--exact", action="store_true")
    way.add_argument("--blas", action="store_true")
    parser.add_argument("--tokens", type=int, default=64, help="that continue each text")
    parser.add_argument("--threads", type=int, default=1, help="of llama.cpp, for its texts")
    chosen = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        if chosen.blas:
            return int(compare_with_blas(chosen.file, folder, chosen))
        path = widened(chosen.file, folder) if chosen.exact else chosen.file
        failed = compare_scores(path, folder, chosen)
        failed |= compare_products(path, folder, chosen)
        if not chosen.exact:
            failed |= compare_bytes(folder, chosen)
        if chosen.tokens:
            failed |= compare_texts(path, chosen)
    return int(failed)


def compare_scores(path: str, folder: str, chosen: argparse.Namespace) -> bool:
    """Print how far scores are from llama.cpp's, and return whether that is too far."""
    file = GgufFile.open(path)
    tokenizer = tokenizer_of(file.metadata)
    texts = [tokenizer.encode(text) for text in TEXTS]
    model = LanguageModel.from_gguf(file, exact=chosen.exact)
    theirs, tiled = their_scores(chosen.python, path, folder, texts, ways=(False, True))
    ours = [scores(model, text) for text in texts]
    found = [divergence(one, two) for one, two in zip(theirs, ours, strict=True)]
    for text, each in zip(TEXTS, found, strict=True):
        print(f"{each.mean():.2e} at most {each.max():.2e}  {text[:60]!r}")
    mean = float(np.concatenate(found).mean())
    print(f"mean divergence {mean:.2e} over {sum(map(len, found))} tokens")
    moved = [scores(_Moved(model), text) for text in texts]
    own = mean_divergence(ours, moved)
    print(f"ours from ours with embeddings off by {NOISE:g}: {own:.2e}")
    least = mean_divergence(theirs, tiled)
    print(f"llama.cpp's from its own with attention by tiles: {least:.2e}")
    return mean >= max(MOST, least)


def compare_with_blas(path: str, folder: str, chosen: argparse.Namespace) -> bool:
    """Print how far exact scores are from llama.cpp's with BLAS; return whether that is too far.

    Of each text with what we continue it by: each token that was chosen has to be its best as well.
    """
    settings = EngineSettings(context=256, rows=1, cache="f32", exact=True)
    opened = open_to_ask(path, settings, chats=False)
    prompts = [opened.tokenizer.encode(text) for text in TEXTS]
    side = OurSide(opened)
    texts = [[*each, *side(each, chosen.tokens).tokens] if chosen.tokens else each
             for each in prompts]  # fmt: skip
    opened.close()
    file = GgufFile.open(path)
    exact, rounding = (LanguageModel.from_gguf(file, exact=each) for each in (True, False))
    (theirs,) = their_scores(chosen.python, path, folder, texts, least=BATCH)
    ours = [scores(exact, text) for text in texts]
    mean = mean_divergence(theirs, ours)
    worst = max(float(np.abs(x - y).max()) for x, y in zip(theirs, ours, strict=True))
    count = sum(map(len, texts))
    print(f"mean divergence {mean:.2e} over {count} tokens, scores {worst:.1e} apart at most")
    own = mean_divergence(ours, [scores(rounding, text) for text in texts])
    print(f"ours from ours with activations as bytes: {own:.2e}")
    far = 0
    for prompt, text, found in zip(prompts, texts, theirs, strict=True):
        rows = found[len(prompt) - 1 : -1] if chosen.tokens else found[:0]
        behind = rows.max(-1) - rows[np.arange(len(rows)), text[len(prompt) :]]
        far += int((behind > CLOSE).sum())
        if (behind > 0).any():
            print(f"another token {behind.max():.4f} better: {text[:8]}")
    print(f"{far} of {len(texts) * chosen.tokens} tokens are neither the best nor close to it")
    return mean >= MOST or far > 0


def compare_bytes(folder: str, chosen: argparse.Namespace) -> bool:
    """Print how many bytes of rows are not llama.cpp's, and return whether any is not.

    The rows are those that its products took (`compare_products`).
    """
    sizes = {kind: (block["codes"].shape[0], block.itemsize) for kind, block in _BLOCKS.items()}
    _ask(chosen.python, _ROUNDER, {"out": folder, "blocks": sizes})
    others = count = 0
    with np.load(f"{folder}/products.npz") as rows, np.load(f"{folder}/bytes.npz") as found:
        for key in found:
            name, _, kind = key.rpartition(":")
            wanted = found[key].view(_BLOCKS[kind])[:, 0]
            size = wanted["codes"].shape[1]
            codes, step, kept = (
                each.numpy().reshape(len(wanted), -1)
                for each in quantised_rows(Tensor(rows[name]), size)
            )
            # Codes and their scale may both have the other sign.
            sign = np.where(wanted["step"].astype(np.float64) * kept[:, 0] < 0, -1, 1)
            others += int((wanted["codes"] * sign[:, None] != codes).sum())
            others += int((wanted["step"] * sign != kept[:, 0].astype(wanted["step"].dtype)).sum())
            if kind == "q8_1":
                sums = codes.sum(-1, dtype=np.int32).astype(np.float32) * step[:, 0]
                others += int((sums.astype(np.float16) != wanted["sum"]).sum())
            count += codes.size
    print(f"{count} numbers as bytes, their scales and sums: {others} are not llama.cpp's")
    return bool(others or not count)


def their_scores(
    python: str, path: str, folder: str, texts: list[list[int]],
    ways: tuple[bool, ...] = (False,), least: int = 0,
) -> list[list[Scores]]:
    """llama.cpp's scores of texts, by tiles of keys and not (`ways`), of `least` tokens at once."""
    job = {"file": path, "tokens": texts, "out": folder, "ways": ways, "least": least}
    _ask(python, _PEER, job)
    return [
        [np.load(f"{folder}/{way:d}-{number}.npy") for number in range(len(texts))] for way in ways
    ]


def compare_products(path: str, folder: str, chosen: argparse.Namespace) -> bool:
    """Print how far products of llama.cpp's numbers are from its own, and whether that is too far.

    All are of the same numbers, so no difference comes from a product before.
    """
    file = GgufFile.open(path)
    tokens = tokenizer_of(file.metadata).encode(TEXTS[0])
    _ask(chosen.python, _WATCHER, {"file": path, "tokens": tokens, "out": folder})
    source = DeviceWeights(GgufWeights(file), is_exact=chosen.exact)
    worst, count = 0.0, 0
    with np.load(f"{folder}/products.npz") as found:
        for name in (key.removesuffix(":in") for key in found if key.endswith(":in")):
            wanted = found[f"{name}:out"]
            ours = source.weight(name).linear(Tensor(found[f"{name}:in"]), wide=True).numpy()
            worst = max(worst, float(np.abs(ours - wanted).max() / np.abs(wanted).max()))
            count += 1
    print(f"{count} products of llama.cpp's numbers: off by {worst:.1e} of the largest at most")
    return worst > SUMS or not count


def compare_texts(path: str, chosen: argparse.Namespace) -> bool:
    """Print where greedy texts part, and return whether one does that should not.

    Where activations are rounded, llama.cpp's texts part from its own as well; so none has to stay.
    """
    context = 256
    settings = EngineSettings(context=context, rows=1, cache="f16", exact=chosen.exact)
    model = open_to_ask(path, settings, chats=False)
    prompts = [model.tokenizer.encode(text) for text in TEXTS]
    theirs, tiled = [], []
    for by_tiles, texts in ((False, theirs), (True, tiled)):
        side = LlamaCppSide(chosen.python, path, chosen.threads, context, by_tiles=by_tiles)
        texts += [side(prompt, chosen.tokens).tokens for prompt in prompts]
        side.close()
    side, gaps = OurSide(model), []
    for text, prompt, wanted in zip(TEXTS, prompts, theirs, strict=True):
        found = side(prompt, chosen.tokens).tokens
        if (at := parting(found, wanted)) is not None:
            gaps.append(side.gap([*prompt, *found[:at]]))
            print(f"parts after {at} tokens, the two best {gaps[-1]:.4f} apart: {text[:60]!r}")
    model.close()
    far = sum(gap > CLOSE for gap in gaps)
    print(f"{len(TEXTS) - len(gaps)} of {len(TEXTS)} texts the same, {len(gaps) - far} part where "
          f"scores are close, {far} elsewhere")
    own = sum(parting(one, two) is not None for one, two in zip(theirs, tiled, strict=True))
    print(f"of llama.cpp's own, {own} part where it attends by tiles")
    return bool(chosen.exact and far)


def parting(first: list[int], second: list[int]) -> int | None:
    """After how many tokens two texts differ, None where they do not."""
    pairs = enumerate(zip(first, second, strict=True))
    return next((at for at, (one, two) in pairs if one != two), None)


def _ask(python: str, program: str, job: dict[str, Any]) -> None:
    subprocess.run([python, "-c", program], input=json.dumps(job), text=True, check=True,
                   stderr=subprocess.DEVNULL)  # fmt: skip


def widened(path: str, folder: str) -> str:
    """Write the weights of a file as float32 numbers, and return where."""
    values, stored = of_file(path)
    values["general.file_type"] = TypedValue(0, Kind.UINT32)
    numbers = by_name("F32")
    out = f"{folder}/widened.gguf"
    write_gguf(out, values, {
        name: one.rounded(numbers, lambda count: None) for name, one in stored.items()
    })
    return out


class _Moved:
    """A model whose embeddings are off by a little."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = copy.copy(model)
        self._model.embed = self._embed  # type: ignore[method-assign]
        self._embeddings = model.embed
        self._random = np.random.default_rng(0)
        self.traits, self.logits = model.traits, model.logits

    def __call__(self, *inputs: Any) -> Tensor:
        """Return the hidden states."""
        return self._model(*inputs)

    def _embed(self, words: Tensor) -> Tensor:
        vectors = self._embeddings(words)
        noise = NOISE * self._random.standard_normal(vectors.shape)
        return vectors * Tensor((1 + noise).astype(np.float32))


def scores(model: LanguageModel | _Moved, tokens: list[int]) -> Scores:
    """The scores after each of some tokens."""
    words = Tensor(np.array(tokens, np.int32))
    cache = ContiguousCache(model.traits, len(tokens))
    cache.place(0)
    places = Tensor(np.arange(len(tokens), dtype=np.int32))
    return model.logits(model(words, places, cache.layers)).numpy()


def mean_divergence(first: list[Scores], second: list[Scores]) -> float:
    """The mean divergence of the scores of all texts from others."""
    found = [divergence(one, two) for one, two in zip(first, second, strict=True)]
    return float(np.concatenate(found).mean())


def divergence(theirs: npt.ArrayLike, ours: npt.ArrayLike) -> Floats:
    """The Kullback-Leibler divergence of each row of scores from another, in nats."""
    first, second = (_log_softmax(np.asarray(each, np.float64)) for each in (theirs, ours))
    found: Floats = (np.exp(first) * (first - second)).sum(-1)
    return found


def _log_softmax(values: Floats) -> Floats:
    shifted = values - values.max(-1, keepdims=True)
    found: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
