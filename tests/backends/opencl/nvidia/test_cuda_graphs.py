"""Replays as CUDA graphs: with the real driver on NVIDIA (POLYARR_CUDA_MEMORY=1), with a fake one elsewhere."""

import gc
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.errors import BackendError
from polyarr.models.generation import generate
from polyarr.models.gpt import GPTModel
from polyarr.testing.compare import bits
from tests.backends.opencl.nvidia.fake_cuda import FakeCuda
from tests.helpers.opencl_modules import opencl_modules

pytest.importorskip("pyopencl")
pytestmark = pytest.mark.polyarr_backend("opencl")
cl = import_module("pyopencl")
commands, cuda, graphs, plans, sharing = opencl_modules("commands", "cuda", "graphs", "plans", "sharing")


class Driver(FakeCuda):
    """A fake CUDA driver whose graphs run on OpenCL with the nodes' argument bytes."""

    def __init__(self, device):
        super().__init__(device.context)
        self.device, self.programs, self.kernels, self.graphs = device, [], [], []
        self.launches, self.refuses = 0, ""

    def __call__(self, name, *args):
        if name == self.refuses:
            raise cuda.CudaError(f"CUDA: {name}: refused")
        getattr(self, name)(*args)

    def cuModuleLoadData(self, module, text):  # noqa: N802
        module._obj.value = int(text)

    def cuModuleGetFunction(self, function, module, name):  # noqa: N802
        self.kernels.append(cl.Kernel(self.programs[module.value - 1], name.decode()))
        function._obj.value = len(self.kernels)

    def cuGraphCreate(self, graph, flags):  # noqa: N802
        self.graphs.append([])
        graph._obj.value = len(self.graphs)

    def cuGraphAddKernelNode(self, node, graph, waits, count, params):  # noqa: N802
        made = self.graphs[graph.value - 1]
        assert count.value == min(len(made), 1) and (not made or waits[0] == len(made)), "each waits for the last"
        made.append(self._copied(params._obj))
        node._obj.value = len(made)

    def cuGraphInstantiateWithFlags(self, made, graph, flags):  # noqa: N802
        made._obj.value = graph.value

    def cuGraphDestroy(self, graph):  # noqa: N802
        pass

    cuGraphExecDestroy = cuGraphDestroy  # noqa: N815

    def cuGraphExecKernelNodeSetParams(self, made, node, params):  # noqa: N802
        self.graphs[made.value - 1][node.value - 1] = self._copied(params._obj)

    def cuGraphLaunch(self, made, stream):  # noqa: N802
        self.launches += 1
        for kernel, arguments, items, groups in self.graphs[made.value - 1]:
            for i, (dtype, value) in enumerate(arguments):
                kernel.set_arg(i, self._memory(value) if dtype is None else value)
            work = tuple(n * each for n, each in zip(groups, items, strict=True))
            cl.enqueue_nd_range_kernel(self.device.commands.queue, kernel, work, items)

    def move(self, *args):
        self.device.commands.queue.finish()  # which runs the graphs
        super().move(*args)

    def _copied(self, node):
        (of,) = [a for a in gc.get_objects() if type(a) is graphs.Arguments and a.node is node]
        values = [bytes(kept) for kept in of._kept]
        arguments = list(zip(of.kernel.arguments or [None] * len(values), values, strict=True))
        return self.kernels[node.function - 1], arguments, tuple(node.items), tuple(node.groups)

    def _memory(self, value):
        if not (address := int.from_bytes(value, "little")):
            return None
        for chunk in (*self.device.pool._chunks, *self.alone.values()):
            if chunk.address <= address < chunk.address + chunk.size:
                return chunk.buffer.get_sub_region(address - chunk.address, chunk.size - (address - chunk.address))
        raise AssertionError(f"no memory at {address}")


