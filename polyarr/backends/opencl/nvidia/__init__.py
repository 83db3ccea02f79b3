"""Everything for NVIDIA GPUs alone: tensor cores (PTX), TMA, memory shared with CUDA, CUDA graphs, NCCL."""

from polyarr.backends.opencl.nvidia.vendor import VENDOR

__all__ = ["VENDOR"]
