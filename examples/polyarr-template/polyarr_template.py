"""A polyarr backend to start from: replace NumPy with your library, then add kernels of your own one by one."""

import math

import numpy as np

from polyarr import ops
from polyarr.backends.kernels import make_kernels
from polyarr.core.backend import Backend
from polyarr.plugins import hookimpl

NAME = "template"
INSTALL = "pip install polyarr-template"  # the command that installs what start() imports


def start():
    """Return the backend. Import heavy or optional packages here: a failure then affects only users of this backend."""
    kernels = make_kernels(np, erf=np.vectorize(math.erf, "d"))  # or your own dict: docs/write-a-backend.md
    kernels[ops.square] = square
    return Backend(NAME, kernels, upload, download, hardware=describe())


def square(out, x):
    """Compute x * x: a kernel of your own. `out` is the result's Spec; `x` is a buffer that must not be modified."""
    with np.errstate(all="ignore"):  # infinity is a valid result
        return np.asarray(x * x, out.dtype)


def upload(host):
    """Return a buffer with a copy of a NumPy array."""
    return np.array(host)


def download(buf):
    """Return a C-contiguous NumPy array with a copy of a buffer; wait until its values are computed."""
    return np.array(buf, order="C")


def describe():
    return f"the host's CPU, NumPy {np.__version__}"


@hookimpl
def polyarr_backends(register):
    """Register the backend. This runs for all who have the package installed: import nothing heavy here."""
    register(NAME, start, summary="a template", install_hint=INSTALL, api=2)


@hookimpl
def polyarr_diagnose():
    """Return lines for `polyarr doctor`: a level ("ok", "warning" or "error") and a text that names the remedy."""
    return [("ok", f"polyarr-template: {describe()}")]
