"""Whole models of which bytes or values are changed: read, or refused as ours, in little memory."""

from __future__ import annotations

import copy
import json
import random
import resource
import shutil
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baregrad import safe_save
from baregrad.base.errors import BaregradError
from baregrad.llm.generation.opened import chat_template_of, tokenizer_of_files
from baregrad.llm.models.loading import open_model
from tests.llm.commands.small_model import write_model
from tests.llm.models.plain_decoder import FAMILIES
from tests.llm.models.test_folders import SIZES, USUAL, theirs, write_config
from tests.llm.text import test_folder

MOST_MIB = 1024
JUNK: tuple[Any, ...] = (
    None, 0, -1, 1, 2**31, 2**63, 2**64, 1e400, -0.0, 1.5, "", "silu", [], {}, [1], {"a": 1}, True,
    False, "\ud800", "a" * 5000, [[]], 10**30, "<s>", "../a",
)  # fmt: skip
COUNTS = (0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def changed_bytes(rng: random.Random, data: bytes, head: int) -> bytes:
    """A file that is cut, or whose beginning is changed."""
    found = bytearray(data)
    at, to = (rng.randrange(4, head) for _ in range(2))
    kind = rng.randrange(6)
    if kind == 0:
        del found[rng.randrange(len(found)) :]
    elif kind == 1:
        for _ in range(rng.randrange(1, 12)):
            found[rng.randrange(head)] = rng.randrange(256)
    elif kind == 2:
        found[at : at + 8] = struct.pack("<Q", rng.choice((*COUNTS, rng.randrange(2**40))))
    elif kind == 3:
        found[at:at] = rng.randbytes(rng.randrange(1, 64))
    elif kind == 4:
        del found[at : at + rng.randrange(1, 64)]
    else:
        found[to : to + 100] = found[at : at + 100]
    return bytes(found)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to the values within a value, of long arrays the first few."""
    keys: Any = value if isinstance(value, dict) else ()
    if isinstance(value, list):
        keys = range(min(len(value), 4))
    for key in keys:
        yield (*path, key)
        yield from places(value[key], (*path, key))


def changed_json(rng: random.Random, text: bytes) -> bytes:
    """JSON of which some values are gone, or nonsense."""
    found = json.loads(text)
    for _ in range(rng.randrange(1, 4)):
        paths = list(places(found))
        *way, last = rng.choice(paths) if paths else ("a",)
        inner = found
        for key in way:
            inner = inner[key]
        if rng.random() < 0.3 and paths:
            del inner[last]
        else:
            inner[last] = copy.deepcopy(rng.choice(JUNK))
    return json.dumps(found).encode()


def outcome(path: Path) -> str:
    """What comes of opening a model: "read", or the error's class; others are raised."""
    try:
        files = open_model(path)
        tokenizer = tokenizer_of_files(files)
        tokenizer.encode("Hello <|im_end|> 12 \U0001f469")
        chat_template_of(files, tokenizer)
        files.decoder()
    except BaregradError as error:
        assert len(str(error)) < 2000
        return type(error).__name__
    return "read"


def check(kinds: Counter[str]) -> None:
    """Both happened, and memory was never large."""
    assert kinds["read"] and kinds["FileFormatError"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert peak < MOST_MIB, f"{peak:.0f} MiB"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_files(part: int, tmp_path: Path) -> None:
    """A tenth of 20,000."""
    data = write_model(tmp_path / "whole.gguf").read_bytes()
    head = data.index(b"token_embd.weight") + 2000
    rng, path, kinds = random.Random(part), tmp_path / "changed.gguf", Counter[str]()
    for _ in range(2000):
        path.write_bytes(changed_bytes(rng, data, head))
        kinds[outcome(path)] += 1
    check(kinds)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_folders(part: int, tmp_path: Path) -> None:
    """A quarter of 4,000, of tokenisers of all kinds."""
    rng, kinds, whole = random.Random(part), Counter[str](), tmp_path / "whole"
    whole.mkdir()
    test_folder.write(whole, test_folder.KINDS[part])
    tensors = theirs(replace(FAMILIES["mixtral"], rope="neox").draw(), USUAL, "model.layers")
    names = {name: f"model-{1 + ('.1.' in name)}.safetensors" for name in tensors}
    for file in set(names.values()):
        safe_save({n: t for n, t in tensors.items() if names[n] == file}, whole / file)
    (whole / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    write_config(whole, {**SIZES, "model_type": "mixtral", "intermediate_size": 16,
                         "num_local_experts": 6, "num_experts_per_tok": 2,
                         "sliding_window": None, "rope_theta": 1e4})  # fmt: skip
    path = tmp_path / "changed"
    for _ in range(1000):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        file = rng.choice(sorted(path.iterdir()))
        data = file.read_bytes()
        if file.suffix == ".json" and rng.random() < 0.75:
            file.write_bytes(changed_json(rng, data))
        else:
            file.write_bytes(changed_bytes(rng, data, min(len(data), 3000)))
        kinds[outcome(path)] += 1
    check(kinds)
