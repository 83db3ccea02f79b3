"""POLYARR_CHECK_LAUNCHES: the launches that it refuses, and that it is inactive by default."""

from importlib import import_module

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.backend import Fused
from polyarr.core.errors import BackendError
from tests.helpers.opencl_modules import opencl_modules

pytest.importorskip("pyopencl")
pytestmark = pytest.mark.polyarr_backend("opencl")
commands, device_module, devices, replay, table = opencl_modules("commands", "device", "devices", "replay", "table")

F32, F16 = pa.Spec((4, 6), pa.float32), pa.Spec((4, 6), pa.float16)


def another():
    """Return another device on the same hardware, with its own memory."""
    return device_module.Device(devices.select().cl_device, "another")


@pytest.fixture
def device(backend, monkeypatch):
    monkeypatch.setenv("POLYARR_CHECK_LAUNCHES", "1")
    return another()


@pytest.fixture
def x(device):
    return device.upload(np.ones((4, 6), np.float32))


def call(device, op, *args, part=None, **params):
    kernel = table.make_kernels(device)[op]
    return (getattr(kernel, part) if part else kernel)(*args, **params)


def test_what_fits_is_computed(device, x):
    assert (device.download(call(device, ops.add, F32, x, x)) == 2).all()


def test_an_input_of_another_dtype(device, x):
    half = device.upload(np.ones((4, 6), np.float16))
    with pytest.raises(BackendError, match=r"^add: .* given float16\[4, 6\], float32\[4, 6\]; they must be cast"):
        call(device, ops.add, F32, half, x)
    with pytest.raises(BackendError, match=r"given float16\[4, 6\] to make float32\[4, 6\] of; the op makes float16"):
        call(device, ops.negative, F32, half)


def test_an_input_of_another_shape(device, x):
    with pytest.raises(BackendError, match=r"^matmul: its kernel was given float32\[4, 6\], float32\[4, 6\]; matmul:"):
        call(device, ops.matmul, pa.Spec((4, 4), pa.float32), x, x)


def test_a_cotangent_of_another_dtype(device, x):
    y, saved = call(device, ops.softmax, F32, x, part="forward", axis=1)
    half = device.upload(np.ones((4, 6), np.float16))
    pulled = {"part": "backward", "wanted": (True,), "axis": 1}
    with pytest.raises(BackendError, match=r"^softmax: .* given a cotangent float16\[4, 6\]; it must be float32"):
        call(device, ops.softmax, half, saved, x, **pulled)
    assert call(device, ops.softmax, y, saved, x, **pulled)[0].shape == (4, 6)


def test_a_cotangent_that_autograd_lets_through(backend, monkeypatch):
    """The switch exists for this fault: the device's check catches it even without autograd's own."""
    monkeypatch.setattr("polyarr.autograd.arguments.check_gradient", lambda *_: None)
    kernels = table.checked_kernels(backend.home, {ops.softmax: backend.kernels[ops.softmax]})
    with pa.use_backend(backend._replace(kernels={**backend.kernels, **kernels})):
        value, pull = pa.vjp(ops.softmax, pa.ones((4, 6)))
        with pytest.raises(BackendError, match="cotangent float16"):
            pull(value.astype("float16"))


def test_memory_that_is_too_small(device, x):
    with pytest.raises(BackendError, match=r"^negative: .* given float32\[40, 60\] at elements 0 to 2399 of"):
        call(device, ops.negative, pa.Spec((40, 60), pa.float32), x._replace(shape=(40, 60), strides=(60, 1)))


def test_memory_of_another_device(device, x):
    if not isinstance(device.driver, import_module("polyarr.backends.opencl.runtime.driver").OpenCL):
        pytest.skip("an address does not say on which of CUDA's devices it is")
    far = another().upload(np.ones((4, 6), np.float32))
    with pytest.raises(BackendError, match=r"^add: .* given float32\[4, 6\] in memory of another device than"):
        call(device, ops.add, F32, x, far)
    with pytest.raises(BackendError, match=r"^copy: argument 1 is memory of another device"):
        device.commands.copy((96,), None, x.memory, far.memory)


def test_a_result_that_is_not_what_the_op_makes(device, x, monkeypatch):
    monkeypatch.setitem(table.KERNELS, ops.negative, lambda device, out, x: device.empty(F16))
    with pytest.raises(BackendError, match=r"^negative: its kernel gave float16\[4, 6\]; it must be float32\[4, 6\]"):
        call(device, ops.negative, F32, x)
    pair = (lambda device, out, x: (x, None), lambda device, g, saved, x, wanted: (device.empty(F16),), {})
    monkeypatch.setitem(table.PAIRS, ops.gelu, pair)
    with pytest.raises(BackendError, match=r"^gelu: its kernel gave as the gradient of x float16\[4, 6\]; it must be"):
        call(device, ops.gelu, x, None, x, part="backward", wanted=(True,))


def test_a_replayed_program_looks_at_its_inputs(device, backend):
    add_one = pa.compile(lambda x: x * 2 + 1)
    with pa.use_backend(backend._replace(replay=lambda *program: replay.CheckedReplay(backend.home, *program))):
        good = pa.ones((4, 6))
        assert (add_one(good).numpy() == 3).all()
        wrong = Array(good.backend, good.astype("float16").buf, good.spec)
        with pytest.raises(BackendError, match=r"input \d+ is float16\[4, 6\]; it was captured as float32\[4, 6\]"):
            add_one(wrong)


def test_nothing_is_in_the_way_without_the_switch(backend, monkeypatch):
    monkeypatch.setenv("POLYARR_CHECK_LAUNCHES", "0")
    device = another()
    plain = table.following(device, table.KERNELS[ops.add]).__code__
    for kernel in table.make_kernels(device).values():
        assert all(part.__code__ is plain for part in (kernel[:2] if isinstance(kernel, Fused) else (kernel,)))
    assert device.commands.copy._enqueue == device.driver.copy
