"""Captured calls on both sides, by pa.compile and as a CUDA graph, so that the hosts' time hardly counts."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

import polyarr as pa

SETTLE = 3  # runs before PyTorch's graph is recorded, in which its libraries select kernels
SEVERAL = 8  # calls of either side in one run


def captured(
    ours: Callable[..., Any], firsts: Sequence[pa.Array], rest: Sequence[pa.Array], theirs: Callable[[], Any]
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return functions that run ours(first, *rest) for all firsts, and theirs() as often, captured, on one GPU.

    The firsts are distinct arrays: equal calls would be computed only once.
    """
    compiled = pa.compile(lambda firsts, rest: [ours(first, *rest) for first in firsts])
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(SETTLE):
            theirs()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        for _ in firsts:
            theirs()
    return lambda: compiled(firsts, rest), graph.replay
