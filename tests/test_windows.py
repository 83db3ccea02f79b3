"""Sums through memory that several processes see; the others, who hold what we do times their rank, are played."""

from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.backend import Backend

pytestmark = pytest.mark.polyarr_backend("opencl")
RANK = 1


def reduce_of(backend: Backend, ranks: int, nbytes: int, dtype: np.dtype) -> Any:
    """The function that reduces, and how often all met in it. The windows have so many bytes each."""
    windows, met = [np.zeros(nbytes, np.uint8) for _ in range(ranks)], []

    def meet() -> None:
        met.append(1)
        for rank, window in enumerate(windows):
            if rank != RANK:
                with np.errstate(all="ignore"):  # of what lies between the arrays
                    window.view(dtype)[:] = windows[RANK].view(dtype) * dtype.type(rank + 1)

    return backend.together.windows(windows, RANK, meet), met


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("wire", [pa.float32, pa.bfloat16])
def test_sums_and_means(backend: Backend, ranks: int, wire: np.dtype) -> None:
    host = [np.arange(n, dtype=np.float32).reshape(shape) % 50 for n, shape in ((6000, (60, 100)), (3, (3,)), (1, ()))]
    arrays = [pa.asarray(h) for h in host]
    reduce, met = reduce_of(backend, ranks, 2 * 4096, wire)
    factor = 1 + sum(rank + 1 for rank in range(ranks) if rank != RANK)
    for name, count in (("sum", np.float32(1)), ("mean", np.float32(ranks))):
        for _ in range(2):
            met.clear()
            found = [backend.download(b) for b in reduce([a.buf for a in arrays], wire, name)]
            for value, own in zip(found, host, strict=True):
                wanted = (own * factor / count).astype(wire).astype(np.float32)
                assert value.dtype == np.float32 and np.array_equal(value, wanted)
    assert len(met) == {pa.float32: 7, pa.bfloat16: 4}[wire] + 1  # slots of 4,096 bytes, and the end
    assert np.array_equal(arrays[0].numpy(), host[0])


def test_results_are_kept_while_the_bucket_is_used_again(backend: Backend) -> None:
    reduce, _ = reduce_of(backend, 2, 1 << 16, pa.float32)
    (first,) = reduce([pa.ones(100).buf], pa.float32, "sum")
    (second,) = reduce([pa.zeros(100).buf], pa.float32, "sum")
    assert (backend.download(first) == 2).all() and not backend.download(second).any()


def test_faults_are_reported(backend: Backend) -> None:
    reduce, _ = reduce_of(backend, 2, 1 << 16, pa.float32)
    with pytest.raises(IndexError, match="index 5 is out of range"):
        reduce([pa.take(pa.ones(5), pa.asarray([5])).buf], pa.float32, "sum")


def test_windows_that_a_driver_pins(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.home, "features", backend.home.features._replace(is_cpu=False))
    reduce, _ = reduce_of(backend, 2, 1 << 16, pa.float32)
    assert (backend.download(reduce([pa.ones(5).buf], pa.float32, "mean")[0]) == 1).all()
