"""Elementwise ops of small views on OpenCL: one program for all layouts, with the bits of those made for each."""

import itertools

import numpy as np
import pytest

import polyarr as pa
from polyarr.testing.compare import bits

pytestmark = pytest.mark.polyarr_backend("opencl")
SHAPE = 3, 4, 5
VIEWS = {
    "plain": lambda x: x[:3, :4, :5],
    "transposed": lambda x: pa.permute_dims(x, (2, 1, 0))[:3, :4, :5],
    "steps": lambda x: x[:3, :4, ::-2],
    "rows": lambda x: pa.broadcast_to(x[0, 0, :5], SHAPE),
    "columns": lambda x: pa.broadcast_to(x[:3, :1, :1], SHAPE),
    "one element": lambda x: pa.broadcast_to(x[0, 0, 1], SHAPE),
}


@pytest.fixture
def device(backend):
    found = backend.upload.__self__
    if not found.geometry.small_view:
        pytest.skip("views of every size have programs of their own here")
    yield found
    found.plans.renew()


def programs(device):
    return {key for key in device.programs._programs if key[0] == "elementwise"}


def results():
    x = pa.asarray(np.random.default_rng(0).standard_normal((10, 10, 10)).astype("float32"))
    made = {name: view(x) for name, view in VIEWS.items()}
    for one, other in itertools.product(made, repeat=2):
        a, b = made[one], made[other]
        found = pa.hypot(a, b), pa.where(a < b, a, b), pa.floor_divide(a, b), pa.sin(a)
        yield f"{one}, {other}", [bits(y) for y in found], [y.numpy() for y in found], a.numpy(), b.numpy()


def test_all_layouts_of_small_views_have_one_program(device):
    x = pa.asarray(np.arange(10.0**3, dtype="float32").reshape(10, 10, 10))
    made = [view(x) for view in VIEWS.values()]
    pa.copysign(made[0], made[0])
    before = programs(device)
    for one, other in itertools.product(made, repeat=2):
        pa.copysign(one, other)
    assert len(programs(device) - before) <= 1


def test_they_have_the_bits_of_programs_for_each_layout(device, monkeypatch):
    device.plans.renew()
    shared = list(results())
    monkeypatch.setattr(device.geometry, "small_view", 0, raising=False)
    device.plans.renew()
    before = programs(device)
    for (place, found, *_), (_, due, *_) in zip(shared, results(), strict=True):
        assert found == due, place
    assert len(programs(device) - before) > 4 * len(VIEWS)
    for place, _, (far, less, *_), a, b in shared:
        np.testing.assert_allclose(far, np.hypot(a, b), rtol=1e-6, err_msg=place)
        np.testing.assert_array_equal(less, np.minimum(a, b), err_msg=place)


def test_a_replay_writes_over_the_operand_that_has_the_layout_of_the_result(device):
    """A product with a number from memory on either side is one program; its result fits over both operands."""
    device.plans.renew()
    rng = np.random.default_rng(0)
    given = [pa.asarray(rng.standard_normal(shape).astype("float32")) for shape in ((2, 33), (33, 3), (5,))]
    functions = (lambda w, x, s: (w @ x) * pa.sum(s)), (lambda w, x, s: pa.sum(s) * (w @ x))
    due = [bits(fn(*given)) for fn in functions]
    for fn, expected in zip(functions, due, strict=True):
        compiled = pa.compile(fn)
        for _ in range(3):
            assert bits(compiled(*given)) == expected
