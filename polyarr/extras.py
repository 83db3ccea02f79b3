"""The libraries of the extra "train", imported when they are needed."""

import importlib
from typing import Any


def extra(module: str) -> Any:
    """Import a module of the extra "train".

    Errors:  RuntimeError with the command that installs it
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        hint = "install it with: pip install 'polyarr[train]'"
        raise RuntimeError(f"{name} cannot be imported ({error}); {hint}") from error
