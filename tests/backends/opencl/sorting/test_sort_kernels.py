"""Sorts on OpenCL against NumPy, for rows shorter and longer than a kernel sorts at once."""

from types import SimpleNamespace

import numpy as np
import pytest

import polyarr as pa
from tests.helpers.opencl_modules import opencl_modules

WHOLE = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
DTYPES = (*WHOLE, "float16", "bfloat16", "float32", "float64")
LENGTHS = (511, 512, 513, 4095, 4096, 4097, 9001)


def drawn(rng, shape, dtype):
    """Draw many equal elements, all digits, and special floats."""
    if dtype not in WHOLE:
        host = rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 4, shape)
        special = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], shape)
        return np.where(rng.random(shape) < 0.2, special, host).astype(getattr(pa, dtype))
    wide = rng.integers(0, 2**64, shape, dtype=np.uint64)
    return np.where(rng.random(shape) < 0.3, wide % np.uint64(3), wide).astype(dtype)


@pytest.mark.parametrize("backend", ["opencl"], indirect=True)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_any_length_are_numpys(backend, dtype):
    """Stable, with nan last, in both directions."""
    rng = np.random.default_rng(0)
    for length in LENGTHS:
        host = drawn(rng, (3, length), dtype)
        x = pa.asarray(host)
        wide = host.astype(np.float64) if dtype in ("bfloat16", "float16") else host
        up = np.argsort(wide, axis=1, kind="stable")
        np.testing.assert_array_equal(pa.argsort(x).numpy(), up, err_msg=f"{length}")
        down = length - 1 - np.argsort(wide[:, ::-1], axis=1, kind="stable")[:, ::-1]
        np.testing.assert_array_equal(pa.argsort(x, descending=True).numpy(), down, err_msg=f"{length}")
        for order, found in ((up, pa.sort(x)), (down, pa.sort(x, descending=True))):
            assert found.numpy().tobytes() == np.take_along_axis(host, order, 1).tobytes(), f"{length}"


@pytest.mark.parametrize(("local_memory", "itemsize", "items"), [(2**15, 8, 64), (2**15, 4, 128), (49152, 8, 128)])
def test_work_groups_are_small_where_there_is_little_local_memory(local_memory, itemsize, items):
    """Keys of 8 bytes and their positions took 46,080 bytes of local memory on every GPU."""
    (sort,) = opencl_modules("sort")
    device = SimpleNamespace(features=SimpleNamespace(local_memory=local_memory), build=lambda *_, **macros: macros)
    for tile in (64, 1024):
        macros, tiles, group = sort._gpu_program(device, np.dtype(f"uint{8 * itemsize}"), False, tile)
        assert (tiles * macros["LANES"], group) == (items, items)
