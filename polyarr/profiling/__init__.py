"""Seeing what happens: where the time goes, what runs, who holds the memory."""

from polyarr.profiling.recorder import profile as profile
from polyarr.profiling.summary import Row as Row