@pytest.fixture
def played(backend, monkeypatch):
    """A fake driver with which the backend's device makes graphs."""
    device = backend.home
    if not device.features.is_cpu:
        pytest.skip("CUDA is played on a processor")
    driver = Driver(device)
    plain = cl.tools.MemoryPool(cl.tools.ImmediateAllocator(device.queue))
    device.synchronize()

    def noted(program):
        driver.programs.append(program)
        return str(len(driver.programs))

    monkeypatch.setattr(device, "pool", cuda.SharedPool(driver, plain, 128))
    monkeypatch.setattr(device, "plans", plans.Plans(device))  # some hold memory of another pool
    monkeypatch.setattr(graphs, "ptx_of", noted)
    monkeypatch.setattr(graphs, "MIN_LAUNCHES", 3)
    made = graphs.Graphs(device.commands, driver, lambda: driver.is_sound)
    driver.is_sound = True
    monkeypatch.setattr(device.commands, "graphs", made)
    monkeypatch.setattr(device.faults, "_local", SimpleNamespace())  # its recording uses memory of the previous pool
    yield driver
    device.synchronize()


def step(x, weight, k):
    """Run products, row kernels, a fused group with a scalar, and an index."""
    y = pa.softmax(x @ weight, axis=-1) * k
    return pa.layer_norm(y + x) + pa.take(weight, pa.argmax(y, axis=1), axis=0)


def arrays():
    rng = np.random.default_rng(0)
    return [pa.asarray(rng.standard_normal((5, 5), dtype=np.float32)) for _ in range(2)]


def in_a_row(compiled, x, weight, count):
    """Return the results of runs that each take the previous result."""
    for k in range(count):
        x = compiled(x, weight, k + 0.5)
    return x


def test_runs_in_a_row_are_graphs(played):
    compiled, args = pa.compile(step), arrays()
    expected = bits(in_a_row(step, *args, 6))
    assert bits(in_a_row(compiled, *args, 6)) == expected
    assert played.launches == 4, "the first is recorded, the second launched by OpenCL"
    assert bits(in_a_row(compiled, *args, 6)) == expected
    assert played.launches == 10, "and what is read in between changes nothing"


def test_a_profile_launches_one_by_one_what_is_a_graph_otherwise(played):
    """So that each launch has times; the bits are the same, and there are graphs again afterwards."""
    compiled, args = pa.compile(step), arrays()
    expected = bits(in_a_row(compiled, *args, 6))
    launched = played.launches
    with pa.profile() as p:
        found = in_a_row(compiled, *args, 6)
    assert bits(found) == expected and played.launches == launched == 4
    (row,) = [row for row in p.ops() if row.name.startswith("layer_norm")]
    assert row.calls == row.launches == 6
    assert bits(in_a_row(compiled, *args, 6)) == expected and played.launches > launched


def test_what_is_read_and_written_in_between_changes_nothing(played):
    rng = np.random.default_rng(1)
    compiled, (_, weight), xs = pa.compile(step), arrays(), rng.standard_normal((7, 5, 5), dtype=np.float32)
    expected = [bits(step(pa.asarray(x), weight, k)) for k, x in enumerate(xs)]
    assert [bits(compiled(pa.asarray(x), weight, k)) for k, x in enumerate(xs)] == expected
    assert played.launches == 5
    assert played.log.count("move 100 from the host") == 4, "what comes behind a graph comes by CUDA"
    assert played.log.count("move 100 to the host") == 5


def test_what_a_run_needs_and_is_too_large_to_be_shared_is_there_twice(played, monkeypatch):
    compiled = pa.compile(lambda x, k: pa.sum(pa.softmax(x @ x * k, axis=-1) @ x) * k)
    x = pa.asarray(np.random.default_rng(0).standard_normal((40, 40), dtype=np.float32))
    expected = [bits(compiled.fn(x, k + 0.5)) for k in range(6)]
    pa.synchronize()
    monkeypatch.setattr(cuda, "MAX_BUFFER_BYTES", 6400)  # x and its results are larger
    monkeypatch.setattr(import_module("polyarr.backends.opencl.replay.memory_plan"), "MAX_BLOCK_BYTES", 1)
    assert [bits(compiled(x, k + 0.5)) for k in range(6)] == expected
    assert played.launches == 4 and len(played.alone) == 2
    played.device.trim()
    assert not played.alone
    assert [bits(compiled(x, k + 0.5)) for k in range(6)] == expected


