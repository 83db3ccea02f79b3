"""Faults in Fused kernels on NumPy (see fused_kernels.py): in values, and in gradients of correct values."""

import numpy as np

from polyarr import ops
from polyarr.core.backend import Fused
from tests.testing.negative_controls import fused_kernels
from tests.testing.negative_controls.fused_kernels import mean
from tests.testing.negative_controls.moving import as_if_dense
from tests.testing.negative_controls.table import differs, kernels

PAIR = r"the fused kernel's "


def plant(name, changed, *cases):
    """Enter a fault of one Fused kernel that these cases catch: a case's name, or the name and the message."""
    known = {"forward": differs(), "special": differs(), "backward": differs(r"d/d\w+")}
    known |= {"fused": differs(r"the fused kernel's (result|d/d\w+)"), "layer": differs(r"(the result|d/d\S+)")}
    named = [case if isinstance(case, tuple) else (case, known[case.partition("-")[0]]) for case in cases]
    kernels("fused", dict(named), changed, name)


# ---- norms ---------------------------------------------------------------------------------------------------


def eps_dropped(x, eps):
    c = x - mean(x)
    return c, 1 / np.sqrt(mean(c * c))


def eps_outside_the_root(x, eps):
    c = x - mean(x)
    return c, 1 / (np.sqrt(mean(c * c)) + eps)


def squares_less_square(x, eps):
    return x - mean(x), 1 / np.sqrt(mean(x * x) - mean(x) ** 2 + eps)


def sample_variance(x, eps):
    c = x - mean(x)
    return c, 1 / np.sqrt((c * c).sum(-1, keepdims=True) / max(x.shape[-1] - 1, 1) + eps)


def one_row_short(x, eps):
    """Use the moments of the row before for the last of 33 rows."""
    c, rstd = fused_kernels.centred(x, eps)
    if rstd.size == 33:
        rstd.reshape(-1)[-1] = rstd.reshape(-1)[-2]
    return c, rstd


NORM = ("forward-layer_norm", "fused-layer_norm", "layer-LayerNorm")
AGAIN = (
    ("backward-layer_norm", differs(r"d/d(x|weight)")),
    ("fused-layer_norm", differs(r"the fused kernel's d/d(x|weight)")),
)
plant("layer_norm drops eps", {ops.layer_norm: fused_kernels.layer_norm(eps_dropped)}, *NORM)
plant("layer_norm adds eps to the root", {ops.layer_norm: fused_kernels.layer_norm(eps_outside_the_root)}, *NORM)
plant("layer_norm subtracts squares", {ops.layer_norm: fused_kernels.layer_norm(squares_less_square)}, *NORM)
plant("layer_norm divides by n - 1", {ops.layer_norm: fused_kernels.layer_norm(sample_variance)}, *NORM)
plant("layer_norm's gradient drops eps", {ops.layer_norm: fused_kernels.layer_norm(again=eps_dropped)}, *AGAIN)
plant(
    "layer_norm's gradient subtracts squares",
    {ops.layer_norm: fused_kernels.layer_norm(again=squares_less_square)},
    *AGAIN,
)
plant("layer_norm forgets the last of 33 rows", {ops.layer_norm: fused_kernels.layer_norm(one_row_short)}, NORM[0])
plant(
    "layer_norm's weights get one row's gradient",
    {ops.layer_norm: fused_kernels.layer_norm(dweight=lambda a: a.reshape(-1, a.shape[-1])[:1].sum(0))},
    ("backward-layer_norm", differs("d/dweight")),
    ("fused-layer_norm", differs("the fused kernel's d/dweight")),
    ("layer-LayerNorm", differs(r"d/d\S*weight")),
)


def weight_left_out(fused):
    """Compute the gradient of x as if all weights were 1, as they are in a fresh layer."""

    def backward(g, saved, x, weight, **params):
        plain = weight if weight is None else np.ones_like(weight)
        dx, _ = fused.backward(g, saved, x, plain, **params)
        return dx, fused.backward(g, saved, x, weight, **params)[1]

    return Fused(fused.forward, backward)


plant(
    "rms_norm's gradient leaves the weight out",
    {ops.rms_norm: weight_left_out(fused_kernels.rms_norm())},
    ("backward-rms_norm", differs("d/dx")),
    ("fused-rms_norm", differs("the fused kernel's d/dx")),
    ("layer-RMSNorm", differs(r"d/d\S+")),
)
plant(
    "layer_norm's bias has a gradient for every row",
    {ops.layer_norm: fused_kernels.layer_norm(dbias=lambda g: g)},
    ("backward-layer_norm", r"d/dbias came as float32\[\d+, \d+\]; it must be float32\[\d+\]"),
)
plant(
    "rms_norm's gradient takes the size for constant",
    {ops.rms_norm: fused_kernels.rms_norm(projected=lambda h, n: 0)},
    ("backward-rms_norm", differs("d/dx")),
    ("fused-rms_norm", differs("the fused kernel's d/dx")),
)

