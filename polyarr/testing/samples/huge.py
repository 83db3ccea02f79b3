"""Huge calls, beyond every size at which a kernel changes its method: a table of sizes for each family of ops.

More than 2^16 rows, 2^20 elements, k above 4,096, batches of more than 1,024 and of more than 65,535 matrices, products
of about 300 and 520, 1,100 keys, heads of 48 to 256, more than 256 channels and 16 images, 5,003 updates of one
element, 300 tensors in a step. As in large.py, everything but the sizes comes from the simplest call that the op's
entry draws.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from polyarr import ops
from polyarr.core.op import OPS, Op
from polyarr.testing.samples.large import Grown, convolved, datas_of, in_its_dtype, loss_of, only, resized
from polyarr.testing.strategies import Data, Sample

TALL = (66_001, 17)  # 1,122,017 elements in more than 2^16 rows
FLAT = (17, 66_001)  # as many elements, in rows of more than 2^16
LINE = (1_100_003,)
BOX = (1031, 33, 35)  # the first of three axes is longer than 1,024
SQUARE = (1031, 1033)
TENSORS = 300
UPDATES = 5003  # updates of one element
HUGE: dict[Op, Grown] = {}


def huge(op: Op, template: Sample) -> list[Sample]:
    """Return the huge calls of an op, which differ from the template only in size."""
    return list(HUGE[op](template))


# ---- elementwise, reductions, order --------------------------------------------------------------------------------


def _elementwise(template: Sample) -> Iterator[Sample]:
    yield resized(template, TALL)
    yield resized(template, FLAT, layout="transposed")
    if len(template.specs()) > 1:
        yield resized(template, BOX, BOX[2:])
        yield resized(template, TALL, (TALL[0], 1))


def _along(*calls: tuple[tuple, object]) -> Grown:
    """Return calls with these pairs of a shape and an axis."""
    return only(*(((shape,), {"axis": axis}) for shape, axis in calls))


def _of_one_element(values: str) -> Grown:
    """Return calls in which the last element decides the result."""
    calls = _along((LINE, None), (TALL, 0), (FLAT, 1))
    return lambda template: calls(replace(template, inputs=template.mapped(lambda d: replace(d, values=values))))


for _op in OPS:  # ops that are not elementwise have a line below
    HUGE[_op] = _elementwise
for _op in (ops.sum, ops.mean, ops.max, ops.min, ops.logsumexp, ops.var, ops.std, ops.vector_norm):
    HUGE[_op] = _along((LINE, None), (TALL, 0), (TALL, 1), (FLAT, 0), (FLAT, 1), (BOX, (0, 2)), (BOX, 1))
for _op in (ops.argmax, ops.argmin):
    HUGE[_op] = _along((LINE, None), (TALL, 0), (TALL, 1), (FLAT, 1), (BOX, 1))
HUGE[ops.prod] = _along(((5003,), None), (TALL, 1), (FLAT, 0), ((3, 5003), 1), ((5003, 3), 0))
HUGE[ops.any], HUGE[ops.all] = _of_one_element("one true"), _of_one_element("one false")
HUGE[ops.cumulative_sum] = _along((LINE, 0), (TALL, 0), (TALL, 1), (FLAT, 1), (BOX, 1))
for _op in (ops.argsort, ops.sort):
    HUGE[_op] = _along((LINE, 0), (TALL, 1), ((66_001, 2), 0), ((3, 66_001), 1))
for _op in (ops.softmax, ops.log_softmax):
    HUGE[_op] = _along((TALL, 1), (FLAT, 1), (TALL, 0), ((257, 5003), 1), (BOX, 1))
HUGE[ops.argtopk] = HUGE[ops.topk] = only(
    ((FLAT,), {"axis": 1, "k": 5}), ((TALL,), {"axis": 1, "k": 3}), (((70_001,),), {"axis": 0, "k": 2049})
)

# ---- making and moving ---------------------------------------------------------------------------------------------

HUGE |= {
    ops.fill: only(((), {"shape": TALL})),
    ops.iota: only(((), {"size": LINE[0]})),
    ops.random_bits: only(((), {"shape": LINE}), ((), {"shape": TALL})),
    ops.reshape: only(((TALL,), {"shape": FLAT}), ((BOX,), {"shape": (33, 35 * 1031)})),
    ops.permute_dims: only(
        ((TALL,), {"axes": (1, 0)}), ((BOX,), {"axes": (2, 0, 1)}), (((1100, 5, 3, 66),), {"axes": (0, 2, 1, 3)})
    ),
    ops.broadcast_to: only(((TALL[1:],), {"shape": TALL}), (((TALL[0], 1),), {"shape": TALL})),
    ops.slice: only(
        ((TALL,), {"starts": (66_000, 1), "steps": (-1, 2), "shape": (66_001, 8)}),
        ((LINE,), {"starts": (3,), "steps": (1,), "shape": (1_100_000,)}),
    ),
    ops.slice_update: only(
        ((TALL, (66_001, 8)), {"starts": (66_000, 1), "steps": (-1, 2)}),
        ((LINE, (1_100_000,)), {"starts": (3,), "steps": (1,)}),
    ),
    ops.expand_dims: only(((TALL,), {"axis": 1})),
    ops.squeeze: only((((66_001, 1, 17),), {"axis": 1})),
    ops.matrix_transpose: only(((TALL,), {}), ((SQUARE,), {}), (((1100, 33, 31),), {})),
    ops.moveaxis: only(((BOX,), {"source": (0,), "destination": (2,)})),
    ops.flip: only(((TALL,), {"axis": 0}), ((FLAT,), {"axis": 1})),
    ops.unstack: only((((257, 4111),), {"axis": 0})),
    ops.split: only(((TALL,), {"indices_or_sections": (1, 65_537), "axis": 0})),
    ops.pad: only(((TALL,), {"pad_width": (1, 2)})),
    ops.roll: only(((TALL,), {"axis": 0, "shift": 66_000}), ((LINE,), {"axis": None, "shift": -1_050_000})),
    ops.tile: only(((TALL[1:],), {"repetitions": (66_001, 1)})),
    ops.repeat: only(((TALL[1:],), {"repeats": 66_001, "axis": 0}), (((66_001,),), {"repeats": 17, "axis": 0})),
    ops.tril: only(((SQUARE,), {"k": 900}), (((1100, 31, 33),), {"k": -1})),
    ops.triu: only(((SQUARE,), {"k": 900}), (((1100, 31, 33),), {"k": -1})),
}


@in_its_dtype
def _concats(data: Callable) -> Iterator[Sample]:
    yield Sample((tuple(data((1 + i % 3, 5), i) for i in range(TENSORS)),), {"axis": 0})
    yield Sample(((data(TALL, 1), data((3, 17), 2), data(TALL, 3)),), {"axis": 0})
    yield Sample(((data(TALL, 1), data(TALL, 2, layout="transposed")),), {"axis": 1})


@in_its_dtype
def _stacks(data: Callable) -> Iterator[Sample]:
    yield Sample((tuple(data((2, 5), i) for i in range(TENSORS)),), {"axis": 0})
    yield Sample((tuple(data(TALL, i) for i in range(2)),), {"axis": -1})


HUGE[ops.concat], HUGE[ops.stack] = _concats, _stacks

# ---- indices -------------------------------------------------------------------------------------------------------

# shape of x, axis, number of indices, number of elements that they index
INDEXED = (
    ((LINE[0], 1), 0, 70_001, LINE[0]), (TALL, 0, 70_001, TALL[0]), ((7, 3), 0, UPDATES, 1),
    ((7, 33), 0, 2 * UPDATES, 2), ((300_007,), 0, LINE[0], 300_007), (FLAT, 1, 1031, FLAT[1]),
    ((33,), 0, LINE[0], 33), ((1031, 3, 35), 1, 33, 3),
)  # fmt: skip


def _indexed(*, updates: bool = False, at_most: int = LINE[0]) -> Grown:
    @in_its_dtype
    def grown(data: Callable) -> Iterator[Sample]:
        for shape, axis, count, places in INDEXED:
            if count <= at_most:
                at = Data((count,), "int64", "below", seed=5, limit=places)
                window = (*shape[:axis], count, *shape[axis + 1 :])
                yield Sample((data(shape, 6), at, *((data(window, 7),) if updates else ())), {"axis": axis})

    return grown


def _placed(template: Sample) -> Iterator[Sample]:
    """Yield several updates of one element, of which the last counts, and updates of distinct elements."""
    for sample in _indexed(updates=True, at_most=70_001)(template):
        x, at, updates = sample.inputs
        yield sample
        if at.shape[0] <= x.shape[sample.params["axis"]]:
            yield replace(
                sample, inputs=(x, replace(at, values="unique", limit=x.shape[sample.params["axis"]]), updates)
            )


def _indexed_along(*, updates: bool) -> Grown:
    @in_its_dtype
    def grown(data: Callable) -> Iterator[Sample]:
        for shape, axis, window in (
            (TALL, 0, TALL),
            (TALL, 1, (TALL[0], 3)),
            (FLAT, 1, (17, 1031)),
            ((7, 3), 0, (UPDATES, 3)),
        ):
            at = Data(window, "int64", "below", seed=5, limit=shape[axis] if shape != (7, 3) else 1)
            yield Sample((data(shape, 6), at, *((data(window, 7),) if updates else ())), {"axis": axis})

    return grown


@in_its_dtype
def _embedded(data: Callable) -> Iterator[Sample]:
    for table, count, places in (
        (TALL, (3, 70), TALL[0]),
        ((7, 33), (UPDATES,), 1),
        ((300, 768), (2, 1100), 300),
        ((33, 4), (300_007,), 33),
    ):
        yield Sample((data(table, 6), Data(count, "int64", "below", seed=5, limit=places)))


HUGE |= {
    ops.take: _indexed(),
    ops.scatter: _placed,
    ops.scatter_add: _indexed(updates=True),
    ops.take_along_axis: _indexed_along(updates=False),
    ops.scatter_add_along_axis: _indexed_along(updates=True),
    ops.embedding: _embedded,
}

# ---- products ------------------------------------------------------------------------------------------------------

PRODUCTS = (  # m, n, k
    (301, 305, 303), (520, 515, 517), (17, 19, 4101), (3, 4, 5003), (1, 1031, 5003), (5003, 1, 4100), (300, 310, 4111),
    (1031, 1033, 70), (2049, 7, 33), (66_001, 3, 5), (5, 66_001, 3), (8, 8, 20_011),
)  # fmt: skip
BATCHES = (
    ((1100, 5, 7), (1100, 7, 9)), ((66_001, 2, 3), (66_001, 3, 2)), ((1100, 3, 5), (5, 4)),
    ((33, 65, 64), (33, 64, 66)), ((37, 31, 4, 5), (37, 31, 5, 3)), ((1100, 1, 130), (1100, 130, 3)),
    ((19, 5, 4101), (19, 4101, 3)), ((5, 300), (1100, 300, 2)),
)  # fmt: skip


@in_its_dtype
def _matrices(data: Callable) -> Iterator[Sample]:
    for i, (x, y) in enumerate((*(((m, k), (k, n)) for m, n, k in PRODUCTS), *BATCHES)):
        yield Sample((data(x, i), data(y, i + 1, layout="transposed" if i % 2 else "plain")))


def _linear(template: Sample) -> Iterator[Sample]:
    dtype = datas_of(template)[0].dtype
    for i, (lead, n, k) in enumerate((*(((m,), n, k) for m, n, k in PRODUCTS), ((1100, 2, 3), 33, 70))):
        inputs = (Data(shape, dtype, seed=i + j) for j, shape in enumerate(((*lead, k), (n, k), (n,))))
        yield Sample(tuple(inputs), {"activation": (template.params["activation"], "gelu", "silu")[i % 3]})


def _int8_linear(template: Sample) -> Iterator[Sample]:
    x, weight, scale, bias = template.inputs
    for i, (m, n, k) in enumerate(PRODUCTS):
        shapes = ((m, k), (n, k), (n,))
        inputs = (Data(s, d.dtype, seed=i) for s, d in zip(shapes, (x, weight, scale), strict=True))
        yield Sample((*inputs, bias and Data((n,), bias.dtype, seed=7)), template.params)


HUGE |= {
    ops.matrix_product: _matrices,
    ops.matmul: only(*((pair, {}) for pair in BATCHES[:4])),  # it runs as matrix_product
    ops.vecdot: only(((TALL, TALL), {}), ((FLAT, FLAT), {}), ((LINE, LINE), {})),
    ops.outer: only((((1031,), (1033,)), {}), (((66_001,), (17,)), {})),
    ops.tensordot: only((((301, 17, 18), (17, 18, 305)), {"axes": 2}), (((5, 66, 70), (66, 70, 3)), {"axes": 2})),
    ops.linear: _linear,
    ops.int8_linear: _int8_linear,
    ops.mse: only(((TALL, TALL), {}), ((LINE, LINE), {})),
}

# ---- sequences, images and volumes ---------------------------------------------------------------------------------

# more than 256 channels, filters and both; more than 16 images; many output positions; groups; long sequences
CONVS: tuple[tuple[tuple, tuple, dict], ...] = (
    ((1, 9, 8, 300), (33, 3, 3, 300), {"padding": 1}),
    ((2, 9, 8, 33), (300, 3, 3, 33), {"padding": 1}),
    ((1, 20, 21, 301), (303, 1, 1, 301), {}),
    ((19, 13, 12, 5), (7, 3, 3, 5), {"padding": 1}),
    ((67, 7, 9, 34), (66, 3, 3, 34), {"stride": 2}),
    ((1, 263, 259, 4), (5, 3, 3, 4), {"padding": 1}),
    ((1, 131, 130, 3), (17, 11, 11, 3), {"stride": 4}),
    ((2, 14, 15, 260), (260, 3, 3, 1), {"groups": 260, "padding": 1}),
    ((2, 9, 8, 288), (96, 3, 3, 9), {"groups": 32, "padding": 1}),
    ((1, 66_001, 3), (4, 5, 3), {}),
    ((17, 9, 10, 11, 5), (6, 3, 3, 3, 5), {"padding": 1}),
)
_POOLED = {"kernel": (3, 2), "stride": 2, "padding": 1}
_IMAGES = ((19, 13, 12, 5), (1, 9, 8, 300), (1, 131, 129, 3))
_POOL = only(*(((shape,), _POOLED) for shape in _IMAGES), (((1, 5003, 3),), {**_POOLED, "kernel": 3}))
HUGE |= {
    ops.conv_product: convolved(CONVS, lambda x, weight, y: (x, weight)),
    ops.conv_input_gradient: convolved(CONVS, lambda x, weight, y: (y, weight), lambda x, weight: x),
    ops.conv_weight_gradient: convolved(CONVS, lambda x, weight, y: (y, x), lambda x, weight: weight),
    ops.conv: convolved(CONVS, lambda x, weight, y: (x, weight, weight[:1])),
    ops.conv_transpose: only(
        (((19, 7, 8, 5), (5, 3, 3, 7), (7,)), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 1}),
        (((1, 7, 8, 300), (300, 3, 3, 9), (9,)), {"stride": 2, "padding": 0, "output_padding": 0, "groups": 1}),
        (((1, 7, 8, 9), (9, 3, 3, 300), (300,)), {"stride": 1, "padding": 1, "output_padding": 0, "groups": 1}),
        (((1, 5003, 4), (4, 5, 3), (3,)), {"stride": 3, "padding": 0, "output_padding": 0, "groups": 1}),
    ),
    ops.windows: only(*(((s,), {"kernel": (3, 3), "stride": 1, "dilation": 1}) for s in _IMAGES)),
    ops.sum_windows: only(
        (((19, 11, 10, 3, 3, 5),), {"shape": (13, 12), "stride": 1, "dilation": 1}),
        (((1, 7, 6, 3, 3, 300),), {"shape": (9, 8), "stride": 1, "dilation": 1}),
        (((1, 129, 127, 3, 3, 3),), {"shape": (131, 129), "stride": 1, "dilation": 1}),
    ),
    ops.max_pool: _POOL,
    ops.mean_pool: _POOL,
    ops.adaptive_mean_pool: only(*(((s,), {"shape": n}) for s in _IMAGES for n in (1, (7, 5)))),
    ops.interpolate: only(
        *(((s,), {"shape": (50, 41), "mode": "linear"}) for s in _IMAGES[:2]),
        (((1, 131, 129, 3),), {"shape": (301, 299), "mode": "linear"}),
        (((19, 33, 35, 5),), {"shape": (66, 105), "mode": "nearest"}),
    ),
}

# ---- Fourier transforms --------------------------------------------------------------------------------------------

for _op in (ops.dft, ops.dft_of_real):
    HUGE[_op] = _along((TALL, 0), (TALL, 1), (FLAT, 1), ((1_108_800,), 0), ((2**20,), 0), (BOX, 1))
HUGE[ops.dft_to_real] = only(
    ((TALL,), {"axis": 0, "n": 132_000}), ((TALL,), {"axis": 1, "n": 33}), ((LINE,), {"axis": 0, "n": 2_200_004}),
    ((BOX,), {"axis": 1, "n": 64}),
)  # fmt: skip

# ---- matrices ------------------------------------------------------------------------------------------------------

_STACK = (1100, 3, 3)
HUGE[ops.solve] = only((((300, 300), (300, 7)), {}), ((_STACK, (3, 2)), {}), (((5, 5), (5, 1100)), {}))
for _op in (ops.cholesky, ops.slogdet, ops.det, ops.inv):
    HUGE[_op] = only((((300, 300),), {}), ((_STACK,), {}))
for _op in (ops.eigh, ops.eigvalsh):
    HUGE[_op] = only((((40, 40),), {}), ((_STACK,), {}))
for _op in (ops.eig, ops.eigvals):
    HUGE[_op] = only(((_STACK,), {}))
for _op in (ops.qr, ops.svd, ops.svdvals, ops.pinv):
    HUGE[_op] = only((((5003, 17),), {}), (((1100, 5, 3),), {}))

# ---- neural networks -----------------------------------------------------------------------------------------------


@in_its_dtype
def _norms(data: Callable) -> Iterator[Sample]:
    for shape in (TALL, FLAT, (257, 5003), (1100, 768)):
        yield Sample((data(shape, 1), data(shape[-1:], 2), data(shape[-1:], 3)), {"eps": 0.1})


def _first_weight(template: Sample) -> Iterator[Sample]:
    for sample in _norms(template):
        yield replace(sample, inputs=sample.inputs[:2])


IMAGES = ((1100, 3, 5), (19, 37, 300), (2, 130, 131, 33), (3, 7, 1031), (1, 66_001, 6))
GROUPS = (5, 25, 11, 1, 3)


@in_its_dtype
def _images(data: Callable) -> Iterator[Sample]:
    for shape in IMAGES:
        yield Sample((data(shape, 1), data(shape[-1:], 2), data(shape[-1:], 3)), {"eps": 0.1})


def _with_moments(template: Sample) -> Iterator[Sample]:
    for sample in _images(template):
        x, weight, bias = sample.inputs
        yield replace(sample, inputs=(x, replace(bias, seed=4), replace(bias, seed=5, values="positive"), weight, bias))


def _in_groups(template: Sample) -> Iterator[Sample]:
    for sample, groups in zip(_images(template), GROUPS, strict=True):
        yield replace(sample, params={"eps": 0.1, "groups": groups})


@in_its_dtype
def _losses(data: Callable) -> Iterator[Sample]:
    params = {"ignore_index": -100, "label_smoothing": 0.1}
    for lead, classes, reduction in (((TALL[0],), 17, "mean"), ((17,), TALL[0], "sum"), ((3, 100), 5003, "none")):
        targets = Data(lead, "int64", "targets", seed=3, limit=classes)
        yield Sample((data((*lead, classes), 1), targets), {**params, "reduction": reduction})


@in_its_dtype
def _losses_and_gradients(data: Callable) -> Iterator[Sample]:
    for i, (rows, classes) in enumerate((TALL, FLAT, (300, 5003))):
        targets = Data((rows,), "int64", "targets", seed=3, limit=classes)
        params = {"ignore_index": -100, "label_smoothing": 0.1 * (i % 2)}
        yield Sample((loss_of(data, rows), data((rows, classes), 2), targets), params)


@in_its_dtype
def _heads(data: Callable) -> Iterator[Sample]:
    for lead, k, classes, reduction, rows in (
        ((300,), 301, 5003, "mean", 64), ((2, 1100), 70, 260, "none", None), ((TALL[0],), 5, 7, "sum", 9000)
    ):  # fmt: skip
        targets = Data(lead, "int64", "targets", seed=3, limit=classes)
        params = {"ignore_index": -100, "label_smoothing": 0.1, "reduction": reduction, "rows_at_once": rows}
        yield Sample((data((*lead, k), 1), data((classes, k), 2), targets), params)


# leading axes of queries and of keys, number of queries and of keys, head size, value size, mask's shape and values
ATTENTIONS = (
    ((1,), (1,), 1100, 1100, 64, 64, None, ""), ((2,), (2,), 130, 131, 48, 48, None, ""),
    ((2,), (2,), 131, 130, 80, 80, None, ""), ((2,), (2,), 130, 131, 96, 96, (130, 131), "mask"),
    ((2,), (2,), 70, 71, 256, 256, None, ""), ((1100,), (1100,), 5, 6, 8, 8, None, ""),
    ((37, 31), (37, 1), 3, 5, 16, 16, (37, 1, 3, 5), "mask"), ((3,), (1,), 1, 5003, 64, 64, None, ""),
    ((2, 3), (2, 1), 1, 1100, 128, 128, (2, 1, 1, 1100), "mask"), ((1,), (1,), 1100, 33, 16, 16, (33,), "hidden"),
    ((2,), (2,), 33, 1100, 96, 48, (33, 1100), "normal"), ((1,), (1,), 2, 66_001, 8, 8, None, ""),
)  # fmt: skip


@in_its_dtype
def _attention(data: Callable) -> Iterator[Sample]:
    for i, (lead, shared, t, s, d, e, mask, values) in enumerate(ATTENTIONS):
        seen = mask if mask is None else Data(mask, "bool", values) if values == "mask" else data(mask, 4, values)
        arrays = (data((*lead, t, d), 1), data((*shared, s, d), 2), data((*shared, s, e), 3))
        params = {"causal": i % 2 == 0, "scale": None, "dropout_rate": 0.25 if i in (2, 5) else 0.0}
        yield Sample((*arrays, seen, 7, 3), params)


HUGE |= {
    ops.layer_norm: _norms,
    ops.rms_norm: _first_weight,
    ops.batch_norm: _images,
    ops.batch_norm_inference: _with_moments,
    ops.group_norm: _in_groups,
    ops.instance_norm: _images,
    ops.cross_entropy: _losses,
    ops.cross_entropy_and_gradient: _losses_and_gradients,
    ops.linear_cross_entropy: _heads,
    ops.attention: _attention,
    ops.dropout: only(((TALL,), {"rate": 0.1}), ((LINE,), {"rate": 0.5})),
}

# ---- optimizer steps -----------------------------------------------------------------------------------------------


def _steps(template: Sample) -> Iterator[Sample]:
    """Yield steps of many tensors, each with its own decay; of a huge tensor with small ones, after many steps."""
    lists = [group for group in template.inputs if isinstance(group, tuple)]
    rest = template.inputs[len(lists) :]
    late = tuple(100_000 if type(a) is int else a for a in rest)
    for numbers, shapes in ((rest, [(1 + i % 7, 3) for i in range(TENSORS)]), (late, [LINE, (), TALL])):
        arrays = (
            tuple(replace(group[0], shape=s, layout="plain", seed=400 * j + i) for i, s in enumerate(shapes))
            for j, group in enumerate(lists)
        )
        decays = tuple(0.001 * i for i in range(len(shapes)))
        yield replace(template, inputs=(*arrays, *numbers), params={**template.params, "weight_decay": decays})


@in_its_dtype
def _many(data: Callable) -> Iterator[Sample]:
    yield Sample((tuple(data((1 + i % 7, 3), i) for i in range(TENSORS)),))
    yield Sample(((data(LINE, 1), data((), 2), data(TALL, 3, layout="transposed")),))


def _cast(template: Sample) -> Iterator[Sample]:
    for sample in _many(template):
        yield replace(sample, params=template.params)


HUGE |= {ops.sgd: _steps, ops.adamw: _steps, ops.global_norm: _many, ops.astype_all: _cast}
