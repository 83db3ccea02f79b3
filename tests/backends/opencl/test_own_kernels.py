"""Kernels of other packages: what `backend.handle` builds and launches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.backend import Backend
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec, float32

SCALED = """
// kernel void commented(short n) {}
kernel __attribute__((reqd_work_group_size(8, 1, 1)))
void scaled(const global float *x, __global float *restrict y, const unsigned int n, float by, const long offset) {
    const size_t i = get_global_id(0);
    if (i < n) y[i] = mad(x[i + offset], by, (float)SHIFT);
}
__kernel void nothing(void) {}
"""
on_opencl = pytest.mark.polyarr_backend("opencl")


def scaled(handle: Any, x: Any, n: int, by: float, offset: int = 0, shift: int = 0) -> Any:
    y = handle.empty(Spec((n,), float32))
    handle.build(SCALED, SHIFT=shift).scaled((-(-n // 8) * 8,), (8,), x, y, n, by, offset)
    return y


@on_opencl
def test_a_source_is_a_program_with_its_macros(backend: Backend) -> None:
    x, handle = pa.asarray(np.arange(11, dtype=np.float32)), backend.handle
    for shift in (0, 3):
        found = scaled(handle, x.buf, 11, 0.5, shift=shift)
        np.testing.assert_array_equal(backend.download(found), np.arange(11) * 0.5 + shift)
    view = x[2:].buf
    found = scaled(handle, view.memory, 9, 2.0, view.offset)
    np.testing.assert_array_equal(backend.download(found), np.arange(2, 11) * 2)
    found = scaled(handle, handle.dense(x[::2].buf), 6, np.float64(2))
    np.testing.assert_array_equal(backend.download(found), np.arange(0, 11, 2) * 2)
    handle.build(SCALED, SHIFT=0).nothing((3,), None)


@on_opencl
def test_nothing_happens_without_work_items(backend: Backend) -> None:
    assert backend.download(scaled(backend.handle, pa.zeros((0,)).buf, 0, 1.0)).shape == (0,)


def test_on_cudas_driver(fake: Any) -> None:
    found = scaled(fake.backend.handle, pa.asarray(np.arange(11, dtype=np.float32)).buf, 11, 0.5)
    np.testing.assert_array_equal(fake.backend.download(found), np.arange(11) * 0.5)


WRONG_CALLS = [
    (lambda k, x: k.scaled((9,), (8,), x, x, 8, 1, 0), r"the global size \(9,\) must be a multiple of .* \(8,\)"),
    (lambda k, x: k.scaled((8,), (0,), x, x, 8, 1, 0), r"the global size \(8,\) must be a multiple of .* \(0,\)"),
    (lambda k, x: k.scaled(8, (8,), x, x, 8, 1, 0), "the global size is 8; it must be a tuple of ints"),
    (lambda k, x: k.scaled((8,), (8.0,), x, x, 8, 1, 0), r"the local size is \(8\.0,\); it must be a tuple of ints"),
    (lambda k, x: k.scaled((8,), (8, 1), x, x, 8, 1, 0), "must be a multiple"),
    (lambda k, x: k.scaled((8,), (8,), x, x, 8), "kernel scaled: 3 arguments are given; it has 5"),
    (lambda k, x: k.scaled((8,), (8,), 3, x, 8, 1, 0), "argument 0 is 3; it must be a Buffer or the memory of one"),
    (lambda k, x: k.scaled((8,), (8,), x, x, 8.5, 1, 0), "argument 2 is 8.5; it must be a number that fits uint32"),
    (lambda k, x: k.scaled((8,), (8,), x, x, -1, 1, 0), "argument 2 is -1; it must be a number that fits uint32"),
    (lambda k, x: k.scaled((8,), (8,), x, x, 8, "1", 0), "argument 3 is '1'; it must be a number that fits float32"),
    (lambda k, x: k.scaled((8,), (8,), x, x, 8, x, 0), r"argument 3 is Buffer\(.*; it must be a number"),
]


@on_opencl
@pytest.mark.parametrize(("call", "message"), WRONG_CALLS)
def test_wrong_calls_are_refused(backend: Backend, call: Callable, message: str) -> None:
    kernels = backend.handle.build(SCALED, SHIFT=0)
    with pytest.raises(BackendError, match=message):
        call(kernels, pa.zeros((8,)).buf)


@on_opencl
def test_a_view_is_refused(backend: Backend) -> None:
    for view in (pa.zeros((9,))[1:], pa.zeros((4, 4)).T):
        with pytest.raises(BackendError, match=r"argument 0 is a view; pass handle.dense of it, or its memory"):
            scaled(backend.handle, view.buf, 8, 1.0)


WRONG_SOURCES = [
    ("int f(void) { return 1; }", "^the source has no kernel; one begins with `kernel void` and its name$"),
    ("kernel void f(global int *x, short n) {}", "kernel f: a parameter is `short n`; it must be a pointer to global"),
    ("kernel void f(local int *x) {}", r"kernel f: a parameter is `local int \*x`"),
    ("kernel void f(global int *x) { x[0] = nobody; }", "^the source of f does not build on .*\n.*undeclared"),
    ("kernel void f(int n) {} \n#if 0\nkernel void f(long n) {}\n#endif", "kernel f: the source has it twice"),
    (
        "#define KERNEL(name) kernel void name(global int *x)\nKERNEL(g) { x[0] = 1; }\nkernel void f(int n) {}",
        "kernel g: its parameters cannot be read; write `kernel void g",
    ),
]


@on_opencl
@pytest.mark.parametrize(("source", "message"), WRONG_SOURCES)
def test_wrong_sources_are_refused(backend: Backend, source: str, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        backend.handle.build(source)


@on_opencl
def test_a_source_is_text(backend: Backend) -> None:
    with pytest.raises(TypeError, match=r"handle\.build: source is 3; it must be a str"):
        backend.handle.build(3)
    with pytest.raises(AttributeError, match="handle has no 'context_of'"):
        backend.handle.context_of  # noqa: B018
    with pytest.raises(AttributeError, match="the program has no kernel 'cube'"):
        backend.handle.build(SCALED, SHIFT=0).cube  # noqa: B018