# ---- softmax -------------------------------------------------------------------------------------------------


def uncentred(x, axis):
    return np.exp(x)


def finite_centred(x, axis):
    """Subtract the largest finite element, and treat nan and infinities as small numbers."""
    x = np.where(np.isneginf(x), np.float32(-1e4), x)
    return fused_kernels.exponentials(x, axis)


def without_strides(g, y, axis):
    return fused_kernels.softmax_gradient(as_if_dense(g), y, axis)


def in_place(g, y, axis):
    """Compute the gradient in the cotangent's memory."""
    dot = (g * y).sum(axis, keepdims=True)
    if g.flags.writeable:
        g -= dot
        return g * y
    return (g - dot) * y


def in_the_result(g, y, axis):
    """Compute the gradient in the result's memory."""
    dot = (g * y).sum(axis, keepdims=True)
    y *= g - dot
    return y


plant("softmax subtracts no maximum", {ops.softmax: fused_kernels.softmax(uncentred)}, "forward-softmax")
plant(
    "softmax of nothing but -inf is uniform",
    {ops.softmax: fused_kernels.softmax(finite_centred)},
    ("special-softmax", r"the result \(float32\) differs at .*, expected nan"),
)
plant(
    "softmax's gradient is that of one element alone",
    {ops.softmax: fused_kernels.softmax(gradient=lambda g, y, axis: g * y * (1 - y))},
    "backward-softmax",
    "fused-softmax",
)
plant(
    "softmax's gradient ignores the cotangent's strides",
    {ops.softmax: fused_kernels.softmax(gradient=without_strides)},
    ("backward-softmax", differs("with a transposed cotangent, d/dx")),
)
plant(
    "softmax's gradient overwrites the cotangent",
    {ops.softmax: fused_kernels.softmax(gradient=in_place)},
    ("purity-softmax", "its gradient changed the cotangent"),
)
plant(
    "softmax's gradient overwrites the result",
    {ops.softmax: fused_kernels.softmax(gradient=in_the_result)},
    ("purity-softmax", "its gradient changed the result"),
)

# ---- losses, attention, linear -------------------------------------------------------------------------------

plant(
    "cross_entropy's gradient is that of the sum",
    {ops.cross_entropy: fused_kernels.cross_entropy(share=lambda counts: 1)},
    ("backward-cross_entropy", differs("d/dlogits")),
    ("fused-cross_entropy", differs("the fused kernel's d/dlogits")),
)
plant(
    "cross_entropy's gradient divides by all targets",
    {ops.cross_entropy: fused_kernels.cross_entropy(share=lambda counts: 1 / counts.size)},
    ("backward-cross_entropy", differs("d/dlogits")),
    ("fused-cross_entropy", differs("the fused kernel's d/dlogits")),
)
plant(
    "cross_entropy ignores no target but -100",
    {ops.cross_entropy: fused_kernels.cross_entropy(counted=lambda targets, ignored: targets != -100)},
    "forward-cross_entropy",
)


def swapped(fused):
    """Exchange the gradients of k and v if their shapes allow it."""

    def backward(g, saved, q, k, v, *rest, **params):
        dq, dk, dv, *others = fused.backward(g, saved, q, k, v, *rest, **params)
        return (dq, dv, dk, *others) if k.shape == v.shape else (dq, dk, dv, *others)

    return fused._replace(backward=backward)


def without_dropout(fused):
    """Ignore dropout in the gradient."""
    backward = fused.backward
    return fused._replace(backward=lambda g, saved, *bufs, **params: backward(g, (saved[0], 1), *bufs, **params))


def right_together(fused):
    """Return a correct second gradient only if the first is wanted, too."""

    def backward(g, saved, *bufs, wanted, **params):
        first, second, *rest = fused.backward(g, saved, *bufs, wanted=wanted, **params)
        return first, second if wanted[0] else second * 2, *rest

    return fused._replace(backward=backward)


def remembering(fused):
    """Use the eps of the first call of a shape for all calls of that shape."""
    first = {}

    def forward(out, x, *rest, eps):
        return fused.forward(out, x, *rest, eps=first.setdefault(x.shape, eps))

    return fused._replace(forward=forward)


