"""Formats of transformers' models that LlamaModel computes: a table of families."""

from typing import Any

from polyarr.models.formats.family import BLOCK, SILU, Family
from polyarr.models.formats.scaling import ORIGINAL_LENGTH
from polyarr.models.formats.tables import layer, positive

_OUT_NORMS = {  # of families with norms after attention and feed-forward layer
    "blocks.*.out_norm1": layer(f"{BLOCK}.post_attention_layernorm"),
    "blocks.*.norm2": layer(f"{BLOCK}.pre_feedforward_layernorm"),
    "blocks.*.out_norm2": layer(f"{BLOCK}.post_feedforward_layernorm"),
}
_EXPERTS = {
    "blocks.*.ff.router": layer(f"{BLOCK}.mlp.gate"),
    "blocks.*.ff.expert_gate": layer(f"{BLOCK}.mlp.experts.#.gate_proj"),
    "blocks.*.ff.expert_up": layer(f"{BLOCK}.mlp.experts.#.up_proj"),
    "blocks.*.ff.expert_down": layer(f"{BLOCK}.mlp.experts.#.down_proj"),
    "blocks.*.ff.shared.gate": layer(f"{BLOCK}.mlp.shared_expert.gate_proj"),
    "blocks.*.ff.shared.up": layer(f"{BLOCK}.mlp.shared_expert.up_proj"),
    "blocks.*.ff.shared.down": layer(f"{BLOCK}.mlp.shared_expert.down_proj"),
    "blocks.*.ff.shared_gate": layer(f"{BLOCK}.mlp.shared_expert_gate"),
}
_GELU = {"hidden_activation": ("gelu_pytorch_tanh",), "use_bidirectional_attention": (None, False)}
_BIAS = {"qkv_bias": ("attention_bias", False), "out_bias": ("attention_bias", False)}
_OF_QWEN: dict[str, Any] = {
    "windows": ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"),
    "is_windowed": lambda given, number: number >= positive(given, "max_window_layers", 28, or_zero=True),
}
_EXPERT_SETTINGS: dict[str, tuple[str, Any]] = {
    "n_experts": ("num_experts", 128),
    "experts_per_token": ("num_experts_per_tok", 8),
    "normalize_experts": ("norm_topk_prob", False),
}
_BIASES = _BIAS | {"ff_bias": ("mlp_bias", False)}
_GRANITE = {
    "embedding_scale": ("embedding_multiplier", 1.0),
    "attention_scale": ("attention_multiplier", 1.0),
    "residual_scale": ("residual_multiplier", 1.0),
    "logit_divisor": ("logits_scaling", 1.0),
}
_PHI3_LAYERS = {
    "blocks.*.att.qkv": layer(f"{BLOCK}.self_attn.qkv_proj"),
    "blocks.*.ff.gate": layer(f"{BLOCK}.mlp.gate_up_proj", share=(0, 2)),
    "blocks.*.ff.up": layer(f"{BLOCK}.mlp.gate_up_proj", share=(1, 2)),
}
_MIXTRAL_LAYERS = {
    "blocks.*.ff.router": layer(f"{BLOCK}.block_sparse_moe.gate"),
    "blocks.*.ff.expert_gate": layer(f"{BLOCK}.block_sparse_moe.experts.#.w1"),
    "blocks.*.ff.expert_up": layer(f"{BLOCK}.block_sparse_moe.experts.#.w3"),
    "blocks.*.ff.expert_down": layer(f"{BLOCK}.block_sparse_moe.experts.#.w2"),
}
_GPT_OSS_EXPERTS = layer(f"{BLOCK}.mlp.experts", parameter=True, stacked=True, transposed=True)  # (experts, in, out)
_GPT_OSS_GATE_UP = _GPT_OSS_EXPERTS._replace(weight="gate_up_proj", bias="gate_up_proj_bias")
_GPT_OSS_LAYERS = {
    "blocks.*.att": layer(f"{BLOCK}.self_attn"),  # whose sinks are no layer's
    "blocks.*.ff.router": layer(f"{BLOCK}.mlp.router", parameter=True),
    "blocks.*.ff.expert_gate": _GPT_OSS_GATE_UP._replace(share=(0, 2)),
    "blocks.*.ff.expert_up": _GPT_OSS_GATE_UP._replace(share=(1, 2)),
    "blocks.*.ff.expert_down": _GPT_OSS_EXPERTS._replace(weight="down_proj", bias="down_proj_bias"),
}
_OF_GEMMA: dict[str, Any] = {"tied": True, "head_dim": 256, "has_scaled_embeddings": True}
_GEMMA_FLAGS = {"activation": "gelu_tanh", "norm_offset": 1.0}
_GEMMA_GIVEN: dict[str, Any] = {"fixed": _GELU, "layers": _OUT_NORMS, "scalar": 256, **_OF_GEMMA}

