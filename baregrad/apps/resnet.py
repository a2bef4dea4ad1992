"""ResNet-18 and ResNet-50 as PyTorch's model zoo has them (He and others, 2015)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from baregrad import nn
from baregrad.tensor.tensor import Tensor

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
DEPTHS_50 = (3, 4, 6, 3)
# Channels of a bottleneck's output for each of its inner ones.
EXPANSION = 4


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: (N, C_in, H, W) -> (N, C_out, H/stride, W/stride)."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y))
        result: Tensor = (y + shortcut).relu()
        return result


class ResNet(nn.Module):
    """A stem, residual blocks whose last has `width` channels, and a classifier of their means.

    Blocks are made as they are asked for, after the stem: weights are drawn in the order of use.
    """

    def __init__(self, blocks: Iterable[nn.Module], width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layers = nn.Sequential(*blocks)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class logits."""
        x = self.bn1(self.conv1(x)).relu().max_pool2d(3, stride=2, padding=1)
        x = self.layers(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class ResNet18(ResNet):
    """The 18-layer residual network: (N, 3, H, W) -> (N, classes) logits."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__(_basic_blocks(), STAGES[-1][0], classes)


def _basic_blocks() -> Iterator[nn.Module]:
    width = STAGES[0][0]
    for outputs, stride in STAGES:
        yield BasicBlock(width, outputs, stride)
        yield BasicBlock(outputs, outputs)
        width = outputs


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones, and a shortcut.

    (N, C_in, H, W) -> (N, 4*width, H/stride, W/stride).
    """

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y)).relu()
        result: Tensor = (self.bn3(self.conv3(y)) + shortcut).relu()
        return result


class ResNet50(ResNet):
    """The 50-layer residual network: (N, 3, H, W) -> (N, classes) logits."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__(_bottlenecks(), EXPANSION * STAGES[-1][0], classes)


def _bottlenecks() -> Iterator[nn.Module]:
    inputs = STAGES[0][0]
    for (width, stride), depth in zip(STAGES, DEPTHS_50, strict=True):
        for number in range(depth):
            yield Bottleneck(inputs, width, 1 if number else stride)
            inputs = EXPANSION * width
