"""Entries of the special functions. tests/ops/test_special.py compares their values with mpmath's."""

from polyarr import ops
from polyarr.core.op import Op
from polyarr.testing.samples.elementwise import pairs
from polyarr.testing.samples.entry import EVERYTHING, Entry, dtypes, numbers, of_shape
from polyarr.testing.strategies import SHAPES

SAMPLES: dict[Op, Entry] = {}
_FLOATING = dtypes("floating")
_FEW = [s for s in SHAPES if len(s) < 2 and s != (1000,)]  # for gradients of ops made of a hundred others


def _unary(op: Op, values: tuple[str, ...], smooth: str, special: str = "mixed", zeros: bool = False) -> None:
    SAMPLES[op] = Entry(
        of_shape(lambda dtype: values), of_shape(lambda dtype: (smooth,), _FEW), None, "power", _FLOATING, zeros,
        special=special,
    )  # fmt: skip


SWEPT: tuple[Op, ...] = (
    ops.erfc, ops.erfcx, ops.erfinv, ops.erfcinv, ops.ndtr, ops.ndtri, ops.log_ndtr, ops.i0, ops.i0e, ops.i1, ops.i1e,
    ops.logit, ops.entr, ops.sinc,
)  # fmt: skip
_DOMAINS: dict[Op, str] = {
    ops.erfinv: "unit", ops.erfcinv: "share", ops.ndtri: "share", ops.logit: "share", ops.entr: "positive",
}  # fmt: skip
for _op in SWEPT:
    _domain = _DOMAINS.get(_op, "normal")
    _unary(_op, (*EVERYTHING, _domain), _domain, zeros=_op in (ops.erfinv, ops.i1, ops.i1e))
for _op in (ops.gammaln, ops.gamma, ops.digamma):  # below 0 they have poles, and zeros at which digits cancel
    _unary(_op, ("positive", "above one", "counts"), "positive", special="")


def _binary(
    op: Op, values: tuple[str, str], smooth: tuple[str, str], tolerance: str = "power", special: str = ""
) -> None:
    x, y = (((*EVERYTHING, each) if special else (each,)) for each in values)
    SAMPLES[op] = Entry(
        lambda dtype: pairs(dtype, x, y, numbers if special else _positive),
        lambda dtype: pairs(dtype, smooth[:1], smooth[1:], _positive),
        None, tolerance, _FLOATING, special=special,
    )  # fmt: skip


def _positive(dtype: str) -> tuple[float, ...]:
    return 2, 1.5, 3


_binary(ops.xlogy, ("normal", "positive"), ("normal", "positive"), special="mixed")
# No special values: log1p of a denormal number may be flushed to 0, which a huge factor shows.
_binary(ops.xlog1py, ("normal", "positive"), ("normal", "positive"))
_binary(ops.rel_entr, ("positive", "positive"), ("positive", "positive"), special="mixed")
_binary(ops.kl_div, ("positive", "positive"), ("positive", "positive"), "cancelling", special="mixed")
_binary(ops.zeta, ("above one", "positive"), ("above one", "positive"))
# A beta function of 4.6e-15 is exp(-33), and an ulp of 33 is 32 of the result.
_binary(ops.beta, ("positive", "positive"), ("positive", "positive"), "cancelling")
_binary(ops.betaln, ("positive", "positive"), ("positive", "positive"), "cancelling")
