"""Complex numbers on OpenCL: accuracy against NumPy, special values, layouts, fused steps, both kinds of kernels."""

from functools import partial

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.backend import Backend
from polyarr.core.current import use_backend
from polyarr.core.spec import DTYPES
from tests.helpers.complex_numbers import FUNCTIONS, exactly, normal, numbers, ulps
from tests.helpers.opencl_modules import device_as_gpu, opencl_modules

copy, device_module, devices, geometry, table = opencl_modules("copy", "device", "devices", "geometry", "table")
pytestmark = pytest.mark.polyarr_backend("opencl")

MAX_ULP = 4
PRECISIONS = pytest.mark.parametrize("dtype", [pa.complex64, pa.complex128], ids=lambda d: d.name)


@pytest.fixture(params=["cpu", "gpu"])
def kernels(request, backend):
    """Run on the device with its own kernels, and with the work distribution of a GPU."""
    with use_backend(backend if request.param == "cpu" else _as_gpu()):
        yield


def _as_gpu(made=[]):  # noqa: B006
    if not made:
        device = device_as_gpu()
        made.append(
            Backend(
                "gpu-kernels", table.make_kernels(device), upload=device.upload,
                download=partial(copy.download, device), synchronize=device.synchronize, dtypes=frozenset(DTYPES),
            )
        )  # fmt: skip
    return made[0]


def close(found, due, tolerance=4):
    """Check an array against NumPy's in its dtype, with an error relative to the largest element."""
    found, due = found.numpy(), np.asarray(due)
    assert found.shape == due.shape
    scale = np.max(abs(due), initial=1e-30)
    assert np.max(abs(found - due), initial=0) <= tolerance * scale * np.finfo(found.dtype).eps


# ---- functions ---------------------------------------------------------------------------------------------------


@PRECISIONS
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_accurate_everywhere(backend, name, dtype):
    z = numbers(dtype)
    assert ulps(getattr(pa, name)(pa.asarray(z)).numpy(), exactly(name, z)) <= MAX_ULP


@PRECISIONS
@pytest.mark.parametrize("name", ["multiply", "divide"])
def test_products_and_quotients_are_accurate_everywhere(backend, name, dtype):
    x = numbers(dtype)
    y = np.random.default_rng(1).permutation(x)
    if name == "multiply":  # the two products of a part must not overflow
        x, y = normal(x.size, dtype=dtype), np.where(abs(y) < 1e30, y, 1).astype(dtype)
    assert ulps(getattr(pa, name)(pa.asarray(x), pa.asarray(y)).numpy(), exactly(name, x, y)) <= MAX_ULP


@PRECISIONS
def test_powers(backend, dtype):
    x, y = normal(300, dtype=dtype), normal(300, dtype=dtype, seed=1)
    assert ulps(pa.pow(pa.asarray(x), pa.asarray(y)).numpy(), exactly("power", x, y)) <= 2 * MAX_ULP
    for n in (0, 1, 2, 3, 7, -1, -4):
        assert ulps(pa.pow(pa.asarray(x), n).numpy(), x.astype(np.clongdouble) ** n) <= 2 * MAX_ULP
    assert (pa.asarray([1 + 2j, 3 - 1j], dtype=dtype) ** 3).numpy().tolist() == [-11 - 2j, 18 - 26j]
    assert np.isnan((pa.asarray([0j], dtype=dtype) ** -1).numpy()).all()
    assert (pa.asarray([0j], dtype=dtype) ** 2).numpy() == 0


