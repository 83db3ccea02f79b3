"""The libraries of the extras, imported when they are needed."""

import importlib
from typing import Any


def extra(module: str, name: str = "train") -> Any:
    """Import a module of an extra.

    Errors:  RuntimeError with the command that installs it
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = (error.name or module).partition(".")[0]  # a module of ours needs others
        hint = f"install it with: pip install 'polyarr[{name}]'"
        raise RuntimeError(f"{library} cannot be imported ({error}); {hint}") from error
