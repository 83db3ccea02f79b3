"""Signatures of captured calls: changes that cause a new capture, and changes that do not."""

import itertools

import numpy as np
import pytest

import polyarr as pa
from polyarr.testing.compare import bits


def test_a_number_may_change_and_a_constant_is_captured_again(backend):
    x = pa.ones((3,))
    fn = pa.compile(lambda x, n, power: x * n + power, constants="power")
    got = [fn(x, n, power).numpy()[0] for n, power in ((2, 1), (3, 1), (3, 2), (2.5, 1))]
    assert got == [3, 4, 5, 3.5]
    assert len(fn.programs()) == 3  # power 1, power 2, and n a float


def test_what_belongs_to_the_signature(backend):
    fn = pa.compile(lambda x, *rest, **named: x + 1)
    x = pa.ones((2,))
    signatures = [((x,), {}), ((x, True), {}), ((x, False), {}), ((x, "a"), {}), ((x, None), {}), ((x, [1]), {}),
             ((x, (1,)), {}), ((x, {"a": 1}), {}), ((x,), {"y": 1}), ((x,), {"z": 1}), ((pa.ones((3,)),), {}),
             ((pa.ones((2,), dtype="int32"),), {}), ((x, pa.nn.Dropout(0.5)), {}), ((x, pa.nn.Dropout(0.25)), {}),
             ((x, pa.nn.Dropout(0.25).eval()), {})]  # fmt: skip
    with pytest.warns(pa.CaptureWarning, match="<lambda> was captured 9 times, .* number that is not in constants="):
        for _ in range(2):
            for args, named in signatures:
                fn(*args, **named)
    with pa.use_matmul_precision("high"):
        fn(x)
    assert len(fn.programs()) == len(signatures) + 1


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        (lambda i: f"step {i}", "label was 'step 7' and is 'step 8'"),
        (lambda i: pa.ones((i + 1,)), r"label was float32\[8\] and is float32\[9\]"),
        (lambda i: [1.0] * i, "label was a list of 7 and is a list of 8"),
        (lambda i: {"a": pa.nn.Dropout(0.1 * i)}, "label has another structure or other settings"),
        (lambda i: np.float32(i), r"label is a NumPy float32, a constant; a Python number, as of"),
        (lambda i: [np.float64(i)], r"label is a NumPy float64, a constant; a Python number, as of"),
    ],
    ids=["string", "shape", "list", "setting", "NumPy scalar", "NumPy scalar in a list"],
)
def test_the_warning_names_what_changes(backend, argument, change):
    fn, x = pa.compile(lambda x, label: x + 1), pa.ones((2,))
    with pytest.warns(pa.CaptureWarning, match=rf"<lambda> was captured 9 times, the last time because {change}[; ]"):
        for i in range(9):
            fn(x, argument(i))


def test_the_warning_about_the_context_names_no_argument(backend):
    fn, x = pa.compile(lambda *arrays: arrays[0] + 1), pa.ones((2,))
    several = [pa.ones((2,)) for _ in range(4)]
    calls = [[several[i] for i in which] for which in itertools.islice(itertools.product(range(4), repeat=4), 60)]
    with pytest.warns(pa.CaptureWarning, match="because the precision, the backend or which arguments are "):
        for arrays in calls:
            fn(*arrays)
    assert x.shape == (2,)


@pytest.mark.parametrize(
    "constants",
    [(0j, complex(-0.0, -0.0)), (np.float32(0), np.float32(-0.0)), (np.complex64(0j), np.complex64(-0.0))],
    ids=["complex", "NumPy float", "NumPy complex"],
)
def test_constants_that_are_equal_have_their_own_signs_of_zero(constants):
    fn, x = pa.compile(pa.add), pa.full((1,), complex(-0.0, -0.0))
    with pa.use_backend("numpy"):
        assert [bits(fn(x, c)) for c in constants] == [bits(pa.add(x, c)) for c in constants]
        both = pa.compile(lambda x: [pa.add(x, c) for c in constants])
        assert bits(both(x)) == bits([pa.add(x, c) for c in constants])


def test_sets_of_numbers_have_the_kinds_of_their_numbers():
    fn, x = pa.compile(lambda x, numbers: x * sum(type(n) is float for n in numbers)), pa.ones((1,))
    assert [fn(x, frozenset(numbers)).item() for numbers in ([1], [1.0], [1.0, 2.0], [2, 1])] == [0, 1, 2, 0]


