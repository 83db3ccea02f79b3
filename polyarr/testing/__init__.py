"""The kit that tests backends, polyarr's own and those of strangers, and the gradients of users' code.

Names are loaded when they are used: pytest reads this package in every project where polyarr is installed, and
hypothesis, which most of it needs, is an extra (`pip install 'polyarr[testing]'`).
"""

import importlib
from typing import Any

LEVELS = ("core", "autograd", "nn", "gpt")  # of conformance; each contains those before it
_HOMES = {
    "SAMPLES": "samples",
    "Entry": "samples",
    "Data": "strategies",
    "Sample": "strategies",
    "CheckFailure": "compare",
    "check_grads": "gradients",
    "assert_gradients_agree": "gradients",
}
__all__ = ["LEVELS", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
