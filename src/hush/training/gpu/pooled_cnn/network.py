"""The network of a pooled CNN: blocks of convolution, ReLU and 2 x 2 max-pooling, and a linear layer.

Such a network is so small that the activations of an example stay on chip from one layer to the next, and so regular
that a step is a dozen launches for all clients, whatever their batch sizes (`hush.training.gpu.pooled_cnn.launch`).

A convolution's input lies padded with zeros, and the gradient for its output lies at the same pitch between zeros, so
that a kernel reads what a position sees at one address for the position plus one for the tap, and asks for no edges.

Guarantees:
    - A `PooledCnn` computes what the model's module computes.

Edge cases:
    - `pooled_cnn_of` is none for every other network, for one with hooks, for one of which a part is not trained, and
      where a layer is too wide for its kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from hush.models import Model
from hush.models.validation import has_hooks

_WIDE = 64  # channels that a kernel holds at a time
_CLASSES = 128
_COLUMNS = 5  # of taps
_SLACK = 512  # numbers after an example that a kernel may read and never uses


@dataclass(frozen=True, kw_only=True)
class Block:
    """A convolution, ReLU and max-pooling over windows of 2 x 2.

    Attributes:
        inputs: Channels.
        height: Of the input.
        width: Of the input.
        outputs: Channels.
        kernel: Taps along each axis.
        padding: Zeros around the input, along each axis.
        first: Where its weights begin in the vector; its biases follow.
    """

    inputs: int
    height: int
    width: int
    outputs: int
    kernel: tuple[int, int]
    padding: tuple[int, int]
    first: int

    @property
    def taps(self) -> int:
        """Weights of one output for one input channel."""
        return self.kernel[0] * self.kernel[1]

    @property
    def weights(self) -> int:
        """Weights without biases."""
        return self.outputs * self.inputs * self.taps

    @property
    def pitch(self) -> int:
        """From one row of the padded input to the next, and of the gradient."""
        return self.width + 2 * self.padding[1]

    @property
    def plane(self) -> int:
        """From one channel of the padded input to the next."""
        return (self.height + 2 * self.padding[0]) * self.pitch

    @property
    def size(self) -> tuple[int, int]:
        """Of the output before pooling."""
        high, wide = (
            n + 2 * p - k + 1 for n, p, k in zip((self.height, self.width), self.padding, self.kernel, strict=True)
        )
        return high, wide

    @property
    def pooled(self) -> tuple[int, int]:
        """Of the output."""
        return self.size[0] // 2, self.size[1] // 2

    @property
    def halo(self) -> tuple[int, int]:
        """Zeros around the gradient for the output, along each axis."""
        return self.kernel[0] - 1 - self.padding[0], self.kernel[1] - 1 - self.padding[1]

    @property
    def gradient_plane(self) -> int:
        """From one channel of that gradient to the next."""
        return (self.size[0] + 2 * self.halo[0]) * self.pitch

    @property
    def gradient_first(self) -> int:
        """Where that gradient's first number is."""
        return self.halo[0] * self.pitch + self.halo[1]

    @property
    def input_room(self) -> int:
        """Numbers from one example's padded input to the next."""
        return _even(self.inputs * self.plane + _SLACK)

    @property
    def gradient_room(self) -> int:
        """Numbers from one example's gradient to the next."""
        return _even(self.outputs * self.gradient_plane + self.halo[1] + _SLACK)


@dataclass(frozen=True)
class PooledCnn:
    """Blocks and a linear layer.

    Attributes:
        blocks: The convolutions.
        features: Inputs of the linear layer.
        classes: Its outputs.
        first: Where its weights begin in the vector; its biases follow, and they are the last.
    """

    blocks: tuple[Block, ...]
    features: int
    classes: int
    first: int

    @property
    def size(self) -> int:
        """Parameters."""
        return self.first + (self.features + 1) * self.classes


def pooled_cnn_of(model: Model, x: Tensor) -> PooledCnn | None:
    """The pooled CNN that a model is, for inputs like those of `x`; none for any other model."""
    parts, module = list(model.module.modules()), model.module
    if type(module) is not nn.Sequential or any(has_hooks(part) for part in parts) or x.ndim != 4:
        return None
    layers = list(module)
    if len(layers) < 5 or len(layers) % 3 != 2 or type(layers[-2]) is not nn.Flatten:
        return None
    if (layers[-2].start_dim, layers[-2].end_dim) != (1, -1) or not _all_trained(model):
        return None
    blocks: list[Block] = []
    shape, first = tuple(x.shape[1:]), 0
    for at in range(0, len(layers) - 2, 3):
        block = _block(layers[at], layers[at + 1], layers[at + 2], shape, first)
        if block is None or (blocks and block.inputs > _WIDE):
            return None
        blocks.append(block)
        shape, first = (block.outputs, *block.pooled), first + block.weights + block.outputs
    last, features = layers[-1], shape[0] * shape[1] * shape[2]
    if type(last) is not nn.Linear or last.bias is None or last.in_features != features or features == 0:
        return None
    return PooledCnn(tuple(blocks), features, last.out_features, first) if last.out_features <= _CLASSES else None


def _block(conv: nn.Module, relu: nn.Module, pool: nn.Module, shape: tuple[int, ...], first: int) -> Block | None:
    if type(conv) is not nn.Conv2d or type(relu) is not nn.ReLU or type(pool) is not nn.MaxPool2d:
        return None
    if conv.bias is None or conv.groups != 1 or conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        return None
    if conv.stride != (1, 1) or conv.dilation != (1, 1) or conv.in_channels != shape[0] or conv.out_channels > _WIDE:
        return None
    if pool.kernel_size not in (2, (2, 2)) or pool.stride not in (2, (2, 2)) or pool.padding not in (0, (0, 0)):
        return None
    if pool.dilation not in (1, (1, 1)) or pool.ceil_mode or pool.return_indices:
        return None
    kernel, padding = (conv.kernel_size[0], conv.kernel_size[1]), (int(conv.padding[0]), int(conv.padding[1]))
    block = Block(
        inputs=conv.in_channels,
        height=shape[1],
        width=shape[2],
        outputs=conv.out_channels,
        kernel=kernel,
        padding=padding,
        first=first,
    )
    fits = (
        block.kernel[1] <= _COLUMNS
        and min(block.halo) >= 0
        and min(block.pooled) >= 1
        and block.kernel[0] * block.pitch <= _SLACK // 2
    )
    return block if fits else None


def _all_trained(model: Model) -> bool:
    """Whether the vector holds every parameter, in the order of the layers, and none is used twice."""
    named = [name for name, _ in model.module.named_parameters(remove_duplicate=False)]
    return named == list(model.layout.names) and not any(True for _ in model.module.buffers())


def _even(size: int) -> int:
    return -(-size // 32) * 32
