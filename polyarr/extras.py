"""Libraries of the optional extras, imported when needed."""

import importlib
from typing import Any


def extra(module: str, name: str = "train") -> Any:
    """Import a module that belongs to an optional extra.

    Raises:
        RuntimeError: The module cannot be imported; with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = (error.name or module).partition(".")[0]  # `module` may be one of polyarr that imports the library
        hint = f"install it with: pip install 'polyarr[{name}]'"
        raise RuntimeError(f"{library} cannot be imported ({error}); {hint}") from error
