"""What a child process that was made by fork must set right in `polyarr.plugins`."""

import os
import threading

from polyarr import plugins
from polyarr.core.backend import Backend


def forget(*backends: Backend) -> None:
    """For backends that do not survive a fork: who asks for one by name has it started anew, or an error."""
    gone, state = {backend.name for backend in backends}, plugins._state
    state.running = {name: backend for name, backend in state.running.items() if backend.name not in gone}


def _after_fork_in_child() -> None:
    """Another thread may have been looking for plugins when the process was forked; here it never ends."""
    plugins._lock = threading.RLock()
    plugins._state.is_discovering = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
