"""Both sides captured, polyarr's by pa.compile and PyTorch's as a graph of CUDA: the hosts then hardly count."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

import polyarr as pa

SETTLE = 3  # runs before PyTorch's graph is recorded, so that its libraries have chosen their kernels


def captured(
    ours: Callable[..., Any], arrays: Sequence[pa.Array], theirs: Callable[[], Any]
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Functions that run ours(*arrays) and theirs() without recording them again; they are on the same GPU."""
    compiled, stream, graph = pa.compile(ours), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(SETTLE):
            theirs()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        theirs()
    return lambda: compiled(*arrays), graph.replay
