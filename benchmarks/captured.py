"""Both sides captured, polyarr's by pa.compile and PyTorch's as a graph of CUDA: the hosts then hardly count."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

import polyarr as pa

SETTLE = 3  # runs before PyTorch's graph is recorded, so that its libraries have chosen their kernels
SEVERAL = 8  # calls of either side in one run


def captured(
    ours: Callable[..., Any], firsts: Sequence[pa.Array], rest: Sequence[pa.Array], theirs: Callable[[], Any]
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Functions that do ours(first, *rest) for all firsts, and theirs() as often, on one GPU, recorded once.

    The firsts are different arrays: what is computed twice from one array would be computed once.
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
