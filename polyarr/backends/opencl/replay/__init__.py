"""Captured programs: noted, their steps joined in one kernel, and run again without their launchers."""
