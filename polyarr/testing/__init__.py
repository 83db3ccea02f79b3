"""The conformance kit for backends, and checks of code written by users: gradients, transforms, graph breaks.

Attributes are imported on first access. pytest loads this package in every project where polyarr is installed, and
most of the kit needs hypothesis, which is an optional dependency (`pip install 'polyarr[testing]'`).
"""

import importlib
from typing import Any

from polyarr.core.names import unknown

LEVELS = ("core", "autograd", "nn", "gpt", "huge", "endurance")  # of the kit; each includes those before it
USUAL_LEVEL = "gpt"  # the default
_HOMES = {
    "SAMPLES": "samples",
    "Entry": "samples",
    "Data": "strategies",
    "Sample": "strategies",
    "CheckFailure": "compare",
    "check_grads": "gradients",
    "assert_gradients_agree": "gradients",
    "assert_transforms_agree": "transformed",
    "GraphBreak": "xp",
    "GraphBreaks": "xp",
    "graph_breaks": "xp",
}
__all__ = ["LEVELS", "USUAL_LEVEL", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(unknown(__name__, name, __all__))
    try:
        module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    except ImportError as error:
        hint = "install what it needs with: pip install 'polyarr[testing]'"
        raise ImportError(f"{__name__}: {error}; {hint}", name=error.name) from error
    return getattr(module, name)
