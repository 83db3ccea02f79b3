"""LeNet-5: a small convolutional network for images of digits, (B, H, W, C)."""

import math

from polyarr import ops
from polyarr.core.array import Array
from polyarr.nn import Conv2d, Linear, MaxPool, Module
from polyarr.ops.validation import whole


class LeNet(Module):
    """LeNet-5 with relu and max pooling: two convolutions and three linear layers.

    The filters are 5 x 5. The first convolution keeps the size of the image.

    Args:
        size: Height and width of the images; below 12 the second convolution needs padding "same".
        channels: Number of channels of the images.
        num_classes: Number of classes.
        padding: Padding of the second convolution, "valid" or "same".
        widths: Channels of the two convolutions.

    Raises:
        ValueError: `size` is too small.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr.models import LeNet
        >>> LeNet(size=8, padding="same")(pa.ones((2, 8, 8, 1))).shape
        (2, 10)

    Source: LeCun, Bottou, Bengio, Haffner 1998, "Gradient-based learning applied to document recognition"
    """

    def __init__(
        self,
        size: int = 28,
        channels: int = 1,
        num_classes: int = 10,
        *,
        padding: str = "valid",
        widths: tuple[int, int] = (6, 16),
    ) -> None:
        size = whole("LeNet", "size", size)
        left = (size // 2 - (4 if padding == "valid" else 0)) // 2
        if left < 1:
            raise ValueError(f"LeNet: size is {size}, padding is {padding!r}; the second pool must leave something")
        self.conv1 = Conv2d(channels, widths[0], 5, padding="same", activation="relu")
        self.conv2 = Conv2d(widths[0], widths[1], 5, padding=padding, activation="relu")
        self.pool = MaxPool(2)
        self.linear1 = Linear(widths[1] * left * left, 120, activation="relu")
        self.linear2 = Linear(120, 84, activation="relu")
        self.head = Linear(84, num_classes)

    def __call__(self, x: Array) -> Array:
        """Return logits (B, num_classes) for images (B, H, W, C)."""
        x = self.pool(self.conv1(x))  # (B, H / 2, W / 2, C)
        x = self.pool(self.conv2(x))
        x = ops.reshape(x, shape=(x.shape[0], math.prod(x.shape[1:])))
        return self.head(self.linear2(self.linear1(x)))
