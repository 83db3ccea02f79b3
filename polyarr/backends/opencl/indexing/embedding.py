"""embedding: look up rows of a table; backward adds the gradient of each token to its row."""

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.elementwise.elementwise import launch
from polyarr.backends.opencl.indexing import index, segments
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, spec_of
from polyarr.core.spec import Spec


def forward(device: Device, out: Spec, weight: Buffer, indices: Buffer) -> tuple[Buffer, None]:
    """Return the rows of weight at these indices."""
    return index.take(device, out, weight, indices, axis=0, op="embedding"), None


def backward(
    device: Device, g: Buffer, saved: None, weight: Buffer, indices: Buffer, *, wanted: tuple[bool, bool]
) -> tuple[Buffer, None]:
    """Compute dweight[v], the sum of g over the positions whose index is v."""
    fault = device.faults.call("embedding")
    dweight = launch(device, spec_of(weight), 0)
    segments.add(device, fault, dweight, dense(device, g), dense(device, indices), axis=0)
    return dweight, None
