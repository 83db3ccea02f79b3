"""Where the steps of a capture come from: the line of code, the part of the model, and the forward call of a gradient.

All of it is read off the call stack while a function is captured, so that runs pay nothing for it.
"""

import os
import sys
from bisect import bisect_right
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from polyarr import tree
from polyarr.autograd import transforms
from polyarr.core.number import PACKAGE, is_internal
from polyarr.core.tape import Node

_WALK = transforms._walk.__code__  # its variable `node` is the node whose gradients are computed
# Calls the captured function. Frames outside of it are left alone: in Python 3.11 and 3.12 a frame whose variables were
# looked at keeps their values until it returns.
_CAPTURE = str(Path(PACKAGE, "capture", "captured.py"))
# Most frames, whose first arguments are no Modules; in Python 3.11 and 3.12 a look at variables copies all of a frame.
_WITHOUT_MODULES = tuple([f"{PACKAGE}{name}{os.sep}" for name in ("core", "ops", "capture", "backends")])


class Location(NamedTuple):
    """Origin of a step; see the fields of the same names of core.program.Step."""

    line: str
    module: str = ""
    is_gradient: bool = False


class Locations:
    """The locations of the steps that one capture records. If a line is given, it is that of all steps."""

    def __init__(self, line: str = "") -> None:
        self._line = line
        self._numbers, self._found = list[int](), list[Location]()  # a call's node has the next number
        self._paths: dict[int, tuple[Any, dict[int, str]]] = {}  # by id of a module: it, and paths by id of its parts

    def here(self) -> Location:
        """Return the location of the step that is being recorded.

        A step of a backward pass belongs to the call whose gradient it computes, unless a function of the user runs it,
        such as a custom backward or a recomputation.
        """
        found = self._of(sys._getframe(1))
        self._numbers.append(Node().number)
        self._found.append(found)
        return found

    def _of(self, frame: FrameType | None) -> Location:
        line, parts, is_gradient, is_inside = self._line, list[Any](), False, True
        while frame is not None and (is_inside or not line):
            is_inside = is_inside and frame.f_code.co_filename != _CAPTURE
            if is_inside and frame.f_code is _WALK:
                node = frame.f_locals.get("node")  # none yet where cotangents of one array are added
                if not line and node is not None and (call := self._before(node.number)) is not None:
                    return call._replace(is_gradient=True)
                is_gradient = True
            if not line and (frame.f_back is None or not is_internal(frame.f_code)):
                line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            if is_inside and (part := _module(frame)) is not None:
                parts.append(part)
            frame = frame.f_back
        return Location(line, self._path(parts[::-1]), is_gradient)

    def _before(self, number: int) -> Location | None:
        """Return the location of the step that was recorded last before a node was created."""
        at = bisect_right(self._numbers, number)
        return self._found[at - 1] if at else None

    def _path(self, modules: list[Any]) -> str:
        """Return the dotted path of the last module, each of which was called by the one before it."""
        path = ""
        for outer, inner in pairwise(modules):
            if inner is not outer:
                name = self._parts(outer).get(id(inner))
                path = "" if name is None else f"{path}.{name}" if path else name  # None: a new tree begins
        return path

    def _parts(self, module: Any) -> dict[int, str]:
        if id(module) not in self._paths:
            self._paths[id(module)] = module, dict(_named(module, ""))
        return self._paths[id(module)][1]


def _module(frame: FrameType) -> Any:
    """Return the first argument of a frame's function if it is a Module, or another class of tree; else None."""
    code = frame.f_code
    if not code.co_argcount or code.co_filename.startswith(_WITHOUT_MODULES):
        return None
    first = frame.f_locals.get(code.co_varnames[0])
    return first if hasattr(type(first), "tree_children") else None


def _named(node: Any, before: str) -> Any:
    """Yield (id, dotted path) of everything inside a tree that has children."""
    for name, child in (tree.children(node) or {}).items():
        if tree.children(child) is not None:
            yield id(child), f"{before}{name}"
            yield from _named(child, f"{before}{name}.")
