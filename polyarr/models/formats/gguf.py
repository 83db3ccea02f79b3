"""Format of GGUF files: names, settings and arrays as llama.cpp has them, by those of transformers' same family."""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from polyarr.core.spec import float32
from polyarr.extras import extra
from polyarr.models.decoder import Config
from polyarr.models.formats.gpt import GPT2
from polyarr.models.formats.llama import FORMATS
from polyarr.models.formats.mxfp4 import codes_of_gguf, dequantized, float16_scales, have_float16
from polyarr.models.formats.tables import Format, Layer
from polyarr.models.llama import LlamaConfig
from polyarr.nn import QuantizedLinear
from polyarr.ops.quantized import QUANTIZED_BLOCK
from polyarr.saving.gguf_file import GGUFEntry, GGUFFile
from polyarr.saving.tensor_file import Source, finite

_LLAMA_KEYS = {  # of GGUF, after the name of the architecture, and of config.json
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_EXPERT_KEYS = _LLAMA_KEYS | {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_MIXTRAL_KEYS = _EXPERT_KEYS | {"expert_count": "num_local_experts"}
_GPT_OSS_KEYS = _MIXTRAL_KEYS | {"expert_feed_forward_length": "intermediate_size"}
_MIXTRAL_KEYS.pop("attention.sliding_window")  # which llama.cpp's "llama" does not have
_GPT2_KEYS = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
_GPT_OSS_LAYERS = {  # transformers has two of these in one array, and no layer of which the sinks are the weight
    "blocks.*.att": Layer(("blk.*.attn_sinks",), sinks="weight"),
    "blocks.*.ff.expert_gate": Layer(("blk.*.ffn_gate_exps",), stacked=True),
    "blocks.*.ff.expert_up": Layer(("blk.*.ffn_up_exps",), stacked=True),
    "blocks.*.ff.expert_down": Layer(("blk.*.ffn_down_exps",), stacked=True),
}
_REQUIRED = ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count")
FREQS = "rope_freqs.weight"
_FACTORS = ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor")  # of rotated queries and keys, beside yarn's
# Ends of names.
EXPERTS, _EXPERT_BIAS = "_exps.weight", "_exps.bias"
_ROUTER, _SHARED_GATE = ".ffn_gate_inp.weight", ".ffn_gate_inp_shexp.weight"
# Llama 3.1 and later: GGUF has the divisors of the rates in a tensor, and not the settings that they follow from.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_FREQS_TOLERANCE = 1e-4  # relative; they are stored in float32


class Architecture(NamedTuple):
    """Architecture of llama.cpp whose models polyarr has.

    Attributes:
        name: Its name in GGUF.
        format: Format of transformers' models of the family.
        keys: Their settings, by the key of GGUF.
        is_interleaved: Whether rotary embeddings rotate elements (2 i, 2 i + 1): rows of queries and keys are permuted.
        wide: Number of blocks of the model whose scores are scaled by its width per head, not by the size of a head.
        always: Settings that all models of the architecture have in llama.cpp.
        yarn: Settings of yarn that they all have.
        layers: Layers that have no name in `format` which the library knows.
    """

    name: str
    format: Format
    keys: Mapping[str, str] = _LLAMA_KEYS
    is_interleaved: bool = False
    wide: int = 0
    always: Mapping[str, Any] = MappingProxyType({})
    yarn: Mapping[str, Any] = MappingProxyType({})
    layers: Mapping[str, Layer] = MappingProxyType({})


# By the "model_type" of transformers' models. Of two with one name in GGUF, the second has experts.
ARCHITECTURES = {
    "gpt2": Architecture("gpt2", GPT2, _GPT2_KEYS),
    "llama": Architecture("llama", FORMATS["llama"], is_interleaved=True),
    **{kind: Architecture(kind, FORMATS[kind]) for kind in ("qwen2", "qwen3", "gemma", "olmo2")},
    "gemma2": Architecture("gemma2", FORMATS["gemma2"], wide=46),
    "gemma3_text": Architecture("gemma3", FORMATS["gemma3_text"], wide=62),
    "mixtral": Architecture("llama", FORMATS["mixtral"], _MIXTRAL_KEYS, is_interleaved=True),
    "qwen2_moe": Architecture("qwen2moe", FORMATS["qwen2_moe"], _EXPERT_KEYS),
    "qwen3_moe": Architecture("qwen3moe", FORMATS["qwen3_moe"], _EXPERT_KEYS, always={"norm_topk_prob": True}),
    "olmoe": Architecture("olmoe", FORMATS["olmoe"], _EXPERT_KEYS),
    # The weights are made for pairs that are not rounded (truncate), although llama.cpp rounds them.
    "gpt_oss": Architecture(
        "gpt-oss",
        FORMATS["gpt_oss"],
        _GPT_OSS_KEYS,
        always={"swiglu_limit": 7.0, "attention_bias": True, "tie_word_embeddings": False},
        yarn={"truncate": False},
        layers=_GPT_OSS_LAYERS,
    ),
}


class GGUFModel(NamedTuple):
    """A model in GGUF, as it is read or written.

    Attributes:
        format: Format of its tensors.
        config: Polyarr's configuration of the model.
        is_interleaved: As in Architecture.
    """

    format: Format
    config: Config
    is_interleaved: bool

    def read(self, name: str, stored: np.ndarray) -> np.ndarray:
        """Return polyarr's array for a tensor of llama.cpp; a norm is float32."""
        return self._changed(name, stored, -1, lambda heads, half: (heads, half, 2))

    def written(self, name: str, own: np.ndarray) -> np.ndarray:
        """Return the tensor of llama.cpp for polyarr's array; a norm is float32."""
        return self._changed(name, own, 1, lambda heads, half: (heads, 2, half))

    def offset(self, name: str) -> float:
        """Return what llama.cpp's tensor has added to polyarr's."""
        return getattr(self.config, "norm_offset", 0.0) if name.endswith("norm.weight") else 0.0

    def shape(self, name: str, own: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the tensor of llama.cpp for the shape of polyarr's array."""
        return own[1:] if name.endswith(_SHARED_GATE) else own

    def _changed(
        self, name: str, a: np.ndarray, sign: int, split: Callable[[int, int], tuple[int, int, int]]
    ) -> np.ndarray:
        if offset := self.offset(name):
            return a + float32.type(sign * offset)
        if heads := self._permuted_heads(name):
            pairs = a.reshape(*split(heads, len(a) // heads // 2), *a.shape[1:])
            return pairs.swapaxes(1, 2).reshape(a.shape)
        return a

    def _permuted_heads(self, name: str) -> int:
        """Return the number of heads of an array whose rows are permuted, or 0."""
        if not self.is_interleaved or not isinstance(self.config, LlamaConfig):
            return 0
        return {"attn_q": self.config.n_heads, "attn_k": self.config.n_kv_heads}.get(name.split(".")[-2], 0)


class GGUFTensor(NamedTuple):
    """Tensor in a GGUF file: its name and shape, and the dtype that it is read as by default, without its data."""

    file: GGUFFile
    model: GGUFModel
    name: str
    shape: list[int]
    dtype: str

    def read(self, dtype: np.dtype) -> np.ndarray:
        """Return the data as polyarr has them, in a floating-point dtype; numbers that are not finite are an error."""
        if self._is_mxfp4:  # faster than the library
            codes, exponents = self.file.blocks(self.name)
            shape = (-1, *self.shape[-2:-1], self.shape[-1] // QUANTIZED_BLOCK)
            blocks = codes.reshape(*shape, QUANTIZED_BLOCK // 2)
            stored = dequantized(self.name, blocks, exponents.reshape(shape), dtype, is_gguf=True).reshape(self.shape)
            return self.model.read(self.name, stored)
        stored = self.file.array(self.name, float32 if self.model.offset(self.name) else dtype)
        return finite(self.name, self.model.read(self.name, stored), dtype)

    @property
    def kind(self) -> str:
        """Name of the type in the file, or "Q8_0" for MXFP4 whose scales are in float16: such blocks lose nothing."""
        name: str = self.file.entries[self.name].kind.name
        return "Q8_0" if self._is_mxfp4 and have_float16(self.file.blocks(self.name)[1]) else name

    def codes(self) -> np.ndarray:
        """Return the codes of a matrix of Q8_0, Q4_0 or MXFP4, whose rows are in polyarr's order."""
        codes = self.file.blocks(self.name)[0]
        return self.model.read(self.name, codes_of_gguf(codes) if self._is_mxfp4 else codes)

    def scale(self) -> np.ndarray:
        """Return the scales of a matrix of Q8_0, Q4_0 or MXFP4, whose rows are in polyarr's order."""
        scale = self.file.blocks(self.name)[1]
        return self.model.read(self.name, float16_scales(scale) if self._is_mxfp4 else scale)

    @property
    def _is_mxfp4(self) -> bool:
        return bool(self.file.entries[self.name].kind.name == "MXFP4")


class Planned(NamedTuple):
    """A GGUF file that is going to be written: its metadata, header entries, and where its tensors come from.

    Attributes:
        blocks: Quantized layers, and their rows, of tensors that are written as they are.
    """

    metadata: dict[str, Any]
    entries: dict[str, GGUFEntry]
    sources: dict[str, Source]
    blocks: dict[str, tuple[QuantizedLinear, slice]]

    def array(self, name: str, dtype: np.dtype) -> np.ndarray:
        """Return a tensor in a dtype."""
        return finite(name, self.sources[name].read(), dtype)


Header = GGUFFile | Planned  # with the metadata and the entries of a model


def read_gguf(path: Path) -> tuple[GGUFModel, dict[str, GGUFTensor]]:
    """Return the model of a GGUF file, and its tensors, of which no data are read yet.

    Matrices of float32 are read as float32, all others as bfloat16, with the vectors of the same file.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is damaged, or polyarr does not have such a model.
        RuntimeError: The library gguf is missing.
    """
    file = GGUFFile(path)
    model = read_model(file)
    kinds = {entry.kind.name for entry in file.entries.values() if len(entry.shape) > 1}
    dtype = "F32" if kinds <= {"F32"} else "BF16"
    return model, {name: GGUFTensor(file, model, name, _own_shape(name, e), dtype) for name, e in file.entries.items()}


def _own_shape(name: str, entry: GGUFEntry) -> list[int]:
    """Return the shape of polyarr's array for a tensor; the gate of a shared expert is one row."""
    return [1, *entry.shape] if name.endswith(_SHARED_GATE) and len(entry.shape) == 1 else [*entry.shape]


def is_always_float32(name: str) -> bool:
    """Return whether llama.cpp has a matrix of this name, or biases of experts, in float32 in all files."""
    return name.endswith((_ROUTER, _EXPERT_BIAS))


def read_model(file: Header) -> GGUFModel:
    """Return the model that a GGUF file's header describes.

    Raises:
        ValueError: polyarr does not have such a model.
    """
    name = file.metadata.get("general.architecture")
    named = [found for found in ARCHITECTURES.values() if found.name == name]
    if not isinstance(name, str) or not named:
        known = ", ".join(map(repr, _names()))
        raise ValueError(f"its architecture is {str(name)[:100]!r}; polyarr reads {known} from GGUF files")
    if (parts := file.metadata.get("split.count", 1)) != 1:
        raise ValueError(f"it is one of {parts} files of a model; join them with: llama-gguf-split --merge")
    found = named[-1] if file.metadata.get(f"{name}.expert_count") else named[0]
    return model_of(found, found.format.config_of(_settings(file, found)))


def model_of(found: Architecture, config: Config) -> GGUFModel:
    """Return the model of an architecture with polyarr's configuration."""
    return GGUFModel(_format(found), config, found.is_interleaved)


def architecture_of(kind: str) -> Architecture:
    """Return the architecture of transformers' models of a type.

    Raises:
        ValueError: llama.cpp has no such models, or polyarr does not know them.
    """
    if kind not in ARCHITECTURES:
        raise ValueError(f"a model of the type {kind!r}; GGUF files have {', '.join(_names())}")
    return ARCHITECTURES[kind]


def _names() -> list[str]:
    return [*dict.fromkeys(found.name for found in ARCHITECTURES.values())]


def metadata_of(found: Architecture, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a model of an architecture, for the content of its config.json."""
    name = found.name
    metadata = {key: settings[theirs] for key, theirs in found.keys.items() if settings.get(theirs) is not None}
    if name == "gpt2":
        metadata["feed_forward_length"] = 4 * settings["n_embd"]
    else:
        metadata |= dict.fromkeys(("attention.value_length", "rope.dimension_count"), settings["head_dim"])
        metadata |= _written_scaling(settings)
    return {"general.architecture": name} | {f"{name}.{key}": value for key, value in metadata.items()}


def tensors_of(settings: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors of a model, for the content of its config.json, which are not weights."""
    scaling = settings.get("rope_scaling") or {}
    if scaling.get("rope_type") != "llama3":
        return {}
    return {FREQS: divisors(scaling, settings["head_dim"], settings["rope_theta"]).astype(float32)}


def _format(found: Architecture) -> Format:
    """Return the format of an architecture: transformers' layers by the names that GGUF has for them."""
    library = extra("gguf", "gguf")
    arch = next(arch for arch, known in library.MODEL_ARCH_NAMES.items() if known == found.name)
    names = library.get_tensor_name_map(arch, 1)
    layers = {"out_head": Layer(("output",))}
    for own, layer in found.format.layers.items():
        # The weights of all experts are one tensor, which has no number of an expert in its name.
        theirs = [names.get_name(one.replace("*", "0").replace(".#", "")) for one in layer.names]
        if None not in theirs:
            own_names = tuple(re.sub(r"^blk\.0\.", "blk.*.", one) for one in theirs)
            layers[own] = Layer(own_names, stacked="#" in layer.names[0])
    return found.format._replace(layers={**layers, **found.layers}, prefix="", ignored=(FREQS,))


# ---- settings ----------------------------------------------------------------------------------------------------


def _settings(file: Header, found: Architecture) -> dict[str, Any]:
    """Return the content of the config.json of the model in a file."""
    name = found.name
    given = {key.removeprefix(f"{name}."): value for key, value in file.metadata.items() if key.startswith(f"{name}.")}
    if missing := [f"{name}.{key}" for key in _REQUIRED if key not in given]:
        raise ValueError(f"it lacks {', '.join(missing)}")
    settings = {theirs: given[key] for key, theirs in found.keys.items() if key in given}
    settings["tie_word_embeddings"] = "output.weight" not in file.entries
    settings["vocab_size"] = _rows(file, "token_embd.weight")
    if name == "gpt2":
        return settings | {"resid_pdrop": 0.0}  # which GGUF does not have
    settings["attention_bias"] = settings["qkv_bias"] = "blk.0.attn_q.bias" in file.entries
    settings["mlp_bias"] = "blk.0.ffn_up.bias" in file.entries
    settings.setdefault("rope_theta", 10_000.0)
    settings["rope_scaling"] = (
        _scaling(given, found.yarn) or _llama3_scaling(file, given, settings) or {"rope_type": "default"}
    )
    for key in _FACTORS:
        if given.get(key, 1) != 1:
            raise ValueError(f"its {key} is {given[key]!r}; it must be 1")
    head = _head_size(settings)
    if given.get("rope.dimension_count", head) != head:
        raise ValueError(f"its rope.dimension_count is {given['rope.dimension_count']!r}; it must be {head!r}")
    wide = found.wide and settings.get("num_hidden_layers") == found.wide
    settings["query_pre_attn_scalar"] = _width_per_head(settings) if wide else head
    return {**settings, **_pattern(given), **found.always}


def _rows(file: Header, name: str) -> int:
    if name not in file.entries:
        raise ValueError(f"it lacks {name}")
    return file.entries[name].shape[0]


def _head_size(settings: Mapping[str, Any]) -> Any:
    return settings["head_dim"] if "head_dim" in settings else _width_per_head(settings)


def _width_per_head(settings: Mapping[str, Any]) -> int:
    width, heads = settings.get("hidden_size"), settings.get("num_attention_heads")
    if type(width) is not int or type(heads) is not int or heads < 1:
        raise ValueError(f"its embedding_length is {width!r}, its attention.head_count {heads!r}; both must be ints")
    return width // heads


def _pattern(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of which blocks have a sliding window, a period or a list of bools."""
    found = given.get("attention.sliding_window_pattern")
    if isinstance(found, list):
        return {"layer_types": ["sliding_attention" if local else "full_attention" for local in found]}
    return {} if type(found) is not int or found < 1 else {"sliding_window_pattern": found}


def _scaling(given: Mapping[str, Any], yarn: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return rope_scaling of config.json where GGUF has it as settings; of yarn with the settings `yarn`."""
    kind, factor = given.get("rope.scaling.type", "none"), given.get("rope.scaling.factor")
    if kind == "none" or (kind == "linear" and factor in (None, 0, 1)):
        return None
    found = {
        **(yarn if kind == "yarn" else {}),
        "factor": factor,
        "original_max_position_embeddings": given.get("rope.scaling.original_context_length"),
        "beta_fast": given.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": given.get("rope.scaling.yarn_beta_slow"),
    }
    return {"rope_type": kind, **{name: value for name, value in found.items() if value is not None}}


def _llama3_scaling(file: Header, given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return rope_scaling of config.json for the divisors that a file has as a tensor."""
    if FREQS not in file.entries:
        return None
    stored = file.array(FREQS, float32).reshape(-1)
    length = given.get("rope.scaling.original_context_length", _LLAMA3["original_max_position_embeddings"])
    found = {**_LLAMA3, "factor": float(stored.max()), "original_max_position_embeddings": length}
    if type(length) is not int or not _are_close(stored, divisors(found, 2 * len(stored), settings["rope_theta"])):
        raise ValueError(f"its {FREQS} is not the scaling of Llama 3.1 for {length!r} positions, which polyarr has")
    return {"rope_type": "llama3", **found}


def _are_close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.allclose(a, b, rtol=_FREQS_TOLERANCE, atol=0))


def divisors(scaling: Mapping[str, Any], size: int, theta: Any) -> np.ndarray:
    """Return the divisors (D / 2,) of the rates of rotary embeddings of Llama 3.1 for heads of size D."""
    factor, length = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    if type(theta) not in (int, float) or not theta > 0 or not factor > 0:
        return np.zeros(size // 2)  # no model has these
    turns = length / (2 * math.pi) * float(theta) ** (-np.arange(0, size, 2) / size)
    share = np.clip((turns - low) / (high - low), 0, 1)  # of the rate as it is, by the number of rotations
    return 1 / (share + (1 - share) / factor)


def _written_scaling(settings: Mapping[str, Any]) -> dict[str, Any]:
    found = settings.get("rope_scaling") or {}
    names = {"factor": "factor", "original_max_position_embeddings": "original_context_length"}
    if found.get("rope_type") == "default":
        return {}
    if found.get("rope_type") == "llama3":
        names.pop("factor")  # it is in the tensor of divisors
    else:
        names |= {"rope_type": "type", "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}
    return {f"rope.scaling.{theirs}": found[name] for name, theirs in names.items() if name in found}
