"""Large calls, past the sizes at which kernels change their method, for each op.

More than 65,536 elements, rows past 1,024, more than 128 rows, six axes, products of about 130 with every remainder,
17 batches, heads of 64 and 128, 260 positions, 65 tensors in a step, 300,000 random numbers. Everything but the sizes
comes from the simplest call that the op's entry draws, the template.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from polyarr import ops
from polyarr.core.op import OPS, Op
from polyarr.testing.naive import Windows
from polyarr.testing.samples.entry import is_narrow
from polyarr.testing.strategies import Data, Sample

ROWS = (131, 1031)  # 135,061 elements in rows past 1,024; both are primes
LINE = (70001,)
AXES = (3, 2, 5, 1, 4, 3)
TENSORS = 65
Grown = Callable[[Sample], Iterator[Sample]]
LARGE: dict[Op, Grown] = {}


def large(op: Op, template: Sample) -> list[Sample]:
    """Return the large calls of an op, which differ from the template only in size."""
    return list(LARGE[op](template))


def resized(template: Sample, *shapes: tuple, layout: str = "plain", **params: Any) -> Sample:
    """Return the template with these shapes (the last one for all further arrays) and parameters."""
    left = list(shapes)
    inputs = template.mapped(lambda d: replace(d, shape=left.pop(0) if left else shapes[-1], layout=layout))
    return replace(template, inputs=inputs, params={**template.params, **params})


def _elementwise(template: Sample) -> Iterator[Sample]:
    yield resized(template, ROWS)
    yield resized(template, AXES, layout="transposed")
    if len(template.specs()) > 1:
        yield resized(template, ROWS, ROWS[1:])
        yield resized(template, (*AXES[:3], 1, 1, 1), (1, 1, *AXES[2:]))


def only(*choices: tuple[tuple[tuple, ...], dict[str, Any]]) -> Grown:
    """Return calls with these shapes and parameters."""

    def grown(template: Sample) -> Iterator[Sample]:
        for shapes, params in choices:
            yield resized(template, *shapes, **params)

    return grown


def reduced(axes: tuple, *, several: bool = True) -> Grown:
    """Return calls with ROWS along each of the axes, and with six axes along some of them."""

    def grown(template: Sample) -> Iterator[Sample]:
        for axis in axes:
            yield resized(template, ROWS, axis=axis)
        yield resized(template, AXES, layout="transposed", axis=(0, 2, 5) if several else 2)

    return grown


def of_one_element(values: str) -> Grown:
    """Return calls along each axis in which the very last element decides the result."""

    def grown(template: Sample) -> Iterator[Sample]:
        decided = replace(template, inputs=template.mapped(lambda d: replace(d, values=values)))
        for axis in (None, 0, 1):
            yield resized(decided, ROWS, axis=axis)

    return grown


def _along_axis(template: Sample) -> Iterator[Sample]:
    for axis in (0, 1):
        yield resized(template, ROWS, axis=axis)
    yield resized(template, LINE, axis=0)
    yield resized(template, AXES, layout="transposed", axis=2)


def in_its_dtype(made: Callable[[Callable], Iterator[Sample]]) -> Grown:
    """Return calls written out by `made`, which gets a factory of arrays in the template's last float dtype."""

    def grown(template: Sample) -> Iterator[Sample]:
        dtype = next((d for d in reversed(datas_of(template)) if d.is_floating), datas_of(template)[0]).dtype
        yield from made(lambda shape, seed, values="normal", layout="plain": Data(shape, dtype, values, layout, seed))

    return grown


def datas_of(template: Sample) -> list[Data]:
    found: list[Data] = []
    template.mapped(found.append)
    return found


# ---- elementwise, reductions, order --------------------------------------------------------------------------------

for _op in OPS:  # ops that are not elementwise have a line below
    LARGE[_op] = _elementwise
for _op in (ops.sum, ops.mean, ops.max, ops.min, ops.logsumexp, ops.var, ops.std):
    LARGE[_op] = reduced((None, 0, 1))
LARGE[ops.prod] = reduced((0, 1))  # the product of all elements would be 0 or infinite
for _op in (ops.argmax, ops.argmin):
    LARGE[_op] = reduced((None, 0, 1), several=False)
