"""Captured programs: rewrites, fused kernels, and replay of recorded launches without their launchers."""
