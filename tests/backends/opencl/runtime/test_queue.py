"""The queue of an OpenCL device: all commands are enqueued through one module."""

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.array import read_later
from polyarr.core.errors import BackendError
from tests.helpers.opencl_modules import opencl_modules

pytest.importorskip("pyopencl")
on_opencl = pytest.mark.polyarr_backend("opencl")
commands, devices, faults = opencl_modules("commands", "devices", "faults")
DTYPES = {"int": "int32", "uint": "uint32", "long": "int64", "ulong": "uint64", "float": "float32", "double": "float64"}
# Patterns allowed only in certain modules, these modules, and code that violates the rule.
ROOMS = [
    (
        r"\benqueue_\w+\(|\bqueue\.(finish|flush)\(|\bcl\.Kernel\(",
        {"driver.py", "commands.py", "shared_memory.py"},  # the last has a queue of its own, too
        "cl.enqueue_copy(queue, a, b)",
    ),
    (r"\bpool\.allocate\(", {"device.py"}, "memory = device.pool.allocate(64)"),
    (r"\.is_cpu\b", {"geometry.py", "device.py"}, "4 if device.features.is_cpu else 8"),
    (r"_cache(\(.*\))?\ndef \w+\(\s*device: Device", {"plans.py"}, "@lru_cache(maxsize=8)\ndef tile(device: Device):"),
]


@pytest.mark.parametrize(("pattern", "rooms", "planted"), ROOMS, ids=["queue", "memory", "kind of device", "caches"])
def test_the_queue_is_used_in_one_module(pattern, rooms, planted):
    """All uses of the queue are in one module, so that observing, timing and replaying need only one hook."""
    sources = {path.name: path.read_text() for path in Path(commands.__file__).parents[1].rglob("*.py")}
    assert rooms <= set(sources) and re.search(pattern, planted)
    assert {name for name, text in sources.items() if re.search(pattern, text)} - rooms == set()


@pytest.fixture
def seen(monkeypatch):
    """Return the names of the commands called, in order."""
    names, call = [], commands.Command.__call__

    def noting(command, work, group, *args):
        names.append(command.name)
        return call(command, work, group, *args)

    monkeypatch.setattr(commands.Command, "__call__", noting)
    return names


@on_opencl
def test_kernels_copies_fills_and_transfers_are_commands(backend, seen, monkeypatch):
    x, at = pa.asarray([1.0, 2.0, 3.0]), pa.asarray([0, 2])
    assert seen == ["upload", "upload"]
    x.numpy()  # also reads the faults that kernels of earlier tests may have recorded
    del seen[:]
    (x + x).numpy()
    assert seen == ["elementwise", "transfer"]
    del seen[:]
    pa.ops.scatter_add(x, at, x[:2], axis=0)
    assert "copy" in seen
    pa.ops.scatter(x, pa.zeros(2000, dtype=pa.int64), pa.zeros(2000), axis=0)
    assert "fill" in seen
    monkeypatch.setattr(import_module("polyarr.backends.opencl.runtime.device"), "MAX_UPLOAD_BYTES", 1 << 10)
    pa.synchronize()  # nothing is enqueued
    del seen[:]
    pa.asarray(np.zeros(1 << 7))  # 1 KiB
    pa.asarray(np.zeros((1 << 7) + 1))
    assert seen == ["upload", "transfer"]


@on_opencl
def test_a_launch_that_the_device_refuses_names_the_kernel(backend):
    device = devices.select()
    kernel, out = device.build("random", STATE_ON_DEVICE=0).random_bits, device.empty(pa.Spec((4,), pa.uint32))
    arguments = (out.memory, 1, 2, out.memory, out.memory, 4, 1)
    kernel((0,), (0,), *arguments)  # nothing to do
    kernel((1,), (1,), *arguments)
    with pytest.raises(BackendError, match=r"kernel random_bits: could not enqueue \(3,\) by \(2,\) on "):
        kernel((3,), (2,), *arguments)


@on_opencl
def test_kernels_take_what_the_compiler_says(backend, monkeypatch):
    """Files with every kind of argument: scalars by value, macros that expand to several, structs."""
    cl, device = import_module("pyopencl"), devices.select()
    structure = np.dtype("V")  # otherwise PyOpenCL takes 10 us to detect the types
    monkeypatch.setattr(device.programs, "_programs", {})
    x, at = pa.asarray([[1.0, 2.0], [3.0, 4.0]]), pa.asarray([0, 1])
    pa.where(x > 1, 2.0 * x, 0.5)
    pa.ops.dropout(pa.arange(4, dtype=pa.uint64).astype(pa.float16), 1, 2, rate=0.5)
    pa.ops.cross_entropy(pa.ops.take(x, at, axis=0), at)
    moments = ([x], [x], [x], [x], 0.1, 1, 1.0)
    pa.ops.adamw(*moments, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=(0.1,), decoupled=True)
    pa.ops.global_norm([x])
    x[None] @ x
    pa.ops.attention(x[None], x[None], x[None])
    for name, program in device.programs._programs.items():
        text = device.programs.text(name[0], dict(name[1:]))
        built = cl.Program(device.context, text).build(["-cl-std=CL1.2", "-w", "-cl-kernel-arg-info"])
        for kernel in built.all_kernels():
            infos = [kernel.get_arg_info(i, cl.kernel_arg_info.TYPE_NAME) for i in range(kernel.num_args)]
            expected = [None if info.endswith("*") else DTYPES.get(info, structure) for info in infos]
            assert list(program.kernels[kernel.function_name].arguments) == expected, kernel.function_name