LARGE[ops.any], LARGE[ops.all] = of_one_element("one true"), of_one_element("one false")
for _op in (ops.cumulative_sum, ops.argsort, ops.sort, ops.softmax, ops.log_softmax):
    LARGE[_op] = _along_axis
LARGE[ops.argtopk] = LARGE[ops.topk] = only(
    ((ROWS,), {"axis": 1, "k": 5}), ((ROWS,), {"axis": 0, "k": 131}), ((LINE,), {"axis": 0, "k": 1100})
)

# ---- making and moving ---------------------------------------------------------------------------------------------

_SIX = (AXES,)
LARGE |= {
    ops.fill: only(((), {"shape": ROWS}), ((), {"shape": AXES})),
    ops.iota: only(((), {"size": LINE[0]})),
    ops.random_bits: only(((), {"shape": (300_001,)}), ((), {"shape": ROWS})),
    ops.reshape: only(((ROWS,), {"shape": (1031, 131)}), (_SIX, {"shape": (4, 9, 10)})),
    ops.permute_dims: only(((ROWS,), {"axes": (1, 0)}), (_SIX, {"axes": (5, 2, 0, 4, 1, 3)})),
    ops.broadcast_to: only(((ROWS[1:],), {"shape": ROWS}), (((1, 2, 1, 1, 4, 3),), {"shape": AXES})),
    ops.slice: only(
        ((ROWS,), {"starts": (130, 1), "steps": (-1, 2), "shape": (131, 515)}),
        (_SIX, {"starts": (2, 0, 1, 0, 3, 0), "steps": (-1, 1, 2, 1, -2, 1), "shape": (3, 2, 2, 1, 2, 3)}),
    ),
    ops.slice_update: only(
        ((ROWS, (131, 515)), {"starts": (130, 1), "steps": (-1, 2)}),
        ((AXES, (3, 2, 2, 1, 2, 3)), {"starts": (2, 0, 1, 0, 3, 0), "steps": (-1, 1, 2, 1, -2, 1)}),
    ),
    ops.expand_dims: only(((ROWS,), {"axis": 1}), (_SIX, {"axis": 6})),
    ops.squeeze: only((((131, 1, 1031),), {"axis": 1}), (_SIX, {"axis": 3})),
    ops.matrix_transpose: only(((ROWS,), {}), (_SIX, {})),
    ops.moveaxis: only(
        ((ROWS,), {"source": (0,), "destination": (1,)}), (_SIX, {"source": (0, 4), "destination": (5, 1)})
    ),
    ops.flip: only(((ROWS,), {"axis": 1}), (_SIX, {"axis": (0, 2, 5)})),
    ops.unstack: only(((ROWS,), {"axis": 0}), (_SIX, {"axis": 4})),
    ops.split: only(
        (((1031, 131),), {"indices_or_sections": (1, 1025), "axis": 0}), (_SIX, {"indices_or_sections": 2, "axis": 4})
    ),
    ops.pad: only(((ROWS,), {"pad_width": (1, 2)}), (_SIX, {"pad_width": (1, 0)})),
    ops.roll: only(
        ((ROWS,), {"axis": 1, "shift": 1030}),
        ((LINE,), {"axis": None, "shift": -66000}),
        (_SIX, {"axis": 2, "shift": 3}),
    ),
    ops.tile: only(((ROWS[1:],), {"repetitions": (131, 1)}), (_SIX, {"repetitions": (2, 1, 1, 1, 1, 1)})),
    ops.repeat: only(((ROWS[1:],), {"repeats": 67, "axis": 0}), (_SIX, {"repeats": 2, "axis": 4})),
    ops.tril: only(((ROWS,), {"k": 900}), (_SIX, {"k": 1})),
    ops.triu: only(((ROWS,), {"k": 900}), (_SIX, {"k": 1})),
}


@in_its_dtype
def _lists(data: Callable) -> Iterator[Sample]:
    yield Sample((tuple(data((1 + i % 3, 5), i) for i in range(TENSORS)),), {"axis": 0})
    yield Sample((tuple(data(ROWS, i, layout="transposed") for i in range(2)),), {"axis": 1})
    yield Sample((tuple(data(AXES, i) for i in range(3)),), {"axis": 4})


