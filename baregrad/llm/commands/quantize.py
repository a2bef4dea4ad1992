"""`baregrad quantize MODEL OUT --type Q4_K`: a model with smaller weights, as a GGUF file."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from baregrad.base.errors import ArgumentError
from baregrad.base.progress import ProgressBar
from baregrad.io.gguf import (
    GgmlType,
    GgufFile,
    GgufTensor,
    Kind,
    PackedWeight,
    TensorToWrite,
    TypedValue,
    by_name,
    write_gguf,
)
from baregrad.io.gguf.mixing import FILE_TYPES, type_for
from baregrad.io.gguf.quantise import quantise

# Elements that are widened at once.
PART = 1 << 22
# Version of the blocks' layouts (`general.quantization_version`).
LAYOUTS_VERSION = 2


def main(argv: list[str]) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="baregrad quantize",
        description="Write a model with quantised weights as a GGUF file. Vectors, norms and other "
        "small tensors stay as they are, the head keeps more bits, and rows that blocks of 256 do "
        "not divide get a type of smaller blocks.",
    )
    parser.add_argument("model", help="a GGUF file; of a split model its first part")
    parser.add_argument("out", help="the file to write")
    parser.add_argument("--type", default="Q4_K", metavar="TYPE",
                        help=f"one of {', '.join(FILE_TYPES)} (Q4_K)")  # fmt: skip
    parser.add_argument("--force", action="store_true", help="write over a file that is there")
    wanted = parser.parse_args(argv)
    if Path(wanted.out).exists() and not wanted.force:
        raise ArgumentError(f"{wanted.out!r} is there already", hint="--force writes over it")
    print(quantise_file(wanted.model, wanted.out, wanted.type))
    return 0


def quantise_file(model: str, out: str, type_name: str) -> str:
    """Write `model` quantised to a type and return what was written, in words.

    Raises ArgumentError for a type that models are not quantised to.
    """
    wanted = by_name(type_name)
    if wanted.name not in FILE_TYPES:
        raise ArgumentError(
            "models are not quantised to this type", found=wanted.name,
            wanted=f"one of {', '.join(FILE_TYPES)}",
        )  # fmt: skip
    with GgufFile.open(model) as file:
        values = {key: entry for key, entry in file.values.items() if not key.startswith("split.")}
        values["general.file_type"] = TypedValue(FILE_TYPES[wanted.name], Kind.UINT32)
        values["general.quantization_version"] = TypedValue(LAYOUTS_VERSION, Kind.UINT32)
        total = sum(int(np.prod(tensor.shape)) for tensor in file.tensors.values())
        with ProgressBar(total, "quantising") as bar:
            tensors = plan_tensors(file.tensors, wanted, bar.advance)
            write_gguf(out, values, tensors)
        before = sum(tensor.nbytes for tensor in file.tensors.values())
        twice = any(
            file.tensors[name].type.is_packed and file.tensors[name].type is not tensor.type
            for name, tensor in tensors.items()
        )
    return _summary(tensors, before, twice)


def plan_tensors(
    tensors: Mapping[str, GgufTensor], wanted: GgmlType, advance: Callable[[int], None]
) -> dict[str, TensorToWrite]:
    """What each tensor will be, made when it is written.

    advance: told the number of elements that are done.
    """
    has_head = "output.weight" in tensors
    return {
        name: _planned(
            tensor, type_for(name, tensor.shape, tensor.type, wanted, has_head), advance
        )
        for name, tensor in tensors.items()
    }


def _planned(
    tensor: GgufTensor, chosen: GgmlType, advance: Callable[[int], None]
) -> TensorToWrite:
    def make() -> npt.NDArray[np.generic]:
        if chosen is tensor.type:
            advance(int(np.prod(tensor.shape)))
            return tensor.raw()
        parts = []
        for values in _parts(tensor):
            parts.append(quantise(values, chosen))
            advance(values.size)
        return np.concatenate(parts)

    return TensorToWrite(chosen, tensor.shape, make)


def _parts(tensor: GgufTensor) -> Iterator[npt.NDArray[np.float32]]:
    """The rows of a tensor in float32, some at a time."""
    width = tensor.shape[-1]
    weight = PackedWeight.from_file(tensor, "CPU").as_rows()
    rows = int(np.prod(tensor.shape[:-1]))
    step = max(PART // width, 1)
    for start in range(0, rows, step):
        yield weight.at(slice(start, min(start + step, rows))).dense().numpy()


def _summary(tensors: Mapping[str, TensorToWrite], before: int, twice: bool) -> str:
    counts = Counter(tensor.type.name for tensor in tensors.values())
    after = sum(tensor.nbytes for tensor in tensors.values())
    kinds = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    text = f"{before / 1e6:.1f} MB of weights became {after / 1e6:.1f} MB: {kinds}"
    if twice:
        text += "\nsome weights were quantised before, and have been rounded twice"
    return text
