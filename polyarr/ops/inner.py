"""Ops that polyarr offers in another form (creation, ops.standard, linalg, fft, special), and ops for kernels.

Type checkers read inner.pyi instead, which `make stubs` writes.
"""
# fmt: off

from polyarr.ops.cache import cache_update
from polyarr.ops.convolution import (
    conv, conv_input_gradient, conv_product, conv_transpose, conv_weight_gradient, sum_windows, windows,
)
from polyarr.ops.create import fill, iota
from polyarr.ops.decompositions import (
    cholesky, det, eig, eigh, eigvals, eigvalsh, inv, pinv, qr, slogdet, solve, solve_triangular, svd, svdvals,
)
from polyarr.ops.elementwise import astype, astype_all, complex, imaginary_part, real_part, where
from polyarr.ops.fourier import dft, dft_of_real, dft_to_real
from polyarr.ops.gamma_functions import beta, betaln, digamma, gamma, gammaln, zeta
from polyarr.ops.head import cross_entropy_and_gradient
from polyarr.ops.index import argtopk
from polyarr.ops.joining import concat, repeat
from polyarr.ops.linalg import matrix_product, vector_norm
from polyarr.ops.optim import adamw, sgd
from polyarr.ops.pool import adaptive_mean_pool, interpolate, max_pool, mean_pool
from polyarr.ops.random import random_bits
from polyarr.ops.reduce import cumulative_sum
from polyarr.ops.shape import reshape, slice, slice_update
from polyarr.ops.special import (
    entr, erfc, erfcinv, erfcx, erfinv, i0, i0e, i1, i1e, kl_div, log_ndtr, logit, ndtr, ndtri, rel_entr, sinc,
    xlog1py, xlogy,
)

__all__ = [name for name in dir() if name[0].isalpha()]  # neither dunders nor what pytest adds, beginning with @
