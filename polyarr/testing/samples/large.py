"""Large calls, past the sizes at which kernels change their method, for each op.

More than 65,536 elements, rows past 1,024, more than 128 rows, six axes, products of about 130 with every remainder,
17 batches, heads of 64 and 128, 260 positions, 65 tensors in a step, 300,000 random numbers.
"""

from polyarr import ops
from polyarr.core.op import Op
from polyarr.testing.samples import grown
from polyarr.testing.samples.grown import Grown, along, only
from polyarr.testing.strategies import Sample

ROWS = (131, 1031)  # 135,061 elements in rows past 1,024; both are primes
LINE = (70001,)
AXES = (3, 2, 5, 1, 4, 3)
NINE = (2, 1, 3, 1, 2, 2, 1, 3, 2)  # axes, no neighbors of which can be merged if every second one is broadcast
CUT = (2, 1, 2, 1, 1, 2, 1, 3, 2)  # a window of NINE
BY_TURNS = (2, 1, 1, 1, 2, 1, 1, 3, 1), (1, 1, 3, 1, 1, 2, 1, 1, 2)
TENSORS = 65


def large(op: Op, template: Sample) -> list[Sample]:
    """Return the large calls of an op, which differ from the template only in size."""
    return list(LARGE[op](template))


# ---- elementwise, reductions, order --------------------------------------------------------------------------------

_FLAT = (137, 1031)  # 141,247 elements: one less than whole vectors of any width
_BROADCAST = (ROWS, ROWS[1:]), ((*AXES[:3], 1, 1, 1), (1, 1, *AXES[2:])), BY_TURNS
LARGE: dict[Op, Grown] = grown.elementwise(_FLAT, AXES, *_BROADCAST)
_REDUCED = [(ROWS, None), (ROWS, 0), (ROWS, 1)]
_op: Op
for _op in (ops.sum, ops.mean, ops.max, ops.min, ops.logsumexp, ops.var, ops.std):
    LARGE[_op] = along(*_REDUCED, (AXES, (0, 2, 5), "transposed"), (NINE, (0, 4, 7)))
LARGE[ops.prod] = along(*_REDUCED[1:], (AXES, (0, 2, 5), "transposed"))  # that of all elements would be 0 or infinite
for _op in (ops.argmax, ops.argmin):
    # without nan, of which the first is the result
    LARGE[_op] = grown.with_values("normal", *_REDUCED, ((517, 131), 0), (AXES, 2, "transposed"))
LARGE[ops.any] = grown.with_values("one true", *_REDUCED)
LARGE[ops.all] = grown.with_values("one false", *_REDUCED)
for _op in (ops.cumulative_sum, ops.argsort, ops.sort, ops.softmax, ops.log_softmax):
    LARGE[_op] = along((ROWS, 0), (ROWS, 1), (LINE, 0), (AXES, 2, "transposed"))
LARGE[ops.cumulative_sum] = along((ROWS, 0), (ROWS, 1), (LINE, 0), (AXES, 2, "transposed"), ((3, 7001, 5), 1))
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
    ops.permute_dims: only(
        ((ROWS,), {"axes": (1, 0)}), (_SIX, {"axes": (5, 2, 0, 4, 1, 3)}), (((5, 7, 33, 31),), {"axes": (1, 0, 3, 2)}),
        ((NINE,), {"axes": (8, 3, 0, 1, 6, 5, 7, 2, 4)}),
    ),
    ops.broadcast_to: only(
        ((ROWS[1:],), {"shape": ROWS}), (((1, 2, 1, 1, 4, 3),), {"shape": AXES}), ((BY_TURNS[0],), {"shape": NINE})
    ),
    ops.slice: only(
        ((ROWS,), {"starts": (130, 1), "steps": (-1, 2), "shape": (131, 515)}),
        (_SIX, {"starts": (2, 0, 1, 0, 3, 0), "steps": (-1, 1, 2, 1, -2, 1), "shape": (3, 2, 2, 1, 2, 3)}),
        ((NINE,), {"starts": (1, 0, 2, 0, 0, 0, 0, 0, 1), "steps": (-1, 1, -2, 1) * 2 + (-1,), "shape": CUT}),
    ),
    ops.slice_update: only(
        ((ROWS, (7, 1031)), {"starts": (30, 0), "steps": (1, 1)}),
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
        (_SIX, {"axis": (2, 0, 4), "shift": (3, -4, 1)}),
    ),
    ops.tile: only(((ROWS[1:],), {"repetitions": (131, 1)}), (_SIX, {"repetitions": (2, 1, 1, 1, 1, 1)})),
    ops.repeat: only(((ROWS[1:],), {"repeats": 67, "axis": 0}), (_SIX, {"repeats": 2, "axis": 4})),
    ops.tril: only(((ROWS,), {"k": 900}), (_SIX, {"k": 1})),
    ops.triu: only(((ROWS,), {"k": 900}), (_SIX, {"k": 1})),
}
_TWO = [(ROWS, 0, "transposed"), (ROWS, 1, "transposed")]
LARGE[ops.concat] = grown.lists([
    (0, [((1 + i % 3, 5), i) for i in range(TENSORS)]), (1, _TWO), (4, [(AXES, i) for i in range(3)]),
])  # fmt: skip
LARGE[ops.stack] = grown.lists([(0, [((2, 5), i) for i in range(TENSORS)]), (-1, _TWO)])

