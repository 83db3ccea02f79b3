"""The ranks of a run as a value, and what they do together to trees."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from polyarr import tree
from polyarr.core.array import Array
from polyarr.core.spec import bfloat16, float32
from polyarr.distributed.link import Link

OPS = ("mean", "sum", "max", "min")


class Transport(Protocol):
    """How arrays are brought together, wherever their memory is. All are of one dtype and on one backend."""

    name: str

    def all_reduce(self, leaves: Sequence[Array], op: str, wire: np.dtype) -> list[Array]:
        """The leaves as all ranks' together: the same bits on every rank and every time."""

    def broadcast(self, leaves: Sequence[Array], root: int) -> list[Array]:
        """The leaves as rank root has them."""


@dataclass(frozen=True)
class World:
    """All ranks that compute together, seen from one of them; init() makes it.

    rank        the number of this process among all, from 0
    size        how many there are
    local_rank  its number among those on its host
    device      the name of the backend it computes on
    """

    rank: int
    size: int
    local_rank: int
    device: str
    link: Link = field(repr=False, compare=False)
    transport: Transport | None = field(repr=False, compare=False)

    def broadcast(self, tree_: Any, root: int = 0) -> Any:
        """The tree as rank root has it. All ranks give one with the same names, shapes and dtypes."""
        if self.size == 1:
            return tree_
        leaves = tree.leaves(tree_)
        found = self._by_dtype(leaves, lambda arrays: self.transport.broadcast(arrays, root))
        numbers = [i for i, leaf in enumerate(leaves) if type(leaf) in (int, float)]
        told = json.loads(self.link.texts(json.dumps([leaves[i] for i in numbers]))[root])
        for i, value in zip(numbers, told, strict=True):
            found[i] = value
        return tree.unflatten(tree_, found)

    def all_reduce(self, tree_: Any, op: str = "mean", wire: str | None = None) -> Any:
        """A tree of what all ranks' trees are together, leaf by leaf."""
        if op not in OPS:
            raise ValueError(f"all_reduce: op is {op!r}; it must be one of {', '.join(OPS)}")
        if wire not in (None, "bfloat16"):
            raise ValueError(f"all_reduce: wire is {wire!r}; it must be None or 'bfloat16'")
        if self.size == 1:
            return tree_
        leaves = tree.leaves(tree_)

        def reduced(arrays: list[Array]) -> list[Array]:
            narrow = wire is not None and arrays[0].dtype == float32
            return self.transport.all_reduce(arrays, op, bfloat16 if narrow else arrays[0].dtype)

        found = self._by_dtype(leaves, reduced)
        numbers = [i for i, leaf in enumerate(leaves) if type(leaf) in (int, float)]
        rows = [json.loads(row) for row in self.link.texts(json.dumps([leaves[i] for i in numbers]))]
        for place, i in enumerate(numbers):
            column = [row[place] for row in rows]
            total = {"max": max, "min": min}.get(op, sum)(column)
            found[i] = total / self.size if op == "mean" else total
        return tree.unflatten(tree_, found)

    def mean(self, tree_: Any, wire: str | None = None) -> Any:
        """all_reduce(tree, "mean")."""
        return self.all_reduce(tree_, "mean", wire)

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        self.link.gather(b".")

    def agree(self, name: str, value: Any) -> None:
        """Go on only where all ranks have the same value, compared as text.

        Errors:  ValueError, on all ranks, naming what differs and where
        """
        texts = self.link.texts(str(value))
        for rank, text in enumerate(texts):
            if text != texts[0]:
                raise ValueError(
                    f"{name}: rank 0 has {texts[0]}, rank {rank} has {text}; it must be the same on all ranks"
                )

    def _by_dtype(self, leaves: list[Any], together: Any) -> list[Any]:
        found, groups = list(leaves), dict[Any, list[int]]()
        for i, leaf in enumerate(leaves):
            if type(leaf) is Array:
                groups.setdefault((leaf.dtype.name, leaf.device), []).append(i)
        for places in groups.values():
            for i, new in zip(places, together([leaves[i] for i in places]), strict=True):
                found[i] = new
        return found
