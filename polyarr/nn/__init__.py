"""Layers: Modules are trees of arrays; calling one is a function of its arrays and inputs. LoRA; quantization."""

from typing import TYPE_CHECKING

from polyarr.core.names import answering, renamed
from polyarr.nn.attention import KeyValueCache, MultiHeadAttention, TransformerBlock
from polyarr.nn.convolution import (
    AdaptiveMeanPool,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    MaxPool,
    MeanPool,
)
from polyarr.nn.experts import GroupedLinear, MixtureOfExperts, Routed, balance_loss
from polyarr.nn.init import constant, normal, shapes_only, uniform
from polyarr.nn.layers import (
    GELU,
    Dropout,
    Embedding,
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    Linear,
    PositionalEncoding,
    ReLU,
    RMSNorm,
    Sequential,
    SiLU,
)
from polyarr.nn.lora import LoRALinear, lora, merge_lora
from polyarr.nn.module import Module
from polyarr.nn.norms import BatchNorm, GroupNorm, InstanceNorm, Statistics, observing
from polyarr.nn.quantized import quantized
from polyarr.nn.quantized_linear import QuantizedLinear
from polyarr.nn.rotary import RotaryScaling, RotaryTables, rotary, turns

__all__ = [
    "GELU",
    "AdaptiveMeanPool",
    "BatchNorm",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
    "Embedding",
    "FeedForward",
    "GatedFeedForward",
    "GroupNorm",
    "GroupedLinear",
    "InstanceNorm",
    "KeyValueCache",
    "LayerNorm",
    "Linear",
    "LoRALinear",
    "MaxPool",
    "MeanPool",
    "MixtureOfExperts",
    "Module",
    "MultiHeadAttention",
    "PositionalEncoding",
    "QuantizedLinear",
    "RMSNorm",
    "ReLU",
    "RotaryScaling",
    "RotaryTables",
    "Routed",
    "Sequential",
    "SiLU",
    "Statistics",
    "TransformerBlock",
    "balance_loss",
    "constant",
    "lora",
    "merge_lora",
    "normal",
    "observing",
    "quantized",
    "rotary",
    "shapes_only",
    "turns",
    "uniform",
]

if not TYPE_CHECKING:  # to a type checker, every name would seem to be there

    def __getattr__(name: str) -> object:
        old = {"quantised": "quantized"}
        return globals()[renamed(__name__, name, old)] if name in old else answering(__name__, __all__)(name)
