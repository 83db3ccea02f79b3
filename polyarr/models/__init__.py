"""Model architectures, pretrained weights and text generation, on whichever backend is current."""

from polyarr.models.adapters import load_adapters, save_adapters
from polyarr.models.batch import Batch
from polyarr.models.completion import Completion, Part, TokenLogprob, Writer
from polyarr.models.encoder import Encoder, EncoderClassifier, EncoderConfig, MaskedModel, mask_tokens
from polyarr.models.generation import generate, stream
from polyarr.models.gguf import save_gguf
from polyarr.models.gpt import GPTConfig, GPTModel
from polyarr.models.lenet import LeNet
from polyarr.models.llama import LlamaConfig, LlamaModel
from polyarr.models.pretrained import PretrainedError, load_pretrained, save_pretrained
from polyarr.models.resnet import ResNetConfig, ResNetModel
from polyarr.models.sampling import Sampling
from polyarr.models.torchvision import load_resnet, save_resnet

__all__ = [
    "Batch",
    "Completion",
    "Encoder",
    "EncoderClassifier",
    "EncoderConfig",
    "GPTConfig",
    "GPTModel",
    "LeNet",
    "LlamaConfig",
    "LlamaModel",
    "MaskedModel",
    "Part",
    "PretrainedError",
    "ResNetConfig",
    "ResNetModel",
    "Sampling",
    "TokenLogprob",
    "Writer",
    "generate",
    "load_adapters",
    "load_pretrained",
    "load_resnet",
    "mask_tokens",
    "save_adapters",
    "save_gguf",
    "save_pretrained",
    "save_resnet",
    "stream",
]
