"""Attention: portable kernels, those for one query, and those for matrix units."""
