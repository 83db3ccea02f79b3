"""A model of a data-parallel step's time: latency and bandwidth, fitted to measured all-reduces.

ring        2 (n - 1) messages of 1/n of the bytes each, one after the other: the minimal traffic on every link
tree        up and down a tree of log2(n) levels, in chunks, so that all levels work at once
sharded     a ring, but each rank updates 1/n of the parameters between reduce-scatter and all-gather
overlapped  a ring, as much of which as fits runs during the backward pass
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

BACKWARD = 2 / 3  # fraction of a gradient's time, judging by its products


class Wire(NamedTuple):
    """Latency of a message in seconds, and bandwidth in bytes per second."""

    latency: float
    bandwidth: float


class Work(NamedTuple):
    """Seconds of a rank's work in a step, and the bytes of its gradients."""

    gradient: float
    update: float
    nbytes: float


def ring(ranks: int, nbytes: float, wire: Wire) -> float:
    """Return the seconds of a ring all-reduce."""
    return 2 * (ranks - 1) * (wire.latency + nbytes / ranks / wire.bandwidth)


def tree(ranks: int, nbytes: float, wire: Wire) -> float:
    """Return the seconds of a tree all-reduce."""
    return 2 * math.ceil(math.log2(ranks)) * wire.latency + (2 * nbytes / wire.bandwidth if ranks > 1 else 0.0)


def fitted(seconds: Mapping[int, float], ranks: int) -> Wire:
    """Return the latency and bandwidth that best explain the times of ring all-reduces by size; errors are relative."""
    sizes, times = np.array([*seconds]), np.array([*seconds.values()])
    terms = 2 * (ranks - 1) * np.stack([np.ones(len(sizes)), sizes / ranks], axis=1) / times[:, None]
    (latency, slowness), *_ = np.linalg.lstsq(terms, np.ones(len(sizes)), rcond=None)
    return Wire(max(latency, 0.0), 1 / slowness)


def by_ring(ranks: int, work: Work, wire: Wire) -> float:
    """Return the seconds of a step with a ring all-reduce."""
    return work.gradient + ring(ranks, work.nbytes, wire) + work.update


def by_tree(ranks: int, work: Work, wire: Wire) -> float:
    """Return the seconds of a step with a tree all-reduce."""
    return work.gradient + tree(ranks, work.nbytes, wire) + work.update


def sharded(ranks: int, work: Work, wire: Wire) -> float:
    """Return the seconds of a step in which each rank updates its share of the parameters."""
    return work.gradient + ring(ranks, work.nbytes, wire) + work.update / ranks


def overlapped(ranks: int, work: Work, wire: Wire) -> float:
    """Return the seconds of a step whose ring all-reduce overlaps the backward pass."""
    backward = BACKWARD * work.gradient
    return work.gradient - backward + max(backward, ring(ranks, work.nbytes, wire)) + work.update


WAYS: dict[str, Callable[[int, Work, Wire], float]] = {
    "ring": by_ring, "tree": by_tree, "sharded": sharded, "overlapped": overlapped,
}  # fmt: skip


def efficiency(way: str, ranks: int, work: Work, wire: Wire) -> float:
    """Return the weak-scaling efficiency with one batch per rank: 1 if nothing is lost."""
    return (work.gradient + work.update) / WAYS[way](ranks, work, wire)


def scaled(work: Work, parameters: float, others: float) -> Work:
    """Return the work of a model with another number of parameters on the same tokens: it grows in proportion."""
    return Work(*(part * others / parameters for part in work))
