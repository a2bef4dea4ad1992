"""`baregrad quantize MODEL OUT --type Q4_K`: a model with smaller weights, as a GGUF file."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from baregrad.base.errors import ArgumentError
from baregrad.base.places import check_writable
from baregrad.base.progress import ProgressBar
from baregrad.io.gguf import (
    GgufFile,
    Kind,
    PackedWeight,
    TensorToWrite,
    TypedValue,
    Value,
    by_name,
    write_gguf,
)
from baregrad.io.gguf.mixing import FILE_TYPES, is_quantised, type_for
from baregrad.llm.commands.rounding import StoredMatrix
from baregrad.llm.models.architectures import ARCHITECTURES
from baregrad.llm.models.keys import architecture_of
from baregrad.llm.models.loading import open_model
from baregrad.llm.models.weights import WeightSource
from baregrad.llm.text.folder_vocabulary import vocabulary_metadata

# Version of the blocks' layouts (`general.quantization_version`).
LAYOUTS_VERSION = 2
# In which part of a split model a name says that it is.
_NUMBER = re.compile(r"-\d{5}(?=-of-\d{5}\.gguf$)")


def main(argv: list[str]) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="baregrad quantize",
        description="Write a model with quantised weights as a GGUF file. Vectors, norms and other "
        "small tensors stay as they are, the head keeps more bits, and rows that blocks of 256 do "
        "not divide get a type of smaller blocks.",
    )
    parser.add_argument(
        "model", help="a GGUF file (of a split model its first part), or a folder with "
        "safetensors, config.json and tokenizer.json",
    )
    parser.add_argument("out", help="the file to write")
    parser.add_argument("--type", default="Q4_K", metavar="TYPE",
                        help=f"one of {', '.join(FILE_TYPES)} (Q4_K)")  # fmt: skip
    parser.add_argument("--force", action="store_true", help="write over a file that is there")
    wanted = parser.parse_args(argv)
    try:
        _check_places(wanted.model, wanted.out, wanted.force)
        told = quantise_model(wanted.model, wanted.out, wanted.type)
    except OSError as error:
        raise ArgumentError(
            "the model cannot be written", found=f"{wanted.out}: {error.strerror}"
        ) from error
    print(told)
    return 0


def _check_places(model: str, out: str, force: bool) -> None:
    """Raise ArgumentError where there is no model, or where none can or should be written."""
    read, place = Path(model), Path(out)
    if not read.exists():
        raise ArgumentError("no model there", found=model, wanted="a GGUF file or a folder")
    check_writable(place, "no model can be written there")
    if not place.exists():
        return
    if place.samefile(read) or _is_read_with(place.resolve(), read.resolve()):
        raise ArgumentError("a model would be written over itself", found=out)
    if not force:
        raise ArgumentError(f"{out!r} is there already", hint="--force writes over it")


def _is_read_with(place: Path, model: Path) -> bool:
    """Whether a file is one of a model's folder, or another part of a split model."""
    if model.is_dir():
        return place.parent == model and place.suffix != ".gguf"
    one, other = (_NUMBER.sub("", str(path)) for path in (place, model))
    return one == other


def quantise_model(model: str, out: str, type_name: str) -> str:
    """Write a model, a GGUF file or a folder, quantised to a type; return what was done, in words.

    Raises ArgumentError for a type that models are not quantised to, UnsupportedError for a folder
    whose tokeniser GGUF files cannot tell, and what reading either raises.
    """
    if type_name.upper() not in FILE_TYPES:
        raise ArgumentError(
            "models are not quantised to this type", found=type_name,
            wanted=f"one of {', '.join(FILE_TYPES)}",
        )  # fmt: skip
    wanted = by_name(type_name)
    opened = of_folder(Path(model)) if Path(model).is_dir() else of_file(model)
    values, stored = opened
    values["general.file_type"] = TypedValue(FILE_TYPES[wanted.name], Kind.UINT32)
    values["general.quantization_version"] = TypedValue(LAYOUTS_VERSION, Kind.UINT32)
    has_head = "output.weight" in stored
    with ProgressBar(sum(one.size for one in stored.values()), "quantising") as bar:
        tensors = {
            name: one.rounded(type_for(name, one.shape, one.type, wanted, has_head), bar.advance)
            for name, one in stored.items()
        }
        write_gguf(out, values, tensors)
    return _summary(tensors, stored)


def of_file(path: str) -> tuple[dict[str, Value | TypedValue], dict[str, StoredMatrix]]:
    """Return the metadata and the tensors of a GGUF file."""
    file = GgufFile.open(path)
    values: dict[str, Value | TypedValue] = {
        key: entry for key, entry in file.values.items() if not key.startswith("split.")
    }
    stored = {
        name: StoredMatrix(
            tensor.type, tensor.shape, partial(PackedWeight.from_file, tensor, "CPU")
        )
        for name, tensor in file.tensors.items()
    }
    return values, stored


def of_folder(path: Path) -> tuple[dict[str, Value | TypedValue], dict[str, StoredMatrix]]:
    """Return what a GGUF file would say of a Hugging Face folder, and its tensors."""
    files = open_model(path, "CPU")
    source, name = files.source, architecture_of(files.metadata)
    words = source.shapes["token_embd.weight"][0]
    values = {**files.metadata, "general.name": path.name, **vocabulary_metadata(path, words)}
    values |= {f"general.sampling.{key}": value for key, value in files.sampling.items()}
    if files.template is not None:
        values["tokenizer.chat_template"] = files.template
    row = ARCHITECTURES.get(name)
    turned = row is not None and row.rope == "norm" and files.rope == "neox"
    heads = int(files.metadata.get(f"{name}.attention.head_count", 0)) if turned else 0
    shared = int(files.metadata.get(f"{name}.attention.head_count_kv", heads)) if turned else 0
    counts = {"attn_q": heads, "attn_k": shared}
    stored = {}
    for each, shape in source.shapes.items():
        part = each.split(".")[-2]
        is_small = len(shape) < 2 or not is_quantised(each, shape)
        load = partial(_vector, source, each) if is_small else partial(source.weight, each)
        kind = by_name("F32") if is_small else source.types[each]
        stored[each] = StoredMatrix(kind, shape, load, counts.get(part, 0))
    return values, stored


def _vector(source: WeightSource, name: str) -> PackedWeight:
    found = source.vector(name)
    return PackedWeight(by_name("F32"), found.shape, found)


def _summary(
    tensors: Mapping[str, TensorToWrite], stored: Mapping[str, StoredMatrix]
) -> str:
    counts = Counter(tensor.type.name for tensor in tensors.values())
    before = sum(one.size * one.type.bits / 8 for one in stored.values())
    after = sum(tensor.nbytes for tensor in tensors.values())
    kinds = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    text = f"{before / 1e6:.1f} MB of weights became {after / 1e6:.1f} MB: {kinds}"
    if any(one.type.is_packed and one.type is not tensors[name].type
           for name, one in stored.items()):  # fmt: skip
        text += "\nsome weights were quantised before, and have been rounded twice"
    return text
