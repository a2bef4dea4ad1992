"""Models whose training steps are typical: GPT-2, Llama, ViT, a U-Net, an LSTM; ResNets beside.

`training_steps` names one training step of each, whatever the dtype of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np

from baregrad import nn, optim
from baregrad.apps.resnet import ResNet50
from baregrad.tensor.tensor import Tensor


class PackedAttention(nn.Module):
    """Attention of heads of `width / heads`: (N, L, width) -> (N, L, width)."""

    def __init__(self, width: int, heads: int, is_causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.is_causal = is_causal
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """What each position takes from those that it sees."""
        parts = self.qkv(x).chunk(3, -1)
        heads = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]
        query, key, value = heads
        mixed = query.scaled_dot_product_attention(key, value, is_causal=self.is_causal)
        result: Tensor = self.mix(mixed.transpose(1, 2).flatten(2))
        return result


class TransformerBlock(nn.Module):
    """Attention and two layers with GELU, each normalised first and added."""

    def __init__(self, width: int, heads: int, is_causal: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attend = PackedAttention(width, heads, is_causal)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(N, L, width) -> (N, L, width)."""
        x = x + self.attend(self.norm1(x))
        result: Tensor = x + self.down(self.up(self.norm2(x)).gelu("tanh"))
        return result