@on_opencl
def test_the_host_waits_for_a_device_that_is_far_behind(device, monkeypatch):
    marked, waited, mark, queue = [], [], device.driver.mark, device.commands
    monkeypatch.setattr(commands, "MAX_UNMARKED", 6)
    monkeypatch.setattr(device.driver, "mark", lambda queue: marked.append(mark(queue)) or marked[-1])
    monkeypatch.setattr(queue, "wait", waited.append)
    monkeypatch.setattr(queue, "_pace", None)
    x, fn = pa.ones((4,)), pa.compile(lambda x: (pa.flip(x @ x[:, None]), x + 1))
    before = {*device.replays}
    for _ in range(3):
        fn(x)  # the third call replays
    (replay,) = {*device.replays} - before
    for repeated, run in ((1, lambda: x + 1), (len(replay._last.commands), lambda: fn(x))):
        monkeypatch.setattr(queue, "unmarked", 0)
        del marked[:], waited[:]
        queue._pace = first = object()
        for _ in range(24 // repeated):
            run()
        assert len(marked) == 4 and waited == [first, *marked[:3]]


# ---- OpenCL's driver ----------------------------------------------------------------------------------------------

driver = import_module("polyarr.backends.opencl.runtime.driver")


@pytest.fixture
def device(backend):
    """The backend's device, if OpenCL is its driver."""
    if type(backend.home.driver) is not driver.OpenCL:
        pytest.skip("the driver is CUDA's")
    return backend.home


@on_opencl
def test_a_replay_that_is_refused_names_its_step(device, monkeypatch) -> None:
    fn, x = pa.compile(lambda x: pa.tanh(x @ x) + 1), pa.ones((3, 3))
    monkeypatch.setattr(driver.cl, "enqueue_nd_range_kernel", refused)
    fn(x)
    with pytest.raises(pa.BackendError, match=r"could not enqueue .*: refused") as caught:
        fn(x)
    assert caught.value.__notes__[0].startswith("in step 0, ")


@on_opencl
def test_a_replay_asks_no_kernel_for_its_program(backend, monkeypatch) -> None:
    """Intel's driver returns a freed one."""
    monkeypatch.delattr(driver.cl.Kernel, "program")
    fn, x = pa.compile(lambda x: pa.tanh(x) + 1), pa.ones((3,))
    for _ in range(2):
        np.testing.assert_allclose(fn(x).numpy(), np.tanh(1) + 1, rtol=1e-6)


def refused(*args) -> None:
    raise driver.cl.LogicError("refused")


# ---- downloads that wait for no later work -----------------------------------------------------------------------


@on_opencl
def test_a_later_download_does_not_wait_for_the_main_queue(backend, monkeypatch):
    x = pa.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    read_later((x + 1).T)()  # programs that run for the first time are saved, for which the queue must be empty
    assert not backend.home.programs.compiler.unsaved
    read, whole = read_later((x + 1).T), []
    monkeypatch.setattr(backend.home, "download", lambda buf: whole.append(buf) or np.zeros(buf.shape, buf.dtype))
    np.testing.assert_array_equal(read(), np.arange(1, 7, dtype=np.float32).reshape(2, 3).T)
    assert not whole
    with backend.home.commands.timed():  # which is not the queue of the array
        read()
    assert len(whole) == 1


@on_opencl
def test_a_later_download_raises_what_a_download_would(backend):
    table = pa.ones((4,))
    read = read_later(pa.take(table, pa.asarray([7])))
    with pytest.raises(IndexError, match="index 7 is out of range for an axis of length 4"):
        read()
    assert read_later(table)()[0] == 1
    read, after = read_later(table), pa.take(table, pa.asarray([9]))
    try:
        read()  # the call may have run meanwhile
    except IndexError:
        return
    with pytest.raises(IndexError, match="index 9 is out of range for an axis of length 4"):
        after.numpy()


@on_opencl
def test_a_thread_that_only_downloads_later_is_checked_now_and_then(backend, monkeypatch):
    monkeypatch.setattr(faults, "MAX_UNCHECKED", 3)
    device, checks = backend.home, []
    check = device.faults.check
    monkeypatch.setattr(device.faults, "check", lambda: (checks.append(1), check()))
    pa.ones((1,)).numpy()
    checks.clear()
    for _ in range(8):
        assert read_later(pa.take(pa.ones((4,)), pa.asarray([2])))()[0] == 1
    assert len(checks) == 2
