"""Huge calls, beyond every size at which a kernel changes its method: a table of sizes for each family of ops.

More than 2^16 rows, 2^20 elements, k above 4,096, batches of more than 1,024 and of more than 65,535 matrices, products
of about 300 and 520, 1,100 keys, heads of 48 to 256, more than 256 channels and 16 images, 5,003 updates of one
element, 300 tensors in a step.
"""

from itertools import cycle

from polyarr import ops
from polyarr.core.op import Op
from polyarr.testing.samples import grown
from polyarr.testing.samples.grown import Grown, along, only
from polyarr.testing.strategies import Sample

TALL = (66_001, 17)  # 1,122,017 elements in more than 2^16 rows
FLAT = (17, 66_001)  # as many elements, in rows of more than 2^16
LINE = (1_100_003,)
BOX = (1031, 33, 35)  # the first of three axes is longer than 1,024
SQUARE = (1031, 1033)
TENSORS = 300
UPDATES = 5003  # updates of one element


def huge(op: Op, template: Sample) -> list[Sample]:
    """Return the huge calls of an op, which differ from the template only in size."""
    return list(HUGE[op](template))


# ---- elementwise, reductions, order --------------------------------------------------------------------------------

HUGE: dict[Op, Grown] = grown.elementwise(TALL, FLAT, (BOX, BOX[2:]), (TALL, (TALL[0], 1)))
_op: Op
for _op in (ops.sum, ops.mean, ops.max, ops.min, ops.logsumexp, ops.var, ops.std, ops.vector_norm):
    HUGE[_op] = along((LINE, None), (TALL, 0), (TALL, 1), (FLAT, 0), (FLAT, 1), (BOX, (0, 2)), (BOX, 1))
for _op in (ops.argmax, ops.argmin):
    HUGE[_op] = grown.with_values("normal", (LINE, None), (TALL, 0), (TALL, 1), (FLAT, 1), (BOX, 1))
HUGE[ops.prod] = along(((5003,), None), (TALL, 1), (FLAT, 0), ((3, 5003), 1), ((5003, 3), 0))
_DECIDED = (LINE, None), (TALL, 0), (FLAT, 1)
HUGE[ops.any], HUGE[ops.all] = grown.with_values("one true", *_DECIDED), grown.with_values("one false", *_DECIDED)
HUGE[ops.cumulative_sum] = along((LINE, 0), (TALL, 0), (TALL, 1), (FLAT, 1), (BOX, 1))
for _op in (ops.argsort, ops.sort):
    HUGE[_op] = along((LINE, 0), (TALL, 1), ((66_001, 2), 0), ((3, 66_001), 1))
for _op in (ops.softmax, ops.log_softmax):
    HUGE[_op] = along((TALL, 1), (FLAT, 1), (TALL, 0), ((257, 5003), 1), (BOX, 1))
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
HUGE[ops.concat] = grown.lists([
    (0, [((1 + i % 3, 5), i) for i in range(TENSORS)]), (0, [(TALL, 1), ((3, 17), 2), (TALL, 3)]),
    (1, [(TALL, 1), (TALL, 2, "transposed")]),
])  # fmt: skip
HUGE[ops.stack] = grown.lists([(0, [((2, 5), i) for i in range(TENSORS)]), (-1, [(TALL, i) for i in range(2)])])

# ---- indices -------------------------------------------------------------------------------------------------------

