"""random_bits: the numbers of Philox4x32-10, a pure function of key, counter and position."""

from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.layout import Buffer
from polyarr.core.spec import Spec


def random_bits(
    device: Device, out: Spec, key: int, counter: int, like: Buffer | None, *, shape: tuple[int, ...]
) -> Buffer:
    """Independent uniform 32-bit integers."""
    result = device.empty(out)
    work, group, span = device.geometry.items(-(-out.size // 4), least=256)
    device.build("random").random_bits(work, group, result.memory, key, counter, out.size, span)
    return result
