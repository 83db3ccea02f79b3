"""Faults on OpenCL: memory, the host, a race, strides. Their kernels are built here, without polyarr's prelude.

PyOpenCL is imported when a fault is planted, so that the table can be read without it.
"""

import importlib
import math

import numpy as np

from polyarr import ops
from tests.testing.negative_controls.table import differs, fault, with_kernels

SOURCE = """
__kernel void negate(__global const float *x, __global float *y, const long size) {
    const long i = get_global_id(0);
    y[i] = i < size ? -x[i] : 0;
}
__kernel void add_up(__global const float *x, volatile __global float *sum) {
    const float before = *sum;
    barrier(CLK_GLOBAL_MEM_FENCE);  // so that it goes wrong every time
    *sum = before + x[get_global_id(0)];
}
"""


PROGRAMS = {}  # device -> the program of SOURCE


def device_of(backend):
    return importlib.import_module("polyarr.backends.opencl.devices").select(backend.name)


def dense(device, x):
    return importlib.import_module("polyarr.backends.opencl.copying.copy").dense(device, x)


def enqueue(device, name, work, group, *args):
    """Run a kernel of SOURCE."""
    cl = importlib.import_module("pyopencl")
    with device.lock:
        if device not in PROGRAMS:
            PROGRAMS[device] = cl.Program(device.context, SOURCE).build(["-w"])
        cl.Kernel(PROGRAMS[device], name)(device.queue, (work,), (group,), *args)


def of_floats(backend, op, run):
    """Give op a kernel for float32; other dtypes keep theirs."""
    own = backend.kernels[op]

    def kernel(out, x, **params):
        if out.dtype != "float32" or not x.size:
            return own(out, x, **params)
        device = device_of(backend)
        return run(device, out, dense(device, x), **params)

    return with_kernels(backend, {op: kernel})


@fault("opencl", {"bounds-negative": r"a kernel wrote to byte \d+ of \d+ bytes of memory \(4 bytes in all\)"})
def a_kernel_writes_beyond_its_output(backend):
    def run(device, out, x):
        y = device.empty(out)
        enqueue(device, "negate", x.size + 1, 1, x.memory, y.memory, np.int64(x.size))
        return y

    return of_floats(backend, ops.negative, run)


@fault("opencl", {"bounds-negative": r"the result \(float32\) differs at .*: nan, expected"})
def a_kernel_leaves_the_last_element_unwritten(backend):
    def run(device, out, x):
        y = device.empty(out)
        enqueue(device, "negate", max(x.size - 1, 1), 1, x.memory, y.memory, np.int64(x.size))
        return y

    return of_floats(backend, ops.negative, run)


@fault("opencl", {"transfers-exp": "the op made 1 uploads and 1 downloads; expected none"})
def an_op_goes_through_the_host(backend):
    own = backend.kernels[ops.exp]

    def kernel(out, x):
        device = device_of(backend)
        return own(out, device.write(device.read(dense(device, x))))

    return with_kernels(backend, {ops.exp: kernel})


@fault("opencl", {"memory-exp": r"\d+ bytes are in use that nobody holds"})
def results_are_kept(backend):
    own, kept = backend.kernels[ops.exp], []

    def kernel(out, x):
        kept.append(own(out, x))
        return kept[-1]

    return with_kernels(backend, {ops.exp: kernel})


@fault("opencl", {"forward-sum": differs()})
def work_items_add_to_one_number_without_atomics(backend):
    own = backend.kernels[ops.sum]

    def kernel(out, x, *, axis, keepdims, dtype):
        if out.dtype != "float32" or x.dtype != "float32" or out.size != 1 or not x.size:
            return own(out, x, axis=axis, keepdims=keepdims, dtype=dtype)
        device, x = device_of(backend), dense(device_of(backend), x)
        total = device.upload(np.zeros(out.shape, np.float32))
        enqueue(device, "add_up", x.size, x.size, x.memory, total.memory)
        return total

    return with_kernels(backend, {ops.sum: kernel})


@fault("opencl", {"layout-matrix_product": differs()})
def a_transposed_operand_is_read_as_if_it_were_not(backend):
    own = backend.kernels[ops.matrix_product]

    def kernel(out, x, y):
        return own(out, x, y._replace(strides=tuple(math.prod(y.shape[i + 1 :]) for i in range(y.ndim))))

    return with_kernels(backend, {ops.matrix_product: kernel})


@fault("opencl", {"layout-exp": differs()})
def the_offset_of_a_view_is_ignored(backend):
    own = backend.kernels[ops.exp]
    return with_kernels(backend, {ops.exp: lambda out, x: own(out, x._replace(offset=0))})
