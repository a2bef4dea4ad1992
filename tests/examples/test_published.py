"""Published architectures, as PyTorch programs, run here with other imports and nothing else.

Each program of the folder is written as its authors write it, small. What is compared are outputs
and the gradients of all parameters, with PyTorch's weights in both.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baregrad.base.options import options
from baregrad.tensor import Tensor

FOLDER = Path(__file__).with_name("published")
# How lines that import are translated; a line that none of these change stays as it is.
IMPORTS = (
    (r"^import torch\.(\S+) as (\w+)$", r"import baregrad.\1 as \2"),
    (r"^from torch\.nn\.parameter import", "from baregrad.nn import"),
    (r"^from torch\.(\S+) import", r"from baregrad.\1 import"),
    (r"^from torch import", "from baregrad import"),
    (r"^import torch\.utils\.data$", "import baregrad.data"),
    (r"^import torch$", "import baregrad as torch"),
)
# Of lines that import nothing, how many had to change: those that differ are named here.
CHANGED: dict[str, int] = {}


def translated(text: str) -> str:
    lines = []
    for line in text.splitlines():
        for pattern, by in IMPORTS:
            line = re.sub(pattern, by, line)
        lines.append(line)
    return "\n".join(lines)


def run(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(compile(text, "<published>", "exec"), found)
    return found


@lru_cache(maxsize=1)
def programs() -> dict[str, str]:
    """The text of the program of each architecture."""
    found = {}
    for path in sorted(FOLDER.glob("*.txt")):
        text = path.read_text()
        for name in re.findall(r'"([^"]+)":', text[text.index("\nMODELS") :].split("\n")[1]):
            found[name] = text
    return found


def arrays(wanted: list[tuple[str, tuple[int, ...]]]) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    made: list[np.ndarray[Any, Any]] = []
    for kind, shape in wanted:
        if kind == "float":
            made.append(rng.standard_normal(shape).astype(np.float32))
        elif kind == "ones":
            made.append(np.ones(shape, np.int64))
        else:
            made.append(rng.integers(0, int(kind.split()[1]), shape))
    return made


def outputs(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def total(parts: list[Any], kind: Any) -> Any:
    """A number of which gradients are compared: outputs, each element times another one."""
    found = None
    for place, part in enumerate(parts):
        if not part.requires_grad:
            continue
        weights = np.random.default_rng(place).standard_normal(tuple(part.shape))
        share = (part * kind(weights.astype(part.detach().numpy().dtype))).sum()
        found = share if found is None else found + share
    return found


# What divides by the deviation of few numbers, whose signs float32's rounding may turn.
DOUBLE = ("EfficientNet-B0", "ResNet-18", "ResNet-50")


def compare(name: str) -> None:
    text = programs()[name]
    torch.manual_seed(0)
    theirs_of, ours_of = run(text), run(translated(text))
    theirs, ours = theirs_of["MODELS"][name](), ours_of["MODELS"][name]()
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    ours.load_state_dict({key: Tensor(value.numpy()) for key, value in state.items()})
    given = arrays(theirs_of["INPUTS"][name])
    if name in DOUBLE:
        theirs, ours, given = theirs.double(), ours.double(), [x.astype(float) for x in given]
    wanted = outputs(theirs(*map(torch.tensor, given)))
    found = outputs(ours(*map(Tensor, given)))
    for ours_part, theirs_part in zip(found, wanted, strict=True):
        np.testing.assert_allclose(
            ours_part.detach().numpy(), theirs_part.detach().numpy(), rtol=1e-3, atol=2e-5
        )
    total(wanted, torch.tensor).backward()
    total(found, Tensor).backward()
    pairs = dict(ours.named_parameters())
    for key, parameter in theirs.named_parameters():
        if parameter.grad is None:
            continue
        got = pairs[key].grad
        assert got is not None, key
        scale = max(float(parameter.grad.abs().max()), 1e-3)
        np.testing.assert_allclose(
            got.numpy() / scale, parameter.grad.numpy() / scale, atol=2e-3, err_msg=key
        )


NAMES = sorted(programs())
# What runs quickly enough to be run every time, by NumPy.
QUICK = ("VAE", "graph network", "NeRF", "S4D")


@pytest.mark.differential
@pytest.mark.parametrize("name", QUICK)
def test_programs_run_as_they_are(name: str) -> None:
    with options.override(device="REF"):
        compare(name)


@pytest.mark.slow
@pytest.mark.differential
@pytest.mark.parametrize("name", NAMES)
def test_published_architectures_agree(name: str) -> None:
    compare(name)


def test_all_architectures_are_here() -> None:
    assert NAMES == sorted([
        "BERT", "DCGAN", "DiT", "EfficientNet-B0", "GPT-2", "LSTM language model", "Llama", "Mamba",
        "NeRF", "NeRF's sampling", "PINN", "PointNet++", "ResNet-18", "ResNet-50",
        "RetinaNet's head", "S4D", "Swin-T", "T5", "U-Net with attention", "VAE", "VQ-VAE", "ViT-S",
        "WaveNet", "Whisper-tiny", "graph network",
    ])  # fmt: skip
    assert all(count <= 2 for count in CHANGED.values())
