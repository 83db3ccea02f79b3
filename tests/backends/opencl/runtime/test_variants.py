"""Kernel variants for particular devices: tested before use, dropped if they fail; those for Hopper."""

import operator
import os
import pickle
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.spec import bfloat16
from tests.helpers.opencl_modules import opencl_modules

(
    variants, wgmma, mma, matmul, devices, caches, product, product_check, copy, layout, tuning, split, table, probes,
) = opencl_modules(
    "variants", "wgmma", "mma", "matmul", "devices", "caches", "product", "product_check", "copy", "layout", "tuning",
    "split", "table", "probes",
)  # fmt: skip
Plans = import_module("polyarr.backends.opencl.runtime.plans").Plans
tensor_map = import_module("polyarr.backends.opencl.nvidia.tensor_map").tensor_map
to_copy = import_module("polyarr.backends.opencl.nvidia.tensor_map").to_copy
on_opencl = pytest.mark.polyarr_backend("opencl")


@pytest.fixture
def device(backend, monkeypatch, tmp_path):
    """A device without stored verdicts, with a cache folder of its own."""
    found = devices.select(backend.name)
    monkeypatch.setattr(found, "plans", Plans(found))
    monkeypatch.setattr(variants, "store_of", lambda identity: caches.Store(tmp_path))
    monkeypatch.delenv("POLYARR_VARIANTS", raising=False)
    return found


def variant(trial=None, plan=lambda *args: None):
    return variants.Variant("tested", "everything", plan, stem="matmul_wgmma", trial=trial)


class Ends(NamedTuple):
    """An object whose unpickling ends the process."""

    code: int

    def __reduce__(self) -> tuple:
        return os._exit, (self.code,)


