"""Faults in batch, group and instance norms: statistics over the wrong axes, mixed groups, constant moments."""

import numpy as np

from polyarr import ops
from tests.testing.negative_controls import fused_kernels
from tests.testing.negative_controls.fused_kernels import image_norm, over_the_batch, over_the_group
from tests.testing.negative_controls.gradients import plant
from tests.testing.negative_controls.table import differs


def interleaved(x, groups):
    """Group channels that are not neighbors."""
    return np.swapaxes(fused_kernels.split(x, x.shape[-1] // groups), 1, 2)


def interleaved_back(parts, shape):
    return fused_kernels.joined(np.swapaxes(parts, 1, 2), shape)


def over_the_places(parts):
    return (3,)


def planted(name, op, fused, *cases):
    named = (f"{case}-{op.name}" if isinstance(case, str) else case for case in cases)
    plant(f"{op.name}: {name}", {op: fused}, *named)


SHOWN = (
    ("forward-batch_norm", differs("(the result|result 0)")),
    ("fused-batch_norm", differs("the fused kernel's result")),
)
ALL = {"moments": True}
planted("statistics of each sample", ops.batch_norm, image_norm(over_the_places, **ALL), *SHOWN)
planted("statistics of the batch at each place", ops.batch_norm, image_norm(lambda parts: (0,), **ALL), *SHOWN)
planted("statistics of all channels", ops.batch_norm, image_norm(lambda parts: (0, 1, 2, 3), **ALL), *SHOWN[1:])
planted("the variance divides by n - 1", ops.batch_norm, image_norm(over_the_batch, spare=1, **ALL), *SHOWN)
for _moment, _axis in (("mean", 1), ("variance", 2)):
    planted(
        f"the {_moment} has no slope", ops.batch_norm, image_norm(over_the_batch, **ALL, **{f"of_{_moment}": 0}),
        ("backward-batch_norm", differs("d/dx")), ("fused-batch_norm", differs("the fused kernel's d/dx")),
    )  # fmt: skip
planted(
    "groups mixed",
    ops.group_norm,
    image_norm(over_the_group, split=interleaved, joined=interleaved_back),
    "forward",
    "fused",
)
planted("statistics of the whole batch", ops.group_norm, image_norm(over_the_batch), "forward", "fused")
planted("statistics of each channel", ops.group_norm, image_norm(over_the_places), "forward", "fused")
planted("statistics of the whole batch", ops.instance_norm, image_norm(over_the_batch), "forward", "fused")
