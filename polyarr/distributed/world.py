"""The ranks of a run as a value, and what they do together to trees."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from polyarr import random, tree
from polyarr.core.array import Array
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.spec import FLOATS, bfloat16, float32
from polyarr.core.spec import bool as bool_
from polyarr.distributed.link import Link
from polyarr.distributed.trees import Parts, parts_of

OPS = ("mean", "sum", "max", "min")
SLICES = 48  # the bits of a random counter that count draws; those above say whose slice of a batch they are for


class Transport(Protocol):
    """How arrays are brought together, wherever their memory is. Those of a call are of one dtype, on one backend."""

    name: str

    def all_reduce(self, leaves: Sequence[Array], op: str, wire: np.dtype) -> list[Array]:
        """The leaves as all ranks' together, sent as dtype `wire`: the same bits on every rank and every time."""

    def broadcast(self, leaves: Sequence[Array], root: int) -> list[Array]:
        """The leaves as rank root has them."""

    def all_gather(self, leaves: Sequence[Array]) -> list[Array]:
        """The leaves of all ranks, those of each one after the other along the first axis."""


@dataclass(frozen=True)
class World:
    """All ranks that compute together, seen from one of them; init() makes it.

    Whatever ranks do together they all have to call, in the same order, with trees of the same names, shapes and
    dtypes; where one has others, all raise a ValueError that says which. Arrays stay on the backends where they are.

    rank        the number of this process among all, from 0
    size        how many there are
    local_rank  its number among those of its host
    device      the name of the backend on which it computes
    link        for what is no tree: see polyarr.distributed.link
    transport   how arrays are brought together; None where there is one rank only
    places      of every rank its host and its device
    """

    rank: int
    size: int
    local_rank: int
    device: str
    link: Link = field(repr=False, compare=False)
    transport: Transport | None = field(repr=False, compare=False)
    places: tuple[tuple[str, str], ...] = field(repr=False, default=())

    def __str__(self) -> str:
        """The ranks with their devices, and how many share one, in a line."""
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

    # ---- trees -----------------------------------------------------------------------------------------------

    def broadcast(self, given: Any, root: int = 0) -> Any:
        """The tree as rank root has it; leaves that are neither arrays nor numbers stay as they are.

        Errors:  ValueError, on all ranks, where their trees differ in names, shapes or dtypes; CaptureError in a
                 compiled function
        """
        if not 0 <= root < self.size:
            raise ValueError(f"broadcast: root is {root}; it must be from 0 to {self.size - 1}")
        parts = parts_of("broadcast", f"from rank {root}", given, others=True)
        if self.transport is None:
            return given
        self.link.meet(parts.said)
        for places, arrays in parts.arrays():
            _put(parts, places, self.transport.broadcast(arrays, root))
        if parts.numbers:
            _put(parts, parts.numbers, self._numbers(parts)[root])
        return tree.unflatten(given, parts.leaves)

    def all_reduce(self, given: Any, op: str = "mean", wire: str | None = None) -> Any:
        """The tree of what all ranks' trees are together, leaf by leaf.

        Each number is summed in the order of the ranks, narrow floats in float32, or as NCCL does it: the bits are the
        same on every rank and at every repetition. Ints, of Python or in arrays, have no mean but a Python int's, which
        is a float.

        op    "mean", "sum", "max" or "min"
        wire  "bfloat16": float32 is sent in half the bytes, rounded before it is summed in float32, and after it

        Errors:  ValueError, on all ranks, where their trees differ in names, shapes or dtypes; DtypeError for the mean
                 of integers, and the sum of bools; TypeError for leaves that are neither arrays nor numbers;
                 CaptureError in a compiled function
        """
        if op not in OPS:
            raise ValueError(f"all_reduce: op is {op!r}; it must be one of {', '.join(OPS)}")
        if wire not in (None, "bfloat16"):
            raise ValueError(f"all_reduce: wire is {wire!r}; it must be None or 'bfloat16'")
        parts = parts_of("all_reduce", f"op={op!r}, wire={wire!r}", given)
        for _, arrays in parts.arrays():
            _check_dtype(arrays[0].dtype, op)
        if self.transport is None:
            return given
        self.link.meet(parts.said)
        for places, arrays in parts.arrays():
            dtype = arrays[0].dtype
            narrow = bfloat16 if wire is not None and dtype == float32 else dtype
            _put(parts, places, self.transport.all_reduce(arrays, op, narrow))
        if parts.numbers:
            _put(parts, parts.numbers, [_together(op, column) for column in zip(*self._numbers(parts), strict=True)])
        return tree.unflatten(given, parts.leaves)

    def mean(self, given: Any, wire: str | None = None) -> Any:
        """The mean of all ranks' trees: all_reduce(tree, "mean", wire)."""
        return self.all_reduce(given, "mean", wire)

    def all_gather(self, given: Any) -> Any:
        """The arrays of all ranks, those of each one after the other along the first axis.

        Errors:  as all_reduce; ShapeError for an array without axes
        """
        parts = parts_of("all_gather", "", given)
        if parts.numbers or any(not a.shape for _, arrays in parts.arrays() for a in arrays):
            raise ShapeError("all_gather: a leaf has no axes; every leaf must be an array with one at least")
        if self.transport is None:
            return given
        self.link.meet(parts.said)
        for places, arrays in parts.arrays():
            _put(parts, places, self.transport.all_gather(arrays))
        return tree.unflatten(given, parts.leaves)

    # ---- the rest --------------------------------------------------------------------------------------------

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        self.link.meet("barrier")

    def agree(self, name: str, value: Any) -> None:
        """Go on only where all ranks have the same value; what is compared is its repr.

        Errors:  ValueError, on all ranks, naming what differs and where
        """
        self.link.meet(f"agree on {name}")
        texts = self.link.texts(repr(value))
        for rank, text in enumerate(texts):
            if text != texts[0]:
                raise ValueError(f"{name}: rank 0 has {texts[0]}, rank {rank} has {text}; all ranks must have the same")

    def alone(self) -> AbstractContextManager[None]:
        """A block in which this rank may keep the others waiting for as long as it takes: to save, say."""
        return self.link.alone()

    def split_random(self) -> None:
        """From here on each rank draws numbers of its own, for its slice of the batch; before, all draw the same.

        Rank r goes on from the state of rank 0, with r in the upper 16 of the counter's 64 bits. Whoever computes the
        slices one after the other, each from that state, draws the same on one process.
        """
        seed, counter = map(int, random.get_state())
        seed, counter = self.broadcast((seed, counter))
        random.set_state((seed, counter % (1 << SLICES) + (self.rank << SLICES)))

    def _numbers(self, parts: Parts) -> list[list[float]]:
        """The Python numbers of all ranks."""
        return [json.loads(row) for row in self.link.texts(json.dumps([parts.leaves[i] for i in parts.numbers]))]


def _put(parts: Parts, places: Sequence[int], values: Sequence[Any]) -> None:
    for i, value in zip(places, values, strict=True):
        parts.leaves[i] = value


def _together(op: str, column: Sequence[float]) -> float:
    if op in ("max", "min"):
        known = max(column) if op == "max" else min(column)
        return next((x for x in column if x != x), known)  # a nan is seen wherever it is, as in arrays
    return sum(column) / len(column) if op == "mean" else sum(column)


def _check_dtype(dtype: np.dtype, op: str) -> None:
    if op == "mean" and dtype not in FLOATS:
        raise DtypeError(f"all_reduce: op is 'mean' of {dtype.name}; it must be floating, or op 'sum', 'max' or 'min'")
    if op == "sum" and dtype == bool_:
        raise DtypeError("all_reduce: op is 'sum' of bool; it must be 'max', which is any, or 'min', which is all")