@in_its_dtype
def _stacks(data: Callable) -> Iterator[Sample]:
    yield Sample((tuple(data((2, 5), i) for i in range(TENSORS)),), {"axis": 0})
    yield Sample((tuple(data(ROWS, i, layout="transposed") for i in range(2)),), {"axis": -1})


LARGE[ops.concat], LARGE[ops.stack] = _lists, _stacks

# ---- indices -------------------------------------------------------------------------------------------------------


def _indexed(*, updates: bool = False, shuffled: bool = False) -> Grown:
    """Return calls with a long axis, with many indices into a short one, and with rows past 1,024."""

    @in_its_dtype
    def grown(data: Callable) -> Iterator[Sample]:
        for shape, axis, count in (((*LINE, 2), 0, 1031), ((33, 3), 0, 30011), (ROWS, 1, 67), (ROWS, 0, 140)):
            window = (*shape[:axis], count, *shape[axis + 1 :])
            fits = shuffled and count <= shape[axis]
            at = Data((count,), "int64", "unique" if fits else "index", seed=5, limit=shape[axis])
            if fits or not shuffled:
                more = (data(window, 7),) if updates else ()
                yield Sample((data(shape, 6), at, *more), {"axis": axis})

    return grown


def _indexed_along(*, updates: bool) -> Grown:
    @in_its_dtype
    def grown(data: Callable) -> Iterator[Sample]:
        for shape, axis in ((ROWS, 0), (ROWS, 1), ((2, 3, 2, 4, 3), 3)):
            at = Data(shape, "int64", "below", seed=5, limit=shape[axis])
            yield Sample((data(shape, 6), at, *((data(shape, 7),) if updates else ())), {"axis": axis})

    return grown


@in_its_dtype
def _embedded(data: Callable) -> Iterator[Sample]:
    for table, count in (((LINE[0], 3), (70,)), ((140, 1031), (2, 67)), ((33, 4), (30011,))):
        yield Sample((data(table, 6), Data(count, "int64", "below", seed=5, limit=table[0])))


LARGE |= {
    ops.take: _indexed(),
    ops.scatter: _indexed(updates=True, shuffled=True),
    ops.scatter_add: _indexed(updates=True),
    ops.take_along_axis: _indexed_along(updates=False),
    ops.scatter_add_along_axis: _indexed_along(updates=True),
    ops.embedding: _embedded,
}

# ---- products ------------------------------------------------------------------------------------------------------

REMAINDERS = 16  # each of m, n and k has every remainder modulo this tile size
SIZES = [(128 + i, 128 + (5 * i + 3) % 16, 128 + (11 * i + 7) % 16) for i in range(REMAINDERS)]
BATCHES = (
    ((17, 5, 7), (17, 7, 9)), ((17, 33, 9), (9, 5)), ((2, 3, 5, 7), (2, 3, 7, 4)), ((2, 1, 3, 5, 7), (4, 1, 7, 3)),
)  # fmt: skip
DEEP = (((2, *LINE), (*LINE, 3)), ((1031, 3), (3, 131)), ((1, 1031), (1031, 131)))


@in_its_dtype
def _matrices(data: Callable) -> Iterator[Sample]:
    pairs = [*(((m, k), (k, n)) for m, n, k in SIZES), *BATCHES, *DEEP]
    for i, (x, y) in enumerate(pairs):
        yield Sample((data(x, i), data(y, i + 1, layout="transposed" if i % 2 else "plain")))


def _linear(template: Sample) -> Iterator[Sample]:
    activation = template.params["activation"]
    sizes = [((m,), k, n) for m, n, k in SIZES[::3]]
    for i, (lead, k, n) in enumerate((*sizes, ((17, 2, 3), 33, 70), ((1031,), 5, 131), ((2,), 1031, 131))):
        dtype = datas_of(template)[0].dtype
        inputs = ((*lead, k), (n, k), (n,))
        datas = (Data(shape, dtype, seed=i + j) for j, shape in enumerate(inputs))
        yield Sample(tuple(datas), {"activation": activation if i else "gelu"})


def _byte_layers(template: Sample) -> Iterator[Sample]:
    x, weight, scale, bias = template.inputs
    for i, (m, n, k) in enumerate((*SIZES[::3], (2, 131, 1031), (1, 3, 5003), (1, 131, 1028), (3, 17001, 8))):
        shapes = ((m, k), (n, k), (n,))
        datas = (Data(s, d.dtype, seed=i) for s, d in zip(shapes, (x, weight, scale), strict=True))
        yield Sample((*datas, bias and Data((n,), bias.dtype, seed=7)), template.params)