nan, inf, pi = np.nan, np.inf, np.pi
SPECIAL = {  # from the array API standard; a part that is None may be anything, a zero has either sign
    "exp": [((inf, 0), (inf, 0)), ((-inf, inf), (0, 0)), ((inf, nan), (None, nan)), ((nan, 0), (nan, 0)),
            ((1, inf), (nan, nan)), ((-inf, 2), (0, 0))],
    "expm1": [((inf, 0), (inf, 0)), ((-inf, inf), (-1, 0)), ((-inf, nan), (-1, 0)), ((nan, 0), (nan, 0))],
    "log": [((-0.0, 0), (-inf, pi)), ((0, 0), (-inf, 0)), ((1, inf), (inf, pi / 2)), ((-inf, 1), (inf, pi)),
            ((-inf, inf), (inf, 3 * pi / 4)), ((inf, nan), (inf, nan)), ((nan, 1), (nan, nan)),
            ((nan, inf), (inf, nan))],
    "log1p": [((-1, 0), (-inf, 0)), ((0, 0), (0, 0)), ((1, inf), (inf, pi / 2)), ((nan, 1), (nan, nan))],
    "sqrt": [((0, 0), (0, 0)), ((nan, inf), (inf, inf)), ((-inf, 1), (0, inf)), ((inf, 1), (inf, 0)),
             ((-inf, nan), (nan, None)), ((inf, nan), (inf, nan)), ((-4, -0.0), (0, -2))],
    "sinh": [((0, inf), (0, nan)), ((inf, 0), (inf, 0)), ((inf, inf), (None, nan)), ((nan, 0), (nan, 0))],
    "cosh": [((0, inf), (nan, 0)), ((inf, 0), (inf, 0)), ((inf, inf), (None, nan)), ((nan, 0), (nan, 0))],
    "tanh": [((inf, 1), (1, 0)), ((inf, inf), (1, 0)), ((0, inf), (0, nan)), ((1, nan), (nan, nan)),
             ((nan, 0), (nan, 0))],
    "asinh": [((1, inf), (inf, pi / 2)), ((inf, inf), (inf, pi / 4)), ((inf, nan), (inf, nan)), ((nan, 0), (nan, 0)),
              ((nan, inf), (None, nan)), ((inf, 1), (inf, 0))],
    "acosh": [((0, 0), (0, pi / 2)), ((1, inf), (inf, pi / 2)), ((-inf, 1), (inf, pi)),
              ((-inf, inf), (inf, 3 * pi / 4)), ((0, nan), (nan, None)), ((nan, inf), (inf, nan))],
    "acos": [((0, 0), (pi / 2, 0)), ((0, nan), (pi / 2, nan)), ((1, inf), (pi / 2, -inf)), ((-inf, 1), (pi, -inf)),
             ((inf, 1), (0, -inf)), ((-inf, inf), (3 * pi / 4, -inf)), ((nan, inf), (nan, -inf)), ((2, 0), (0, None))],
    "atanh": [((1, 0), (inf, 0)), ((0, nan), (0, nan)), ((1, inf), (0, pi / 2)), ((inf, 1), (0, pi / 2)),
              ((inf, nan), (0, nan)), ((nan, inf), (None, pi / 2)), ((nan, 1), (nan, nan))],
    "sign": [((0, 0), (0, 0)), ((nan, 1), (nan, nan)), ((1, nan), (nan, nan))],
}  # fmt: skip


@PRECISIONS
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(backend, name, dtype):
    given = np.empty(len(SPECIAL[name]), dtype)
    given.real, given.imag = np.transpose([z for z, _ in SPECIAL[name]])
    for conjugate in (False, True):  # f(conj(z)) is conj(f(z))
        z = given.conj() if conjugate else given
        found = getattr(pa, name)(pa.asarray(z)).numpy()
        for number, value, (_, due) in zip(z, found.conj() if conjugate else found, SPECIAL[name], strict=True):
            for part, wanted in zip((value.real, value.imag), due, strict=True):
                message = f"{name}({number}) is {value}, not {due}"
                assert wanted is None or np.isclose(part, wanted, equal_nan=True, rtol=1e-5), message


def test_branch_cuts_follow_the_sign_of_zero(backend):
    z = np.empty(8, np.complex64)
    z.real, z.imag = [-2, -2, 2, 2, 0, -0.0, 0, -0.0], [0, -0.0, 0, -0.0, 2, 2, -2, -2]
    for name in ("log", "sqrt", "asin", "acos", "acosh", "atanh", "asinh", "atan"):
        np.testing.assert_allclose(getattr(pa, name)(pa.asarray(z)).numpy(), exactly(name, z), rtol=1e-6, atol=1e-7)