# shape of x, axis, number of indices, number of elements that they index
INDEXED = (
    ((LINE[0], 1), 0, 70_001, LINE[0]), (TALL, 0, 70_001, TALL[0]), ((7, 3), 0, UPDATES, 1),
    ((7, 33), 0, 2 * UPDATES, 2), ((300_007,), 0, LINE[0], 300_007), (FLAT, 1, 1031, FLAT[1]),
    ((33,), 0, LINE[0], 33), ((1031, 3, 35), 1, 33, 3),
)  # fmt: skip
_BELOW = [(shape, axis, count, "below", limit) for shape, axis, count, limit in INDEXED]
_ALONG = (
    (TALL, 0, TALL, TALL[0]), (TALL, 1, (TALL[0], 3), 17), (FLAT, 1, (17, 1031), FLAT[1]), ((7, 3), 0, (UPDATES, 3), 1),
)  # fmt: skip
# several updates of one element, of which the last counts, and updates of distinct elements
_PLACED = [
    (shape, axis, count, values, limit)
    for shape, axis, count, places in INDEXED
    for values, limit in (("below", places), ("unique", shape[axis]))
    if count <= 70_001 and (values == "below" or count <= shape[axis])
]
HUGE |= {
    ops.take: grown.indexed(_BELOW),
    ops.scatter: grown.indexed(_PLACED, updates=True),
    ops.scatter_add: grown.indexed(_BELOW, updates=True),
    ops.take_along_axis: grown.indexed_along(_ALONG),
    ops.scatter_add_along_axis: grown.indexed_along(_ALONG, updates=True),
    ops.cache_update: grown.cached((((2, 67, 3, 1031, 33), 67), ((2, 300, 70, 5, 33), 300))),
    ops.embedding: grown.embedded((
        (TALL, (3, 70), TALL[0]), ((7, 33), (UPDATES,), 1), ((300, 768), (2, 1100), 300), ((33, 4), (300_007,), 33),
    )),
}  # fmt: skip

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
_LAYERS = (*(((m,), n, k) for m, n, k in PRODUCTS), ((1100, 2, 3), 33, 70))
HUGE |= {
    ops.matrix_product: grown.matrices([*(((m, k), (k, n)) for m, n, k in PRODUCTS), *BATCHES]),
    ops.matmul: only(*((pair, {}) for pair in BATCHES[:4])),  # it runs as matrix_product
    ops.vecdot: only(((TALL, TALL), {}), ((FLAT, FLAT), {}), ((LINE, LINE), {})),
    ops.outer: only((((1031,), (1033,)), {}), (((66_001,), (17,)), {})),
    ops.tensordot: only((((301, 17, 18), (17, 18, 305)), {"axes": 2}), (((5, 66, 70), (66, 70, 3)), {"axes": 2})),
    ops.linear: grown.linear([(*layer, activation) for layer, activation in zip(_LAYERS, cycle(("", "gelu", "silu")))]),
    ops.grouped_linear: grown.grouped([(1031, 5, 70, 301), (30, 300, 33, 520), (5003, 3, 17, 33)]),
    ops.quantized_grouped_linear: grown.quantized_grouped([(1031, 5, 70, 301), (30, 300, 33, 520), (5003, 3, 17, 33)]),
    ops.quantized_linear: grown.quantized_linear(PRODUCTS),
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
    **grown.convolutions(CONVS),
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
    HUGE[_op] = along((TALL, 0), (TALL, 1), (FLAT, 1), ((1_108_800,), 0), ((2**20,), 0), (BOX, 1))
HUGE[ops.dft_to_real] = only(
    ((TALL,), {"axis": 0, "n": 132_000}), ((TALL,), {"axis": 1, "n": 33}), ((LINE,), {"axis": 0, "n": 2_200_004}),
    ((BOX,), {"axis": 1, "n": 64}),
)  # fmt: skip

# ---- matrices ------------------------------------------------------------------------------------------------------

_STACK = (1100, 3, 3)
HUGE |= grown.decompositions(_STACK, (300, 300), (40, 40), (5003, 17), (1100, 5, 3))
HUGE |= dict.fromkeys(
    (ops.solve, ops.solve_triangular),
    only((((300, 300), (300, 7)), {}), ((_STACK, (3, 2)), {}), (((5, 5), (5, 1100)), {})),
)

# ---- neural networks -----------------------------------------------------------------------------------------------

ATTENTIONS = (
    ((1,), (1,), 1100, 1100, 64, 64, None, ""), ((2,), (2,), 130, 131, 48, 48, None, ""),
    ((2,), (2,), 131, 130, 80, 80, None, ""), ((2,), (2,), 130, 131, 96, 96, (130, 131), "mask"),
    ((2,), (2,), 70, 71, 256, 256, None, ""), ((1100,), (1100,), 5, 6, 8, 8, None, ""),
    ((37, 31), (37, 1), 3, 5, 16, 16, (37, 1, 3, 5), "mask"), ((3,), (1,), 1, 5003, 64, 64, None, ""),
    ((2, 3), (2, 1), 1, 1100, 128, 128, (2, 1, 1, 1100), "mask"), ((1,), (1,), 1100, 33, 16, 16, (33,), "hidden"),
    ((2,), (2,), 33, 1100, 96, 48, (33, 1100), "normal"), ((1,), (1,), 2, 66_001, 8, 8, None, ""),
)  # fmt: skip
IMAGES = ((1100, 3, 5), (19, 37, 300), (2, 130, 131, 33), (3, 7, 1031), (1, 66_001, 6))
HUGE |= grown.norms((TALL, FLAT, (257, 5003), (1100, 768)), IMAGES, (5, 25, 11, 1, 3))
HUGE |= {
    ops.cross_entropy: grown.losses((((TALL[0],), 17, "mean"), ((17,), TALL[0], "sum"), ((3, 100), 5003, "none"))),
    ops.cross_entropy_and_gradient: grown.losses_and_gradients((TALL, FLAT, (300, 5003))),
    ops.linear_cross_entropy: grown.heads(
        (((300,), 301, 5003, "mean", 64), ((2, 1100), 70, 260, "none", None), ((TALL[0],), 5, 7, "sum", 9000))
    ),
    ops.attention: grown.attention(ATTENTIONS, with_dropout=(2, 5)),
    ops.dropout: only(((TALL,), {"rate": 0.1}), ((LINE,), {"rate": 0.5})),
}

# ---- optimizer steps -----------------------------------------------------------------------------------------------

HUGE[ops.sgd] = HUGE[ops.adamw] = grown.steps(TENSORS, 0.001, 100_000, LINE, (), TALL)
HUGE[ops.global_norm] = HUGE[ops.astype_all] = grown.many(TENSORS, (LINE, 1), ((), 2), (TALL, 3, "transposed"))