class Refuses:
    """A limit that allows no more processes."""

    def __init__(self, *_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")


# ---- trying ------------------------------------------------------------------------------------------------------


@on_opencl
def test_what_was_found_is_remembered(device: object) -> None:
    asked = []
    for _ in range(2):
        verdicts = variants.Verdicts(device)
        assert verdicts.get("a", lambda: asked.append("a") or "is wrong") == "is wrong"
        assert not verdicts.get("b", lambda: asked.append("b") or "")
    assert asked == ["a", "b"]
    assert variants.Verdicts(device).set_aside() == {"a": "is wrong"}


@on_opencl
def test_two_processes_keep_each_others_verdicts(device: object) -> None:
    one, other = variants.Verdicts(device), variants.Verdicts(device)
    one.get("a", lambda: "wrong")
    other.get("b", lambda: "wrong too")
    assert variants.Verdicts(device).set_aside() == {"a": "wrong", "b": "wrong too"}


@on_opencl
def test_a_damaged_entry_is_found_out_again(device: object, tmp_path) -> None:
    caches.Store(tmp_path).save(variants.ENTRY, b"no JSON")
    assert variants.Verdicts(device).get("a", lambda: "wrong") == "wrong"


@on_opencl
@pytest.mark.parametrize("kernels", [wgmma, mma])
def test_nvidias_kernels_fail_their_trial_elsewhere_and_the_process_goes_on(device, kernels) -> None:
    if kernels.VARIANT.may_suit(device.features):
        pytest.skip("they are for this device")
    assert not variants.is_sound(device, kernels.VARIANT)
    assert "rror" in probes.ProbeProcess(device.name).wrong(kernels.VARIANT.trial)


@on_opencl
def test_one_process_tries_one_thing_after_the_other_and_another_follows_when_it_ended(device) -> None:
    apart = probes.ProbeProcess(device.name)
    assert apart.wrong(int).startswith("TypeError: ")
    idle = apart._process
    assert apart.wrong(str) == "" and apart._process is idle
    idle.stdin.write(pickle.dumps(Ends(0)))  # as after an idle period
    idle.stdin.flush()
    assert idle.wait() == 0
    assert apart.wrong(str) == "" and apart._process is not idle
    assert apart.wrong(str, Ends(3)) == "the process that tried it ended with 3"


@on_opencl
def test_the_probe_process_runs_this_package_wherever_it_starts(device, monkeypatch, tmp_path) -> None:
    (tmp_path / "polyarr").mkdir()
    (tmp_path / "polyarr" / "__init__.py").write_text("raise SystemExit('another polyarr')")
    monkeypatch.chdir(tmp_path)
    assert probes.ProbeProcess(device.name).wrong(str) == ""


def faults(device) -> None:
    """Simulate a driver that crashes in a kernel."""
    device.download(copy.in_whole_rows(device, device.upload(np.zeros((3, 7), bfloat16))))
    os.abort()


@on_opencl
def test_the_kernel_in_which_a_driver_ends_the_process_is_named(device) -> None:
    wrong = probes.ProbeProcess(device.name).wrong(faults)
    assert wrong == "the process that tried it was ended by signal 6 (SIGABRT), last seen in kernel copy_rows"
    assert probes.ProbeProcess(device.name).wrong(str, Ends(3)) == "the process that tried it ended with 3"


@on_opencl
def test_doctor_survives_a_driver_that_ends_the_process(device, monkeypatch) -> None:
    """The device is one line and is not tested in doctor's own process; all other lines are there."""
    monkeypatch.setattr(devices, "_devices", {})
    monkeypatch.setattr(devices, "_problems", {})
    monkeypatch.setattr(devices, "examine", faults)
    monkeypatch.setattr(devices, "_ended", devices._ended.__wrapped__)
    lines = devices.diagnose()
    broken = [text for level, text in lines if level == "error" and "does not work and is skipped" in text]
    assert len(broken) == len(devices.listing()) and not devices._devices
    assert all(text.endswith("(SIGABRT), last seen in kernel copy_rows") for text in broken)
    assert any("compiled kernels are kept" in text for _, text in lines)


@on_opencl
def test_what_could_not_be_tried_is_tried_by_the_next_process(device, monkeypatch) -> None:
    """The variant is not used meanwhile, which a warning says once."""
    apart = probes.ProbeProcess(device.name)
    with pytest.raises(probes.NotTriedError, match="MemoryError"):
        apart.wrong(operator.methodcaller("empty_words", 1 << 60))
    monkeypatch.setattr(probes.subprocess, "Popen", Refuses)
    tested = variant()
    with pytest.warns(RuntimeWarning, match="variant tested could not be tried .*, so slower ones are used") as seen:
        for number in (1, 2, 1):
            assert not variants.is_sound_program(device, tested, {"A": number}, partial(max, device))
            assert not variants.Verdicts(device).set_aside()
    assert len(seen) == 1


@on_opencl
def test_a_process_that_hangs_is_ended(device, monkeypatch) -> None:
    monkeypatch.setattr(probes, "TRIAL_SECONDS", 0.1)
    assert probes.ProbeProcess(device.name).wrong(str) == "did not end within 0.1 s"


@on_opencl
def test_a_variant_whose_trial_failed_is_set_aside(device, monkeypatch) -> None:
    monkeypatch.setattr(probes.ProbeProcess, "wrong", lambda *_: "ended with -11")
    tested = variant()
    assert variants.is_sound(device, tested)  # not tested yet
    assert ("warning", "the variant tested is set aside: ended with -11") in [
        (level, text.partition(": ")[2]) for level, text in variants.diagnose(device, (tested,))
    ]
    device.plans.renew()
    assert not variants.is_sound(device, tested)


@on_opencl
def test_a_variant_that_is_not_wanted_is_not_tried(device, monkeypatch) -> None:
    monkeypatch.setenv("POLYARR_VARIANTS", "another")
    assert not variants.is_sound(device, variant())


@on_opencl
def test_a_program_that_is_wrong_is_set_aside_alone(device, monkeypatch) -> None:
    """It is tested once in a probe process, with all arguments but the device; each process warns once of it."""
    asked = []

    def wrong(_: object, function: object, *arguments: object) -> str:
        asked.append((function, arguments))
        return "the result is wrong" if arguments == (1,) else ""

    monkeypatch.setattr(probes.ProbeProcess, "wrong", wrong)
    tested = variant()
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="tested is set aside, so a slower .* A=1: the result is wrong$"):
            assert not variants.is_sound_program(device, tested, {"A": 1}, partial(max, device, 1))
        assert not variants.is_sound_program(device, tested, {"A": 1}, partial(max, device, 1))
        assert variants.is_sound_program(device, tested, {"A": 2}, partial(max, device, 2))
        device.plans.renew()
    assert asked == [(max, (1,)), (max, (2,))]
    assert [*variants.Verdicts(device).set_aside().values()] == ["A=1: the result is wrong"]
    assert [text.partition(": ")[2] for _, text in variants.diagnose(device, (tested,))] == [
        "the variant tested was tried on this driver, and is used",
        "a program of tested is set aside: A=1: the result is wrong",
    ]  # fmt: skip