plant("layer_norm keeps the eps of the first call", {ops.layer_norm: remembering(fused_kernels.layer_norm())}, NORM[0])
WANTED = ("wanted-rms_norm", "asked for alone, d/dweight .* differs at ")
plant("the weight of rms_norm alone", {ops.rms_norm: right_together(fused_kernels.rms_norm())}, WANTED)
plant(
    "rms_norm needs more than it says",
    {ops.rms_norm: fused_kernels.rms_norm()._replace(needs={"weight": ()})},
    ("wanted-rms_norm", "rms_norm on numpy: TypeError: "),
)
plant("attention exchanges two gradients", {ops.attention: swapped(fused_kernels.attention())}, "backward-attention")
plant(
    "attention's gradient forgets the dropout",
    {ops.attention: without_dropout(fused_kernels.attention())},
    "backward-attention",
    "fused-attention",
    "layer-MultiHeadAttention",
)
ATTENTION = ("forward-attention", "fused-attention", "layer-MultiHeadAttention")
plant(
    "a query sees one key too many",
    {ops.attention: fused_kernels.attention(visible=lambda t, s: fused_kernels.visible(t, s + 1)[:, :s])},
    *ATTENTION,
)
plant(
    "the first query sees the first key, however many keys",
    {ops.attention: fused_kernels.attention(visible=lambda t, s: np.arange(s) <= np.arange(t)[:, None])},
    "forward-attention",
)
plant(
    "one query sees what a mask hides",
    {
        ops.attention: fused_kernels.attention(
            masked=lambda x, mask: x if x.shape[-2] == 1 else fused_kernels.masked(x, mask)
        )
    },
    ("backend-generation", r"GPT on numpy: drew \[.*\] .*, expected \["),
)
plant(
    "attention is not scaled",
    {ops.attention: fused_kernels.attention(scaled=lambda scores, scale: scores)},
    *ATTENTION,
    ("backend-training", r"GPT on numpy: with seed 0, the loss at step \d is \S+, expected \S+ \(off by \S+, allowed"),
)
plant(
    "a query that may see nothing gets nan",
    {ops.attention: fused_kernels.attention(divided=lambda e, total: e / total)},
    ("forward-attention", r"the result \(float32\) differs at \[.*\]: nan, expected 0.0"),
)


def of_the_wrong_axis(g):
    """Return a gradient that is correct only for square inputs."""
    return g.reshape(-1, g.shape[-1]).sum(1)


plant(
    "linear's bias sums the wrong axis",
    {ops.linear: fused_kernels.linear(dbias=of_the_wrong_axis)},
    ("backward-linear", r"d/dbias came as float32\[\d+\]; it must be float32\[\d+\]"),
)
plant(
    "linear reads a transposed operand as if it were not",
    {ops.linear: fused_kernels.linear(product=lambda x, y: np.matmul(as_if_dense(x), y))},
    ("layout-linear", differs()),
)
plant(
    "gelu's gradient is that of the other form",
    {ops.gelu: fused_kernels.gelu(slope=lambda x, form: fused_kernels.gelu_slope(x, "tanh"))},
    "backward-gelu",
    "fused-gelu",
)


def lower_bits(shape, key, counter, rate):
    return fused_kernels.references.random_bits(key, counter, shape=shape) & 0xFFFFFF >= round(rate * 2**24)


plant(
    "dropout looks at the lower bits",
    {ops.dropout: fused_kernels.dropout(lower_bits)},
    "forward-dropout",
    "layer-Dropout",
    ("backend-training", r"the loss at step 0 is \S+, expected"),
)

# ---- what is saved -------------------------------------------------------------------------------------------


def saved_in_one_place(fused):
    """Save into one buffer, whatever the number of calls."""
    place = {}

    def forward(out, *bufs, **params):
        buf, place["saved"] = fused.forward(out, *bufs, **params)
        return buf, None

    return Fused(forward, lambda g, saved, *bufs, **params: fused.backward(g, place["saved"], *bufs, **params))


plant(
    "layer_norm saves all calls in one place",
    {ops.layer_norm: saved_in_one_place(fused_kernels.layer_norm())},
    ("fused-layer_norm", differs(r"after another call, the fused kernel's d/d\w+")),
    "layer-TransformerBlock",
)
plant(
    "cross_entropy saves all calls in one place",
    {ops.cross_entropy: saved_in_one_place(fused_kernels.cross_entropy())},
    ("fused-cross_entropy", differs(r"after another call, the fused kernel's d/dlogits")),
)
