"""Fourier transforms: passes over arrays, each a batch of short transforms in local memory."""
