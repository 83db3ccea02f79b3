"""The function that a check of user code gets, its arguments by name, and how messages refer to both."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyarr import random, tree
from polyarr.core.array import Array, from_numpy
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend
from polyarr.core.errors import GradientError
from polyarr.core.spec import DTYPES, FLOATS, Spec, float64, shown

__tracebackhide__ = True  # from pytest: a failure is shown at the line of the test
_SHOWN = 6  # arguments that a note lists


class Leaves(NamedTuple):
    """A function and its arguments, with the floating-point arrays copied to the host and named."""

    check: str  # the public function that error messages name
    fn: Callable
    title: str  # fn's name
    args: tuple
    hosts: dict[int, np.ndarray]  # by their position among the leaves of args
    names: list[str]

    @classmethod
    def of(cls, check: str, fn: Callable, args: Any) -> "Leaves":
        if type(args) not in (tuple, list):
            given = args.spec if type(args) is Array else type(args).__name__
            raise TypeError(f"{check}: args is {given}; it must be the tuple of fn's arguments, such as (x,)")
        if not callable(fn):
            raise TypeError(f"{check}: fn is {shown(fn)}; it must be a function of args")
        names = _names(fn, tuple(args))
        found = {
            i: (names[i], host) for i, leaf in enumerate(tree.leaves(tuple(args))) if _is_floating(host := _host(leaf))
        }
        title = _title(fn)
        if not found:
            raise GradientError(f"{check}: {title} has no floating-point array among its arguments; one must be there")
        hosts = {i: host for i, (_, host) in found.items()}
        return cls(check, fn, title, tuple(args), hosts, [name for name, _ in found.values()])

    def widened(self) -> "Leaves":
        return self._replace(hosts={i: host.astype(float64) for i, host in self.hosts.items()})

    def arrays(self, backend: Backend) -> list[Array]:
        return [from_numpy(host, backend) for host in self.hosts.values()]

    def placed(self, backend: Backend) -> list[Any]:
        """Return the leaves of args: arrays that are held fixed on the backend, floating-point ones as they are."""
        return [leaf if i in self.hosts else _moved(leaf, backend) for i, leaf in enumerate(tree.leaves(self.args))]

    def filled(self, placed: list[Any], found: Sequence[Array]) -> tuple:
        """Return args with these leaves, and with the floating-point arrays `found`."""
        leaves = list(placed)
        for i, a in zip(self.hosts, found, strict=True):
            leaves[i] = a
        return tree.unflatten(self.args, leaves)

    def names_of(self, args: tuple) -> dict[tuple, str]:
        """Return the names of all leaves of these args by path."""
        return dict(zip((path for path, _ in tree.items(args)), _names(self.fn, args), strict=True))

    def results(self, value: Any) -> dict[str, Array]:
        """Return the arrays of a value of fn by name.

        Raises:
            GradientError: None of them is floating-point.
        """
        results = {".".join(map(str, path)): leaf for path, leaf in tree.items(value) if type(leaf) is Array}
        if not floating(results):
            given = f"{self.title} returned {value.spec if type(value) is Array else type(value).__name__}"
            raise GradientError(f"{self.check}: {given}; it must return a floating-point array")
        return results

    def on(self, backend: Backend, seed: int) -> Callable[..., dict[str, Array]]:
        """Return fn as a function of its floating-point arrays that returns its results by name.

        Every call of it starts from the same random state.
        """
        placed = self.placed(backend)

        def run(*found: Array) -> dict[str, Array]:
            with random.restored((seed, 0)):
                value = self.fn(*self.filled(placed, found))
            return self.results(value)

        return run


def _title(fn: Any) -> str:
    """Return the name of a function as messages show it; of a lambda, also inside of a transform, where it stands."""
    while isinstance(fn, functools.partial) or hasattr(fn, "__wrapped__"):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__wrapped__
    name = getattr(fn, "__name__", type(fn).__name__)
    code = getattr(fn, "__code__", None)
    return f"lambda at {Path(code.co_filename).name}:{code.co_firstlineno}" if code and name == "<lambda>" else name


def _names(fn: Callable, args: tuple) -> list[str]:
    """Return the names of the leaves of args, such as "params.layers.0.w"."""
    first = _argument_names(fn, len(args))
    return [".".join([first[path[0]], *map(str, path[1:])]) for path, _ in tree.items(args)]


def _argument_names(fn: Callable, count: int) -> list[str]:
    """Return the names of fn's first `count` positional arguments; "args[i]" where its signature has no name."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # callables written in C may have no signature
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    return names + [f"args[{i}]" for i in range(len(names), count)]


def _host(leaf: Any) -> Any:
    return leaf.numpy() if type(leaf) is Array else leaf


def _is_floating(host: Any) -> bool:
    return isinstance(host, np.ndarray) and (host.dtype in FLOATS or host.dtype.kind == "f")


def _moved(leaf: Any, backend: Backend) -> Any:
    """Copy an array that is held fixed to the backend; return any other leaf unchanged."""
    host = _host(leaf)
    return from_numpy(host, backend) if isinstance(host, np.ndarray) and host.dtype in DTYPES else leaf


def floating(results: dict[str, Array]) -> list[Array]:
    return [a for a in results.values() if a.dtype in FLOATS]


def home_of(args: Sequence[Any]) -> Backend:
    """Return the backend of the first polyarr array in args, or else the current backend."""
    found = [leaf.backend for leaf in tree.leaves(tuple(args)) if type(leaf) is Array]
    return found[0] if found else get_backend()


@contextlib.contextmanager
def with_note(leaves: Leaves, given: dict[str, Any]) -> Iterator[None]:
    """Add a note to any exception: the Python code that repeats the check."""
    try:
        yield
    except Exception as error:
        keywords = ", ".join(f"{name}={value!r}" for name, value in given.items())
        specs = [f"{n} {Spec(h.shape, h.dtype)}" for n, h in zip(leaves.names, leaves.hosts.values(), strict=True)]
        more = f" and {len(specs) - _SHOWN} more" if len(specs) > _SHOWN else ""
        error.add_note(
            f"to reproduce it, where args hold {', '.join(specs[:_SHOWN])}{more}:\n"
            f"    from polyarr.testing import {leaves.check}\n"
            f"    {leaves.check}({leaves.title if leaves.title.isidentifier() else 'fn'}, args, {keywords})"
        )
        raise