# ---- indices -------------------------------------------------------------------------------------------------------

# a long axis, many indices into a short one, and rows past 1,024
INDEXED = (((*LINE, 2), 0, 1031), ((33, 3), 0, 30011), (ROWS, 1, 67), (ROWS, 0, 140))
_BELOW = [(shape, axis, count, "index", shape[axis]) for shape, axis, count in INDEXED]
_UNIQUE = [(shape, axis, count, "unique", shape[axis]) for shape, axis, count in INDEXED if count <= shape[axis]]
_ALONG = [(shape, axis, shape, shape[axis]) for shape, axis in ((ROWS, 0), (ROWS, 1), ((2, 3, 2, 4, 3), 3))]
LARGE |= {
    ops.take: grown.indexed(_BELOW),
    ops.scatter: grown.indexed(_UNIQUE, updates=True),
    ops.scatter_add: grown.indexed(_BELOW, updates=True),
    ops.take_along_axis: grown.indexed_along(_ALONG),
    ops.scatter_add_along_axis: grown.indexed_along(_ALONG, updates=True),
    ops.cache_update: grown.cached((((2, 67, 3, 131, 33), 67), ((2, 5, 1, 1031, 131), 3))),
    ops.embedding: grown.embedded((((70001, 3), (70,), 70001), ((140, 1031), (2, 67), 140), ((33, 4), (30011,), 33))),
}

# ---- products ------------------------------------------------------------------------------------------------------

REMAINDERS = 16  # each of m, n and k has every remainder modulo this tile size
SIZES = [(128 + i, 128 + (5 * i + 3) % 16, 128 + (11 * i + 7) % 16) for i in range(REMAINDERS)]
BATCHES = (
    ((17, 5, 7), (17, 7, 9)), ((17, 33, 9), (9, 5)), ((2, 3, 5, 7), (2, 3, 7, 4)), ((2, 3, 5, 7), (2, 1, 7, 4)),
    ((2, 1, 3, 5, 7), (4, 1, 7, 3)),
)  # fmt: skip
DEEP = (
    ((2, *LINE), (*LINE, 3)), ((1031, 3), (3, 131)), ((1, 1031), (1031, 131)), ((2, 3, 17003), (2, 17003, 4)),
    ((2, 3, 17003), (17003, 4)),
)  # fmt: skip
_INT8 = ((2, 131, 1031), (1, 3, 5003), (1, 131, 1028), (3, 17001, 8))
_GROUPED = (257, 3, 33, 70), (17, 9, 131, 1031), (300, 2, 5, 1028), (5, 40, 3, 4)  # the last has groups without rows
_LINEAR = [*(((m,), n, k) for m, n, k in SIZES[::3]), ((17, 2, 3), 70, 33), ((1031,), 131, 5), ((2,), 131, 1031)]
_PRODUCTS = grown.matrices([*(((m, k), (k, n)) for m, n, k in SIZES), *BATCHES, *DEEP])
LARGE |= {
    ops.grouped_linear: grown.grouped(_GROUPED),
    ops.quantized_grouped_linear: grown.quantized_grouped(_GROUPED),
    ops.quantized_linear: grown.quantized_linear([*SIZES[::3], *_INT8]),
    ops.matrix_product: _PRODUCTS,
    ops.matmul: _PRODUCTS,
    ops.vecdot: only(((ROWS, ROWS), {}), ((LINE, LINE), {})),
    ops.outer: only((((257,), (301,)), {})),
    ops.tensordot: only(
        (((131, 17, 8), (17, 8, 130)), {"axes": 2}), (((3, 2, 5, 4, 2), (5, 4, 2, 1, 3)), {"axes": 3})
    ),
    ops.linear: grown.linear([(*layer, "" if i else "gelu") for i, layer in enumerate(_LINEAR)]),
}