def test_keys_that_are_numbers_belong_to_their_dict():
    def lengths(trees):
        return [a * len(each) for each in trees if isinstance(each, dict)]

    a, b = pa.ones((2,)), pa.ones((3,))
    fn = pa.compile(lengths, constants="trees", captures=a)
    for trees in ([{}, 1, a, {5: b}], [{1: a}, {}, 5, b]):
        assert bits(fn(trees)) == bits(lengths(trees))


def test_other_numbers_have_the_same_signature(backend, recwarn):
    fn, x = pa.compile(lambda x, n, many: (x * n + many["a"][0], n * 2)), pa.ones((2,))
    for n in range(12):
        y, twice = fn(x, n, many={"a": [0.5 * n]})
        assert (y.numpy().tolist(), twice) == ([1.5 * n, 1.5 * n], 2 * n)
    assert len(fn.programs()) == 1
    assert not recwarn.list


def test_layouts_and_shared_memory_may_change(backend):
    fn = pa.compile(lambda x, y: x @ y + pa.sum(x, axis=0))
    square = pa.asarray(np.arange(16.0, dtype=np.float32).reshape(4, 4))
    other = pa.asarray(np.ones((4, 4), np.float32))
    for x, y in ((square, other), (square, square), (square.mT, other), (other, square[::-1]), (square, other)):
        assert bits(fn(x, y)) == bits(x @ y + pa.sum(x, axis=0))


def test_one_function_serves_several_backends():
    fn = pa.compile(lambda x: x + pa.ones_like(x))
    other = pa.get_backend("numpy")._replace(name="other", home="other")
    for device in ("numpy", other, "numpy"):
        assert fn(pa.ones((2,), device=device)).backend is pa.get_backend(device)
    with pytest.raises(pa.BackendError, match=r"^compile: arguments of <lambda> live on 'numpy' and 'other'; bring"):
        pa.compile(lambda x, y: x)(pa.ones(1, device="numpy"), pa.ones(1, device=other))


# ---- which arguments are one array ----------------------------------------------------------------------------------


def test_one_handle_may_be_two_arguments(backend):
    def fn(x, y):
        x += 1
        return y * 2

    compiled, x, y = pa.compile(fn), pa.ones(()), pa.ones(())
    assert [float(compiled(x, y)), float(compiled(x, x)), float(compiled(y, y)), float(compiled(x, y))] == [2, 6, 4, 4]
    assert (float(x), float(y)) == (4, 2)


def test_arguments_that_were_one_array_may_be_two(backend):
    a, b = pa.asarray([1.0, 2.0]), pa.asarray([10.0, 30.0])
    minus = pa.compile(lambda x, y: x - y)
    for x, y in ((a, a), (a, b), (b, a), (b, b), (a, a), (a, b)):
        assert minus(x, y).tolist() == (x - y).tolist()
    assert len(minus.programs()) == 2
    in_trees = pa.compile(lambda tree: tree["q"][0] * 2 - tree["k"])
    for x, y in ((a, a), (a, b), (b, a)):
        assert in_trees({"q": [x], "k": y}).tolist() == (x * 2 - y).tolist()


def test_weights_that_were_tied_may_not_be(backend):
    def made(tied):
        pair = pa.nn.Sequential(pa.nn.Linear(2, 2, bias=False), pa.nn.Linear(2, 2, bias=False))
        if tied:
            pair.layers[1].weight = pair.layers[0].weight
        return pair

    held, x = made(True), pa.ones((1, 2))
    given, by_name = pa.compile(lambda model, x: model(x)), pa.compile(lambda x: held(x), captures=held)
    for tied in (True, False, True, False):
        model = made(tied)
        assert bits(given(model, x)) == bits(model(x))
        held.layers[1].weight = model.layers[1].weight if not tied else held.layers[0].weight
        assert bits(by_name(x)) == bits(held(x))


def test_moments_that_begin_as_one_array(backend):
    def step(m, v, g):
        return 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g

    compiled, given_away, g = pa.compile(step), pa.compile(step, donate=("m", "v")), pa.asarray([2.0, -1.0])
    found = {}
    for fn in (step, compiled, given_away):
        m = v = pa.zeros((2,))
        for _ in range(4):
            m, v = fn(m, v, g)
        found[fn] = bits((m, v))
    assert found[compiled] == found[given_away] == found[step]
