"""Replays as CUDA graphs: with a fake driver, and with the real one on NVIDIA."""

from importlib import import_module

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.errors import BackendError
from polyarr.models.generation import generate
from polyarr.models.gpt import GPTModel
from polyarr.testing.compare import bits
from tests.helpers.opencl_modules import opencl_modules

pytest.importorskip("pyopencl")
graphs, sharing = opencl_modules("graphs", "sharing")
driver = import_module("polyarr.backends.opencl.nvidia.driver")
source = import_module("polyarr.backends.opencl.runtime.source")


@pytest.fixture
def played(fake, monkeypatch):
    """The fake driver, for which few launches are worth a graph."""
    monkeypatch.setattr(graphs, "MIN_LAUNCHES", 3)
    return fake


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
    assert played.launched == 4, "the first is recorded, the second launched one by one"
    assert bits(in_a_row(compiled, *args, 6)) == expected
    assert played.launched == 10, "and what is read in between changes nothing"


def test_a_profile_launches_one_by_one_what_is_a_graph_otherwise(played):
    """So that each launch has times; the bits are the same, and there are graphs again afterwards."""
    compiled, args = pa.compile(step), arrays()
    expected = bits(in_a_row(compiled, *args, 6))
    launched = played.launched
    with pa.profile() as p:
        found = in_a_row(compiled, *args, 6)
    assert bits(found) == expected and played.launched == launched == 4
    (row,) = [row for row in p.ops() if row.name.startswith("layer_norm")]
    assert row.calls == row.launches == 6
    assert bits(in_a_row(compiled, *args, 6)) == expected and played.launched > launched


def test_what_is_read_and_written_in_between_changes_nothing(played):
    rng = np.random.default_rng(1)
    compiled, (_, weight), xs = pa.compile(step), arrays(), rng.standard_normal((7, 5, 5), dtype=np.float32)
    expected = [bits(step(pa.asarray(x), weight, k)) for k, x in enumerate(xs)]
    assert [bits(compiled(pa.asarray(x), weight, k)) for k, x in enumerate(xs)] == expected
    assert played.launched == 5


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


def test_functions_that_alternate_are_graphs_each(played):
    compiled, (x, weight) = pa.compile(step), arrays()
    other = pa.compile(lambda *args: step(*args) * 2.0)
    for k in range(5):
        assert bits(compiled(x, weight, k)) == bits(step(x, weight, k))
        assert bits(other(x, weight, k)) == bits(step(x, weight, k) * 2.0)
    assert played.launched == 6


def test_other_commands_lie_between_graphs(played):
    """A fill and copies are no nodes; what is before and after them is."""

    def scattered(x, weight, rows):
        y = pa.tanh(x @ weight) @ weight @ x
        return pa.ops.scatter_add(pa.zeros((5, 5)), rows, y[:3], axis=0) @ weight @ x @ weight

    compiled, args = pa.compile(scattered), [*arrays(), pa.asarray([0, 2, 2])]
    expected = bits(scattered(*args))
    assert all(bits(compiled(*args)) == expected for _ in range(5))
    assert played.launched >= 6


def test_a_text_is_written_by_graphs(played, monkeypatch):
    config = {"vocab_size": 13, "context_length": 16, "emb_dim": 8, "n_heads": 2, "n_layers": 1, "drop_rate": 0.0}
    model, start = GPTModel(config | {"qkv_bias": False}), pa.ones((1, 2), dtype="int32")
    text = generate(model, start, 10, seed=1).numpy()
    assert played.launched == 7, "a token by the prompt, and one each captured and launched"
    played.is_sound = False
    np.testing.assert_array_equal(generate(model, start, 10, seed=1).numpy(), text)


@pytest.mark.parametrize("why", ["cuGraphAddKernelNode", "cuGraphInstantiateWithFlags", "unsound", "short"])
def test_launches_come_one_by_one_where_there_can_be_no_graph(played, monkeypatch, why):
    compiled, args = pa.compile(step), arrays()
    expected = bits(in_a_row(step, *args, 5))
    played.refuses, played.is_sound = why, why != "unsound"
    if why == "short":
        monkeypatch.setattr(graphs, "MIN_LAUNCHES", 1000)
    assert bits(in_a_row(compiled, *args, 5)) == expected
    assert played.launched == 0


