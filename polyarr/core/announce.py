"""Announcements of driver calls, so that the step during which a process died can be named.

A backend announces each program build and the first launch of each kernel. Observers are registered only in probe
processes, such as those of `polyarr doctor`, and are called before the step.
"""

from collections.abc import Callable

observers: list[Callable[[str], None]] = []


def announce(step: str) -> None:
    """Report the next step to all observers, such as "kernel matmul"; "" if no step is pending."""
    for observer in observers:
        observer(step)
