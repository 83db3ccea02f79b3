"""Convolutions through TMA tiles: the parameters of Hopper's kernels, executed on the host as the hardware would."""

from importlib import import_module
from itertools import product as every
from types import SimpleNamespace

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.spec import bfloat16
from tests.helpers.opencl_modules import opencl_modules

conv, conv_im2col, conv_pieces, conv_tma, conv_wgmma, copy, devices, split, variants, wgmma = opencl_modules(
    "conv", "conv_im2col", "conv_pieces", "conv_tma", "conv_wgmma", "copy", "devices", "split", "variants", "wgmma"
)
PLAIN = import_module("polyarr.backends.opencl.gemm.product").PLAIN
on_opencl = pytest.mark.polyarr_backend("opencl")
float32 = np.dtype("float32")


class Map:
    """A tensor map, read as the hardware reads it."""

    def __init__(self, words: np.ndarray, memory: np.ndarray, start: int = 0) -> None:
        half = np.asarray(words, np.uint64).view(np.uint32).astype(np.int64)
        rank = int(half[2] >> 4 & 7) + 1
        self.lengths = [int(n) + 1 for n in half[8 : 8 + rank]]
        size = memory.itemsize
        self.steps = [1] + [int(n) * 16 // size for n in half[3 : 2 + rank]]
        box = np.asarray(words, np.uint64).view(np.uint8)[55:60]
        self.box = [int(n) + 1 for n in box[:rank]]
        self.memory, self.start = memory, start

    def _places(self, at):
        axes = [np.arange(first, first + n) for first, n in zip(at, self.box, strict=True)]
        there = [(axis >= 0) & (axis < n) for axis, n in zip(axes, self.lengths, strict=True)]
        places, inside = np.zeros(1, np.int64) + self.start, np.ones(1, bool)
        for axis, step, ok in zip(reversed(axes), reversed(self.steps), reversed(there), strict=True):
            places = (places[:, None] + axis * step).ravel()
            inside = (inside[:, None] & ok).ravel()
        return places, inside

    def load(self, *at):
        """Return a tile with rows along the first axis; zeros outside."""
        places, inside = self._places(at)
        found = np.zeros(len(places), self.memory.dtype)
        found[inside] = self.memory[places[inside]]
        return found.reshape(-1, self.box[0])

    def store(self, rows, *at):
        """Store a tile's elements that are inside."""
        places, inside = self._places(at)
        self.memory[places[inside]] = rows.ravel()[inside]


def in_parts(x, count):
    """Return split terms whose sum is x, which is all that these tests require."""
    return [x] if count == 1 else [x / 2, x / 4, x / 4]


def played(layer, x, y, count, out):
    """Run a kernel's parameters in float32 on the host."""
    box = conv_wgmma.tma_tile_of(layer)
    tile = wgmma.Tile(64, 8, 2)
    x_map, y_map, out_map, _ = conv_wgmma._maps(float32, float32, layer, box, tile, count)
    entries, deep = conv_wgmma._entries(layer, box, count)
    image = np.stack(in_parts(y if layer.sums else x, count), -2).ravel()  # side by side for each position
    if layer.sums:
        left, right = Map(x_map, np.stack(in_parts(x, count), -2).ravel()), Map(y_map, image)
        total = np.zeros((-(-layer.outputs // 64) * 64, deep * 64), np.float32)
        for w, h, n, _ in entries[deep:]:
            for row, (i, (c, dw, r, dh)) in every(range(0, layer.outputs, 64), enumerate(entries[:deep])):
                for a, b in every(range(count), repeat=2):
                    g = left.load(row + a * layer.outputs, w, 0, h, n)
                    c_there = c + row // layer.each * layer.channels + b * layer.wide
                    there = right.load(c_there, w + dw, r, h + dh, n)
                    total[row : row + 64, i * 64 : i * 64 + 64] += g.T @ there
        out[...] = total[: layer.outputs].reshape(out.shape)
        return
    left, right = Map(x_map, image), Map(y_map, np.stack(in_parts(y, count)).ravel())
    out_map = Map(out_map, out.reshape(-1), layer.start[0])
    wide = out_map.box[0]
    for (w, h, n, _), first in every(entries[:deep], range(0, layer.outputs, 64)):
        total = 0
        for there, other in zip(entries[deep::2], entries[deep + 1 :: 2], strict=True):
            for a, b in every(range(count), repeat=2):
                c, dw, r, dh = there
                begin = first // layer.each * layer.channels
                rows = left.load(c + begin + a * layer.wide, w + dw, r, h + dh, n)
                if layer.turned:
                    filters = right.load(first % layer.each, begin + other[0], other[1], b)
                else:
                    filters = right.load(other[0], first, 0, b).T
                total = total + rows @ filters
        for i in range(first, min(first + 64, layer.outputs), wide):
            out_map.store(total[:, i - first : i - first + wide], i, w, h, n)


def whole(device, a, known):
    """Return an operand of a product, or the sum of its split terms."""
    found = copy.download(device, a)
    if known is None or known.terms is not a:
        return found
    return found.reshape(*found.shape[:-1], 2, -1).astype(np.float32).sum(-2)


@pytest.fixture(params=[1, 3])
def boxed(backend, monkeypatch, request):
    """Run all TMA convolutions on the host; record how many."""
    device, layers = devices.select(backend.name), []

    def run(device, layer, out, saved, x, y, bias, epilogue, names, known):
        layers.append(layer)
        arrays = [whole(device, a, known.get(name)) for a, name in zip((x, y), names, strict=True)]
        found = copy.download(device, out)
        result = np.array(found, np.float32)
        played(layer, *(a.astype(np.float32) for a in arrays), request.param, result)
        copy.write(device, out, device.upload(result.astype(found.dtype)))

    monkeypatch.setattr(conv_wgmma, "is_sound", lambda *_: True)
    monkeypatch.setattr(conv_wgmma, "_plan", lambda *_: True)
    monkeypatch.setattr(conv_wgmma, "MIN_SPLIT_SIZE", 0)
    monkeypatch.setattr(conv_wgmma, "MIN_COPY_SIZE", 0)
    monkeypatch.setattr(conv_wgmma, "MIN_FILLED", 0)
    monkeypatch.setattr(conv_wgmma, "run", run)
    device.plans.renew()
    yield layers
    device.plans.renew()


CASES = (
    ((2, 9, 7), (3, 3), 1, 1, 1), ((2, 8, 6), (3, 3), 2, 1, 1), ((3, 7, 5), (3, 2), (2, 1), ((0, 1), (2, 0)), 1),
    ((1, 6, 6), (1, 1), 2, 0, 1), ((3, 5, 6), (1, 1), 1, 0, 1),
    ((2, 9, 9), (2, 3), (1, 3), 2, (2, 1)), ((5, 4), (3,), 1, 1, 2),
)  # fmt: skip


@on_opencl
@pytest.mark.parametrize(("shape", "kernel", "stride", "padding", "dilation"), CASES)
def test_tma_tiles_cover_the_receptive_fields(boxed, shape, kernel, stride, padding, dilation) -> None:
    generator = np.random.default_rng(0)
    where = {"stride": stride, "padding": padding, "dilation": dilation}
    x, w = (generator.standard_normal(s).astype(np.float32) for s in ((*shape, 64), (64, *kernel, 64)))

    def gradients(x, w):
        y, pull = pa.vjp(lambda x, w: ops.conv(x, w, **where), x, w)
        g = pa.astype(pa.asarray(np.random.default_rng(1).standard_normal(y.shape)), x.dtype)
        return y, *pull(g)

    found = [a.numpy() for a in gradients(pa.asarray(x), pa.asarray(w))]
    assert sum(layer.sums for layer in boxed) == 1 and len(boxed) >= 2
    pa.set_backend("numpy")
    expected = gradients(pa.asarray(x.astype(float)), pa.asarray(w.astype(float)))
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, wanted.numpy(), atol=1e-3)


GROUPED = (  # channels, filters, groups
    (64, 64, 16, 1), (128, 128, 32, 1), (128, 256, 2, 2), (192, 384, 3, (2, 1)), (256, 128, 8, 1), (64, 128, 32, 2),
)  # fmt: skip


@on_opencl
@pytest.mark.parametrize(("channels", "outputs", "groups", "stride"), GROUPED)
def test_tma_tiles_start_at_their_groups_channels(boxed, channels, outputs, groups, stride) -> None:
    """Groups of few channels are multiplied together, padded with zeros."""
    generator, where = np.random.default_rng(0), {"stride": stride, "padding": ((1, 1), (0, 2)), "groups": groups}
    shapes = (2, 6, 8, channels), (outputs, 3, 2, channels // groups)
    x, w = (generator.standard_normal(s).astype(np.float32) for s in shapes)

    def gradients(x, w):
        y, pull = pa.vjp(lambda x, w: ops.conv(x, w, **where), x, w)
        g = pa.astype(pa.asarray(np.random.default_rng(1).standard_normal(y.shape)), x.dtype)
        return y, *pull(g)

    found = [a.numpy() for a in gradients(pa.asarray(x), pa.asarray(w))]
    assert sum(layer.sums for layer in boxed) == 1 and len(boxed) >= 3
    pa.set_backend("numpy")
    expected = gradients(pa.asarray(x.astype(float)), pa.asarray(w.astype(float)))
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, wanted.numpy(), atol=1e-3)


FEW = (  # images, kernel, stride, padding
    ((2, 12, 8, 3), (7, 7), (2, 2), ((3, 3), (3, 3))), ((1, 9, 12, 3), (3, 3), (1, 1), ((0, 2), (1, 0))),
    ((3, 8, 8, 1), (7, 7), (2, 1), ((1, 1), (3, 3))), ((2, 7, 12, 2), (5, 4), (3, 2), ((2, 2), (2, 2))),
    ((2, 20, 4), (9,), (2,), ((4, 4),)), ((1, 10, 4, 5), (8, 2), (1, 3), ((0, 0), (1, 1))),
)  # fmt: skip


@on_opencl
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), FEW)
def test_windows_of_few_channels_are_pieces_of_many(boxed, monkeypatch, dtype, shape, kernel, stride, padding) -> None:
    """16-bit floats, and float32 split into two terms that are saved for the gradient."""
    device, stored = devices.select(), bfloat16 if dtype == "bfloat16" else float32
    told = {"stride": stride, "padding": padding, "dilation": (1,) * len(kernel), "groups": 1}
    generator = np.random.default_rng(0)
    x, w = (generator.integers(-3, 4, s).astype(np.float32) for s in (shape, (64, *kernel, shape[-1])))
    pa.set_backend("numpy")
    y, pull = pa.vjp(lambda w: ops.conv(pa.asarray(x.astype(float)), w, **told), pa.asarray(w.astype(float)))
    g = generator.integers(-3, 4, y.shape).astype(np.float32)
    images, filters, gy = (device.upload(a.astype(stored)) for a in (x, w, g))
    told |= {"activation": None, "precision": "high"}
    found, saved = conv.conv(device, pa.Spec(y.shape, stored), images, filters, None, **told)
    monkeypatch.setattr(conv_pieces, "split_side_by_side", None)
    _, dw, _ = conv.conv_backward(device, gy, saved, images, filters, None, wanted=(False, True, False), **told)
    assert [layer.sums for layer in boxed] == [False, True] and {layer.channels for layer in boxed} == {64}
    for ours, wanted in ((found, y), (dw, *pull(pa.asarray(g.astype(float))))):
        rtol = 2.0**-8 if stored == bfloat16 else 1e-6
        np.testing.assert_allclose(copy.download(device, ours).astype(float), wanted.numpy(), rtol=rtol, atol=1e-6)


@on_opencl
@pytest.mark.parametrize(("precision", "is_kept"), [("high", True), ("highest", False)])
def test_a_layers_gradients_take_the_parts_of_its_forward_pass(backend, monkeypatch, precision, is_kept) -> None:
    """Two terms need no more memory than their operand."""
    device, calls = devices.select(backend.name), []

    def run(device, layer, out, saved, x, y, bias, epilogue, names, known):
        calls.append((names, [*known]))
        for name in names:
            terms, flag = np.zeros(8, bfloat16), np.zeros(1, np.uint32)
            known[name] = split.SplitOperand(device.upload(terms), device.upload(flag))

    for name, value in {"is_sound": lambda *_: True, "_plan": lambda *_: True, "MIN_FILLED": 0, "run": run}.items():
        monkeypatch.setattr(conv_wgmma, name, value)
    monkeypatch.setattr(conv_wgmma, "MIN_SPLIT_SIZE", 0)
    device.plans.renew()
    x, w, g = (device.upload(np.ones(shape, np.float32)) for shape in ((1, 8, 8, 64), (64, 3, 3, 64), (1, 8, 8, 64)))
    where = {"stride": (1, 1), "padding": ((1, 1),) * 2, "dilation": (1, 1), "groups": 1, "activation": None}
    where["precision"] = precision
    _, saved = conv.conv(device, pa.Spec(x.shape, float32), x, w, None, **where)
    conv.conv_backward(device, g, saved, x, w, None, wanted=(True, True, False), **where)
    device.plans.renew()
    before = ["x", "weight"] if is_kept else []
    assert calls == [
        (("x", "weight"), []), (("g", "x"), before),
        (("g", "weight"), [*before, "g"] if is_kept else ["g", "x"]),
    ]  # fmt: skip


@on_opencl
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(("rows", "columns"), [(5, 64), (1000, 128), (3, 192)])
def test_terms_side_by_side_add_up_to_the_number(backend, rows, columns, count) -> None:
    """Terms side by side in every row, and terms one after the other; three have all bits."""
    device, generator = devices.select(backend.name), np.random.default_rng(0)
    x = (generator.standard_normal((rows, columns)) * 10.0 ** generator.integers(-20, 20, (rows, columns))).astype("f")
    y = generator.standard_normal((7, 64)).astype(np.float32)
    left, right = device.upload(x), device.upload(y)
    first = split.DenseOperand("x", left.memory, rows * columns // 4, columns // 4)
    given = first, split.DenseOperand("y", right.memory, 112, 112)
    found = split.split_side_by_side(device, given, count, known := {})
    for each, shape, axis, whole in zip(found, ((rows, count, columns), (count, 7, 64)), (1, 0), (x, y), strict=True):
        terms = np.empty(shape, np.uint16)
        device.commands.transfer((terms.nbytes,), None, terms, each.terms.memory)
        device.commands.finish()
        total = (terms.astype(np.uint32) << 16).view("f").astype(float).sum(axis)
        np.testing.assert_allclose(total, whole, rtol=2.0**-17 if count == 2 else 0)
        assert not device.read_words(each.flag.memory, 1).any()
    third = split.DenseOperand("g", left.memory, rows * columns // 4, columns // 4)
    again = split.split_side_by_side(device, (third, given[0]), count, known)
    assert again[1] is found[0] and [*known] == ["x", "y", "g"]
    assert split.split_side_by_side(device, (third, given[1]), count, known) == (again[0], found[1])


@pytest.mark.parametrize("sums", [False, True])
def test_tma_tiles_cover_every_position_once(sums) -> None:
    """Tiles of sums are full, and only extend past the end of the last image."""
    for images, high, wide in ((64, 56, 56), (64, 7, 7), (3, 14, 9), (5, 1, 30), (1, 1, 200), (200, 3, 1)):
        layer = conv_wgmma.Layer(images, 64, 64, (high, wide), (high, wide), (1, 1), (), 1, sums)
        box = conv_wgmma.tma_tile_of(layer)
        assert np.prod(box) == 64 if sums else np.prod(box) <= 64
        taken = np.zeros((images + 63, high + 63, wide + 63), int)
        for w, h, n, _ in conv_wgmma.tma_tiles_of(layer, box):
            taken[n : n + box[2], h : h + box[0], w : w + box[1]] += 1
        assert (taken[:images, :high, :wide] == 1).all()
        assert not sums or not (taken[:, high:].any() or taken[:, :, wide:].any())


@pytest.mark.parametrize(
    ("changed", "dtype", "taken"),
    [
        ({}, "bfloat16", True), ({}, "float32", True), ({}, "float64", False), ({"channels": 96}, "bfloat16", False),
        ({"outputs": 100}, "bfloat16", False), ({"outputs": 72}, "bfloat16", True), ({"images": 1}, "float32", False),
        ({"outputs": 72, "sums": True}, "bfloat16", False), ({"sums": True}, "float32", True),
        ({"images": 3, "sums": True}, "bfloat16", False),  # TMA tiles of 64 images
    ],
)  # fmt: skip
def test_which_layers_use_tma(monkeypatch, changed, dtype, taken) -> None:
    monkeypatch.setattr(conv_wgmma, "is_sound", lambda *_: True)
    plans = {conv_wgmma._plan: lambda *_: True}
    device = SimpleNamespace(features=SimpleNamespace(global_memory=2**37, compute_units=132), plans=plans)
    elements = tuple(conv_wgmma.Element((i, j), 3 * i + j) for i, j in every(range(3), range(3)))
    layer = conv_wgmma.Layer(64, 512, 512, (7, 7), (7, 7), (1, 1), elements, 9)._replace(**changed)
    found = conv_wgmma._accepts(device, bfloat16 if dtype == "bfloat16" else np.dtype(dtype), (layer,), PLAIN)
    assert found == taken


@on_opencl
@pytest.mark.parametrize(("shape", "kernel", "stride"), [((2, 9, 7, 3), (3, 7), 2), ((2, 6, 5, 1), (2, 3), (2, 1))])
def test_few_channels_are_filled_up_for_matrix_units(backend, monkeypatch, shape, kernel, stride) -> None:
    """Channels are padded to 16 bytes with zeros."""
    generator, seen = np.random.default_rng(0), []
    multiply = conv_im2col._multiply
    monkeypatch.setattr(conv_im2col, "_multiply", lambda *args: seen.append(args[1]) or multiply(*args))
    x, w = (pa.astype(pa.asarray(generator.integers(-4, 5, s)), "bfloat16") for s in (shape, (4, *kernel, shape[-1])))
    results = []
    for takes in (True, False):
        monkeypatch.setattr(conv_tma, "is_sound", lambda *_, takes=takes: takes)
        y, pull = pa.vjp(lambda x, w: ops.conv(x, w, stride=stride, padding=((1, 2), (3, 1))), x, w)
        results.append([pa.astype(a, "float32").numpy() for a in (y, *pull(pa.ones_like(y)))])
    for ours, plain in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, plain)
    assert all(p.im2col.has_runs_of(8, not p.of_y) for p in (seen[0], seen[1]))
