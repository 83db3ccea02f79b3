"""polyarr.compile with captures=: arrays changed in place, returned, also passed as arguments, and exceptions."""

import copy

import numpy as np
import pytest

import polyarr as pa
from polyarr import tree
from polyarr.testing.compare import bits


def values(found):
    return tree.map(lambda a: a.tolist() if isinstance(a, pa.Array) else a, found)


def test_a_captured_array_comes_back_as_it_was_changed(backend):
    w, layer = pa.asarray([1.0, 2.0]), pa.nn.Linear(2, 2)
    layer.bias = pa.zeros((2,))

    def fn(x):
        w[0] = 9.0
        w[1] += x
        layer.bias[0] += x
        return w, w + 0, {"layer": layer}, layer.bias

    compiled = pa.compile(fn, captures=(w, layer))
    for n in (1, 2):
        first, second, held, bias = compiled(pa.ones(()))
        assert first.tolist() == second.tolist() == w.tolist() == [9, 2 + n]
        assert held["layer"].bias.tolist() == bias.tolist() == layer.bias.tolist() == [n, 0]


def test_an_array_may_be_argument_and_capture(backend):
    def through_the_argument(x, more):
        x += 1
        return x, held["a"] + 0, more["m"] * held["b"]

    def through_the_capture(x, more):
        held["b"][:1] = held["a"][1:] * 3
        return x, held["a"] + x, more["m"] * 2

    for fn in (through_the_argument, through_the_capture):
        found = []
        for is_compiled in (False, True):
            u, v = pa.ones((2,)), pa.ones((2,)) * 4
            held = {"a": u, "b": u}
            call = pa.compile(fn, captures=held) if is_compiled else fn
            results = []
            for pair in ((u, u), (u, v), (v, u), (v, v), (u, u)):
                for a, b in ((u, u), (u, v), (v, v)):
                    held["a"], held["b"] = a, b
                    results.append(values((call(pair[0], {"m": pair[1]}), u, v)))
            found.append(results)
        assert found[0] == found[1]


def test_handles_on_one_buffer_are_two_captures(backend):
    w = pa.asarray([1.0, 2.0])
    average = copy.deepcopy(w)
    compiled = pa.compile(lambda x: (w - average, x), captures=(w, average))
    assert compiled(pa.ones(()))[0].tolist() == [0, 0]
    w[0] = 5.0
    assert compiled(pa.ones(()))[0].tolist() == [4, 0]
    with pytest.raises(pa.CaptureError, match=r"test_compile_captures.py:\d+ uses an array float32\[2\] .* not given"):
        pa.compile(lambda x: w - average, captures=w)(pa.ones(()))


def test_a_copy_made_inside_belongs_to_the_capture(backend):
    w = pa.asarray([1.0, 2.0])

    def fn(x):
        before = copy.deepcopy(w)
        same = w.to(w.device)
        w[:] = before + x
        return before, same, pa.grad(lambda y: pa.sum(y * w))(before), pa.asarray(before, copy=True)

    compiled = pa.compile(fn, captures=w)
    for n in (1.0, 4.0):
        w[0] = n
        before, same, gradient, again = compiled(pa.ones(()))
        assert before.tolist() == again.tolist() and before.tolist()[0] == n
        assert same.tolist() == gradient.tolist() == w.tolist() == [before.tolist()[0] + 1, before.tolist()[1] + 1]


@pytest.mark.parametrize(
    "read", [float, str, pa.Array.numpy, pa.Array.tolist, np.asarray, np.from_dlpack]
)
def test_the_values_of_a_capture_may_not_be_read(backend, read):
    w = pa.ones(())
    with pytest.raises(pa.CaptureError, match=r"^compile: \S+test_compile_captures.py:\d+ reads an array's values"):
        pa.compile(lambda x: (read(w), x)[1], captures=w)(pa.ones(()))


@pytest.mark.parametrize(
    "key",
    [
        [0], [2, 0], [], np.array([0]), np.array([-1, 1]), np.array(1), np.int64(1), (slice(None), [0]),
        ([0, 2], np.array([1, 3])), (..., [1]), (None, [0]), (1, [0, 3]), ([0], slice(1, 3)), (slice(0, 2), 1, [0]),
        [True, False, True], np.arange(3) > 0, np.arange(12).reshape(3, 4) % 2 == 0, (np.array([False, True, True]),),
    ],
    ids=str,
)  # fmt: skip
def test_any_key_that_the_host_knows(backend, key):
    w = pa.asarray(np.arange(24.0).reshape(3, 4, 2))

    def fn(x):
        before = w[key] * x
        w[key] = before + 1
        x = x + w  # an argument's values, not a capture's
        x[key] = w[key]
        return before, w[key], x[key]

    start, found = copy.copy(w), []
    for call in (fn, pa.compile(fn, captures=w)):
        w.rebind(start)
        found.append([values((call(pa.ones((1,)) * n), w)) for n in (1, 2)])
    assert found[0] == found[1]


# ---- where fn raises -------------------------------------------------------------------------------------------------


def limited(n):
    if n > 2:
        raise LookupError(f"{n} is too large")
    return n * 2.0


def stopping(w, stops):
    """Return a function that changes a capture and its argument, and draws, before and after a possible exception."""

    def fn(x, n):
        w[0] += 1.0
        x += pa.random.normal((2,))
        if stops:
            raise stops[0]
        x *= pa.evaluate(limited, n)
        w[n] = 7.0
        x += pa.random.normal((2,))
        return w, x

    return fn


