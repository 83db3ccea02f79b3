"""Arrays exported to and imported from other libraries through DLPack, shared or copied."""

import gc
import re
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyarr as pa
from polyarr.core import dlpack
from polyarr.core.backend import Backend, DLPack
from polyarr.core.current import get_backend, use_backend
from polyarr.core.dlpack import CPU, Shared, memory_of

DTYPES = ["bool", "int8", "int64", "uint16", "float16", "bfloat16", "float32"]


class Library:
    """An array of another library that supports only DLPack, on any device it claims."""

    def __init__(self, memory: np.ndarray, device: tuple[int, int] = CPU, version: Any = (1, 0)) -> None:
        self.memory, self.device, self.version, self.asked = memory, device, version, {}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **asked: Any) -> Any:
        self.asked = asked
        if asked.get("dl_device") not in (None, self.device):
            raise BufferError("it stays where it is")
        return dlpack.capsule_of(self.memory, self.device, self.version)


def views(x: Any) -> list:
    return [x, x.T, x[:, ::2], x[1:], x[0, 0], x[:0], x[::-1]]


# ---- to and from the host ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_go_out_and_come_in(backend: Backend, dtype: str) -> None:
    x = pa.astype(pa.reshape(pa.arange(12), (3, 4)), dtype)
    for y in views(x):
        assert y.__dlpack_device__() == CPU or backend.dlpack
        out = memory_of(y, dl_device=CPU)
        assert out.dtype == y.dtype and np.array_equal(out, y.numpy())
        back = pa.from_dlpack(y.numpy() if dtype != "bfloat16" else Library(out))
        assert back.spec == y.spec and np.array_equal(back.numpy(), y.numpy())


def test_numpy_takes_arrays(backend: Backend) -> None:
    x = pa.asarray([[1, 2], [3, 4]], dtype="int32")
    for y in (x, x.T):
        np.testing.assert_array_equal(np.from_dlpack(y, device="cpu"), y.numpy())
    copied = np.from_dlpack(x, device="cpu", copy=True)
    assert copied.flags.writeable or np.lib.NumpyVersion(np.__version__) < "2.3.0"  # which has a read-only copy
    assert pa.from_dlpack(np.arange(3)).tolist() == [0, 1, 2]
    assert pa.from_dlpack(np.ones(2, pa.bfloat16)).dtype == pa.bfloat16


def test_the_host_gets_a_copy_unless_it_asks_for_none(on_numpy: Backend) -> None:
    """PyTorch writes to read-only memory."""
    x = pa.asarray([1.0, 2.0])
    assert not np.shares_memory(memory_of(x), x.buf) and not np.shares_memory(memory_of(x, copy=True), x.buf)
    shared = memory_of(x, copy=False)
    assert np.shares_memory(shared, x.buf) and not shared.flags.writeable
    with pytest.raises(BufferError, match="reversed"):
        memory_of(x[::-1], copy=False)
    with pytest.raises(BufferError, match=r"^__dlpack__: max_version is \(0, 8\), which has no flag for read-only"):
        x.__dlpack__(copy=False, max_version=(0, 8))


def test_what_comes_from_the_host_is_copied_unless_that_is_refused(on_numpy: Backend) -> None:
    host = np.arange(4.0)
    copied, again, shared = pa.from_dlpack(host), pa.from_dlpack(host, copy=True), pa.from_dlpack(host, copy=False)
    host += 1
    assert copied.tolist() == again.tolist() == [0, 1, 2, 3] and shared.tolist() == [1, 2, 3, 4]
    narrow = np.arange(4).astype(pa.bfloat16)
    for given in (narrow, Library(narrow)):
        assert np.shares_memory(pa.from_dlpack(given, copy=False).buf, narrow)
    narrow.flags.writeable = False
    assert not pa.from_dlpack(narrow, copy=False).buf.flags.writeable
    assert pa.from_dlpack(Library(np.ones((0, 3))), copy=False).shape == (0, 3)


def test_asarray_shares_memory_if_copies_are_refused(on_numpy: Backend) -> None:
    host = np.arange(4.0, dtype=np.float32)
    for given in (host, memoryview(host), Library(host)):
        assert np.shares_memory(pa.asarray(given, copy=False).buf, host)
        assert not np.shares_memory(pa.asarray(given, copy=True).buf, host)
    assert np.shares_memory(pa.asarray(host, dtype=pa.float32, copy=False).buf, host)
    needs = "which needs a copy .*; leave copy=False out"
    for call, why in (
        (lambda: pa.asarray([1, 2], copy=False), "got a list, .*it has no memory to share"),
        (lambda: pa.asarray(3, copy=False), "got a int, .*it has no memory to share"),
        (lambda: pa.asarray(host[0], copy=False), "got a numpy.float32, .*it has no memory to share"),
        (lambda: pa.asarray(host[::-1], copy=False), "a reversed array cannot be shared"),
        (lambda: pa.asarray(host, dtype="int32", copy=False), r"its dtype is float32, not int32"),
        (lambda: pa.asarray(Library(host, (2, 0)), copy=False), r"it does not lie on the host"),
    ):
        for message in (why, needs):
            with pytest.raises(ValueError, match=rf"^asarray: .*{message}"):
                call()


def test_shared_memory_lives_as_long_as_anybody_holds_it(on_numpy: Backend) -> None:
    class Owned(np.ndarray): ...

    host = np.arange(5.0).view(Owned)
    gone = weakref.ref(host)
    x = pa.from_dlpack(Library(host, version=None), copy=False)
    y = memory_of(x[1:], copy=False)
    del host, x
    gc.collect()
    assert gone() is not None and y.tolist() == [1, 2, 3, 4]
    del y
    gc.collect()
    assert gone() is None


