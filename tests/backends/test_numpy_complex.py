"""Complex numbers on NumPy, where its own functions would overflow or lose digits."""

import numpy as np
import pytest

import polyarr as pa
from tests.helpers.complex_numbers import FUNCTIONS, exactly, numbers, ulps

PRECISIONS = pytest.mark.parametrize("dtype", [pa.complex64, pa.complex128], ids=lambda d: d.name)


@PRECISIONS
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_accurate_everywhere(on_numpy, name, dtype):
    z = numbers(dtype)
    assert ulps(getattr(pa, name)(pa.asarray(z)).numpy(), exactly(name, z)) <= 4


@PRECISIONS
def test_quotients_of_every_magnitude(on_numpy, dtype):
    x = numbers(dtype)
    y = np.random.default_rng(1).permutation(x)
    assert ulps(pa.divide(pa.asarray(x), pa.asarray(y)).numpy(), exactly("divide", x, y)) <= 4
    tiny = float(np.finfo(dtype).smallest_subnormal)
    x, y = (pa.asarray(z, dtype=dtype) for z in ([tiny * (3 + 4j), 0, 1], [tiny * (1 + 2j), 2j, 0]))
    found = (x / y).numpy()
    np.testing.assert_allclose(found[:2], [2.2 - 0.4j, 0], rtol=1e-6)
    assert found[2].real == np.inf


@PRECISIONS
def test_products_with_infinities_are_those_of_the_definition_in_every_shape(on_numpy, dtype):
    """BLAS multiplies what it adds up to a vector by 1 + 0j: inf + nan j would become nan + nan j."""
    x = np.zeros((3, 2, 4), dtype)
    x[:, :, 1], x[0, 1, 2], x[2, 0, 3] = 2, complex(np.inf, 1), complex(0, -np.inf)
    y = np.array([1, 3, 1, 1], dtype)

    def product(a):
        return pa.tensordot(a, pa.asarray(y), axes=1)

    each = np.stack([product(pa.asarray(a)).numpy() for a in x])
    together = pa.vmap(product)(pa.asarray(x)).numpy()
    np.testing.assert_array_equal(together, each)
    assert each[0, 1].real == np.inf and each[2, 0].imag == -np.inf and each[1].tolist() == [6, 6]
