"""Channel groups that are merged for matrix units, whose tiles are wider than a group with few channels.

The filters of merged groups cover the channels of all of them, with zeros outside their own.
"""

from math import prod

from polyarr.backends.opencl.copying.copy import dense, write
from polyarr.backends.opencl.elementwise.elementwise import launch
from polyarr.backends.opencl.nvidia.conv_wgmma import STEP
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, Shape, reshaped, view
from polyarr.core.spec import Spec


def groups_to_merge(groups: int, weight: Shape, rows: int = STEP) -> int:
    """Return how many groups to merge, so that channels and filters fill whole steps; 0 if no number does."""
    if groups == 1:
        return 1
    n, c = weight[0] // groups, weight[-1]
    for count in range(1, groups + 1):
        if groups % count == c * count % STEP == n * count % (STEP if count == groups else rows) == 0:
            return count
    return 0


def own_channels(joined: Buffer, weight: Shape, groups: int, count: int) -> Buffer:
    """Return a view (groups / count, count, ...) of the filters' own channels within merged groups."""
    (n, *kernel, c), row = weight, count * weight[-1]
    each, size = n // groups, prod(kernel) * row
    shape = groups // count, count, each, prod(kernel), c
    return view(joined, shape, (count * each * size, each * size + c, size, row, 1), 0)


def merged_filters(device: Device, filters: Buffer, weight: Shape, groups: int, count: int) -> Buffer:
    """Return the filters of merged groups, dense, with zeros outside their own channels."""
    filters = dense(device, filters)
    if count == 1:
        return filters
    joined = launch(device, Spec((*weight[:-1], count * weight[-1]), filters.dtype), 0)
    own = own_channels(joined, weight, groups, count)
    write(device, own, reshaped(filters, own.shape))
    return joined
