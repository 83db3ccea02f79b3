"""All ops by name; __all__ has those that are public unchanged.

Type checkers read catalogue.pyi instead, which `make stubs` writes.
"""

from polyarr.core.op import OPS
from polyarr.ops import (  # noqa: F401  importing them fills OPS
    convolution,
    create,
    decompositions,
    elementwise,
    functions,
    head,
    index,
    joining,
    linalg,
    logic,
    nn,
    norms,
    optim,
    pool,
    random,
    reduce,
    shape,
)

# Ops that polyarr offers in another form or place (creation, ops.standard, linalg), and ops for layers and kernels.
INNER = """
adamw adaptive_mean_pool arange argtopk astype astype_all cholesky concat conv conv_input_gradient conv_product
conv_transpose conv_weight_gradient cross_entropy_and_gradient cumulative_sum det eigh eigvalsh full interpolate inv
matrix_product max_pool mean_pool pinv qr random_bits repeat reshape sgd slice slice_update slogdet solve sum_windows
svd svdvals vector_norm where windows
""".split()

_found = {op.name: op for op in OPS}
globals().update(_found)
__all__ = [name for name in _found if name not in INNER]