@on_opencl
def test_products_go_on_without_a_variant_that_takes_nothing(device, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(device.vendor, "gemm", (variant(plan=lambda *args: asked.append(args) or None),))
    x = np.arange(48, dtype=np.float32).reshape(6, 8)
    np.testing.assert_array_equal((pa.asarray(x) @ pa.asarray(x.T)).numpy(), x @ x.T)
    assert asked


@on_opencl
def test_the_first_variant_that_takes_a_product_computes_it(device, monkeypatch) -> None:
    launched = []
    plan = product.Plan(lambda *args: launched.append(args), None)
    monkeypatch.setattr(device.vendor, "gemm", (variant(), variant(plan=lambda *args: plan)))
    x = pa.ones((6, 8))
    pa.synchronize()
    _ = x @ x.T
    assert len(launched) == 1


@on_opencl
@pytest.mark.parametrize("shape", [(5, 7), (3, 2), (2, 4100), (4, 3, 9)])
@pytest.mark.parametrize("dtype", [bfloat16, np.dtype("float32")])
def test_rows_are_copied_to_whole_16_bytes(device, shape, dtype) -> None:
    host = np.arange(1, np.prod(shape) + 1).astype(dtype).reshape(shape)
    found = copy.in_whole_rows(device, device.upload(host))
    assert found.strides[-2] * dtype.itemsize % 16 == 0
    np.testing.assert_array_equal(copy.download(device, found), host)
    odd = device.upload(host)._replace(shape=(*shape[:-1], max(shape[-1] - 1, 1)), offset=1 if shape[-1] > 1 else 0)
    expected = host[..., 1:] if shape[-1] > 1 else host
    np.testing.assert_array_equal(copy.download(device, copy.in_whole_rows(device, odd)), expected)
    columns = layout.swapped(device.upload(host))
    found = copy.in_whole_rows(device, columns)
    assert found.strides[-2] == 1
    np.testing.assert_array_equal(copy.download(device, found), host.swapaxes(-1, -2))


@on_opencl
def test_a_program_may_be_checked_between_canaries_in_a_block_that_has_its_own(device) -> None:
    with device.guarded():
        with device.guarded():
            device.upload(np.ones(5, np.float32))
        device.upload(np.ones(5, np.float32))
        assert len(device._guards) == 1
    assert device._guards is None


# ---- Hopper's ----------------------------------------------------------------------------------------------------


def test_a_tensor_map_is_what_the_vendors_encoder_writes() -> None:
    found = tensor_map(bfloat16, (776, 1000, 3), (1568, 1568000), (64, 128, 1), 0x7F0012345600)
    expected = (
        0x7F0012345600, 0x6200046520, 0x17ED0, 0, 0x3E700000307, 2, 0x3F00000000000000, 0x7F, 0x4000, 0x400,
    )  # fmt: skip
    assert found.tolist() == [*expected, *[0] * 6]


def problem(m, n, k, x=None, y=None, batch=1, inner=1):
    operand = product.Operand
    return product.Problem(batch, inner, m, n, k, x or operand(k, 1, 0, 0), y or operand(k, 1, 0, 0))


@pytest.mark.parametrize(
    ("p", "aligned", "copies"),
    [
        (problem(64, 64, 64), (True, True), (False, False)),
        (problem(64, 64, 64), (True, False), (False, True)),
        (problem(64, 64, 65), (True, True), (True, True)),
        (problem(64, 65, 64, y=product.Operand(1, 72, 0, 0)), (True, True), (False, False)),
        (problem(64, 64, 64, x=product.Operand(0, 1, 0, 0)), (True, True), (True, False)),
        (problem(64, 64, 64, x=product.Operand(64, 1, 0, 4100), batch=2, inner=2), (True, True), (True, False)),
        (problem(64, 64, 64, x=product.Operand(64, 1, 0, -4096), batch=2, inner=2), (True, True), (True, False)),
    ],
)
def test_hoppers_kernels_take_rows_of_whole_16_bytes(p, aligned, copies) -> None:
    assert to_copy(p, aligned) == copies


@on_opencl
def test_an_operand_is_copied_for_a_variant_that_asks_for_it(device, monkeypatch) -> None:
    seen = []

    def plan(device, dtype, p, aligned, epilogue):
        seen.append((p.x.step % 4, p.y.step % 4))
        return product.Copies(p.x.step % 4 > 0, p.y.step % 4 > 0) if any(seen[-1]) else None

    monkeypatch.setattr(device.vendor, "gemm", (variant(plan=plan),))
    x, y = np.arange(77, dtype=np.float32).reshape(7, 11), np.arange(99, dtype=np.float32).reshape(11, 9)
    np.testing.assert_array_equal((pa.asarray(x) @ pa.asarray(y)).numpy(), x @ y)
    np.testing.assert_array_equal((pa.asarray(y).T @ pa.asarray(x).T).numpy(), y.T @ x.T)
    assert seen == [(3, 1), (0, 0), (1, 3), (0, 0)]


@pytest.mark.parametrize(
    ("shape", "columns", "how"),
    [
        ((4096, 4096, 4096), 256, ""), ((8192, 8192, 8192), 256, ""), ((1024, 1024, 1024), 64, ""),
        ((8192, 3072, 768), 192, "in turn"), ((8192, 2304, 768), 192, "in turn"), ((8192, 768, 768), 192, "in turn"),
        ((8192, 768, 3072), 192, ""), ((3072, 768, 8192), 192, "shared"), ((768, 768, 8192), 128, "shared"),
        ((768, 3072, 8192), 192, "shared"), ((2304, 768, 8192), 128, ""),
        ((8192, 50257, 768), 192, "in turn"), ((8192, 768, 50257), 192, ""), ((50257, 768, 8192), 256, ""),
    ],
)  # fmt: skip
def test_tiles_of_hopper_are_those_that_were_fastest(shape, columns, how) -> None:
    found = wgmma.choose(problem(*shape), 132)
    assert (found.tile.COLUMNS, "in turn" if found.tile.TURNS else "shared" if found.shared else "") == (columns, how)


@pytest.mark.parametrize("shape", [(8192, 3072, 768), (8192, 6400, 1600), (8192, 4096, 1024), (4096, 4096, 4096)])
def test_narrow_tiles_in_turn_leave_an_activation_registers(shape) -> None:
    tile = wgmma.choose(problem(*shape), 132, wgmma.ACTIVATED_COSTS).tile
    assert (tile.COLUMNS, tile.TURNS) == (128, 1)


@pytest.mark.parametrize(
    "tile", dict.fromkeys(tile for costs in (*wgmma.TERMS_COSTS.values(), wgmma.ACTIVATED_COSTS) for tile in costs)
)
def test_tiles_fill_a_multiprocessors_local_memory_and_no_more(tile) -> None:
    stages = tile.STAGES * (1 + tile.TOGETHER) * (wgmma.ROWS + tile.COLUMNS) * 128
    assert stages + wgmma.SIDES * (tile.BUFFERS * 8192 + 8) + tile.STAGES * 16 <= 231_424


def test_work_groups_that_share_tiles_are_no_more_than_multiprocessors() -> None:
    generator = np.random.default_rng(0)
    for m, n, k in generator.integers(1, 5000, (200, 3)).tolist():
        found = wgmma.choose(problem(m, n, k), 132)
        assert 1 <= found.groups <= 132
        assert found.raster >= 1


@pytest.mark.parametrize("tile", [*mma.COSTS, *mma.SPLIT_COSTS])
def test_tiles_for_single_warps_fit_into_any_gpu(tile) -> None:
    assert tile.STAGES * (tile.TILE_M + tile.TILE_N) * 2 * mma.STEP <= 48 * 1024
    pieces = mma.STEP // 8  # of 16 bytes, in a row of a step
    assert tile.TILE_M * pieces % tile.items == tile.TILE_N * pieces % tile.items == 0
    assert tile.WARP_M % 16 == tile.WARP_N % 16 == 0


@pytest.mark.parametrize(
    ("shape", "tile", "parts"),
    [
        ((4096, 4096, 4096), (128, 128), False), ((8192, 3072, 768), (128, 128), False),
        ((1024, 1024, 1024), (128, 64), False), ((768, 768, 8192), (128, 128), True), ((64, 64, 64), (64, 64), False),
        ((50257, 768, 8192), (128, 128), False),
    ],
)  # fmt: skip
def test_single_warps_share_tiles_where_these_are_few(shape, tile, parts) -> None:
    found = mma.choose(problem(*shape), 132)
    assert ((found.tile.TILE_M, found.tile.TILE_N), found.parts > 1) == (tile, parts)


@pytest.mark.parametrize(
    ("dtype", "precision", "step", "expected"),
    [
        (bfloat16, "highest", 512, "plan"), (bfloat16, "highest", 513, "copies"),
        (np.dtype("float32"), "high", 513, "plan"),
        (np.dtype("float32"), "highest", 512, None), (np.dtype("float64"), "highest", 512, None),
    ],
)  # fmt: skip
def test_what_single_warps_take(monkeypatch, dtype, precision, step, expected) -> None:
    monkeypatch.setattr(mma, "is_sound", lambda *args: True)
    monkeypatch.setattr(mma, "is_sound_program", lambda *args: True)
    monkeypatch.setattr(mma, "_launch", lambda *args: "plan")
    device = SimpleNamespace(features=SimpleNamespace(compute_units=108))
    p = problem(4096, 512, 512)
    p = p._replace(x=p.x._replace(kept=step))
    found = mma.plan(device, dtype, p, (True, True), product.PLAIN._replace(precision=precision))
    assert found == (product.Copies(True, False) if expected == "copies" else expected)


def hopper(monkeypatch, memory=2**37):
    """Return a fake device with what launch plans need; a launch is its plan."""
    monkeypatch.setattr(wgmma, "is_sound", lambda *args: True)
    monkeypatch.setattr(wgmma, "is_sound_program", lambda *args: True)
    monkeypatch.setattr(wgmma, "_launch", lambda *args: args)
    return SimpleNamespace(features=SimpleNamespace(compute_units=132, global_memory=memory))


@pytest.mark.parametrize(
    ("precision", "shape", "memory", "terms"),
    [
        ("highest", (4096, 4096, 4096), 2**37, 3), ("high", (4096, 4096, 4096), 2**37, 2),
        ("highest", (256, 256, 256), 2**37, None), ("highest", (4096, 4097, 4096), 2**37, None),
        ("highest", (4096, 4096, 4096), 2**31, None), ("high", (4096, 4096, 4096), 2**31, 2),
    ],
)  # fmt: skip
def test_float32_products_are_split_if_faster_and_memory_allows(
    monkeypatch, precision, shape, memory, terms
) -> None:
    epilogue = product.PLAIN._replace(precision=precision)
    found = wgmma.plan(hopper(monkeypatch, memory), np.dtype("float32"), problem(*shape), (True, True), epilogue)
    assert (found and found[-2]["TERMS"]) == terms


@pytest.mark.parametrize(
    ("dtype", "shape", "pads", "pitch"),
    [
        (bfloat16, (8192, 50257, 768), True, 50264), (bfloat16, (8192, 50257, 768), False, 50257),
        (bfloat16, (8192, 50304, 768), True, 50304), (bfloat16, (8192, 65, 768), True, 65),
        (np.dtype("float32"), (8192, 50257, 768), True, 50260), (np.dtype("float32"), (8192, 50257, 768), False, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_rows_of_a_result_are_padded_where_that_is_asked_for_and_pays(
    monkeypatch, dtype, shape, pads, pitch, precision
) -> None:
    device = hopper(monkeypatch)
    found = wgmma.plan(device, dtype, problem(*shape), (True, True), product.Epilogue(precision=precision, pads=pads))
    if pitch is None:
        assert found is None
    else:
        *_, macros, found_pitch = found
        assert (found_pitch, macros["ALIGNED"]) == (pitch, int(pitch * dtype.itemsize % 16 == 0))
    tile, (m, n, k) = next(iter(wgmma.COSTS)), shape
    out = wgmma._maps(bfloat16, problem(m, n, k), tile, 50264)[2]
    assert (out == tensor_map(bfloat16, (n, m, 1), (2 * 50264, 2 * 50264 * m), (64, 64, 1))).all()


def terms_on(device, x, spoilt, count=3):
    """Return the terms of a batch of matrices from the kernel, and whether it reported non-finite elements."""
    batch, m, k = x.shape
    stored = np.full((batch, m, k + 2), np.nan, np.float32)  # these must not be read
    stored[:, :, :k] = x
    p = problem(m, 5, k, product.Operand(k + 2, 1, 0, m * (k + 2)), product.Operand(k, 1, 0, 0), batch, batch)
    with device.guarded():
        _, divide = split.split_product(device, p, (True, True), count)
        given = [device.upload(a) for a in (stored, np.full((5, k), spoilt, np.float32))]
        found, _, told = divide(tuple(buf.memory for buf in given), (0, 0))
        buf = device.empty(pa.core.spec.Spec((count, batch, m, split.split_pitch(k)), bfloat16))
        return device.download(buf._replace(memory=found)).astype(np.float64), device.read_words(told, 1)[0] != 0


@on_opencl
@pytest.mark.parametrize("k", [70, 72])
def test_three_parts_are_the_number(device, k) -> None:
    """For numbers of any magnitude; the omitted products are smaller than rounding errors."""
    generator = np.random.default_rng(k)
    x = np.ldexp(generator.standard_normal((2, 9, k)), generator.integers(-100, 100, (2, 9, k))).astype(np.float32)
    x[0, 0, :4] = np.finfo(np.float32).max, -np.finfo(np.float32).max, 0, 2.0**-110
    found, told = terms_on(device, x, 1.0)
    assert not told and not found[..., k:].any()
    found = found[..., :k]
    np.testing.assert_array_equal(found.sum(0), x)
    _, middle, low = found
    ours = np.abs(middle * low * 2 + low * low)
    assert (ours <= 2.0**-24 * np.square(x, dtype=np.float64)).all()


@on_opencl
@pytest.mark.parametrize("count", [2, 3])
def test_the_products_of_terms_are_exact_enough_and_a_missing_one_is_found_out(device, count) -> None:
    """By the check that each program has to pass, applied to the same numbers."""
    generator = np.random.default_rng(0)
    x, y = (generator.standard_normal((1, rows, 456)).astype(np.float32) for rows in (200, 264))
    (x_terms, _), (y_terms, _) = (terms_on(device, a, 1.0, count) for a in (x, y))
    products = [x_terms[i, 0] @ y_terms[j, 0].T for i in range(count) for j in range(count - i)]
    exact, magnitudes = x[0].astype(np.float64) @ y[0].astype(np.float64).T, np.abs(x[0]) @ np.abs(y[0]).T
    assert len(products) == split.passes(count)
    assert (np.abs(sum(products) - exact) <= {2: 2.0**-16, 3: 2.0**-24}[count] * magnitudes).all()
    for missing in products:
        assert (np.abs(sum(products) - missing - exact) > product_check.SUMMING_TERMS[count] * magnitudes).any()


@on_opencl
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_numbers_that_cannot_be_split_are_reported_and_unchanged(device, value) -> None:
    x = np.ones((1, 3, 70), np.float32)
    assert terms_on(device, x, value)[1]
    x[0, 2, 69] = value
    found, told = terms_on(device, x, 1.0)
    assert told
    np.testing.assert_array_equal(found[:, 0, 2, 69], [value, 0, 0])


# ---- the portable kernel for GPUs --------------------------------------------------------------------------------

SMALL = tuning.GpuMatmul(TILE_M=32, TILE_N=32, TILE_K=16, ITEM_M=4, ITEM_N=4, LANES_N=8, RASTER=2)
LARGE = tuning.GpuMatmul(TILE_M=128, TILE_N=64, TILE_K=16, ITEM_M=8, ITEM_N=8, LANES_N=8, RASTER=8)


@on_opencl
@pytest.mark.parametrize("groups", [3, 8, 64])
def test_work_groups_that_share_tiles_add_them_up(device, groups) -> None:
    m, n, k, batch = 40, 33, 70, 2
    generator = np.random.default_rng(groups)
    x, y, bias = (generator.standard_normal(s, np.float32) for s in ((batch, m, k), (batch, k, n), (n,)))
    p = problem(m, n, k, product.Operand(k, 1, 0, m * k), product.Operand(1, n, 0, k * n), batch, batch)
    with device.guarded():
        epilogue = product.Epilogue(True, "relu", True)
        plan = matmul._gpu_launch(device, np.dtype("float32"), p, (True, True), epilogue, SMALL, groups)
        assert (plan.sums is None) == (groups == 8)  # as many as tiles
        spec = pa.core.spec.Spec((batch, m, n), np.dtype("float32"))
        out, saved = device.empty(spec), device.empty(spec)
        given = [device.upload(a) for a in (x, y, bias)]
        sums = device.empty(plan.sums) if plan.sums else out
        plan.launch(tuple(buf.memory for buf in (*given, sums, out, saved)), 0, 0)
        found, before = device.download(out), device.download(saved)
    np.testing.assert_allclose(before, x @ y + bias, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found, np.maximum(before, 0))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4096, 4096, 4096), (LARGE, 2048)), ((8192, 768, 3072), (LARGE, 768)), ((3072, 768, 8192), (LARGE, 264)),
        ((768, 768, 8192), (LARGE, 264)), ((512, 512, 512), (SMALL, 256)), ((64, 64, 8192), (SMALL, 128)),
        ((32, 32, 0), (SMALL, 1)),
    ],
)  # fmt: skip
def test_tiles_are_shared_where_they_do_not_divide_evenly(shape, expected) -> None:
    assert matmul.gpu_tiles((LARGE, SMALL), problem(*shape), 132) == expected


@on_opencl
def test_products_get_their_precision_if_a_variant_distinguishes_it(device, monkeypatch) -> None:
    told = []

    def plan(device, dtype, p, aligned, epilogue):
        told.append(epilogue.precision)

    monkeypatch.setattr(device.vendor, "gemm", (variant(plan=plan),))
    assert pa.ops.linear not in table.precisions(device)
    monkeypatch.setattr(device.vendor, "gemm", (variant(plan=plan)._replace(tells_precision=True),))
    assert table.precisions(device)[pa.ops.linear] == ("high",)
    found = pa.get_backend()._replace(precisions=table.precisions(device))
    with pa.use_backend(found):
        x, weight = pa.ones((6, 8)), pa.ones((7, 8))
        pa.matmul(x, weight.T)
        pa.matmul(x, weight.T, precision="high")
        pa.grad(lambda x, w: pa.sum(pa.ops.linear(x, w, precision="high")), argnums=(0, 1))(x, weight)
    assert told == ["highest", *["high"] * 4]