@pytest.mark.parametrize("numbers", [(5, 1, 5, 1), (1, 5, 2, 5, 1)], ids=["at first", "later"])
def test_an_error_leaves_what_it_leaves_without_compiling(backend, numbers):
    found = []
    for is_compiled in (False, True):
        pa.random.seed(1)
        w = pa.zeros((2,))
        fn = stopping(w, [])
        fn = pa.compile(fn, captures=w) if is_compiled else fn
        log = []
        for n in numbers:
            x, said = pa.ones((2,)), ""
            try:
                fn(x, n)
            except LookupError as error:
                said = str(error)
            log.append((said, values((w, x)), pa.random.get_state()))
        found.append(log)
    assert found[0] == found[1]
    assert [bool(said) for said, *_ in found[0]] == [n > 1 for n in numbers]


@pytest.mark.parametrize("error", [ValueError("stop"), KeyboardInterrupt()])
def test_an_error_while_it_is_captured_keeps_the_changes_before_it(backend, error):
    pa.random.seed(1)
    w, x, stops = pa.zeros((2,)), pa.ones((2,)), [error]
    compiled, given_away = (pa.compile(stopping(w, stops), captures=w, donate=names) for names in ((), "x"))
    for n, fn in ((1, compiled), (2, given_away)):
        with pytest.raises(type(error)):
            fn(x, 1)
        assert w.tolist() == [n, 0] and pa.random.get_state() == (1, n)
        assert pa.get_backend() is x.backend is w.backend
    assert len(set(x.tolist())) == 2
    stops.clear()
    compiled(x, 1)
    assert w.tolist() == [3, 7] and pa.random.get_state() == (1, 4)


def test_a_capture_error_changes_nothing(backend):
    w, x, state = pa.zeros((2,)), pa.ones((2,)), pa.random.get_state()

    def fn(x):
        w[0] = 1.0
        x += pa.random.normal((2,))
        return float(w[0])

    with pytest.raises(pa.CaptureError, match="reads an array's values"):
        pa.compile(fn, captures=w)(x)
    assert (values((w, x)), pa.random.get_state()) == (([0, 0], [1, 1]), state)


def test_a_run_that_raises_leaves_donated_arrays_unchanged(backend):
    w, state = pa.zeros((2,)), (1, 2)
    compiled = pa.compile(stopping(w, []), captures=w, donate="x")
    compiled(pa.ones((2,)), 1)
    pa.random.set_state(state)
    before, x = bits(w), pa.ones((2,))
    with pytest.raises(LookupError, match="5 is too large"):
        compiled(x, 5)
    assert bits(w) == before and pa.random.get_state() == state
    with pytest.raises(pa.CaptureError, match="was donated"):
        x + 1


def test_what_only_the_captured_run_meets_is_undone(on_numpy):
    stops = []

    def exp(out, x):
        if stops:
            raise stops.pop()
        return np.exp(x)

    with pa.use_backend(on_numpy._replace(name="frail", kernels={**on_numpy.kernels, pa.ops.exp: exp})):
        w = pa.ones((2,))

        def fn(x):
            w[0] += x
            return pa.exp(pa.random.normal((2,)) + x)

        compiled = pa.compile(fn, captures=w)
        compiled(pa.ones(()))
        before, state = bits(w), pa.random.get_state()
        for error in (ValueError("once"), pa.BackendError("once"), KeyboardInterrupt()):
            stops[:] = [error]
            with pytest.raises(type(error)) as caught:
                compiled(pa.ones(()))
            assert caught.value is error
            assert (bits(w), pa.random.get_state()) == (before, state)


def test_a_function_of_numbers_raises_even_if_its_value_is_unused(backend):
    def fn(x, n):
        pa.evaluate(limited, n)
        return x + 1

    compiled = pa.compile(fn)
    compiled(pa.ones(()), 1)
    with pytest.raises(LookupError, match="5 is too large"):
        compiled(pa.ones(()), 5)


class Scaled(pa.nn.Module):
    def __init__(self) -> None:
        self.inner, self.factor = pa.nn.Linear(3, 2), pa.ones(2)

    def __call__(self, x):
        return self.inner(x) * self.factor

    def shifted(self, x):
        return self(x) + 1


@pytest.mark.parametrize("method", ["__call__", "shifted"])
def test_a_module_is_compiled_with_its_own_arrays(method, backend):
    model, x = Scaled(), pa.ones((4, 3))
    compiled = pa.compile(model if method == "__call__" else model.shifted)
    plain = getattr(model, method)
    assert bits(compiled(x)) == bits(plain(x))
    model.load_parameters({name: a * 3 for name, a in model.state_dict().items()})
    model.factor = pa.asarray([2.0, -1.0])
    model.inner.weight[0] = 0.5
    assert bits(compiled(x)) == bits(plain(x)) and len(compiled.programs()) == 1
    slope = pa.grad(lambda x: pa.sum(compiled(x)))(x)
    assert bits(slope) == bits(pa.grad(lambda x: pa.sum(plain(x)))(x))
    assert not vars(compiled).keys() & vars(model).keys()


def test_a_module_may_use_other_captures_and_be_named_as_one(on_numpy):
    model, bias = Scaled(), pa.zeros(2)
    assert pa.compile(model, captures=model).captures is model

    class WithBias(Scaled):
        def __call__(self, x):
            return super().__call__(x) + bias

    model = WithBias()
    compiled = pa.compile(model, captures=bias)
    for value in (1.0, 2.0):
        bias[:] = value
        assert bits(compiled(pa.ones((1, 3)))) == bits(model(pa.ones((1, 3))))