# The first family that a model fits is the one it is written as.
FAMILIES = (
    Family("llama", "Llama", _BIASES),
    Family("qwen2", "Qwen2", flags={"qkv_bias": True}, **_OF_QWEN),
    Family("mistral", "Mistral", windows=("sliding_window",)),
    Family("ministral", "Ministral", windows=("sliding_window", "layer_types")),
    Family(
        "phi3",
        "Phi3",
        layers=_PHI3_LAYERS,
        windows=("sliding_window",),
        window=None,
        eps=1e-5,
        scalings=("longrope",),
        is_partial=True,
    ),
    Family("granite", "Granite", _BIASES | _GRANITE),
    Family(
        "smollm3",
        "SmolLM3",
        _BIASES,
        windows=("sliding_window", "use_sliding_window", "layer_types"),
        window=None,
        is_windowed=lambda given, number: not given["no_rope_layers"][number],
        tied=True,
        theta=2_000_000.0,
        interval=4,
    ),
    Family("qwen3", "Qwen3", _BIAS, {"qk_norm": "head"}, head_dim=128, **_OF_QWEN),
    Family(
        "seed_oss",
        "SeedOss",
        {
            "qkv_bias": ("attention_bias", True),
            "out_bias": ("attention_out_bias", False),
            "ff_bias": ("mlp_bias", False),
        },
        head_dim=128,
    ),
    Family(
        "olmo2",
        "Olmo2",
        _BIAS,
        {"norm_place": "after", "qk_norm": "all"},
        layers=_OUT_NORMS,
        eps=1e-5,
    ),
    Family(
        "olmo3",
        "Olmo3",
        _BIAS,
        {"norm_place": "after", "qk_norm": "all"},
        layers=_OUT_NORMS,
        windows=("sliding_window", "layer_types"),
        is_windowed=lambda given, number: (number + 1) % 4 != 0,
        eps=1e-5,
        theta=500_000.0,
        local_theta=500_000.0,
    ),
    Family(
        "gemma",
        "Gemma",
        _BIAS,
        _GEMMA_FLAGS,
        fixed={"hidden_act": ("gelu_pytorch_tanh", "gelu"), "use_bidirectional_attention": (None, False)},
        **_OF_GEMMA,
    ),
    Family(
        "gemma2",
        "Gemma2",
        _BIAS
        | {
            "attention_softcap": ("attn_logit_softcapping", 50.0),
            "logit_softcap": ("final_logit_softcapping", 30.0),
        },
        _GEMMA_FLAGS | {"norm_place": "both"},
        windows=("sliding_window", "layer_types"),
        is_windowed=lambda given, number: number % 2 == 0,
        **_GEMMA_GIVEN,
    ),
    Family(
        "gemma3_text",
        "Gemma3",
        _BIAS | {"logit_softcap": ("final_logit_softcapping", None)},
        _GEMMA_FLAGS | {"norm_place": "both", "qk_norm": "head"},
        windows=("sliding_window", "layer_types"),
        is_windowed=lambda given, number: (number + 1) % positive(given, "sliding_window_pattern", 6) != 0,
        theta=1_000_000.0,
        local_theta=10_000.0,
        **_GEMMA_GIVEN,
    ),
    Family(
        "mixtral",
        "Mixtral",
        {"n_experts": ("num_local_experts", 8), "experts_per_token": ("num_experts_per_tok", 2)},
        {"normalize_experts": True},
        fixed=SILU | {"router_jitter_noise": (0.0,)},
        layers=_MIXTRAL_LAYERS,
        windows=("sliding_window",),
        window=None,
        eps=1e-5,
        theta=1_000_000.0,
        router_loss=0.001,
    ),
    Family(
        "qwen2_moe",
        "Qwen2Moe",
        {
            **_EXPERT_SETTINGS,
            "n_experts": ("num_experts", 60),
            "experts_per_token": ("num_experts_per_tok", 4),
            "expert_dim": ("moe_intermediate_size", 1408),
            "shared_dim": ("shared_expert_intermediate_size", 5632),
            "qkv_bias": ("qkv_bias", True),
        },
        layers=_EXPERTS,
        windows=_OF_QWEN["windows"],
        is_windowed=lambda given, number: (
            number % 2 == 0 and number < positive(given, "max_window_layers", 28, or_zero=True)
        ),
        router_loss=0.001,
        has_dense_blocks=True,
    ),
    Family(
        "qwen3_moe",
        "Qwen3Moe",
        {**_EXPERT_SETTINGS, **_BIAS, "expert_dim": ("moe_intermediate_size", 768)},
        {"qk_norm": "head"},
        layers=_EXPERTS,
        windows=("sliding_window", "use_sliding_window"),
        router_loss=0.001,
        has_dense_blocks=True,
    ),
    Family(
        "olmoe",
        "Olmoe",
        {**_EXPERT_SETTINGS, **_BIAS, "n_experts": ("num_experts", 64)},
        {"qk_norm": "all"},
        fixed=SILU | {"clip_qkv": (None,)},
        layers=_EXPERTS,
        eps=1e-5,
        router_loss=0.01,
    ),
    Family(
        "gpt_oss",
        "GptOss",
        {
            "n_experts": ("num_local_experts", 128),
            "experts_per_token": ("num_experts_per_tok", 4),
            "swiglu_limit": ("swiglu_limit", 7.0),
            "qkv_bias": ("attention_bias", True),
            "out_bias": ("attention_bias", True),
        },
        {"attention_sinks": True, "expert_bias": True, "normalize_experts": True},
        fixed=SILU | {"swiglu_alpha": (1.702,)},
        layers=_GPT_OSS_LAYERS,
        windows=("sliding_window", "layer_types"),
        window=128,
        is_windowed=lambda given, number: (number + 1) % positive(given, "sliding_window_pattern", 2) != 0,
        head_dim=64,
        eps=1e-5,
        theta=150_000.0,
        default_scaling={"rope_type": "yarn", "factor": 32.0, "truncate": False, ORIGINAL_LENGTH: 4096},
        router_loss=0.001,
    ),
)
FORMATS = {family.kind: family.format() for family in FAMILIES}
