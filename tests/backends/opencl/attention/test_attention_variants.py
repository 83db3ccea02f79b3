"""Attention kernels for Hopper: the calls that they accept, and the fallback if they are wrong. Needs such a device."""

import struct
from itertools import cycle
from types import SimpleNamespace

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.spec import Spec
from tests.helpers.opencl_modules import opencl_modules

attention, split, tiled, wgmma, devices, probes = opencl_modules(
    "attention", "attention_split", "attention_tiled", "attention_wgmma", "devices", "probes"
)
on_opencl = pytest.mark.polyarr_backend("opencl")


def problem(length=64, row=64, outer=64 * 96, **changed):
    layouts = (struct.pack("3q", outer, 32 * row, row),) * 3
    given = wgmma.Problem(
        np.dtype(pa.bfloat16), None, 6, 3, 32, 32, (length, length), layouts, True, False, True, False, False, 1
    )
    return given._replace(**changed)


def test_whole_tiles_rows_of_packed_projections_and_repeated_heads_are_taken() -> None:
    assert wgmma.accepts(problem())
    assert wgmma.accepts(problem(row=3 * 64))
    assert wgmma.accepts(problem(outer=0))
    assert wgmma.accepts(problem(length=40, row=40))


def test_float32_is_taken_in_parts_only_and_in_shorter_rows() -> None:
    float32 = np.dtype("float32")
    assert all(wgmma.accepts(problem(dtype=float32, terms=count)) for count in (2, 3))
    assert not wgmma.accepts(problem(dtype=float32))
    assert not wgmma.accepts(problem(length=72, row=72, dtype=float32, terms=2))


@pytest.mark.parametrize(
    "changed",
    [
        {"length": 60, "row": 64},  # 120 bytes are no whole pieces of 16
        {"length": 136, "row": 136},
        {"row": 68},
        {"row": 0},
        {"t": 1},
        {"s": 0},
        {"batch": 0},
        {"dtype": np.dtype("float32")},
        {"lengths": (64, 32)},
        {"is_aligned": False},
        {"scale_is_positive": False},
    ],
)
def test_arrays_that_tma_cannot_copy_use_other_kernels(changed) -> None:
    assert not wgmma.accepts(problem(**changed))


@pytest.mark.parametrize(("count", "batch", "memory", "taken"), [
    (3, 96, 2**33, True), (2, 96, 2**33, True), (1, 1, 2**20, True),
    (3, 3, 2**33, False),  # splitting costs more than it saves
    (3, 96, 2**31, False), (2, 96, 2**31, True),  # 144 and 96 MiB
])  # fmt: skip
def test_float32_is_split_if_faster_and_memory_allows(monkeypatch, count, batch, memory, taken) -> None:
    p = problem(outer=64 * 1024 * 12, dtype=np.dtype("float32" if count > 1 else pa.bfloat16), terms=count, batch=batch,
                inner=min(batch, 12), t=1024, s=1024)  # fmt: skip
    p = p._replace(layouts=(struct.pack("3q", 64 * 1024 * 12, 64 * 1024, 64),) * 4)
    device = SimpleNamespace(features=SimpleNamespace(global_memory=memory))
    for name in ("is_sound", "is_sound_program", "_planned"):
        monkeypatch.setattr(wgmma, name, lambda *_: True)
    assert bool(wgmma.plan(device, p)) == taken


def test_maps_have_an_axis_for_each_that_moves() -> None:
    assert lengths_of_map(problem(outer=0)) == [64, 32, 3, 1]
    assert lengths_of_map(problem()) == [64, 32, 3, 2]
    assert lengths_of_map(problem(dtype=np.dtype("float32"), length=40, terms=2)) == [128, 32, 3, 2]
    assert lengths_of_map(problem(dtype=np.dtype("float32"), length=40, terms=3)) == [192, 32, 3, 2]


