"""ResNet-18 and ResNet-34 with group normalisation: Robust-HDP's networks for CIFAR, without statistics of batches."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

_GROUPS = 2


def _conv(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class _Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.norm1 = nn.GroupNorm(_GROUPS, outputs)
        self.conv2 = _conv(outputs, outputs, 3, 1)
        self.norm2 = nn.GroupNorm(_GROUPS, outputs)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.GroupNorm(_GROUPS, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Shortcut plus residual."""
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.short(x))


def resnet18(channels: int, classes: int) -> nn.Module:
    """11,181,642 parameters for three channels and ten classes."""
    return _resnet(channels, classes, (2, 2, 2, 2))


def resnet34(channels: int, classes: int) -> nn.Module:
    """21,335,972 parameters for three channels and a hundred classes."""
    return _resnet(channels, classes, (3, 4, 6, 3))


def _resnet(channels: int, classes: int, blocks: Sequence[int]) -> nn.Module:
    widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    stages = [
        nn.Sequential(_Block(a, b, stride), *(_Block(b, b, 1) for _ in range(count - 1)))
        for (a, b, stride), count in zip(widths, blocks, strict=True)
    ]
    stem = [_conv(channels, 64, 7, 2), nn.GroupNorm(_GROUPS, 64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
