"""Models, for whatever backend is current: none of them names one."""

from polyarr.models.generation import generate, stream
from polyarr.models.gpt import GPTConfig, GPTModel
from polyarr.models.llama import LlamaConfig, LlamaModel
from polyarr.models.pretrained import PretrainedError, load_pretrained, save_pretrained

__all__ = [
    "GPTConfig",
    "GPTModel",
    "LlamaConfig",
    "LlamaModel",
    "PretrainedError",
    "generate",
    "load_pretrained",
    "save_pretrained",
    "stream",
]