class GPT(nn.Module):
    """The language model of A. Radford and others, 2019: (N, L) words -> (N, L, words) scores.

    The scores share the weights of the words. By default it is the one of 124 million parameters.
    """

    def __init__(
        self, depth: int = 12, width: int = 768, heads: int = 12, words: int = 50304,
        length: int = 1024,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[TransformerBlock(width, heads, True) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        """The scores of every next word."""
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        result: Tensor = self.norm(self.blocks(x)).linear(self.words.weight)
        return result


class GatedBlock(nn.Module):
    """Attention whose queries share keys, and a gated layer, as H. Touvron and others' of 2023.

    Places are told by rotations; rows are divided by their root mean square first.
    """

    def __init__(self, width: int, heads: int, key_heads: int, hidden: int) -> None:
        super().__init__()
        each = width // heads
        self.each = each
        self.norm1 = nn.RMSNorm(width, eps=1e-5)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, key_heads * each, bias=False)
        self.value = nn.Linear(width, key_heads * each, bias=False)
        self.mix = nn.Linear(width, width, bias=False)
        self.norm2 = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """(N, L, width) -> (N, L, width)."""

        def heads(rows: Tensor) -> Tensor:
            return rows.unflatten(-1, (-1, self.each)).transpose(1, 2)

        def turned(rows: Tensor) -> Tensor:
            first, second = heads(rows).chunk(2, -1)
            return Tensor.cat(
                [first * cosines - second * sines, second * cosines + first * sines], dim=-1
            )

        h = self.norm1(x)
        mixed = turned(self.query(h)).scaled_dot_product_attention(
            turned(self.key(h)), heads(self.value(h)), is_causal=True, enable_gqa=True
        )
        x = x + self.mix(mixed.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        result: Tensor = x + self.down(self.gate(h).silu() * self.up(h))
        return result


class Llama(nn.Module):
    """A language model of gated blocks: (N, L) words -> (N, L, words) scores."""

    def __init__(
        self, depth: int = 16, width: int = 2048, heads: int = 32, key_heads: int = 8,
        hidden: int = 8192, words: int = 32000, length: int = 1024,
    ) -> None:  # fmt: skip
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            [GatedBlock(width, heads, key_heads, hidden) for _ in range(depth)]
        )
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.scores = nn.Linear(width, words, bias=False)
        half = width // heads // 2
        angles = np.outer(np.arange(length), 5e5 ** -(np.arange(half) / half))
        self.register_buffer("cosines", Tensor(np.cos(angles).astype(np.float32)))
        self.register_buffer("sines", Tensor(np.sin(angles).astype(np.float32)))

    def forward(self, ids: Tensor) -> Tensor:
        """The scores of every next word."""
        x = self.words(ids)
        length = ids.shape[1]
        for block in self.blocks:
            x = block(x, self.cosines[:length], self.sines[:length])
        result: Tensor = self.scores(self.norm(x))
        return result


class ViT(nn.Module):
    """The image classifier of A. Dosovitskiy and others, 2021: (N, 3, H, W) -> (N, classes).

    By default ViT-S with patches of 16 pixels, for images of 224.
    """

    def __init__(
        self, depth: int = 12, width: int = 384, heads: int = 6, patch: int = 16, image: int = 224,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.first = Tensor.zeros(1, 1, width, requires_grad=True)
        self.places = Tensor.zeros(
            1, (image // patch) ** 2 + 1, width, requires_grad=True
        )
        self.blocks = nn.Sequential(*[TransformerBlock(width, heads, False) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class logits."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = Tensor.cat([self.first.expand(x.shape[0], 1, -1), x], dim=1) + self.places
        result: Tensor = self.scores(self.norm(self.blocks(x)[:, 0]))
        return result


class UNet(nn.Module):
    """A U-Net (O. Ronneberger and others, 2015) that normalises.

    (N, 3, H, W) -> (N, classes, H, W): two convolutions at each level, on the way down, which
    halves, and on the way up, by transposed ones.
    """

    def __init__(self, width: int = 64, levels: int = 3, classes: int = 32) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(
            [_twice(before, after) for before, after in zip([3, *widths], widths, strict=False)]
        )
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(2 * each, each, 2, stride=2) for each in widths[-2::-1]]
        )
        self.joined = nn.ModuleList([_twice(2 * each, each) for each in widths[-2::-1]])
        self.scores = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of every pixel."""
        passed: list[Tensor] = []
        for level, layer in enumerate(self.down):
            x = layer(x.max_pool2d(2) if level else x)
            passed.append(x)
        for up, joined, beside in zip(self.up, self.joined, passed[-2::-1], strict=True):
            x = joined(Tensor.cat([beside, up(x)], dim=1))
        result: Tensor = self.scores(x)
        return result


def _twice(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
    )  # fmt: skip


class WordLSTM(nn.Module):
    """An LSTM over words: (N, L) words -> (N, L, words) scores."""

    def __init__(self, width: int = 512, depth: int = 2, words: int = 8192) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.LSTM(width, width, depth, batch_first=True)
        self.scores = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        """The scores of every next word."""
        x, _ = self.layers(self.words(ids))
        result: Tensor = self.scores(x)
        return result


# --- training steps -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A model, the optimiser of its parameters, and the shapes of its batches.

    `x` is of class ids where `ids` is not 0, of images else; `y` of ids below `classes`. The ids
    stand in for the last axis of the scores, or for axis 1 of images'.
    """

    model: Callable[[], nn.Module]
    optimiser: Callable[[list[Tensor]], optim.Optimizer]
    x: tuple[int, ...]
    y: tuple[int, ...]
    ids: int
    classes: int

    def batch(self, random: np.random.Generator, dtype: str) -> tuple[Tensor, Tensor]:
        """Draw a batch; images are of `dtype`."""
        if self.ids:
            x = Tensor(random.integers(0, self.ids, self.x))
        else:
            x = Tensor(random.random(self.x, np.float32)).cast(dtype)
        return x, Tensor(random.integers(0, self.classes, self.y))


def train(model: nn.Module, optimiser: optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """Do one step and return the loss, the cross entropy of every score that `y` has an id for."""
    optimiser.zero_grad()
    scores: Tensor = model(x)
    if scores.ndim == 3:
        scores = scores.flatten(0, 1)
    loss: Tensor = scores.cross_entropy(y)
    loss.backward()
    optimiser.step()
    return loss


def _adamw(parameters: list[Tensor]) -> optim.Optimizer:
    return optim.AdamW(parameters, lr=6e-4, weight_decay=0.1)


def _sgd(parameters: list[Tensor]) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4)


def training_steps(few: bool = False) -> MappingProxyType[str, TrainingStep]:
    """The training steps by name; those of `few` have two layers where layers are alike."""
    depth, steps = (2, 4) if few else (12, 64)
    return MappingProxyType({
        "GPT-2": TrainingStep(
            partial(GPT, depth), _adamw, (8, 1024), (8 * 1024,), 50304, 50304
        ),
        "Llama": TrainingStep(
            partial(Llama, 2 if few else 16), _adamw, (8, 1024), (8 * 1024,), 32000, 32000
        ),
        "ResNet-50": TrainingStep(ResNet50, _sgd, (64, 3, 224, 224), (64,), 0, 1000),
        "ViT-S": TrainingStep(partial(ViT, depth), _adamw, (64, 3, 224, 224), (64,), 0, 1000),
        "U-Net": TrainingStep(UNet, _adamw, (16, 3, 128, 128), (16, 128, 128), 0, 32),
        "LSTM": TrainingStep(WordLSTM, _adamw, (64, steps), (64 * steps,), 8192, 8192),
    })