def test_division_neither_overflows_nor_hides_zeros(backend):
    x = pa.asarray(np.array([3e38 + 3e38j, 1e-40 + 1e-40j, 1 + 2j, 0j], np.complex64))
    y = pa.asarray(np.array([3e38 + 3e38j, 1e-40 + 1e-40j, 0j, 2j], np.complex64))
    found = (x / y).numpy()
    np.testing.assert_allclose(found[[0, 1, 3]], [1, 1, 0], rtol=1e-6)
    assert found[2].real == np.inf == found[2].imag


@PRECISIONS
def test_classes_parts_and_rounding(backend, dtype):
    z = np.array([1 + 2j, complex(nan, 1), complex(inf, 0), complex(nan, inf), -2.5 + 3.5j, 0j], dtype)
    x = pa.asarray(z)
    for name, due in (("isnan", np.isnan), ("isinf", np.isinf), ("isfinite", np.isfinite), ("conj", np.conj)):
        np.testing.assert_array_equal(getattr(pa, name)(x).numpy(), due(z))
    np.testing.assert_array_equal(pa.round(x).numpy(), np.round(z))
    np.testing.assert_array_equal((x == pa.asarray(z[::-1].copy())).numpy(), z == z[::-1])
    np.testing.assert_array_equal((x != 0).numpy(), z != 0)
    np.testing.assert_array_equal(pa.astype(x, pa.bool).numpy(), z.astype(bool))


@PRECISIONS
@pytest.mark.parametrize(("fn", "reference"), [(pa.atanh, np.arctanh), (pa.atan, np.arctan)])
def test_nan_beside_a_large_number(backend, dtype, fn, reference):
    parts = (nan, inf, float(np.finfo(dtype).max), -1e30, 2.0, 0.0)
    z = np.array([complex(x, y) for x in parts for y in parts if nan in (x, y)], dtype)
    found, due = fn(pa.asarray(z)).numpy(), reference(z)
    np.testing.assert_array_equal(np.isnan([found.real, found.imag]), np.isnan([due.real, due.imag]))


# ---- layouts -----------------------------------------------------------------------------------------------------


@PRECISIONS
def test_parts(backend, dtype):
    z = normal(5, 7, dtype=dtype)
    x = pa.asarray(z)
    for part, due in ((pa.real, np.real), (pa.imag, np.imag)):
        np.testing.assert_array_equal(part(x[1:, ::-2]).numpy(), due(z[1:, ::-2]))
        close(pa.sum(part(x.T), axis=1), due(z.T).sum(1))
    np.testing.assert_array_equal(ops.complex(pa.real(x), pa.imag(x)).numpy(), z)
    np.testing.assert_array_equal(ops.complex(pa.real(x), -0.0).numpy().imag, np.full((5, 7), -0.0))


@PRECISIONS
@pytest.mark.parametrize("axis", [0, 1, 2, None])
def test_sums_of_parts_have_the_bits_of_fused_parts(backend, dtype, axis):
    x = pa.asarray(normal(9, 37, 21, dtype=dtype))
    compiled = pa.compile(fn := lambda x: [pa.sum(part(x * x), axis=axis) for part in (pa.real, pa.imag)])
    for found, due in zip(compiled(x), fn(x), strict=True):
        np.testing.assert_array_equal(found.numpy(), due.numpy())


