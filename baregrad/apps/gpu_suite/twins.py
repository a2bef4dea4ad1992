"""Our models once more by PyTorch's modules, with the same names of parameters.

Classes are made when PyTorch is there, so that nothing imports it early.
"""

from __future__ import annotations

from typing import Any

from baregrad.apps.resnet import DEPTHS_50, EXPANSION


def language_model_of_torch(
    torch: Any, depth: int, width: int, heads: int, words: int, length: int
) -> Any:
    """GPT-2, whose scores share the weights of the words: (N, L) -> (N, L, words)."""
    nn, functional = torch.nn, torch.nn.functional

    class SelfAttention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width)
            self.mix = nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            parts = self.qkv(x).chunk(3, -1)
            mixed = functional.scaled_dot_product_attention(
                *(part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts),
                is_causal=True,
            )
            return self.mix(mixed.transpose(1, 2).flatten(2))

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm(width)
            self.attend = SelfAttention()
            self.norm2 = nn.LayerNorm(width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            x = x + self.attend(self.norm1(x))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Words(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, width)
            self.places = nn.Embedding(length, width)
            self.blocks = nn.Sequential(*[Block() for _ in range(depth)])
            self.norm = nn.LayerNorm(width)

        def forward(self, ids: Any) -> Any:
            x = self.words(ids) + self.places.weight[: ids.shape[1]]
            return functional.linear(self.norm(self.blocks(x)), self.words.weight)

    return Words()


def image_model_of_torch(torch: Any) -> Any:
    """ResNet-50: (N, 3, H, W) -> (N, 1000)."""
    nn = torch.nn

    class Bottleneck(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            outputs = EXPANSION * width
            self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(width)
            self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(outputs)
            self.downsample = None
            if stride != 1 or inputs != outputs:
                self.downsample = nn.Sequential(
                    nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
                    nn.BatchNorm2d(outputs),
                )

        def forward(self, x: Any) -> Any:
            shortcut = x if self.downsample is None else self.downsample(x)
            y = self.bn1(self.conv1(x)).relu()
            y = self.bn2(self.conv2(y)).relu()
            return (self.bn3(self.conv3(y)) + shortcut).relu()

    class Network(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
            self.bn1 = nn.BatchNorm2d(64)
            self.pool = nn.MaxPool2d(3, stride=2, padding=1)
            blocks, inputs = [], 64
            for stage, depth in enumerate(DEPTHS_50):
                for number in range(depth):
                    stride = 2 if stage and not number else 1
                    blocks.append(Bottleneck(inputs, 64 << stage, stride))
                    inputs = EXPANSION * (64 << stage)
            self.layers = nn.Sequential(*blocks)
            self.fc = nn.Linear(inputs, 1000)

        def forward(self, x: Any) -> Any:
            x = self.pool(self.bn1(self.conv1(x)).relu())
            return self.fc(self.layers(x).mean((2, 3)))

    return Network()