def test_what_cannot_be_shared_is_refused(backend: Backend) -> None:
    x = pa.ones(3)
    for device in ((2, 7), "cpu", 1):
        at = rf"^__dlpack__: dl_device is {re.escape(repr(device))}; float32\[3\] on .*"
        with pytest.raises(BufferError, match=rf"{at} can be copied to the host, device \(1, 0\)$"):
            x.__dlpack__(dl_device=device)
    with pytest.raises(BufferError, match=r"^__dlpack__: stream is 2; the host has no streams, leave it out$"):
        x.__dlpack__(dl_device=CPU, stream=2)
    x.__dlpack__(dl_device=CPU, stream=-1)  # no order is asked for
    with pytest.raises(ValueError, match=r"^to_device: stream is 2; backends have no streams to choose, leave it out$"):
        x.to_device("numpy", stream=2)
    moved = x.to(get_backend("numpy")._replace(name="other"))
    with pytest.raises(BufferError, match=r"^from_dlpack: x is float32\[3\] on 'other'; another dtype or device takes"):
        pa.from_dlpack(moved, device=backend, copy=False)
    if backend.dlpack is None:
        with pytest.raises(BufferError, match="cannot be shared without a copy"):
            x.__dlpack__(copy=False)
        with pytest.raises(BufferError, match=r"from_dlpack: x is a numpy.ndarray; backend .* shares no memory"):
            pa.from_dlpack(np.ones(3), copy=False)
        with pytest.raises(ValueError, match=r"^asarray: got a numpy.ndarray, which needs a copy \(backend"):
            pa.asarray(np.ones(3), copy=False)
    with pytest.raises(BufferError, match=r"from_dlpack: x is .*Library, whose .* device \(2, 7\): it stays"):
        pa.from_dlpack(Library(np.ones(3), (2, 7)))
    with pytest.raises(pa.DtypeError, match="complex256"):
        pa.from_dlpack(np.ones(3, np.clongdouble))


def test_errors_of_a_library_are_reported() -> None:
    """One line for any class of error."""

    class Odd:
        def __dlpack__(self, **_: object) -> None:
            raise RuntimeError("Unsupported.")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    for take in (pa.from_dlpack, pa.asarray):
        with pytest.raises(BufferError, match=rf"^{take.__name__}: x is a .*Odd, whose values cannot be read: Unsup"):
            take(Odd())


def test_a_dtype_that_polyarr_lacks_is_named() -> None:
    narrow = np.ones(3, ml_dtypes.float8_e4m3fn)

    class Float8(Library):
        def __dlpack__(self, **asked: Any) -> Any:
            made = super().__dlpack__(**asked)
            dlpack._tensor(made).code = 10
            return made

    with pytest.raises(BufferError, match=r"its dtype is code 10 of DLPack, bits 8, which polyarr does not have$"):
        pa.from_dlpack(Float8(narrow.view(np.uint8)))


def test_libraries_that_know_no_versions(on_numpy: Backend) -> None:
    """JAX, for example: it accepts no max_version and returns unversioned capsules."""
    x = pa.ones(3, dtype="bfloat16")
    assert "versioned" not in repr(x.__dlpack__()) and "versioned" in repr(x.__dlpack__(max_version=(1, 2)))

    class Old(Library):
        def __dlpack__(self, stream: Any = None) -> Any:
            return self.memory.__dlpack__()

    assert pa.from_dlpack(Old(np.ones(3))).tolist() == [1, 1, 1]
    assert pa.from_dlpack(Old(np.ones(3)), copy=False).tolist() == [1, 1, 1]


def test_an_adopting_backend_copies_in_secret(on_numpy: Backend) -> None:
    """copy=False is then an error, whatever the library says."""
    copies = DLPack(Shared, lambda x: np.array(memory_of(x)))
    copies = copies._replace(export=get_backend("numpy").dlpack.export)
    with use_backend(get_backend("numpy")._replace(name="copies", dlpack=copies)):
        assert pa.from_dlpack(Library(np.ones(3), (1, 3))).tolist() == [1, 1, 1]
        with pytest.raises(BufferError, match="backend 'copies' cannot take it without a copy"):
            pa.from_dlpack(np.ones(3), copy=False)


def test_moving_to_another_backend_shares_bfloat16(on_numpy: Backend) -> None:
    x = pa.ones(3, dtype="bfloat16")
    moved = x.to(get_backend("numpy")._replace(name="other"))
    assert np.shares_memory(moved.buf, x.buf) and moved.tolist() == [1, 1, 1]


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_other_libraries_take_and_give_arrays(backend: Backend, library: str) -> None:
    other = pytest.importorskip(library)
    take = other.from_dlpack if library == "torch" else other.dlpack.from_dlpack
    x = pa.reshape(pa.arange(12, dtype=pa.float32), (3, 4))
    for y in views(x) if x.__dlpack_device__() == CPU else (x, x.T, x[1:]):  # JAX needs contiguous arrays
        assert np.array_equal(pa.from_dlpack(take(y)).numpy(), y.numpy())
    if library == "torch" and x.__dlpack_device__() == CPU:
        taken = take(x)
        taken += 1  # PyTorch would write to read-only memory
        assert x[0, 0].item() == 0
    narrow = pa.from_dlpack(take(x.astype(pa.bfloat16)))
    assert narrow.dtype == pa.bfloat16 and np.array_equal(narrow.numpy(), x.numpy())