def test_a_graph_that_fails_later_names_the_device(played):
    compiled, args = pa.compile(step), arrays()
    in_a_row(compiled, *args, 4)
    played.refuses = "cuGraphLaunch"
    with pytest.raises(BackendError, match=r"device '.*' was lost, with kernel .*CUDA: cuGraphLaunch: error 999"):
        compiled(*args, 1.0)
    played.refuses = ""


@pytest.mark.parametrize(("is_hopper", "uses_early", "edge"), [
    (False, (), graphs.AT_END), (True, (), graphs.AT_BEGIN), (True, (0,), graphs.AT_END), (True, (3,), graphs.AT_BEGIN),
])  # fmt: skip
def test_kernels_begin_early_but_those_that_read_what_is_being_written(fake, monkeypatch, is_hopper, uses_early, edge):
    monkeypatch.setattr(driver, "is_for_hopper", lambda text: is_hopper)
    kernel, (_, listed) = graphs.chain(fake.device)
    kernel.uses_early = uses_early  # argument 0 is the memory that each launch changes, 3 a number
    graphs.Graph(fake.device.driver.cuda, listed)
    assert fake.edges == [bytes(edge)] * (len(listed) - 1)


@pytest.mark.parametrize(("stem", "name", "place", "others"), [
    ("matmul_wgmma", "own_maps", import_module("polyarr.backends.opencl.nvidia.wgmma").OWN_MAPS, set()),
    ("attention_wgmma", "maps", import_module("polyarr.backends.opencl.nvidia.attention_wgmma").MAPS,
     {"attention_delta"}),
])  # fmt: skip
def test_the_argument_that_is_named_early_is_the_one_that_kernels_write(stem, name, place, others):
    text = source.source_of(stem)
    macros = {macro: (own, expansion) for macro, own, expansion in source.MACRO.findall(text)}
    kernels = {kernel: source._expanded(given, macros).split(",") for kernel, given in source.KERNEL.findall(text)}
    for kernel in kernels.keys() - others:
        assert kernels[kernel][place].split()[-1] == f"*{name}"
    assert len(kernels) > len(others)


@pytest.mark.parametrize("module", ["wgmma", "attention_wgmma"])
def test_launches_in_a_row_write_their_tensor_maps_to_two_places(fake, module):
    module = import_module(f"polyarr.backends.opencl.nvidia.{module}")
    maps = module._scratch(fake.device)[0] if hasattr(module, "_scratch") else module._maps(fake.device)
    first, second, third = (next(maps).int_ptr for _ in range(3))
    assert first == third != second


def a_change_that_is_not_noted(patch):
    never = property(lambda self: 0, lambda self, value: None)
    patch.setattr(driver.Kernel, "version", never, raising=False)


def groups_of_another_axis(patch):
    real = driver.Kernel.node

    def turned(self, work, group):
        node = real(self, work, group)
        node.groups[:] = node.groups[::-1]
        return node

    patch.setattr(driver.Kernel, "node", turned)


@pytest.mark.parametrize("plant", [None, a_change_that_is_not_noted, groups_of_another_axis])
def test_the_check_sees_faults(fake, monkeypatch, plant):
    if plant is None:
        graphs.check(fake.device)
        assert fake.launched == 2
        return
    plant(monkeypatch)
    with pytest.raises(BackendError, match="a graph gave other results than launches one by one"):
        graphs.check(fake.device)


@pytest.mark.polyarr_backend("opencl")
def test_a_real_driver_gives_the_same(backend):
    device = backend.home
    if type(device.driver) is not driver.CudaDriver:
        pytest.skip("needs NVIDIA's driver")
    assert not graphs.verdict(device, graphs.VARIANT)
    compiled, args = pa.compile(step), arrays()
    expected = bits(in_a_row(step, *args, 6))
    assert bits(in_a_row(compiled, *args, 6)) == expected


@pytest.mark.polyarr_backend("opencl")
def test_the_check_sees_kernels_that_begin_early_and_do_not_wait(backend, monkeypatch):
    home = backend.home
    if type(home.driver) is not driver.CudaDriver or home.features.architecture < driver.HOPPER:
        pytest.skip("needs NVIDIA's driver and a GPU from Hopper on")
    real = driver.ptx_that_waits
    monkeypatch.setattr(driver, "ptx_that_waits", lambda text: real(text).replace(driver.AWAIT_BEFORE, ""))
    (made,) = opencl_modules("device")
    with pytest.raises(BackendError, match="a graph gave other results than launches one by one"):
        graphs.check(made.Device(home.cl_device, "opencl:9"))