def test_donated_arrays_are_overwritten_unless_others_may_still_read_them(played):
    compiled, (x, _) = pa.compile(lambda x: pa.exp(-x), donate="x"), arrays()
    same = []
    for n in range(5):
        before = x.buf.memory.int_ptr
        if n == 3:
            sharing._lent(played.device, x.buf, None, False)
        x = compiled(x)
        same.append(x.buf.memory.int_ptr == before)
    assert same == [False, True, True, False, True], "the first run is the capture's"


def test_with_something_in_between_there_are_none(played):
    compiled, (x, weight) = pa.compile(step), arrays()
    for k in range(4):
        assert bits(compiled(x, weight, k)) == bits(step(x, weight, k))
    other = pa.compile(lambda *args: step(*args) * 2.0)
    for k in range(4):
        compiled(x, weight, k)
        other(x, weight, k)
    assert played.launches == 0


def test_a_text_is_written_by_graphs(played, monkeypatch):
    config = {"vocab_size": 13, "context_length": 16, "emb_dim": 8, "n_heads": 2, "n_layers": 1, "drop_rate": 0.0}
    model, start = GPTModel(config | {"qkv_bias": False}), pa.ones((1, 2), dtype="int32")
    text = generate(model, start, 10, seed=1).numpy()
    assert played.launches == 7, "a token by the prompt, and one each captured and launched"
    played.is_sound = False
    np.testing.assert_array_equal(generate(model, start, 10, seed=1).numpy(), text)


@pytest.mark.parametrize("why", ["cuModuleLoadData", "cuGraphInstantiateWithFlags", "unsound", "large", "short"])
def test_opencl_serves_where_there_can_be_no_graph(played, monkeypatch, why):
    compiled, args = pa.compile(step), arrays()
    expected = bits(in_a_row(step, *args, 5))
    played.refuses, played.is_sound = why, why != "unsound"
    if why == "large":
        monkeypatch.setattr(cuda, "MAX_BUFFER_BYTES", 0)
    if why == "short":
        monkeypatch.setattr(graphs, "MIN_LAUNCHES", 1000)
    assert bits(in_a_row(compiled, *args, 5)) == expected
    assert played.launches == 0


def test_the_text_reads_what_cuda_sets():
    text = "mov.u32 %r1, %envreg3;\nmov.u32 %r2, %envreg7;\nmov.u32 %r3, %tid.x;"
    assert graphs.ptx_for_cuda(text) == "mov.u32 %r1, 0;\nmov.u32 %r2, %nctaid.y;\nmov.u32 %r3, %tid.x;"
    with pytest.raises(cuda.CudaError, match="the PTX reads %envreg10"):
        graphs.ptx_for_cuda("mov.u32 %r1, %envreg10;")


def an_argument_that_is_not_told(patch):
    never = property(lambda self: False, lambda self, value: None)
    patch.setattr(graphs.Arguments, "has_changed", never, raising=False)


def groups_of_another_axis(patch):
    real = graphs.Arguments.__init__

    def turned(self, own, kernel, work, group):
        real(self, own, kernel, work, group)
        self.node.groups[:] = self.node.groups[::-1]

    patch.setattr(graphs.Arguments, "__init__", turned)


@pytest.mark.parametrize("plant", [None, an_argument_that_is_not_told, groups_of_another_axis])
def test_the_check_sees_faults(played, monkeypatch, plant):
    monkeypatch.setattr(graphs, "MIN_LAUNCHES", 16)
    if plant is None:
        graphs.check(played.device)
        assert played.launches == 6
        return
    plant(monkeypatch)
    with pytest.raises(BackendError, match="a graph gave other results than OpenCL"):
        graphs.check(played.device)


def test_a_real_driver_gives_the_same(backend):
    device = backend.home
    if type(device.pool) is not cuda.SharedPool or device.features.is_cpu:
        pytest.skip("needs NVIDIA's driver, and POLYARR_CUDA_MEMORY=1")
    assert not graphs.verdict(device, graphs.VARIANT)
    compiled, args = pa.compile(step), arrays()
    expected = bits(in_a_row(step, *args, 6))
    assert bits(in_a_row(compiled, *args, 6)) == expected
