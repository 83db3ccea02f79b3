"""random_bits: the numbers of Philox4x32-10, a pure function of key, counter and position."""

from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.layout import Buffer
from polyarr.core.spec import Spec

GROUP = 128  # work-items per group on a GPU


def random_bits(
    device: Device, out: Spec, key: int, counter: int, like: Buffer | None, *, shape: tuple[int, ...]
) -> Buffer:
    """Independent uniform 32-bit integers."""
    result = device.empty(out)
    blocks = -(-out.size // 4)
    items = min(8 * device.features.compute_units, -(-blocks // 256)) if device.is_cpu else blocks
    group = 1 if device.is_cpu else GROUP
    device.build("random").random_bits(
        (-(-items // group) * group,), (group,), result.memory, key, counter, out.size,
        -(-blocks // items) if items else 1,
    )  # fmt: skip
    return result
