"""Saving and loading trees of arrays, in safetensors files, which are replaced atomically."""

from polyarr.saving.trees import load, save

__all__ = ["load", "save"]
