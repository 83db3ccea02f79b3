"""Every op by name; what of it is public as it stands is in __all__.

Type checkers read catalogue.pyi instead, which `make stubs` writes.
"""

from polyarr.core.op import OPS
from polyarr.ops import create, elementwise, index, linalg, logic, nn, optim, random, reduce, shape  # noqa: F401  they fill OPS

# What polyarr has in another form (see creation and ops.standard), and what is for layers and kernels alone.
INNER = """adamw arange argtopk astype concat cumulative_sum full matrix_product random_bits repeat reshape sgd slice
slice_update where""".split()

_found = {op.name: op for op in OPS}
globals().update(_found)
__all__ = [name for name in _found if name not in INNER]