# ---- sequences, images and volumes ---------------------------------------------------------------------------------

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
_PLANE = {"kernel": (3, 2), "stride": 2, "padding": 1}
LARGE |= {
    **grown.convolutions(CONVS),
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
        (((2, 14, 20, 3),), {"shape": (194, 12), "mode": "nearest"}),  # whole quotients, inexact by way of a factor
    ),
}

# ---- Fourier transforms --------------------------------------------------------------------------------------------

LARGE[ops.dft_of_real] = along(((131, 1000), 1), ((1021, 9), 0), ((18000,), 0))
LARGE[ops.dft] = along(((131, 1000), 1), ((1021, 9), 0), ((18000,), 0), ((67, 60), (0, 1)))
LARGE[ops.dft_to_real] = only(
    (((131, 501),), {"axis": 1, "n": 1000}), (((511, 9),), {"axis": 0, "n": 1021}),
    (((9001,),), {"axis": 0, "n": 18000}),
)  # fmt: skip

# ---- matrices ------------------------------------------------------------------------------------------------------

_STACK = (17, 9, 9)
LARGE |= grown.decompositions(_STACK, (130, 130), (33, 33), (1031, 17), (17, 9, 7))
LARGE |= {
    ops.vector_norm: along((ROWS, 1), (AXES, (0, 2, 5)), (LINE, 0)),
    **dict.fromkeys((ops.solve, ops.solve_triangular), only((((130, 130), (130, 33)), {}), ((_STACK, (9, 2)), {}))),
}

# ---- neural networks -----------------------------------------------------------------------------------------------

ATTENTIONS = (
    ((2,), (2,), 260, 260, 64, 64, None, ""), ((3,), (3,), 131, 131, 128, 128, None, ""),
    ((17,), (17,), 5, 7, 8, 8, (5, 7), "mask"), ((2, 2, 4), (2, 2, 1), 33, 35, 16, 16, (2, 1, 1, 33, 35), "mask"),
    ((3,), (1,), 1, 260, 64, 33, (260,), "mask"), ((2, 2, 3, 2), (2, 2, 3, 2), 5, 5, 4, 4, (3, 1, 1, 5), "normal"),
    ((2,), (2,), 33, 9, 8, 8, (33, 1), "hidden"), ((2,), (2,), 9, 9, 8, 8, (), "normal"),
    ((2, 3), (2, 3), 9, 33, 8, 8, (2, 1, 1, 33), "hidden"), ((), (), 1031, 70, 8, 8, (1, 1), "normal"),
)  # fmt: skip
IMAGES = ((17, 29, 3, 33), (2, 131, 259), (131, 3, 7, 5), (3, 2, 1, 2, 5, 1031))
LARGE |= grown.norms((ROWS, (2, *LINE), (1031, 3), (17, 2, 3, 33)), IMAGES, (11, 1, 5, 1))
LARGE |= {
    ops.cross_entropy: grown.losses((((131,), 1031, "mean"), ((40009,), 2, "sum"), ((2, 67), 260, "none"))),
    ops.cross_entropy_and_gradient: grown.losses_and_gradients(((131, 1031), (40009, 2))),
    ops.linear_cross_entropy: grown.heads(
        (((131,), 70, 1031, "mean", 64), ((2, 67), 130, 260, "none", None), ((70001,), 3, 2, "sum", 9000))
    ),
    ops.mse: only(((ROWS, ROWS), {}), ((AXES, AXES), {})),
    ops.attention: grown.attention(ATTENTIONS, with_dropout=(1, 3)),
    ops.dropout: only((((601, 503),), {"rate": 0.1}), ((AXES,), {"rate": 0.5})),
}

# ---- optimizer steps -----------------------------------------------------------------------------------------------

_TENSORS = (ROWS, 1, "transposed"), ((), 2)
LARGE[ops.sgd] = LARGE[ops.adamw] = grown.steps(TENSORS, 0.01, 1000, ROWS, (), (5,))
LARGE[ops.global_norm] = grown.many(TENSORS, *_TENSORS)
LARGE[ops.astype_all] = grown.many(TENSORS, *_TENSORS, dtypes=("float32",))
