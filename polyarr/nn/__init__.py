"""Layers: Modules are trees of arrays, and calling one is a function of its arrays and inputs."""

from polyarr.nn.attention import KeyValueCache, MultiHeadAttention, TransformerBlock
from polyarr.nn.init import constant, normal, shapes_only, uniform
from polyarr.nn.layers import (
    GELU,
    Dropout,
    Embedding,
    FeedForward,
    LayerNorm,
    Linear,
    PositionalEncoding,
    ReLU,
    RMSNorm,
    Sequential,
    SiLU,
)
from polyarr.nn.module import Module

__all__ = [
    "GELU",
    "Dropout",
    "Embedding",
    "FeedForward",
    "KeyValueCache",
    "LayerNorm",
    "Linear",
    "Module",
    "MultiHeadAttention",
    "PositionalEncoding",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "TransformerBlock",
    "constant",
    "normal",
    "shapes_only",
    "uniform",
]