LARGE |= {
    ops.int8_linear: _byte_layers,
    ops.matrix_product: _matrices,
    ops.matmul: _matrices,
    ops.vecdot: only(((ROWS, ROWS), {}), ((LINE, LINE), {})),
    ops.outer: only((((257,), (301,)), {})),
    ops.tensordot: only(
        (((131, 17, 8), (17, 8, 130)), {"axes": 2}), (((3, 2, 5, 4, 2), (5, 4, 2, 1, 3)), {"axes": 3})
    ),
    ops.linear: _linear,
}

# ---- sequences, images and volumes ---------------------------------------------------------------------------------

WHERE = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
# x, weight and parameters: filters and channels past tiles of 64, with a remainder in each
CONVS: tuple[tuple[tuple, tuple, dict], ...] = (
    ((2, 35, 33, 33), (70, 3, 3, 33), {"padding": 1}),
    ((1, 67, 61, 3), (33, 7, 7, 3), {"stride": 2, "padding": 3}),
    ((2, 17, 19, 130), (130, 1, 1, 130), {"stride": 2}),
    ((1, 12, 13, 131), (131, 3, 3, 1), {"groups": 131, "padding": ((1, 0), (0, 2))}),
    ((2, 11, 12, 34), (66, 3, 3, 17), {"groups": 2, "dilation": 2}),
    ((3, 1031, 5), (9, 5, 5), {"stride": 3}),
    ((1, 9, 10, 11, 17), (18, 3, 3, 3, 17), {"padding": 1}),
)


Convs = Sequence[tuple[tuple, tuple, dict]]


def convolved(
    convs: Convs, shapes: Callable[..., tuple], asked: Callable[[tuple, tuple], tuple] | None = None
) -> Grown:
    """Return convolutions: `shapes` maps x, weight and result to the inputs, `asked` selects the wanted gradient."""

    def grown(template: Sample) -> Iterator[Sample]:
        for x, weight, given in convs:
            where = {name: value for name, value in {**WHERE, **given}.items() if name != "groups"}
            y = (x[0], *Windows(x[1:-1], weight[1:-1], **where).out, weight[0])
            shape = {"shape": asked(x, weight)[1:-1]} if asked else {}
            yield resized(template, *shapes(x, weight, y), **{**WHERE, **given, **shape})

    return grown


_PLANE = {"kernel": (3, 2), "stride": 2, "padding": 1}
LARGE |= {
    ops.conv_product: convolved(CONVS, lambda x, weight, y: (x, weight)),
    ops.conv_input_gradient: convolved(CONVS, lambda x, weight, y: (y, weight), lambda x, weight: x),
    ops.conv_weight_gradient: convolved(CONVS, lambda x, weight, y: (y, x), lambda x, weight: weight),
    ops.conv: convolved(CONVS, lambda x, weight, y: (x, weight, weight[:1])),
    ops.conv_transpose: only(
        (((2, 17, 15, 33), (33, 3, 3, 70), (70,)), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 1}),
        (((1, 301, 34), (34, 5, 9), (18,)), {"stride": 3, "padding": 0, "output_padding": 0, "groups": 2}),
    ),
    ops.windows: only(
        (((2, 41, 43, 33),), {"kernel": (3, 3), "stride": 1, "dilation": 1}),
        (((3, 7001, 5),), {"kernel": 9, "stride": 4, "dilation": 2}),
    ),
    ops.sum_windows: only(
        (((2, 20, 21, 3, 3, 33),), {"shape": (41, 43), "stride": 2, "dilation": 1}),
        (((3, 1747, 9, 5),), {"shape": 7001, "stride": 4, "dilation": 2}),
    ),
    ops.max_pool: only((((2, 41, 43, 33),), _PLANE), (((1, 9, 10, 11, 17),), {**_PLANE, "kernel": 3})),
    ops.mean_pool: only((((2, 41, 43, 33),), _PLANE), (((1, 9, 10, 11, 17),), {**_PLANE, "kernel": 3})),
    ops.adaptive_mean_pool: only((((2, 41, 43, 33),), {"shape": (7, 5)}), (((131, 8, 8, 131),), {"shape": 1})),
    ops.interpolate: only(
        (((2, 41, 43, 33),), {"shape": (50, 86), "mode": "linear"}),
        (((3, 33, 35, 5),), {"shape": (66, 105), "mode": "nearest"}),
    ),
}