@PRECISIONS
def test_moves(kernels, dtype):
    z, other, at = normal(35, 19, dtype=dtype), normal(35, 19, dtype=dtype, seed=1), np.array([3, 1, 1, 18, -1])
    x, y, i = map(pa.asarray, (z, other, at))
    mask = z.real > 0
    for found, due in (
        (x.T, z.T), (x[::-1, 1::3], z[::-1, 1::3]), (x[1:] + x[:-1], z[1:] + z[:-1]), (x[:0] * 2, z[:0]),
        (x[:, None] + x[None, :2], z[:, None] + z[None, :2]), (x[2, 3] + y[1, 1], z[2, 3] + other[1, 1]),
        (pa.concat([x, y[:3]], axis=0), np.concatenate([z, other[:3]])), (pa.take(x, i, axis=1), z[:, at]),
        (pa.where(pa.asarray(mask), x, 2 - 1j), np.where(mask, z, 2 - 1j)), (pa.flip(x), np.flip(z)),
        (pa.take_along_axis(x, pa.asarray(np.abs(at)[None]), axis=1), z[:, np.abs(at)]),
        (pa.full((3, 5), 1 - 2j, dtype=dtype), np.full((3, 5), 1 - 2j)), (x.T + 0, z.T),
    ):  # fmt: skip
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.numpy(), np.asarray(due).astype(dtype))


@PRECISIONS
def test_conversions(backend, dtype):
    for source in ("bool", "int8", "uint16", "int64", "uint64", "float16", "float32", "float64"):
        host = np.array([0, 1, 3, 100]).astype(source)
        found = pa.astype(pa.asarray(host), dtype)
        np.testing.assert_array_equal(found.numpy(), host.astype(dtype))
    z = normal(9, dtype=dtype)
    for target in (pa.complex64, pa.complex128):
        np.testing.assert_array_equal(pa.astype(pa.asarray(z), target).numpy(), z.astype(target))
    np.testing.assert_array_equal(ops.iota(1, 2, pa.asarray(z), size=9, dtype=dtype).numpy(), np.arange(1, 19, 2))


def test_exchange(backend):
    z = normal(4, 3)
    np.testing.assert_array_equal(np.from_dlpack(pa.asarray(z)), z)
    np.testing.assert_array_equal(pa.from_dlpack(z).numpy(), z)
    np.testing.assert_array_equal(pa.asarray(z)[::2].numpy(), z[::2])


# ---- sums and products -------------------------------------------------------------------------------------------


@PRECISIONS
@pytest.mark.parametrize("axis", [None, 0, 1, 2, (0, 2), (1, 2)])
def test_sums_and_products(kernels, dtype, axis):
    z = normal(40, 33, 5, dtype=dtype)
    turned = z / abs(z)
    close(pa.sum(pa.asarray(z), axis=axis), z.sum(axis=axis, dtype=np.clongdouble).astype(dtype))
    close(pa.prod(pa.asarray(turned), axis=axis), turned.prod(axis=axis, dtype=np.clongdouble).astype(dtype), 2000)
    close(pa.mean(pa.asarray(z), axis=axis), z.mean(axis=axis, dtype=np.clongdouble).astype(dtype))


@PRECISIONS
def test_long_sums_and_cumulative_sums(kernels, dtype):
    z = normal(20001, dtype=dtype)
    exact = z.astype(np.clongdouble)
    close(pa.sum(pa.asarray(z)), exact.sum().astype(dtype), 40)  # the sum is small beside those of parts
    close(pa.sum(pa.asarray(z)[1:]), exact[1:].sum().astype(dtype), 40)
    close(pa.cumulative_sum(pa.asarray(z)), exact.cumsum().astype(dtype), 40)
    close(pa.prod(pa.asarray(z / abs(z))), (z / abs(z)).astype(np.clongdouble).prod().astype(dtype), 20000)
    close(pa.sum(pa.asarray(z.real.copy()), dtype=dtype), exact.real.sum().astype(dtype), 40)
    square = z[:2100].reshape(30, 70)
    for axis in (0, 1):
        due = square.astype(np.clongdouble).cumsum(axis).astype(dtype)
        close(pa.cumulative_sum(pa.asarray(square), axis=axis), due)
    if dtype == pa.complex64:
        close(pa.sum(pa.asarray(z), dtype=pa.complex128), exact.sum().astype(pa.complex128), 100)


