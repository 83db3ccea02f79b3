"""Attention: portable tiled kernels, decode attention (one query token), and kernels for matrix units."""