# ---- Fourier transforms --------------------------------------------------------------------------------------------

for _op in (ops.dft, ops.dft_of_real):
    LARGE[_op] = only((((131, 1000),), {"axis": 1}), (((1021, 9),), {"axis": 0}), (((18000,),), {"axis": 0}))
LARGE[ops.dft_to_real] = only(
    (((131, 501),), {"axis": 1, "n": 1000}), (((511, 9),), {"axis": 0, "n": 1021}),
    (((9001,),), {"axis": 0, "n": 18000}),
)  # fmt: skip

# ---- matrices ------------------------------------------------------------------------------------------------------

_STACK = (17, 9, 9)
LARGE |= {
    ops.vector_norm: only(((ROWS,), {"axis": 1}), ((AXES,), {"axis": (0, 2, 5)}), ((LINE,), {"axis": 0})),
    ops.solve: only((((130, 130), (130, 33)), {}), ((_STACK, (9, 2)), {})),
}
for _op in (ops.cholesky, ops.slogdet, ops.det, ops.inv):
    LARGE[_op] = only((((130, 130),), {}), ((_STACK,), {}))
for _op in (ops.eigh, ops.eigvalsh):  # in larger ones, eigenvalues are too close for float32 to separate the vectors
    LARGE[_op] = only((((33, 33),), {}), ((_STACK,), {}))
for _op in (ops.eig, ops.eigvals):  # in larger ones, rounding may change the order of eigenvalues
    LARGE[_op] = only(((_STACK,), {}))
for _op in (ops.qr, ops.svd, ops.svdvals, ops.pinv):
    LARGE[_op] = only((((1031, 17),), {}), (((17, 9, 7),), {}))

# ---- neural networks -----------------------------------------------------------------------------------------------


@in_its_dtype
def _norms(data: Callable) -> Iterator[Sample]:
    for shape in (ROWS, (2, *LINE), (1031, 3), (17, 2, 3, 33)):
        yield Sample((data(shape, 1), data(shape[-1:], 2), data(shape[-1:], 3)), {"eps": 0.1})


def _first_weight(template: Sample) -> Iterator[Sample]:
    for sample in _norms(template):
        yield replace(sample, inputs=sample.inputs[:2])


IMAGES = ((17, 29, 3, 33), (2, 131, 259), (131, 3, 7, 5), (3, 2, 1, 2, 5, 1031))


@in_its_dtype
def _images(data: Callable) -> Iterator[Sample]:
    for shape in IMAGES:
        yield Sample((data(shape, 1), data(shape[-1:], 2), data(shape[-1:], 3)), {"eps": 0.1})


def _with_moments(template: Sample) -> Iterator[Sample]:
    for sample in _images(template):
        x, weight, bias = sample.inputs
        moments = replace(bias, seed=4), replace(bias, seed=5, values="positive")
        yield replace(sample, inputs=(x, *moments, weight, bias))


def _in_groups(template: Sample) -> Iterator[Sample]:
    for sample, groups in zip(_images(template), (11, 1, 5, 1), strict=True):
        yield replace(sample, params={"eps": 0.1, "groups": groups})


@in_its_dtype
def _losses(data: Callable) -> Iterator[Sample]:
    params = {"ignore_index": -100, "label_smoothing": 0.1}
    for lead, classes, reduction in (((131,), 1031, "mean"), ((40009,), 2, "sum"), ((2, 67), 260, "none")):
        targets = Data(lead, "int64", "targets", seed=3, limit=classes)
        yield Sample((data((*lead, classes), 1), targets), {**params, "reduction": reduction})


@in_its_dtype
def _losses_and_gradients(data: Callable) -> Iterator[Sample]:
    for i, (rows, classes) in enumerate(((131, 1031), (40009, 2))):
        targets = Data((rows,), "int64", "targets", seed=3, limit=classes)
        params = {"ignore_index": -100, "label_smoothing": 0.1 * i}
        yield Sample((loss_of(data, rows), data((rows, classes), 2), targets), params)


