"""Convolutions, pooling and batch norm: ops on receptive fields of images."""
