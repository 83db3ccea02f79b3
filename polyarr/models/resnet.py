"""ResNet: networks of residual blocks for images (B, H, W, C)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from polyarr import ops
from polyarr.core.array import Array
from polyarr.nn import BatchNorm, Conv2d, Linear, MaxPool, Module, normal

RESNET_18: dict[str, Any] = {"blocks": (2, 2, 2, 2), "bottleneck": False}
RESNET_34: dict[str, Any] = {"blocks": (3, 4, 6, 3), "bottleneck": False}
RESNET_50: dict[str, Any] = {"blocks": (3, 4, 6, 3), "bottleneck": True}
PRESETS = {"resnet-18": RESNET_18, "resnet-34": RESNET_34, "resnet-50": RESNET_50}
EXPANSION = 4  # channels of a bottleneck block's output, as a multiple of those of its 3x3 convolution


@dataclass(frozen=True)
class ResNetConfig:
    """Configuration of a ResNet.

    Args:
        blocks: Number of blocks in each stage. Each stage but the first halves the image and doubles the channels.
        bottleneck: Whether blocks have a 3x3 convolution between two 1x1 ones, instead of two 3x3 convolutions.
        num_classes: Number of classes.
        channels: Channels of the image.
        width: Channels of the first stage.

    Raises:
        ValueError: A field is not a positive int.

    Examples:
        >>> from polyarr.models import ResNetConfig
        >>> ResNetConfig(blocks=(3, 4, 6, 3), bottleneck=True).num_classes
        1000
    """

    blocks: tuple[int, ...]
    bottleneck: bool = False
    num_classes: int = 1000
    channels: int = 3
    width: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", tuple(self.blocks))
        sizes = {"num_classes": self.num_classes, "channels": self.channels, "width": self.width}
        for name, size in [*sizes.items(), *(("blocks", n) for n in self.blocks or (0,))]:
            if type(size) is not int or size < 1:
                raise ValueError(f"ResNetConfig: {name} is {getattr(self, name)!r}; it must be positive")

    @classmethod
    def of(cls, given: "ResNetConfig | Mapping[str, Any]") -> Self:
        """Return the configuration that a mapping of its fields describes; a configuration is returned unchanged.

        Raises:
            ValueError: Keys are missing or unknown, or a value is out of range.
        """
        if isinstance(given, cls):
            return given
        try:
            return cls(**given)  # type: ignore[arg-type]
        except TypeError as error:
            raise ValueError(f"ResNetConfig: {error}") from None


def _conv(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> Conv2d:
    init = normal(math.sqrt(2 / (out_channels * kernel * kernel)))
    return Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, bias=False, init=init)


def _norm(conv: Conv2d) -> BatchNorm:
    """Return the batch norm after a convolution, with relu."""
    return BatchNorm(conv.weight.shape[0], activation="relu")


class ResidualBlock(Module):
    """Convolutions with batch norms and a residual connection; relu follows all norms but the last, and the sum."""

    def __init__(self, in_channels: int, width: int, stride: int, bottleneck: bool) -> None:
        channels = width * EXPANSION if bottleneck else width
        if bottleneck:
            self.convs = [_conv(in_channels, width, 1), _conv(width, width, 3, stride), _conv(width, channels, 1)]
        else:
            self.convs = [_conv(in_channels, width, 3, stride), _conv(width, channels, 3)]
        self.norms = [_norm(conv) for conv in self.convs[:-1]] + [BatchNorm(channels)]
        fits = stride == 1 and in_channels == channels
        self.shortcut = None if fits else [_conv(in_channels, channels, 1, stride), BatchNorm(channels)]

    def __call__(self, x: Array) -> Array:
        """Return the output (B, H / stride, W / stride, D) of the block for x (B, H, W, C)."""
        y = x
        for conv, norm in zip(self.convs, self.norms, strict=True):
            y = norm(conv(y))
        if self.shortcut:
            projection, last = self.shortcut
            x = last(projection(x))
        return ops.relu(x + y)


class ResNetModel(Module):
    """ResNet: a convolution, a max pool, stages of residual blocks, global average pooling and a linear head.

    A bottleneck block that halves the image does so in its 3x3 convolution. Filters are initialized normal with
    standard deviation sqrt(2 / (out * k * k)).

    Args:
        config: A ResNetConfig, or a mapping of its fields.

    Raises:
        ValueError: The configuration is invalid.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr.models import ResNetModel
        >>> model = ResNetModel({"blocks": (1, 1), "num_classes": 5, "width": 4}).eval()
        >>> model(pa.ones((2, 16, 16, 3))).shape
        (2, 5)

    Source: He, Zhang, Ren, Sun 2016, arXiv:1512.03385
    """

    def __init__(self, config: ResNetConfig | Mapping[str, Any]) -> None:
        self.config = config = ResNetConfig.of(config)
        self.conv = _conv(config.channels, config.width, 7, 2)
        self.norm = _norm(self.conv)
        self.pool = MaxPool(3, 2, 1)
        self.stages: list[list[ResidualBlock]] = []
        channels, grown = config.width, EXPANSION if config.bottleneck else 1
        for stage, count in enumerate(config.blocks):
            width = config.width * 2**stage
            strides = [1 if stage == 0 else 2, *[1] * (count - 1)]
            inputs = [channels, *[width * grown] * (count - 1)]
            pairs = zip(inputs, strides, strict=True)
            self.stages.append([ResidualBlock(n, width, stride, config.bottleneck) for n, stride in pairs])
            channels = width * grown
        self.head = Linear(channels, config.num_classes)

    def features(self, x: Array) -> Array:
        """Return the input of the head, (B, D), for images (B, H, W, C)."""
        x = self.pool(self.norm(self.conv(x)))  # (B, H / 4, W / 4, C)
        for stage in self.stages:
            for block in stage:
                x = block(x)
        return ops.mean(x, axis=(1, 2))

    def __call__(self, x: Array) -> Array:
        """Return logits (B, num_classes) for images (B, H, W, C)."""
        return self.head(self.features(x))
