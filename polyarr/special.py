"""Special functions, under their names in scipy.special, jax.scipy.special and torch.special.

The largest errors are a few ulps. A tiny or huge beta is computed from its logarithm: 4.6e-15 was
31 ulps off in float32. Near a zero that is no integer, such as digamma's at -0.504, the error is a few ulps of the
terms that cancel; so is that of kl_div of two nearly equal numbers.

All run on every backend, compiled and under vmap, with gradients of every order; those of gammaln and gamma are
digamma's, and so on. Arrays must be floating-point. float16 and bfloat16 are computed in float32 and rounded once.
"""

from typing import TYPE_CHECKING

from polyarr.core.names import answering
from polyarr.ops import (
    beta,
    betaln,
    digamma,
    entr,
    erf,
    erfc,
    erfcinv,
    erfcx,
    erfinv,
    gamma,
    gammaln,
    i0,
    i0e,
    i1,
    i1e,
    kl_div,
    log_ndtr,
    log_softmax,
    logit,
    logsumexp,
    ndtr,
    ndtri,
    rel_entr,
    sinc,
    softmax,
    xlog1py,
    xlogy,
    zeta,
)
from polyarr.ops import digamma as psi
from polyarr.ops import sigmoid as expit
from polyarr.ops.gamma_functions import polygamma

__all__ = [
    "beta",
    "betaln",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcinv",
    "erfcx",
    "erfinv",
    "expit",
    "gamma",
    "gammaln",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "kl_div",
    "log_ndtr",
    "log_softmax",
    "logit",
    "logsumexp",
    "ndtr",
    "ndtri",
    "polygamma",
    "psi",
    "rel_entr",
    "sinc",
    "softmax",
    "xlog1py",
    "xlogy",
    "zeta",
]

if not TYPE_CHECKING:  # to a type checker, every name would seem to be there
    __getattr__ = answering(__name__, __all__)