@PRECISIONS
def test_scatter(kernels, dtype):
    x, updates = normal(20, 7, dtype=dtype), normal(300, 7, dtype=dtype, seed=1)
    at = np.random.default_rng(0).integers(0, 20, 300)
    due = x.astype(np.clongdouble)
    np.add.at(due, at, updates)
    close(ops.scatter_add(pa.asarray(x), pa.asarray(at), pa.asarray(updates), axis=0), due.astype(dtype))
    replaced = x.copy()
    replaced[[4, 2]] = updates[:2]
    found = ops.scatter(pa.asarray(x), pa.asarray(np.array([4, 2])), pa.asarray(updates[:2]), axis=0)
    np.testing.assert_array_equal(found.numpy(), replaced)


SHAPES = [
    ((7, 13), (13, 9)), ((1, 70), (70, 33)), ((33, 70), (70, 1)), ((3, 7, 20), (20, 5)), ((3, 1, 7, 20), (2, 20, 5)),
    ((20,), (20, 6)), ((6, 20), (20,)), ((20,), (20,)), ((5, 0), (0, 4)), ((0, 5), (5, 4)), ((130, 65), (65, 40)),
]  # fmt: skip


@PRECISIONS
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_matrix_products(kernels, dtype, left, right):
    x, y = normal(*left, dtype=dtype), normal(*right, dtype=dtype, seed=1)
    close(pa.matmul(pa.asarray(x), pa.asarray(y)), (x.astype(np.clongdouble) @ y).astype(dtype), 20)


def test_matrix_products_of_views(backend):
    z = normal(33, 20)
    x = pa.asarray(z)
    close(x.T @ x, z.T @ z, 20)
    close(x @ pa.conj(x).T, z @ z.conj().T, 20)
    close(x[1:, 2:] @ x[3:21, 1:], z[1:, 2:] @ z[3:21, 1:], 20)
    close(pa.broadcast_to(x, (3, 33, 20)) @ x.T, z @ z.T + np.zeros((3, 1, 1)), 20)


# ---- captures and gradients --------------------------------------------------------------------------------------

PROGRAMS = {
    "arithmetic": lambda x, y: (x * y + 1) / (x - 2j) * 3 - y,
    "functions": lambda x, y: pa.exp(x) * pa.sin(y) + pa.sqrt(x) * pa.log(y),
    "parts": lambda x, y: pa.exp(pa.real(x)) * y + pa.imag(y) ** 2,
    "magnitudes": lambda x, y: pa.real(x * pa.conj(y)) + pa.abs(x),
    "choice": lambda x, y: pa.where(pa.abs(x) > 1, x * y, pa.sqrt(y)) / (y * 2.5),
    "joined": lambda x, y: ops.complex(pa.real(x) * 2, pa.imag(y)) * (1 + 2j) - 3,
    "rows": lambda x, y: pa.sum(pa.abs(x * y) ** 2, axis=-1, keepdims=True) * x,
    "complex rows": lambda x, y: x / pa.sum(x * y, axis=-1, keepdims=True),
    "product": lambda x, y: (x @ pa.conj(y).T) * 2,
    "pieces": lambda x, y: pa.concat([x * y, x + y], axis=-1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_captures_have_the_bits_of_eager_calls_and_gradients_those_of_numpy(backend, name):
    hosts = normal(33, 17), normal(33, 17, seed=1)
    x, y = map(pa.asarray, hosts)
    fn = PROGRAMS[name]
    eager, captured = fn(x, y).numpy(), pa.compile(fn)
    for _ in range(2):
        assert captured(x, y).numpy().tobytes() == eager.tobytes()

    def loss(x, y):
        found = fn(x, y)
        return pa.sum(pa.abs(found)) + pa.sum(pa.real(found))

    gradient = pa.grad(loss)
    found = gradient(x, y).numpy()
    with use_backend("numpy"):
        due = gradient(*map(pa.asarray, hosts)).numpy()
    np.testing.assert_allclose(found, due, rtol=1e-4, atol=1e-5 * np.max(abs(due)))


def test_scalars_of_captures_meet_complex_arrays(backend):
    z = normal(9)
    scaled = pa.compile(lambda x, s: x * s + 1)
    for s in (2.0, 3.5, -1.0):
        close(scaled(pa.asarray(z), s), z * np.float32(s) + 1)