def lengths_of_map(p):
    words = wgmma._map(p, struct.unpack("3q", p.layouts[0]), next(split.batches(p)))
    return [int(words[4 + axis // 2] >> np.uint64(32 * (axis % 2))) % 2**32 + 1 for axis in range(4)]


@on_opencl
def test_they_fail_their_trial_elsewhere() -> None:
    device = devices.select()
    if wgmma.VARIANT.may_suit(device.features):
        pytest.skip("they are for this device")
    assert "rror" in probes.ProbeProcess(device.name).wrong(wgmma.VARIANT.trial)


@on_opencl
@pytest.mark.parametrize("length", [40, 64])
def test_three_parts_are_the_number(backend, length) -> None:
    """Three bfloat16 terms add up to the number in any layout, and once for shared heads; infinity stays infinity."""
    device, r = devices.select(backend.name), np.random.default_rng(length)
    q, k = (np.ldexp(r.standard_normal(shape), r.integers(-100, 100, shape)).astype(np.float32)
            for shape in ((2, 37, 3, length + 8), (2, 1, 21, length)))  # fmt: skip
    q[0, 0, 0, :4] = np.finfo(np.float32).max, -np.finfo(np.float32).max, 0, 2.0**-110
    k[1, 0, 20, 5] = np.inf
    x = ops.permute_dims(pa.asarray(q)[..., :length], axes=(0, 2, 1, 3)).buf
    y = pa.asarray(k).buf
    call = attention._call(device, (2, 3), (x, y, y, None), (x,), 0, 0, True, 1.0, 0.0, "highest")
    with device.guarded():
        written = split.split(device, call, split.walks(call.problem))
        found = []
        for memory, shape in zip(written, ((2, 3, 37), (2, 1, 21), (2, 1, 21)), strict=True):
            buf = device.empty(Spec((*shape, 3, 64), np.dtype(pa.bfloat16)))
            found.append(device.download(buf._replace(memory=memory)).astype(np.float64))
    for given, divided in zip((q[..., :length].transpose(0, 2, 1, 3), k, k), found, strict=True):
        np.testing.assert_array_equal(divided.sum(-2)[..., :length], given)
        assert not divided[..., length:].any()


class Noting:
    """A program whose kernels record their arguments."""

    def __init__(self):
        self.given = {}

    def __getattr__(self, name):
        return lambda work, group, *args: self.given.update({name: args})


@on_opencl
@pytest.mark.parametrize("count", [1, 2, 3])
def test_kernels_get_the_memory_that_maps_point_to(monkeypatch, backend, count) -> None:
    """A replay relies on it: memory that is no argument any more is reused."""
    terms = [object() for _ in range(4)]
    monkeypatch.setattr(wgmma, "split", lambda device, call, walks: terms[: len(call.inputs) - 1] if count > 1 else [])
    device, p = devices.select(backend.name), problem(dtype=np.dtype("float32"), terms=count)
    arrays = [device.upload(np.zeros((6, 32, 64), np.float32)) for _ in range(9)]
    q, k, v, dout, out, lse, *gradients = arrays
    forward, backward = Noting(), Noting()
    call = wgmma.Call(p, (q, k, v, q), (b"",) * 5, (0,))
    wgmma.Plan(forward, None, cycle([None]), 0, 1).forward(device, call, out)
    call = wgmma.Call(p._replace(layouts=p.layouts + p.layouts[:1]), (q, k, v, q, dout), (b"",) * 9, (0,))
    wgmma.Plan(backward, None, cycle([None]), 0, 1).backward(device, call, out, lse, gradients, (True, True, True))
    backward.given.pop("attention_delta")
    for noted, kernels, operands in ((forward, 1, 3), (backward, 2, 4)):
        memory = terms if count > 1 else [x.memory for x in (q, k, v, dout)]
        assert len(noted.given) == kernels
        for args in noted.given.values():
            assert list(map(id, args[2:10:2][:operands])) == list(map(id, memory[:operands]))


class Imitated:
    """Portable kernels that save row sums like Hopper's."""

    def forward(self, device, call, out):
        p = call.problem
        lse = device.download(tiled.forward(device, call, out))
        padded = np.full((p.batch, wgmma._padded(p.t)), np.inf, np.float32)
        padded[:, : p.t] = lse / np.log(2)
        return device.upload(padded)


@on_opencl
def test_where_only_the_backward_pass_is_wrong_the_portable_one_takes_over(monkeypatch, backend) -> None:
    q, k, v, g = np.random.default_rng(0).standard_normal((4, 2, 3, 5, 8), np.float32)

    def gradients():
        out, pull = pa.vjp(lambda *x: ops.attention(*x, causal=True), *map(pa.asarray, (q, k, v)))
        return [out.numpy(), *(x.numpy() for x in pull(pa.asarray(g)))]

    expected = gradients()
    calls = []

    def plan(device, p):
        calls.append(p.is_backward)
        return None if p.is_backward else Imitated()

    device = devices.select(backend.name)
    monkeypatch.setattr(device.vendor, "attention", (wgmma.VARIANT._replace(plan=plan),))
    monkeypatch.setattr(device, "plans", type(device.plans)(device))
    for ours, theirs in zip(gradients(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert set(calls) == {False, True}


@on_opencl
@pytest.mark.parametrize("rate", [0.0, wgmma.RATE])
@pytest.mark.parametrize("causal", [False, True])
def test_what_a_program_is_compared_with_is_what_the_portable_kernels_give(causal, rate) -> None:
    p = problem(mask=np.dtype("float32"), dtype=np.dtype("float32"), layouts=(b"",) * 4, dropout=rate > 0)
    q, k, v, mask, dout = (x[..., : p.lengths[0]] if x.ndim == 3 else x for x in wgmma._arrays(p))
    key, counter = wgmma.STATE

    def call(q, k, v):
        return ops.attention(
            q[None], k[None], v[None], pa.asarray(mask), key, counter, causal=causal, scale=wgmma.SCALE,
            dropout_rate=rate,
        )[0]  # fmt: skip

    _, pull = pa.vjp(call, *map(pa.asarray, (q, k, v)))
    found = [x.numpy() for x in pull(pa.asarray(dout))]
    for ours, expected in zip(found, wgmma._expected(p, wgmma._arrays(p), causal), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@on_opencl
@pytest.mark.parametrize(("dtype", "precision"), [("bfloat16", "highest"), ("float32", "high"), ("float32", "highest")])
def test_a_compiled_function_keeps_what_attention_reads(monkeypatch, backend, dtype, precision) -> None:
    """Operands are temporaries whose memory could be reused too early. On Hopper, its own kernels run."""
    monkeypatch.setattr(wgmma, "MIN_SPLIT_SIZE", 0)
    q, k, v, g = (pa.asarray(x, dtype=dtype) for x in np.random.default_rng(3).standard_normal((4, 2, 3, 64, 32), "f4"))

    def loss(q, k, v):
        y = ops.attention(q * 1.5, k + 0.25, v * 0.5, causal=True) * 2
        return pa.sum(y * g + pa.exp(y))

    def both(q, k, v):
        out = ops.attention(q * 1.25, k - 0.5, v + 1, causal=True) * 2 + q
        return out, *pa.value_and_grad(loss, argnums=(0, 1, 2))(q, k, v)[1]

    compiled = pa.compile(both, captures=g)
    with pa.use_matmul_precision(precision):
        expected = [x.numpy() for x in both(q, k, v)]
        for _ in range(3):
            for ours, due in zip(compiled(q, k, v), expected, strict=True):
                np.testing.assert_array_equal(ours.numpy(), due)
