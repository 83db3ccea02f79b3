"""What a bad call is told: one line that names what the user wrote, what was given and what is required."""

import copy
import operator
import re
from collections.abc import Callable

import numpy as np
import pytest

import polyarr as pa
from polyarr import names
from polyarr.core.current import get_backend
from polyarr.core.errors import DtypeError, ShapeError

pytestmark = pytest.mark.usefixtures("on_numpy")


def matrix() -> pa.Array:
    return pa.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def put(x: pa.Array, key: object, value: object) -> None:
    x[key] = value


def refused(call: Callable, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as found:
        call(matrix())
    assert found.type is error and "\n" not in str(found.value)
    assert re.search(message, str(found.value)), str(found.value)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: put(x, 0, [1.0, 2.0]), TypeError, r"^x\[key\] = value: value is a list; it must be a polyarr array"),
        (lambda x: put(x, 0, None), TypeError, r"^x\[key\] = value: value is None"),
        (lambda x: put(x, x > 0, "a"), TypeError, r"^x\[key\] = value: value is a str"),
        (lambda x: put(x, 0, np.ones(3)), TypeError, r"value is a numpy\.ndarray; it must be a polyarr array"),
        (lambda x: put(x, 0, 1j), TypeError, r"value is a complex"),
        (lambda x: put(x, 0, pa.ones(2)), ShapeError, r"value is float32\[2\]; it must broadcast to \[3\]"),
        (lambda x: put(x.astype(pa.int8), 0, 300), OverflowError, r"^x\[key\] = value: value is 300; int8 holds"),
        (lambda x: put(x, "a", 1), IndexError, "^indexing: an index is str"),
    ],
)
def test_setting_items(call: Callable, error: type[Exception], message: str) -> None:
    refused(call, error, message)


def test_where_takes_two_numbers() -> None:
    mask = matrix() > 3
    for x, y, dtype in (
        (1, 0, pa.int64),
        (1.5, False, pa.float32),
        (True, False, pa.bool),
        (np.float32(2), 1, "float32"),
    ):
        found = pa.where(mask, x, y)
        assert found.dtype == dtype and found.tolist() == np.where(mask.numpy(), x, y).tolist()
    assert pa.where(mask, float("inf"), 0).tolist()[1] == [float("inf")] * 3
    refused(lambda x: pa.where(mask, 2**70, 0), OverflowError, "^where: x is an int of 71 bits")
    refused(lambda x: pa.where(mask, 0, 2**70), OverflowError, "^where: y is an int of 71 bits")
    refused(lambda x: pa.where(True, 1, 0), DtypeError, "got only Python numbers")


def test_an_array_without_elements_shows_its_shape() -> None:
    assert repr(pa.zeros((0, 3))) == "Array([], shape=(0, 3), float32, 'numpy')"


def test_copies_stay_where_they_are() -> None:
    """On a backend that has no name, too, and in sight of the tape."""
    x = pa.asarray([1.0, 2.0], device=get_backend()._replace(name="mirror"))
    for y in (copy.copy(x), copy.deepcopy([x])[0]):
        assert y is not x and y.backend is x.backend and y.tolist() == [1, 2]
    assert pa.grad(lambda a: pa.sum(copy.deepcopy(a) * 3))(x).tolist() == [3, 3]


@pytest.mark.parametrize("theirs", names.OURS)
def test_names_of_other_libraries_lead_to_ours(theirs: str) -> None:
    ours = names.OURS[theirs]
    assert operator.attrgetter(ours)(pa) is not None and not hasattr(pa, theirs)
    with pytest.raises(AttributeError, match=f"^polyarr has no '{theirs}': {theirs} is called {ours} here$"):
        getattr(pa, theirs)


def test_other_names_lead_to_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"^polyarr has no 'sofmax'; did you mean softmax\?$"):
        pa.sofmax  # noqa: B018
    with pytest.raises(AttributeError, match=r"^polyarr has no 'zzzzzz'$"):
        pa.zzzzzz  # noqa: B018
    with pytest.raises(ImportError, match="zzzzzz"):
        from polyarr import zzzzzz  # noqa: F401
    from polyarr import training  # a part that the package does not load by itself

    assert training.__name__ == "polyarr.training"
