"""A polyarr backend to begin with: replace NumPy by your library, then kernels one by one by better ones."""

import math

import numpy as np

from polyarr import ops
from polyarr.backends.kernels import make_kernels
from polyarr.core.backend import Backend
from polyarr.plugins import hookimpl

NAME = "template"
INSTALL = "pip install polyarr-template"  # the command that brings what start() imports


def start():
    """Import what is heavy or may be missing here, so that a failure touches nobody but who asks for the backend."""
    kernels = make_kernels(np, erf=np.vectorize(math.erf, "d"))  # or your own dict: docs/write-a-backend.md
    kernels[ops.square] = square
    return Backend(NAME, kernels, upload, download, hardware=describe())


def square(out, x):
    """A kernel of your own: `out` is the result's shape and dtype, `x` a buffer that must not be changed."""
    with np.errstate(all="ignore"):  # infinity is a result, not news
        return np.asarray(x * x, out.dtype)


def upload(host):
    """A buffer with a copy of a NumPy array."""
    return np.array(host)


def download(buf):
    """A NumPy array, C-contiguous, with a copy of a buffer. It waits until the values are there."""
    return np.array(buf, order="C")


def describe():
    return f"the host's CPU, NumPy {np.__version__}"


@hookimpl
def polyarr_backends(register):
    """Offer the backend. This runs for everybody who has the package installed: import nothing heavy here."""
    register(NAME, start, summary="a template", install_hint=INSTALL, api=2)


@hookimpl
def polyarr_diagnose():
    """What `polyarr doctor` says: a level ("ok", "warning" or "error") and a text that names the cure."""
    return [("ok", f"polyarr-template: {describe()}")]