def loss_of(data: Callable, rows: int) -> Data:
    """Return a gradient of losses, which are float32 for narrow floats."""
    given = data((rows,), 1)
    return replace(given, dtype="float32") if is_narrow(given.dtype) else given


@in_its_dtype
def _heads(data: Callable) -> Iterator[Sample]:
    for lead, k, classes, reduction, rows in (
        ((131,), 70, 1031, "mean", 64), ((2, 67), 130, 260, "none", None), ((70001,), 3, 2, "sum", 9000)
    ):  # fmt: skip
        targets = Data(lead, "int64", "targets", seed=3, limit=classes)
        params = {"ignore_index": -100, "label_smoothing": 0.1, "reduction": reduction, "rows_at_once": rows}
        yield Sample((data((*lead, k), 1), data((classes, k), 2), targets), params)


# leading axes of queries and of keys, number of queries and of keys, head size, value size, mask's shape and values
ATTENTIONS = (
    ((2,), (2,), 260, 260, 64, 64, None, ""), ((3,), (3,), 131, 131, 128, 128, None, ""),
    ((17,), (17,), 5, 7, 8, 8, (5, 7), "mask"), ((2, 4), (2, 1), 33, 35, 16, 16, (2, 1, 33, 35), "mask"),
    ((3,), (1,), 1, 260, 64, 33, (260,), "mask"), ((2, 2, 3, 2), (2, 2, 3, 2), 5, 5, 4, 4, (3, 1, 1, 5), "normal"),
    ((2,), (2,), 33, 9, 8, 8, (33, 1), "hidden"), ((2,), (2,), 9, 9, 8, 8, (), "normal"),
    ((2, 3), (2, 3), 9, 33, 8, 8, (2, 1, 1, 33), "hidden"), ((), (), 1031, 70, 8, 8, (1, 1), "normal"),
)  # fmt: skip


@in_its_dtype
def _attention(data: Callable) -> Iterator[Sample]:
    for i, (lead, shared, t, s, d, e, mask, values) in enumerate(ATTENTIONS):
        hidden = values == "mask"
        seen = mask if mask is None else Data(mask, "bool", values) if hidden else data(mask, 4, values)
        arrays = (data((*lead, t, d), 1), data((*shared, s, d), 2), data((*shared, s, e), 3))
        params = {"causal": i % 2 == 0, "scale": None, "dropout_rate": 0.25 if i in (1, 3) else 0.0}
        yield Sample((*arrays, seen, 7, 3), params)


LARGE |= {
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
    ops.dropout: only((((601, 503),), {"rate": 0.1}), ((AXES,), {"rate": 0.5})),
}

# ---- optimiser steps -----------------------------------------------------------------------------------------------


def _steps(template: Sample) -> Iterator[Sample]:
    """Yield steps of 65 tensors, each with its own decay; of a large tensor with a small one, after many steps."""
    values = [group[0].values for group in template.inputs if isinstance(group, tuple)]
    rest = template.inputs[len(values) :]
    late = tuple(1000 if type(a) is int else a for a in rest)
    for numbers, shapes in ((rest, [(1 + i % 7, 3) for i in range(TENSORS)]), (late, [ROWS, (), (5,)])):
        lists = (tuple(Data(s, values=v, seed=100 * j + i) for i, s in enumerate(shapes)) for j, v in enumerate(values))
        decays = tuple(0.01 * i for i in range(len(shapes)))
        yield replace(template, inputs=(*lists, *numbers), params={**template.params, "weight_decay": decays})


@in_its_dtype
def _many(data: Callable) -> Iterator[Sample]:
    yield Sample((tuple(data((1 + i % 7, 3), i) for i in range(TENSORS)),))
    yield Sample(((data(ROWS, 1, layout="transposed"), data((), 2)),))


def _cast(template: Sample) -> Iterator[Sample]:
    for sample in _many(template):
        # into dtypes that the backend holds
        yield from (replace(sample, params={"dtype": dtype}) for dtype in {template.params["dtype"]: 0, "float32": 0})


LARGE |= {ops.sgd: _steps, ops.adamw: _steps, ops.global_norm: _many, ops.astype_all: _cast}
