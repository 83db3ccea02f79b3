"""Models, for whatever backend is current: none of them names one."""

from polyarr.models.encoder import Encoder, EncoderClassifier, EncoderConfig, MaskedModel, mask_tokens
from polyarr.models.generation import generate, stream
from polyarr.models.gpt import GPTConfig, GPTModel
from polyarr.models.llama import LlamaConfig, LlamaModel
from polyarr.models.pretrained import PretrainedError, load_pretrained, save_pretrained
from polyarr.models.sampling import Sampling
from polyarr.models.writing import Completion, Part, Writer

__all__ = [
    "Completion",
    "Encoder",
    "EncoderClassifier",
    "EncoderConfig",
    "GPTConfig",
    "GPTModel",
    "LlamaConfig",
    "LlamaModel",
    "MaskedModel",
    "Part",
    "PretrainedError",
    "Sampling",
    "Writer",
    "generate",
    "load_pretrained",
    "mask_tokens",
    "save_pretrained",
    "stream",
]
