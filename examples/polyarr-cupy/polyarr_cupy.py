"""A polyarr backend on CuPy, for NVIDIA and AMD GPUs: a table of kernels made of CuPy's functions."""

from polyarr.backends.kernels import Library, make_kernels
from polyarr.core.backend import Backend, DLPack
from polyarr.core.spec import COMPLEX, DTYPES, bfloat16, float32
from polyarr.plugins import hookimpl


@hookimpl
def polyarr_backends(register):
    hint = "pip install cupy-cuda13x array-api-compat"
    register("cupy", start, summary="CuPy's arrays on a GPU", install_hint=hint, api=2)


def start():
    import array_api_compat.cupy as xp
    import cupy
    from cupyx.scipy.special import erf

    def remainder(x, y):  # CuPy's loses the digits of a large quotient, and returns nan for an infinite y
        if x.dtype.kind != "f":
            return cupy.remainder(x, y)
        found = cupy.fmod(x, y)
        return cupy.where((found != 0) & ((found < 0) != (y < 0)), found + y, found)

    def adopt(x):
        if tuple(x.__dlpack_device__()) != cupy.empty(0).__dlpack_device__():
            raise BufferError("it lies on another device than CuPy's arrays")
        return cupy.from_dlpack(x)

    library = Library(xp)
    library.remainder = remainder
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    return Backend(
        "cupy",
        make_kernels(library, erf),
        upload=cupy.array,
        download=lambda buf: cupy.asnumpy(buf, order="C"),
        synchronize=lambda: cupy.cuda.Device().synchronize(),
        dtypes=frozenset(DTYPES) - {bfloat16, *COMPLEX},
        hardware=properties["name"].decode(),
        flushes=frozenset({float32}),
        dlpack=DLPack(lambda buf: buf, adopt),
    )
