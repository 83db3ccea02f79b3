"""World: all ranks of a run, and the collectives on trees."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyarr import random, tree
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.spec import COMPLEX, INEXACT, bfloat16, float32
from polyarr.core.spec import bool as bool_
from polyarr.distributed.host import HostTransport
from polyarr.distributed.link import Link
from polyarr.distributed.trees import Parts, parts_of
from polyarr.ops.validation import whole

OPS = ("mean", "sum", "max", "min")
SLICES = 48  # low bits of the random counter that count draws; the bits above hold the rank


@dataclass(frozen=True)
class World:
    """All ranks that compute together, as seen from one of them; created by `polyarr.distributed.init`.

    All ranks must call the collectives in the same order, with trees of the same names, shapes and dtypes; otherwise
    all of them raise a ValueError that names the difference. A rank calls one at a time: if two of its threads are in
    a collective, both raise a RuntimeError. Arrays stay on their backends: each rank's own device, or another backend
    such as NumPy on all ranks.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of ranks.
        local_rank: Number of this process among those of its host.
        device: Name of the backend on which this rank computes.
        link: Messages that are not trees; see polyarr.distributed.link.
        transport: Implementation of the collectives; None for a single rank.
        places: (host, device) of every rank.

    Examples:
        >>> import polyarr as pa
        >>> world = pa.distributed.init()
        >>> world.mean({"loss": pa.asarray(0.5)})
        {'loss': Array(0.5, float32, 'numpy')}
    """

    rank: int
    size: int
    local_rank: int
    device: str
    link: Link = field(repr=False, compare=False)
    transport: HostTransport | None = field(repr=False, compare=False)
    places: tuple[tuple[str, str], ...] = field(repr=False, default=())

    def __str__(self) -> str:
        """Return the ranks with their devices, in one line."""
        shown: dict[tuple[str, str], list[str]] = {}
        for rank, place in enumerate(self.places or [("this host", self.device)]):
            shown.setdefault(place, []).append(str(rank))
        hosts = {host for host, _ in shown}
        parts = [
            f"{device}{f' of {host}' if len(hosts) > 1 else ''}: rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"
            f"{', which share it' if len(ranks) > 1 else ''}"
            for (host, device), ranks in shown.items()
        ]
        return f"{self.size} rank{'s' * (self.size > 1)}; {'; '.join(parts)}"

    def broadcast(self, given: Any, root: int = 0) -> Any:
        """Return the tree of rank `root`.

        Args:
            given: Tree; leaves that are neither arrays nor numbers are returned as they are.
            root: Rank whose values are sent.

        Returns:
            Tree like `given`.

        Raises:
            ValueError: `root` is no rank, or the trees of the ranks differ in names, shapes or dtypes (on all ranks).
            TypeError: `root` is no int.
            CaptureError: Called in a compiled function.
        """
        root = whole("broadcast", "root", root)
        if not 0 <= root < self.size:
            raise ValueError(f"broadcast: root is {root}; it must be from 0 to {self.size - 1}")
        parts = parts_of("broadcast", f"from rank {root}", given, self.device, others=True)
        if self.transport is None:
            return given
        with self.link.turn("broadcast"):
            self.link.meet(parts.description)
            for places, arrays in parts.arrays():
                _put(parts, places, self.transport.broadcast(arrays, root))
            if parts.numbers:
                _put(parts, parts.numbers, self._numbers(parts)[root])
        return tree.unflatten(given, parts.leaves)

    def all_reduce(self, given: Any, op: str = "mean", wire: str | None = None) -> Any:
        """Reduce the trees of all ranks, leaf by leaf.

        Sums are computed in the order of the ranks, float16 and bfloat16 in float32, or as NCCL computes them. The
        result is bitwise equal on every rank and in every repetition. The mean of Python ints is a float.

        Args:
            given: Tree of arrays and Python numbers.
            op: "mean", "sum", "max" or "min".
            wire: "bfloat16" sends float32 arrays as bfloat16, rounded before and after the sum in float32; None: as
                they are.

        Returns:
            Tree like `given`, equal on all ranks; of one rank `given` itself.

        Raises:
            ValueError: `op` or `wire` is invalid, or the trees of the ranks differ in names, shapes or dtypes (on all
                ranks).
            DtypeError: The mean of an integer array, the sum of a bool array, or the largest of complex arrays.
            TypeError: A leaf is neither an array nor a number.
            CaptureError: Called in a compiled function.
            GradientError: Called in a function that is differentiated.
        """
        if op not in OPS:
            raise ValueError(f"all_reduce: op is {op!r}; it must be one of {', '.join(OPS)}")
        if wire not in (None, "bfloat16"):
            raise ValueError(f"all_reduce: wire is {wire!r}; it must be None or 'bfloat16'")
        parts = parts_of("all_reduce", f"op={op!r}, wire={wire!r}", given, self.device)
        for _, arrays in parts.arrays():
            _check_dtype(arrays[0].dtype, op)
        if self.transport is None:
            return given
        with self.link.turn("all_reduce"):
            self.link.meet(parts.description)
            for places, arrays in parts.arrays():
                dtype = arrays[0].dtype
                narrow = bfloat16 if wire is not None and dtype == float32 else dtype
                _put(parts, places, self.transport.all_reduce(arrays, op, narrow))
            if parts.numbers:
                _put(parts, parts.numbers, [_reduced(op, column) for column in zip(*self._numbers(parts), strict=True)])
        return tree.unflatten(given, parts.leaves)

    def mean(self, given: Any, wire: str | None = None) -> Any:
        """Return the mean of the trees of all ranks: `all_reduce(given, "mean", wire)`."""
        return self.all_reduce(given, "mean", wire)

    def all_gather(self, given: Any) -> Any:
        """Concatenate the arrays of all ranks along the first axis, in the order of the ranks.

        Args:
            given: Tree of arrays with at least one axis.

        Returns:
            Tree like `given`; each first axis is `size` times as long.

        Raises:
            ShapeError: A leaf has no axes.
            ValueError: The trees of the ranks differ in names, shapes or dtypes; on all ranks.
            CaptureError: Called in a compiled function.
        """
        parts = parts_of("all_gather", "", given, self.device)
        if parts.numbers or any(not a.shape for _, arrays in parts.arrays() for a in arrays):
            raise ShapeError("all_gather: a leaf has no axes; every leaf must be an array with one at least")
        if self.transport is None:
            return given
        with self.link.turn("all_gather"):
            self.link.meet(parts.description)
            for places, arrays in parts.arrays():
                _put(parts, places, self.transport.all_gather(arrays))
        return tree.unflatten(given, parts.leaves)

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        with self.link.turn("barrier"):
            self.link.meet("barrier")

    def agree(self, name: str, value: Any) -> None:
        """Check that all ranks have the same value, compared by its repr.

        Args:
            name: Name of the value, for the error.
            value: Any value.

        Raises:
            ValueError: The values differ; raised on all ranks.
        """
        with self.link.turn("agree"):
            self.link.meet(f"agree on {name}")
            texts = self.link.texts(repr(value))
        for rank, text in enumerate(texts):
            if text != texts[0]:
                raise ValueError(f"{name}: rank 0 has {texts[0]}, rank {rank} has {text}; all ranks must have the same")

    def alone(self) -> AbstractContextManager[None]:
        """Return a context in which this rank may keep the others waiting for any time, for example to save."""
        return self.link.alone()

    def split_random(self) -> None:
        """Give each rank random numbers of its own from here on, for its slice of the batch.

        Before, all ranks draw the same numbers. Rank r continues from the state of rank 0, with r in the upper 16 of
        the counter's 64 bits. A single process that computes the slices one after the other, each from that state,
        draws the same numbers.
        """
        seed, counter = map(int, random.get_state())
        seed, counter = self.broadcast((seed, counter))
        random.set_state((seed, counter % (1 << SLICES) + (self.rank << SLICES)))

    def _numbers(self, parts: Parts) -> list[list[float]]:
        """Return the Python numbers of all ranks."""
        return [json.loads(row) for row in self.link.texts(json.dumps([parts.leaves[i] for i in parts.numbers]))]


def _put(parts: Parts, places: Sequence[int], values: Sequence[Any]) -> None:
    for i, value in zip(places, values, strict=True):
        parts.leaves[i] = value


def _reduced(op: str, column: Sequence[float]) -> float:
    if op in ("max", "min"):
        known = max(column) if op == "max" else min(column)
        return next((x for x in column if x != x), known)  # nan propagates, as in arrays
    return sum(column) / len(column) if op == "mean" else sum(column)


def _check_dtype(dtype: np.dtype, op: str) -> None:
    if op == "mean" and dtype not in INEXACT:
        required = "floating or complex, or op 'sum', 'max' or 'min'"
        raise DtypeError(f"all_reduce: op is 'mean' of {dtype.name}; it must be {required}")
    if op in ("max", "min") and dtype in COMPLEX:
        raise DtypeError(f"all_reduce: op is {op!r} of {dtype.name}; it must be real-valued, or op 'mean' or 'sum'")
    if op == "sum" and dtype == bool_:
        raise DtypeError("all_reduce: op is 'sum' of bool; it must be 'max', which is any, or 'min', which is all")
