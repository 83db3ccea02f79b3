"""A polyarr backend on JAX: a table of kernels made of JAX's functions."""

import numpy as np

from polyarr import ops
from polyarr.backends.kernels import Library, make_kernels
from polyarr.core.backend import Backend, DLPack
from polyarr.core.spec import FLOATS, float16
from polyarr.plugins import hookimpl


@hookimpl
def polyarr_backends(register):
    register("jax", start, summary="JAX's arrays, op by op", install_hint="pip install jax", api=2)


def start():
    import jax

    jax.config.update("jax_enable_x64", True)  # enables float64, for the whole process

    def matmul(x, y):  # on a CPU, XLA accumulates sequentially
        return jax.numpy.matmul(x, y, preferred_element_type="float64" if x.dtype in FLOATS else None)

    library = Library(jax.numpy)
    library.matmul = matmul
    kernels = make_kernels(library, erf=jax.scipy.special.erf)
    for op in (ops.sinh, ops.cosh):  # JAX's lose a digit for large numbers; polyarr's decompositions run instead
        del kernels[op]

    def adopt(x):  # only memory of JAX's own device
        if tuple(x.__dlpack_device__()) != tuple(jax.numpy.zeros(()).__dlpack_device__()):
            raise BufferError("it lies on another device than JAX's arrays")
        try:
            return jax.dlpack.from_dlpack(x)
        except (RuntimeError, ValueError) as error:  # strides that are not contiguous
            raise BufferError(str(error)) from None

    flushed = frozenset(FLOATS) - {float16}  # by XLA; denormal numbers of float16 are normal ones in float32
    return Backend(
        "jax",
        kernels,
        upload=lambda host: jax.numpy.array(host.copy()),  # JAX may read its argument later
        download=lambda buf: np.array(buf, order="C"),
        hardware=str(jax.devices()[0]),
        flushes=flushed,
        dlpack=DLPack(lambda buf: buf, adopt),
    )
