"""Graph breaks: what is recorded, what is not, and where."""

import threading
from collections import deque

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.array import Array
from polyarr.testing import graph_breaks
from polyarr.testing.xp import READS

BREAKS = {  # what is done with x (2,) -> (call, what leaves)
    "np.asarray(x)": ("np.asarray()", "values, gradient"),
    "np.sort(x)": ("np.sort()", "values, gradient"),
    "np.linalg.norm(x)": ("np.linalg.norm()", "values, gradient"),
    "float(x[0])": ("float()", "values, gradient"),
    "int(pa.argmax(x))": ("int()", "values"),
    "complex(x[0])": ("complex()", "values, gradient"),
    "bool(x[0] > 1)": ("bool()", "values"),
    "[5, 6][pa.argmax(x)]": ("index()", "values"),
    "round(x[0], 2)": ("round()", "values, gradient"),
    "f'{x[0]:.2f}'": ("format()", "values, gradient"),
    "str(x)": ("repr()", "values, gradient"),
    "x[0].item()": ("item()", "values, gradient"),
    "x.tolist()": ("tolist()", "values, gradient"),
    "x.numpy()": ("numpy()", "values, gradient"),
    "x.__reduce__()": ("pickle", "values, gradient"),
    "np.from_dlpack(x)": ("__dlpack__()", "values, gradient"),
    "pa.asarray(deque([x[0], x[1]]))": ("asarray()", "values, gradient"),
    "x.to(other)": ("to()", "device"),
    "x.to_device(other)": ("to()", "device"),
    "x.astype(pa.int32)": ("astype()", "gradient"),
    "pa.round(x)": ("round()", "gradient"),
    "pa.stop_gradient(x)": ("stop_gradient()", "gradient"),
}
NO_BREAKS = """
x > 1
pa.argmax(x)
x[x > 1]
pa.nonzero(x)
pa.unique_values(x)
pa.asarray([x[0], x[1]])
pa.zeros_like(x)
pa.full((2,), 3.0)
x.astype(pa.float64)
x.to(x.device)
pa.where(x > 1, x, -x)
len(x)
[*x]
np.exp(x)
pa.vmap(pa.exp)(x)
pa.stop_gradient(pa.argmax(x))
np.testing.assert_allclose(x, x)
assert_positive(x)
"""


def assert_positive(x):
    assert bool(pa.all(x > 0))


def found_in(code, x, other=None):
    """The graph breaks of an expression of x, inside of a gradient."""

    def loss(x):
        eval(code, {"pa": pa, "np": np, "deque": deque, "x": x, "other": other, "assert_positive": assert_positive})
        return pa.sum(x)

    with graph_breaks() as found:
        pa.grad(loss)(x)
    return found


@pytest.mark.parametrize("code", BREAKS)
def test_what_leaves(code):
    with pa.use_backend("numpy") as backend:
        found = found_in(code, pa.asarray([1.0, 2.0]), backend._replace(name="other", home=None))
    assert {(place.call, place.leaves) for place in found} == {BREAKS[code]}
    assert all((place.file, place.line, place.function) == ("<string>", 1, "<module>") for place in found)


def test_everything_that_reads_is_covered():
    assert {call for call, _ in BREAKS.values()} >= {*READS.values()}


@pytest.mark.parametrize("code", NO_BREAKS.split("\n")[1:-1])
def test_what_stays(code, on_numpy):
    found = found_in(code, pa.asarray([1.0, 2.0]))
    assert not found and str(found) == "no graph breaks"


def test_the_place_is_that_of_the_caller_and_is_counted(on_numpy):
    def mean(x):
        return np.mean(np.asarray(x))

    x = pa.ones(3)
    with graph_breaks() as found:
        mean(x), mean(x)
    (place,) = found
    assert (place.file, place.line) == (__file__, mean.__code__.co_firstlineno + 1) and found.counts[place] == 2
    assert [line.split()[0] for line in str(found).splitlines()] == ["times", "2"]
    with graph_breaks(ignored=[__file__]) as found:
        mean(x)
    assert not found


def test_blocks_end_may_be_nested_and_see_all_threads(on_numpy):
    plain, x = vars(Array)["__float__"], pa.ones(())
    with graph_breaks() as outer:
        with graph_breaks() as inner:
            thread = threading.Thread(target=lambda: float(x))
            thread.start()
            thread.join()
        assert vars(Array)["__float__"] is not plain
        int(x)
    float(x)
    assert [place.call for place in inner] == ["float()"] and {place.call for place in outer} == {"float()", "int()"}
    assert vars(Array)["__float__"] is plain


def test_an_error_is_none(on_numpy):
    with graph_breaks() as found, pytest.raises(TypeError):
        float(pa.ones(2))
    assert not found
