"""vmap and what is made of it: batching rules, jacobians, and loops over a leading axis."""

from polyarr.batching.jacobians import hessian, jacfwd, jacrev, linearize
from polyarr.batching.loops import scan, while_loop
from polyarr.batching.vmap import vmap

__all__ = ["hessian", "jacfwd", "jacrev", "linearize", "scan", "vmap", "while_loop"]
