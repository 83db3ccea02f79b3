"""Profiling: where the time goes, what runs, and what holds the memory."""

from polyarr.profiling import tracing as tracing  # imported for its effect: starts what the environment asks for
from polyarr.profiling.memory import Holder as Holder
from polyarr.profiling.memory import MemoryStats as MemoryStats
from polyarr.profiling.memory import memory_stats as memory_stats
from polyarr.profiling.recorder import profile as profile
from polyarr.profiling.summary import Row as Row
