"""Profiling: where the time goes, what runs, and what holds the memory."""

from polyarr.profiling import tracing  # imported for its effect: starts what the environment asks for
from polyarr.profiling.memory import Holder, MemoryStats, memory_stats
from polyarr.profiling.recorder import profile
from polyarr.profiling.summary import Row

__all__ = ["Holder", "MemoryStats", "Row", "memory_stats", "profile"]
