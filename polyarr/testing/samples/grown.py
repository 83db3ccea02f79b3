"""Calls of an op grown to given sizes: everything else comes from the simplest call that its entry draws, the template.

Each function takes the sizes of a table of large.py or huge.py, and returns a function of the template.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from polyarr import ops
from polyarr.core.op import OPS, Op
from polyarr.testing.naive import Windows
from polyarr.testing.samples.entry import is_narrow
from polyarr.testing.strategies import Data, Sample

Grown = Callable[[Sample], Iterator[Sample]]
Sizes = Sequence[tuple]


def resized(template: Sample, *shapes: tuple, layout: str = "plain", **params: Any) -> Sample:
    """Return the template with these shapes (the last one for all further arrays) and parameters."""
    left = list(shapes)
    inputs = template.mapped(lambda d: replace(d, shape=left.pop(0) if left else shapes[-1], layout=layout))
    return replace(template, inputs=inputs, params={**template.params, **params})


def only(*choices: tuple[tuple[tuple, ...], dict[str, Any]]) -> Grown:
    """Return calls with these shapes and parameters; "layout" is that of all arrays."""

    def grown(template: Sample) -> Iterator[Sample]:
        for shapes, params in choices:
            yield resized(template, *shapes, **params)

    return grown


def of_rows(call: Callable[..., Sample]) -> Callable[..., Grown]:
    """Return a function of the rows of a table, for each of which call(data, number, *row, **options) makes a call.

    `data` makes an array in the template's last float dtype: data(shape, seed, values, layout).
    """

    def of_table(rows: Sizes, **options: Any) -> Grown:
        def grown(template: Sample) -> Iterator[Sample]:
            dtype = next((d for d in reversed(_datas(template)) if d.is_floating), _datas(template)[0]).dtype

            def data(shape: tuple, seed: int, values: str = "normal", layout: str = "plain") -> Data:
                return Data(shape, dtype, values, layout, seed)

            for i, row in enumerate(rows):
                yield call(data, i, *row, **options)

        return grown

    return of_table


def _datas(template: Sample) -> list[Data]:
    found: list[Data] = []
    template.mapped(found.append)
    return found


# ---- elementwise, reductions, order --------------------------------------------------------------------------------


def elementwise(plain: tuple, transposed: tuple, *broadcast: tuple[tuple, tuple]) -> dict[Op, Grown]:
    """Return calls of every op with these shapes and, of ops with several arrays, with pairs of shapes."""

    def grown(template: Sample) -> Iterator[Sample]:
        yield resized(template, plain)
        yield resized(template, transposed, layout="transposed")
        if len(template.specs()) > 1:
            for shapes in broadcast:
                yield resized(template, *shapes)

    return dict.fromkeys(OPS, grown)


def along(*calls: tuple) -> Grown:
    """Return calls with these shapes and axes, and with a layout if it is not plain."""
    return only(*(((shape,), {"axis": axis, "layout": rest[0] if rest else "plain"}) for shape, axis, *rest in calls))


def with_values(values: str, *calls: tuple) -> Grown:
    """Return calls along axes with these values."""
    grown = along(*calls)
    return lambda template: grown(replace(template, inputs=template.mapped(lambda d: replace(d, values=values))))


# ---- lists, indices ------------------------------------------------------------------------------------------------


@of_rows
def lists(data: Callable, i: int, axis: int, arrays: Sequence[tuple]) -> Sample:
    """Make a call of a row: an axis and a list of arrays: each the shape, the seed, and a layout if it is not plain."""
    return Sample((tuple(data(a[0], a[1], layout=a[2] if a[2:] else "plain") for a in arrays),), {"axis": axis})


@of_rows
def indexed(
    data: Callable, i: int, shape: tuple, axis: int, count: int, values: str, limit: int, updates: bool = False
) -> Sample:
    """Make a call of a row: the shape of x, an axis, the number of indices, their rule of values and its limit."""
    at, window = Data((count,), "int64", values, seed=5, limit=limit), (*shape[:axis], count, *shape[axis + 1 :])
    return Sample((data(shape, 6), at, *((data(window, 7),) if updates else ())), {"axis": axis})


@of_rows
def indexed_along(
    data: Callable, i: int, shape: tuple, axis: int, window: tuple, limit: int, updates: bool = False
) -> Sample:
    """Make a call of a row: the shape of x, an axis, the shape of the indices, the number of elements they index."""
    at = Data(window, "int64", "below", seed=5, limit=limit)
    return Sample((data(shape, 6), at, *((data(window, 7),) if updates else ())), {"axis": axis})


@of_rows
def embedded(data: Callable, i: int, table: tuple, count: tuple, limit: int) -> Sample:
    """Make a call of a row: the shape of a table, that of the indices, and the number of rows that they index."""
    return Sample((data(table, 6), Data(count, "int64", "below", seed=5, limit=limit)))


@of_rows
def cached(data: Callable, i: int, cache: tuple, rows: int) -> Sample:
    """Make a call of a row: the shape of a cache, and the number of rows that change."""
    new = (rows, cache[2], 1, cache[4])
    at = Data((rows,), "int32", "index", seed=5, limit=cache[3])
    return Sample((data(cache, 6), data(new, 7), data(new, 8), at))


# ---- products and convolutions -------------------------------------------------------------------------------------


@of_rows
def matrices(data: Callable, i: int, x: tuple, y: tuple) -> Sample:
    """Make a call of a row: the shapes of two factors, every second one of which is transposed."""
    return Sample((data(x, i), data(y, i + 1, layout="transposed" if i % 2 else "plain")))


def linear(calls: Sizes) -> Grown:
    """Return layers with the leading axes of x, outputs, inputs and an activation; "": that of the template."""

    def grown(template: Sample) -> Iterator[Sample]:
        dtype = _datas(template)[0].dtype
        for i, (lead, n, k, activation) in enumerate(calls):
            inputs = (Data(shape, dtype, seed=i + j) for j, shape in enumerate(((*lead, k), (n, k), (n,))))
            yield Sample(tuple(inputs), {"activation": activation or template.params["activation"]})

    return grown


@of_rows
def grouped(data: Callable, i: int, rows: int, groups: int, n: int, k: int) -> Sample:
    """Make a call of a row: the rows of x, groups, outputs and inputs."""
    picks = Data((rows,), "int64", "below", seed=5, limit=groups)
    return Sample((data((rows, k), i), data((groups, n, k), i + 1), picks))


def quantized_grouped(calls: Sizes) -> Grown:
    """Return layers of rows, groups, n outputs and k inputs: int8 rows, int8 blocks and blocks of 4 bits in turn."""

    def grown(template: Sample) -> Iterator[Sample]:
        x, _, scale, _ = template.inputs
        for i, (rows, groups, n, depth) in enumerate(calls):
            k = depth + (-depth % 32 if i % 3 else 0)
            int8 = Data((groups, n, k), "int8", "wide", seed=i)
            codes = Data((groups, n, k // 2), "uint8", "below", seed=i, limit=256) if i % 3 == 2 else int8
            factors = Data((groups, n, k // 32) if i % 3 else (groups, n), scale.dtype, seed=i)
            picks = Data((rows,), "int64", "below", seed=5, limit=groups)
            yield Sample((Data((rows, k), x.dtype, seed=i), codes, factors, picks), template.params)

    return grown


def quantized_linear(sizes: Sizes) -> Grown:
    """Return layers of m rows, n outputs and k inputs, with int8 rows, int8 blocks and blocks of 4 bits in turn."""

    def grown(template: Sample) -> Iterator[Sample]:
        x, _, scale, bias = template.inputs
        for i, (m, n, depth) in enumerate(sizes):
            k = depth + (-depth % 32 if i % 3 else 0)
            int8 = Data((n, k), "int8", "wide", seed=i)
            codes = Data((n, k // 2), "uint8", "below", seed=i, limit=256) if i % 3 == 2 else int8
            inputs = Data((m, k), x.dtype, seed=i), codes, Data((n, k // 32) if i % 3 else (n,), scale.dtype, seed=i)
            yield Sample((*inputs, bias and Data((n,), bias.dtype, seed=7)), template.params)

    return grown


WHERE = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}


def convolutions(convs: Sizes) -> dict[Op, Grown]:
    """Return calls of the ops of a convolution, with the shapes of x and weight and parameters."""

    def convolved(shapes: Callable[..., tuple], asked: Callable[[tuple, tuple], tuple] | None = None) -> Grown:
        """Map x, weight and result to the inputs by `shapes`; `asked` selects the wanted gradient."""

        def grown(template: Sample) -> Iterator[Sample]:
            for x, weight, given in convs:
                where = {name: value for name, value in {**WHERE, **given}.items() if name != "groups"}
                y = (x[0], *Windows(x[1:-1], weight[1:-1], **where).out, weight[0])
                shape = {"shape": asked(x, weight)[1:-1]} if asked else {}
                yield resized(template, *shapes(x, weight, y), **{**WHERE, **given, **shape})

        return grown

    return {
        ops.conv_product: convolved(lambda x, weight, y: (x, weight)),
        ops.conv_input_gradient: convolved(lambda x, weight, y: (y, weight), lambda x, weight: x),
        ops.conv_weight_gradient: convolved(lambda x, weight, y: (y, x), lambda x, weight: weight),
        ops.conv: convolved(lambda x, weight, y: (x, weight, weight[:1])),
    }


def decompositions(stack: tuple, square: tuple, symmetric: tuple, *tall: tuple) -> dict[Op, Grown]:
    """Return calls with a stack of small matrices, a large one, a symmetric one, and ones with more rows than columns.

    Eigenvalues of larger matrices are too close for float32 to separate the vectors, and rounding may change the order
    of those that are not symmetric.
    """
    of_square, of_symmetric = only(((square,), {}), ((stack,), {})), only(((symmetric,), {}), ((stack,), {}))
    return {
        **dict.fromkeys((ops.cholesky, ops.slogdet, ops.det, ops.inv), of_square),
        **dict.fromkeys((ops.eigh, ops.eigvalsh), of_symmetric),
        **dict.fromkeys((ops.eig, ops.eigvals), only(((stack,), {}))),
        **dict.fromkeys((ops.qr, ops.svd, ops.svdvals, ops.pinv), only(*(((shape,), {}) for shape in tall))),
    }


# ---- neural networks -----------------------------------------------------------------------------------------------


@of_rows
def _normalized(data: Callable, i: int, *shape: int) -> Sample:
    return Sample((data(shape, 1), data(shape[-1:], 2), data(shape[-1:], 3)), {"eps": 0.1})


def norms(rows: Sizes, images: Sizes, groups: Sequence[int]) -> dict[Op, Grown]:
    """Return calls of the ops that normalize rows, and of those that normalize images, with groups of channels."""
    plain, of_images = _normalized(rows), _normalized(images)

    def without_bias(template: Sample) -> Iterator[Sample]:
        for sample in plain(template):
            yield replace(sample, inputs=sample.inputs[:2])

    def with_moments(template: Sample) -> Iterator[Sample]:
        for sample in of_images(template):
            x, weight, bias = sample.inputs
            moments = replace(bias, seed=4), replace(bias, seed=5, values="positive")
            yield replace(sample, inputs=(x, *moments, weight, bias))

    def in_groups(template: Sample) -> Iterator[Sample]:
        for sample, count in zip(of_images(template), groups, strict=True):
            yield replace(sample, params={"eps": 0.1, "groups": count})

    return {
        ops.layer_norm: plain,
        ops.rms_norm: without_bias,
        ops.batch_norm: of_images,
        ops.batch_norm_inference: with_moments,
        ops.group_norm: in_groups,
        ops.instance_norm: of_images,
    }


_LOSS = {"ignore_index": -100, "label_smoothing": 0.1}


def _targets(lead: tuple, classes: int) -> Data:
    return Data(lead, "int64", "targets", seed=3, limit=classes)


@of_rows
def losses(data: Callable, i: int, lead: tuple, classes: int, reduction: str) -> Sample:
    """Make a call of a row: the leading axes, the number of classes, and the reduction."""
    return Sample((data((*lead, classes), 1), _targets(lead, classes)), {**_LOSS, "reduction": reduction})


@of_rows
def losses_and_gradients(data: Callable, i: int, rows: int, classes: int) -> Sample:
    """Make a call of a row: the numbers of rows and classes."""
    g = data((rows,), 1)
    g = replace(g, dtype="float32") if is_narrow(g.dtype) else g  # losses of narrow floats are float32
    inputs = g, data((rows, classes), 2), _targets((rows,), classes)
    return Sample(inputs, {**_LOSS, "label_smoothing": 0.1 * (i % 2)})


@of_rows
def heads(data: Callable, i: int, lead: tuple, k: int, classes: int, reduction: str, rows: int | None) -> Sample:
    """Make a call of a row: the leading axes, features, classes, the reduction, and the rows at once."""
    inputs = data((*lead, k), 1), data((classes, k), 2), _targets(lead, classes)
    return Sample(inputs, {**_LOSS, "reduction": reduction, "rows_at_once": rows})


@of_rows
def attention(
    data: Callable, i: int, lead: tuple, shared: tuple, t: int, s: int, d: int, e: int, mask: tuple | None, values: str,
    with_dropout: Sequence[int],
) -> Sample:  # fmt: skip
    """Make a call of a row: leading axes of queries and of keys, the number of both, head size, value size, the mask.

    Every second call is causal; those of the numbers in `with_dropout` have dropout.
    """
    seen = mask if mask is None else Data(mask, "bool", values) if values == "mask" else data(mask, 4, values)
    arrays = (data((*lead, t, d), 1), data((*shared, s, d), 2), data((*shared, s, e), 3))
    params = {"causal": i % 2 == 0, "scale": None, "dropout_rate": 0.25 if i in with_dropout else 0.0}
    return Sample((*arrays, seen, 7, 3), params)


# ---- optimizer steps -----------------------------------------------------------------------------------------------


def steps(tensors: int, decay: float, late: int, *shapes: tuple) -> Grown:
    """Return steps of many tensors, each with its own decay; and of a few of these shapes, after many steps."""

    def grown(template: Sample) -> Iterator[Sample]:
        groups = [group for group in template.inputs if isinstance(group, tuple)]
        rest = template.inputs[len(groups) :]
        numbers = tuple(late if type(a) is int else a for a in rest)
        for others, each in ((rest, [(1 + i % 7, 3) for i in range(tensors)]), (numbers, shapes)):
            arrays = (
                tuple(replace(group[0], shape=s, layout="plain", seed=400 * j + i) for i, s in enumerate(each))
                for j, group in enumerate(groups)
            )
            decays = tuple(decay * i for i in range(len(each)))
            yield replace(template, inputs=(*arrays, *others), params={**template.params, "weight_decay": decays})

    return grown


def many(tensors: int, *others: tuple, dtypes: Sequence[str] = ()) -> Grown:
    """Return calls with many small tensors, and with others: shape, seed and layout; also into these dtypes."""
    of_lists = lists([(0, [((1 + i % 7, 3), i) for i in range(tensors)]), (0, others)])

    def grown(template: Sample) -> Iterator[Sample]:
        for sample in of_lists(template):
            for params in (template.params, *({"dtype": dtype} for dtype in dtypes)):
                yield replace(sample, params=params)

    return grown
