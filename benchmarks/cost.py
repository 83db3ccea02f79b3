"""What a step costs on many ranks: a model with a latency and a bandwidth, fitted to measured reductions.

ring        2 (n - 1) messages of 1/n each, one after the other: the least that goes over every wire
tree        up and down a tree of log2(n) levels, in pieces, so that all levels work at once
sharded     as a ring, but each rank updates 1/n of the parameters, between its halves
overlapped  a ring, as much of which as fits goes on under the backward pass
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

BACKWARD = 2 / 3  # of the gradient's time, as products go


class Wire(NamedTuple):
    """Seconds that a message takes at least, and bytes a second beyond that."""

    latency: float
    bandwidth: float


class Work(NamedTuple):
    """What a rank does in a step, in seconds, and how many bytes of gradients there are."""

    gradient: float
    update: float
    nbytes: float


def ring(ranks: int, nbytes: float, wire: Wire) -> float:
    """Seconds of an all-reduce around a ring."""
    return 2 * (ranks - 1) * (wire.latency + nbytes / ranks / wire.bandwidth)


def tree(ranks: int, nbytes: float, wire: Wire) -> float:
    """Seconds of an all-reduce up and down a tree."""
    return 2 * math.ceil(math.log2(ranks)) * wire.latency + (2 * nbytes / wire.bandwidth if ranks > 1 else 0.0)


def fitted(seconds: Mapping[int, float], ranks: int) -> Wire:
    """The wire that explains the times of reductions of so many bytes best, as a ring; errors count as ratios."""
    sizes, times = np.array([*seconds]), np.array([*seconds.values()])
    terms = 2 * (ranks - 1) * np.stack([np.ones(len(sizes)), sizes / ranks], axis=1) / times[:, None]
    (latency, slowness), *_ = np.linalg.lstsq(terms, np.ones(len(sizes)), rcond=None)
    return Wire(max(latency, 0.0), 1 / slowness)


def by_ring(ranks: int, work: Work, wire: Wire) -> float:
    """Seconds of a step whose gradients go around a ring."""
    return work.gradient + ring(ranks, work.nbytes, wire) + work.update


def by_tree(ranks: int, work: Work, wire: Wire) -> float:
    """Seconds of a step whose gradients go up and down a tree."""
    return work.gradient + tree(ranks, work.nbytes, wire) + work.update


def sharded(ranks: int, work: Work, wire: Wire) -> float:
    """Seconds of a step in which each rank updates its share of the parameters."""
    return work.gradient + ring(ranks, work.nbytes, wire) + work.update / ranks


def overlapped(ranks: int, work: Work, wire: Wire) -> float:
    """Seconds of a step whose gradients go around a ring while the backward pass makes more of them."""
    backward = BACKWARD * work.gradient
    return work.gradient - backward + max(backward, ring(ranks, work.nbytes, wire)) + work.update


WAYS: dict[str, Callable[[int, Work, Wire], float]] = {
    "ring": by_ring, "tree": by_tree, "sharded": sharded, "overlapped": overlapped,
}  # fmt: skip


def efficiency(way: str, ranks: int, work: Work, wire: Wire) -> float:
    """How much of so many ranks' work is done, each with the batch of one: 1 if nothing is lost."""
    return (work.gradient + work.update) / WAYS[way](ranks, work, wire)


def scaled(work: Work, parameters: float, others: float) -> Work:
    """The work of a model with another number of parameters, on as many tokens: all grows as the parameters do."""
    return Work(*(part * others / parameters for part in work))
