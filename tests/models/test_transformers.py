"""Models against transformers', with random weights: equal logits, text and gradients.

Runs where transformers and torch are installed: `make test-transformers`.
"""

import json
import re

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn
from polyarr.models import (
    GPTModel,
    LlamaModel,
    generate,
    load_adapters,
    load_pretrained,
    save_adapters,
    save_gguf,
    save_pretrained,
)
from polyarr.text import byte_tokenizer
from polyarr.training import PRESETS, new_run
from polyarr.training.checkpoint import save_checkpoint
from polyarr.training.pretrained import export_model, import_model, load_model
from polyarr.training.run import checkpoint_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.filterwarnings("ignore")

_LLAMA = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_GPT2 = {"vocab_size": 97, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 4}
_SMALL = {"vocab_size": 61, "context_length": 64, "emb_dim": 24, "n_heads": 4, "n_layers": 2}
_HEADS = {"n_kv_heads": 2, "hidden_dim": 40, "head_size": 8}
_YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32}
_LONGROPE = {"rope_type": "longrope", "rope_theta": 500.0, "partial_rotary_factor": 0.75}
_DEEP = {**_LLAMA, "num_hidden_layers": 4}  # where two blocks would repeat their last token
_NO_TOKENS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}  # PyTorch has no gradient for padding
CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(**_GPT2),
    "gpt2 untied": lambda: transformers.GPT2Config(**_GPT2, tie_word_embeddings=False),
    "llama 2": lambda: transformers.LlamaConfig(**{**_LLAMA, "num_key_value_heads": 4}),
    "llama 3": lambda: transformers.LlamaConfig(**_LLAMA, rope_parameters=_SCALING, tie_word_embeddings=True),
    "llama with biases": lambda: transformers.LlamaConfig(**_LLAMA, attention_bias=True, mlp_bias=True, head_dim=12),
    "qwen2": lambda: transformers.Qwen2Config(**_LLAMA, rms_norm_eps=1e-5),
    # Like SmolLM2: an odd number of key-value heads, tied embeddings.
    "smollm2": lambda: transformers.LlamaConfig(
        **_LLAMA
        | {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True}
    ),
    "llama, linear": lambda: transformers.LlamaConfig(
        **_LLAMA, rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}
    ),
    "llama, yarn": lambda: transformers.LlamaConfig(**_LLAMA, rope_parameters=_YARN),
    "llama, yarn of parts of pairs": lambda: transformers.LlamaConfig(
        **_LLAMA, rope_parameters={**_YARN, "truncate": False}
    ),
    "llama, dynamic": lambda: transformers.LlamaConfig(
        **_LLAMA, rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0}
    ),
    "mistral": lambda: transformers.MistralConfig(**_LLAMA, sliding_window=9),
    "qwen2, windows": lambda: transformers.Qwen2Config(
        **_LLAMA, use_sliding_window=True, sliding_window=7, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**_DEEP, head_dim=8, attention_bias=True),
    "qwen3, yarn and windows": lambda: transformers.Qwen3Config(
        **_LLAMA, head_dim=12, use_sliding_window=True, sliding_window=7, max_window_layers=1,
        rope_parameters={**_YARN, "mscale": 0.7, "mscale_all_dim": 0.5, "beta_fast": 16},
    ),
    "phi3": lambda: transformers.Phi3Config(
        **_DEEP, **_NO_TOKENS, sliding_window=9, rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5}
    ),
    "phi3, long": lambda: transformers.Phi3Config(
        **_LLAMA, **_NO_TOKENS, original_max_position_embeddings=4,
        rope_parameters={**_LONGROPE, "short_factor": [9.0] * 3, "long_factor": [1.0, 2.0, 3.5]},
    ),
    "phi3, short": lambda: transformers.Phi3Config(
        **_LLAMA, **_NO_TOKENS, original_max_position_embeddings=128, tie_word_embeddings=True,
        rope_parameters={
            **_LONGROPE, "short_factor": [1.0, 2.0, 3.5], "long_factor": [9.0] * 3, "attention_factor": 1.1,
        },
    ),
    "granite": lambda: transformers.GraniteConfig(
        **_DEEP, **_NO_TOKENS, embedding_multiplier=3, attention_multiplier=0.2, residual_multiplier=0.4,
        logits_scaling=1.7, attention_bias=True,
    ),
    "smollm3": lambda: transformers.SmolLM3Config(**_DEEP, **_NO_TOKENS, no_rope_layer_interval=2),
    "smollm3, windows": lambda: transformers.SmolLM3Config(
        **_DEEP, **_NO_TOKENS, no_rope_layers=[1, 0, 0, 1], use_sliding_window=True, sliding_window=7,
    ),
    "seed_oss": lambda: transformers.SeedOssConfig(**_DEEP, **_NO_TOKENS, head_dim=12, mlp_bias=True),
    "ministral": lambda: transformers.MinistralConfig(
        **_LLAMA, **_NO_TOKENS, head_dim=8, sliding_window=7, layer_types=["full_attention", "sliding_attention"]
    ),
    "olmo3": lambda: transformers.Olmo3Config(
        **_DEEP | {"num_hidden_layers": 5}, **_NO_TOKENS, sliding_window=9,
        rope_parameters={
            "full_attention": {**_YARN, "attention_factor": 1.1},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
    "olmo2": lambda: transformers.Olmo2Config(**_DEEP, **_NO_TOKENS),
    "gemma": lambda: transformers.GemmaConfig(**_DEEP, **_NO_TOKENS, head_dim=16),
    "gemma2": lambda: transformers.Gemma2Config(
        **_DEEP, **_NO_TOKENS, head_dim=16, query_pre_attn_scalar=24, sliding_window=8, attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0, attn_implementation="eager",
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **_DEEP | {"num_hidden_layers": 7}, **_NO_TOKENS, head_dim=8, query_pre_attn_scalar=10, sliding_window=8,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
    "mixtral": lambda: transformers.MixtralConfig(**_DEEP, **_NO_TOKENS, sliding_window=9),
    "qwen2_moe": lambda: transformers.Qwen2MoeConfig(
        **_DEEP, **_NO_TOKENS, num_experts=6, moe_intermediate_size=20, shared_expert_intermediate_size=28,
        decoder_sparse_step=2, use_sliding_window=True, sliding_window=7, max_window_layers=1,
    ),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **_DEEP, **_NO_TOKENS, head_dim=12, num_experts=10, num_experts_per_tok=3, moe_intermediate_size=20,
        norm_topk_prob=True, mlp_only_layers=[1], attention_bias=True,
    ),
    "olmoe": lambda: transformers.OlmoeConfig(**_DEEP, **_NO_TOKENS, num_experts=10, num_experts_per_tok=4),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **_DEEP, **_NO_TOKENS, head_dim=12, num_local_experts=6, num_experts_per_tok=3, sliding_window=9,
        rope_parameters={**_YARN, "truncate": False},
    ),
    # Gate and up are often at a limit as low as this.
    "gpt_oss, no scaling": lambda: transformers.GptOssConfig(
        **_LLAMA, **_NO_TOKENS, num_local_experts=5, num_experts_per_tok=4, sliding_window=7, swiglu_limit=0.5,
        attention_bias=False, layer_types=["full_attention", "sliding_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    ),
}  # fmt: skip


def theirs_of(config):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            # All weights have an effect, also biases; blocks outweigh the embedding, or a text repeats its last token.
            scale = 0.1 if name.endswith(("wte.weight", "embed_tokens.weight", "lm_head.weight")) else 0.4
            is_norm = ("norm" in name or "ln_" in name) and name.endswith("weight")
            p.copy_(scale * torch.randn_like(p) + (is_norm and "gemma" not in config.model_type))
    return model


def tokens_of(config, *shape):
    return np.random.default_rng(0).integers(0, config.vocab_size, shape)


@pytest.fixture(params=CONFIGS)
def theirs(request):
    return theirs_of(CONFIGS[request.param]())


def test_logits_gradients_and_greedy_text_are_transformers(theirs, backend, tmp_path):
    theirs.save_pretrained(tmp_path)
    ours = load_pretrained(tmp_path)
    tokens = tokens_of(theirs.config, 2, 40)
    with torch.no_grad():
        wanted = theirs(torch.tensor(tokens)).logits.numpy()
    assert 1 < np.abs(wanted).max() < 10
    np.testing.assert_allclose(ours(pa.asarray(tokens)).numpy(), wanted, rtol=0, atol=1e-4)
    save_pretrained(tmp_path / "again", ours)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        np.testing.assert_allclose(again(torch.tensor(tokens)).logits.numpy(), wanted, rtol=0, atol=1e-5)
    assert load_pretrained(tmp_path / "again").config == ours.config

    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    logits = theirs(torch.tensor(inputs)).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten()).backward()
    grads = pa.grad(lambda m: m.loss(pa.asarray(inputs), pa.asarray(targets)))(ours)
    grads.config, grads.is_gradient = ours.config, False
    save_pretrained(tmp_path / "grads", grads)
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "grads")
    for (name, theirs_p), (same, ours_p) in zip(theirs.named_parameters(), found.named_parameters(), strict=True):
        assert name == same
        largest = float(theirs_p.grad.abs().max())
        np.testing.assert_allclose(ours_p.detach(), theirs_p.grad, rtol=1e-3, atol=1e-4 * largest, err_msg=name)
        assert largest > 1e-4

    prompt = tokens[:1, :5]
    wanted = theirs.generate(
        torch.tensor(prompt), max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
    ).numpy()
    assert len(set(wanted[0, 5:].tolist())) > 4
    np.testing.assert_array_equal(generate(ours, pa.asarray(prompt), 64, temperature=0).numpy(), wanted)


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "gpt_oss"])
@pytest.mark.parametrize("recompute", [False, True])
def test_the_load_balancing_loss_is_transformers(name, recompute, backend, tmp_path):
    """The loss that trains, with gradients of routers; an evaluation has the cross-entropy alone."""
    config = CONFIGS[name]()
    config.output_router_logits, config.router_aux_loss_coef = True, 0.7
    theirs = theirs_of(config)
    theirs.save_pretrained(tmp_path)
    ours, tokens = load_pretrained(tmp_path), tokens_of(config, 2, 40)
    inputs, targets = (pa.asarray(part) for part in (tokens[:, :-1], tokens[:, 1:]))
    logits = theirs(torch.tensor(tokens[:, :-1])).logits.flatten(0, 1)
    plain = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[:, 1:]).flatten())
    assert float(ours.loss(inputs, targets)) == pytest.approx(float(plain), rel=1e-5)
    aux = theirs(torch.tensor(tokens[:, :-1])).aux_loss
    (plain + 0.7 * aux).backward()
    assert float(aux) > 1
    ours.train()
    ours.recompute = recompute
    loss, grads = pa.value_and_grad(lambda m: m.loss(inputs, targets))(ours)
    assert float(loss) == pytest.approx(float(plain + 0.7 * aux), rel=1e-5)
    number = next(number for number, block in enumerate(ours.blocks) if hasattr(block.ff, "router"))
    mlp = theirs.model.layers[number].mlp
    router = mlp.router if name == "gpt_oss" else mlp.gate
    found, wanted = grads.blocks[number].ff.router.weight.numpy(), router.weight.grad
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))
    save_pretrained(tmp_path / "again", ours)
    assert load_pretrained(tmp_path / "again").config == ours.config


@pytest.mark.parametrize("name", ["qwen2_moe", "qwen3_moe"])
def test_gguf_files_of_mixtures_are_read_by_transformers(name, tmp_path):
    """Mixtral and OLMoE it does not read."""
    pytest.importorskip("gguf")
    settings = {"mlp_only_layers": [], "decoder_sparse_step": 1, "use_sliding_window": False}
    config = CONFIGS[name]()
    config.update(settings)
    theirs, tokens = theirs_of(config), tokens_of(config, 2, 40)
    theirs.save_pretrained(tmp_path / "folder")
    with pa.use_backend("numpy"):
        save_gguf(tmp_path / "a.gguf", load_pretrained(tmp_path / "folder"))
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="a.gguf", config=config).eval()
    with torch.no_grad():
        logits, wanted = (model(torch.tensor(tokens)).logits.numpy() for model in (found, theirs))
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_adapters_of_experts_are_read_by_peft(name, tmp_path):
    peft = pytest.importorskip("peft")
    theirs_of(CONFIGS[name]()).save_pretrained(tmp_path / "base")
    tokens = tokens_of(CONFIGS[name](), 2, 40)
    with pa.use_backend("numpy"):
        pa.random.seed(0)
        plain = load_pretrained(tmp_path / "base")
        ours = nn.lora(plain, 3, "expert_*", alpha=5).eval()
        made = {n: 0.2 * pa.random.normal(p.shape) for n, p in ours.named_parameters(only_trainable=True).items()}
        ours = ours.with_arrays(made)
        save_adapters(tmp_path / "ours", ours, base=str(tmp_path / "base"))
        logits, before = (model(pa.asarray(tokens)).numpy() for model in (ours, plain))
    assert np.abs(logits - before).max() > 0.1
    found = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        np.testing.assert_allclose(found(torch.tensor(tokens)).logits.numpy(), logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama 3"])
def test_a_head_beside_settings_that_tie_it_is_kept(name, tmp_path, backend):
    """As transformers does since version 5."""
    config = CONFIGS[name]()
    config.tie_word_embeddings = False
    theirs_of(config).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "tie_word_embeddings": True}))
    theirs, tokens = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval(), tokens_of(config, 2, 40)
    with torch.no_grad():
        wanted = theirs(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(load_pretrained(tmp_path)(pa.asarray(tokens)).numpy(), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama 3", "qwen2"])
def test_an_imported_bfloat16_model_computes_as_transformers_in_either_dtype(name, tmp_path, backend):
    config = CONFIGS[name]()
    theirs_of(config).to(torch.bfloat16).save_pretrained(tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "run")
    tokens, wanted = tokens_of(config, 2, 40), {}
    for dtype in ("float32", "bfloat16"):
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", dtype=dtype).eval()
        with torch.no_grad():
            wanted[dtype] = theirs(torch.tensor(tokens)).logits.float().numpy()
    wide, narrow = load_model(tmp_path / "run", dtype="float32")[0], load_model(tmp_path / "run")[0]
    assert narrow.tok_emb.weight.dtype == pa.bfloat16
    np.testing.assert_allclose(wide(pa.asarray(tokens)).numpy(), wanted["float32"], rtol=0, atol=1e-4)
    errors = [np.abs(logits - wanted["float32"]).max() for logits in
              (narrow(pa.asarray(tokens)).astype("float32").numpy(), wanted["bfloat16"])]  # fmt: skip
    assert 0 < errors[0] < 2 * errors[1]


def test_bfloat16_in_several_files_is_read_exactly(tmp_path):
    theirs = theirs_of(CONFIGS["qwen2"]()).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    with pa.use_backend("numpy"):
        wide, narrow = load_pretrained(tmp_path, dtype="float32"), load_pretrained(tmp_path)
        save_pretrained(tmp_path / "again", narrow, shard_bytes=10_000)
    assert {p.dtype for p in wide.named_parameters().values()} == {pa.float32}
    assert {p.dtype for p in narrow.named_parameters().values()} == {pa.bfloat16}
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again", dtype="auto")
    assert found.dtype == torch.bfloat16
    for (name, p), (same, q) in zip(theirs.named_parameters(), found.named_parameters(), strict=True):
        assert name == same and torch.equal(p, q), name
    rows = theirs.model.layers[1].self_attn.k_proj.weight
    np.testing.assert_array_equal(wide.blocks[1].att.qkv.weight.numpy()[32:48], rows.float().detach().numpy())


@pytest.mark.parametrize(
    "model",
    [
        lambda: GPTModel({**_SMALL, "drop_rate": 0.0, "qkv_bias": False}),
        lambda: GPTModel({**_SMALL, "drop_rate": 0.1, "qkv_bias": True, "tie_embeddings": True}),
        lambda: LlamaModel({**_SMALL, **_HEADS, "qkv_bias": True, "rope_scaling": [8.0, 1.0, 4.0, 16]}),
        lambda: LlamaModel({**_SMALL, **_HEADS, "tie_embeddings": True}),
    ],
)
def test_what_is_exported_loads_in_transformers(model, tmp_path):
    tokens = np.random.default_rng(0).integers(0, 61, (2, 30))
    with pa.use_backend("numpy"):
        pa.random.seed(0)
        ours = pa.tree.map(lambda p: p * 3, model()).eval()
        save_pretrained(tmp_path, ours)
        logits = ours(pa.asarray(tokens)).numpy()
    theirs, told = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values())
    with torch.no_grad():
        np.testing.assert_allclose(theirs.eval()(torch.tensor(tokens)).logits.numpy(), logits, rtol=0, atol=1e-4)


_PARTS = {"c_attn": "qkv", "c_proj": "out", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


@pytest.mark.parametrize(
    ("name", "match", "theirs_match"),
    [("gpt2", "att.*", ["c_attn", "attn.c_proj"]), ("smollm2", "ff.*", ["gate_proj", "up_proj", "down_proj"])],
)
def test_adapters_are_pefts(name, match, theirs_match, backend, tmp_path):
    peft = pytest.importorskip("peft")
    theirs = theirs_of(CONFIGS[name]())
    theirs.save_pretrained(tmp_path)
    settings = {"target_modules": theirs_match, "fan_in_fan_out": name == "gpt2"}
    adapted = peft.get_peft_model(theirs, peft.LoraConfig(r=4, lora_alpha=6, **settings))
    with torch.no_grad():
        for part, p in adapted.named_parameters():
            if "lora_B" in part:
                p.copy_(0.2 * torch.randn_like(p))
    pairs = {}  # our name of each of their arrays
    for theirs_name, p in adapted.named_parameters():
        if "lora_" in theirs_name:
            number, part, half = re.search(r"\.(\d+)\..*\.(\w+)\.lora_([AB])\.", theirs_name).groups()
            pairs[f"blocks.{number}.{match[:-2]}.{_PARTS[part]}.{half.lower()}"] = p
    ours = nn.lora(load_pretrained(tmp_path), 4, match, alpha=6)
    assert set(ours.named_parameters(only_trainable=True)) == pairs.keys()
    held = {name: pairs[name].detach().numpy() if name in pairs else p for name, p in ours.named_parameters().items()}
    ours.load_parameters(held)

    tokens = tokens_of(theirs.config, 2, 40)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    logits = adapted(torch.tensor(inputs)).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten()).backward()
    logits = logits.detach().numpy()
    np.testing.assert_allclose(ours(pa.asarray(inputs)).numpy(), logits, rtol=0, atol=1e-4)
    grads = pa.grad(lambda m: m.loss(pa.asarray(inputs), pa.asarray(targets)))(ours)
    for name, g in grads.named_parameters().items():
        largest = float(pairs[name].grad.abs().max())
        np.testing.assert_allclose(g.numpy(), pairs[name].grad, rtol=1e-3, atol=1e-4 * largest, err_msg=name)
        assert largest > 1e-4
    save_pretrained(tmp_path / "merged", nn.merge_lora(ours))
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        np.testing.assert_allclose(found(torch.tensor(inputs)).logits.numpy(), logits, rtol=0, atol=1e-4)

    adapted.save_pretrained(tmp_path / "theirs")
    read = load_adapters(tmp_path / "theirs", load_pretrained(tmp_path))
    np.testing.assert_allclose(read(pa.asarray(inputs)).numpy(), logits, rtol=0, atol=1e-4)
    save_adapters(tmp_path / "ours", ours)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    found = peft.PeftModel.from_pretrained(plain, tmp_path / "ours").eval()
    with torch.no_grad():
        np.testing.assert_allclose(found(torch.tensor(inputs)).logits.numpy(), logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["q_proj", "k_proj", "v_proj", "o_proj"]], ids=len)
def test_pefts_adapters_of_queries_keys_and_values_are_one(targets, backend, tmp_path):
    """Imported and exported: PEFT computes the same results with polyarr's files."""
    peft = pytest.importorskip("peft")
    theirs = theirs_of(CONFIGS["llama 3"]())
    theirs.save_pretrained(tmp_path)
    how = peft.LoraConfig(r=3, lora_alpha=5, target_modules=targets, use_rslora=True)
    adapted = peft.get_peft_model(theirs, how).eval()
    with torch.no_grad():
        for part, p in adapted.named_parameters():
            if "lora_B" in part:
                p.copy_(0.2 * torch.randn_like(p))
        tokens = tokens_of(theirs.config, 2, 40)
        logits = adapted(torch.tensor(tokens)).logits.numpy()
    adapted.save_pretrained(tmp_path / "theirs")
    ours = load_adapters(tmp_path / "theirs", load_pretrained(tmp_path))
    np.testing.assert_allclose(ours(pa.asarray(tokens)).numpy(), logits, rtol=0, atol=1e-4)
    save_adapters(tmp_path / "ours", ours)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    found = peft.PeftModel.from_pretrained(plain, tmp_path / "ours").eval()
    with torch.no_grad():
        np.testing.assert_allclose(found(torch.tensor(tokens)).logits.numpy(), logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("scaling", [None, {**_LONGROPE, "short_factor": [1.0] * 3, "long_factor": [2.0] * 3}])
@pytest.mark.parametrize("targets", [["gate_up_proj"], "all-linear"])
def test_adapters_of_phi3_are_pefts(targets, scaling, tmp_path):
    """Also where save_pretrained would write the base model as a llama, with other layers."""
    peft = pytest.importorskip("peft")
    theirs = theirs_of(transformers.Phi3Config(**_DEEP, **_NO_TOKENS, rope_parameters=scaling))
    theirs.save_pretrained(tmp_path / "base")
    adapted = peft.get_peft_model(theirs, peft.LoraConfig(r=3, lora_alpha=5, target_modules=targets)).eval()
    with torch.no_grad():
        for part, p in adapted.named_parameters():
            if "lora_B" in part:
                p.copy_(0.2 * torch.randn_like(p))
        tokens = tokens_of(theirs.config, 2, 40)
        logits = adapted(torch.tensor(tokens)).logits.numpy()
    adapted.save_pretrained(tmp_path / "theirs")
    with pa.use_backend("numpy"):
        plain = load_pretrained(tmp_path / "base")
        ours = load_adapters(tmp_path / "theirs", plain)
        np.testing.assert_allclose(ours(pa.asarray(tokens)).numpy(), logits, rtol=0, atol=1e-4)
        save_adapters(tmp_path / "ours", ours, base=str(tmp_path / "base"))
        made = nn.lora(plain, 2, "ff.*", alpha=6).eval()  # whose gate and up have first matrices of their own
        pa.random.seed(0)
        changed = {n: 0.2 * pa.random.normal(p.shape) for n, p in made.named_parameters(only_trainable=True).items()}
        made.load_parameters({**made.named_parameters(), **changed})
        save_adapters(tmp_path / "made", made, base=str(tmp_path / "base"))
        wanted = made(pa.asarray(tokens)).numpy()
    for name, expected in {"ours": logits, "made": wanted}.items():
        found = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / name).eval()
        with torch.no_grad():
            np.testing.assert_allclose(found(torch.tensor(tokens)).logits.numpy(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["llama 3", "qwen2"])
@pytest.mark.parametrize(
    ("targets", "match"), [(["q_proj"], "att.q"), (["v_proj"], "att.v"), (["q_proj", "v_proj"], "att.[qv]")]
)
def test_adapters_of_queries_or_values_alone_are_pefts(name, targets, match, tmp_path):
    """Logits, gradients, and a round trip through polyarr's files with equal arrays."""
    peft = pytest.importorskip("peft")
    theirs = theirs_of(CONFIGS[name]())
    theirs.save_pretrained(tmp_path)
    adapted = peft.get_peft_model(theirs, peft.LoraConfig(r=4, lora_alpha=6, target_modules=targets))
    with torch.no_grad():
        for part, p in adapted.named_parameters():
            if "lora_B" in part:
                p.copy_(0.2 * torch.randn_like(p))
    adapted.save_pretrained(tmp_path / "theirs")
    with pa.use_backend("numpy"):
        pa.random.seed(0)
        plain = load_pretrained(tmp_path)
        ours, made = load_adapters(tmp_path / "theirs", plain), nn.lora(plain, 4, match, alpha=6)
        shapes = ({n: p.shape for n, p in m.named_parameters(only_trainable=True).items()} for m in (ours, made))
        assert next(shapes) == next(shapes)
        tokens = tokens_of(theirs.config, 2, 40)
        inputs, targets_ = tokens[:, :-1], tokens[:, 1:]
        logits = adapted(torch.tensor(inputs)).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets_).flatten()).backward()
        np.testing.assert_allclose(ours(pa.asarray(inputs)).numpy(), logits.detach(), rtol=0, atol=1e-4)
        grads = pa.grad(lambda m: m.loss(pa.asarray(inputs), pa.asarray(targets_)))(ours).named_parameters()
        parts = [(part, p.grad.numpy()) for part, p in adapted.named_parameters() if "lora_" in part]
        for number in range(2):
            for half in "AB":
                mine = [g for part, g in parts if f".{number}." in part and f"lora_{half}" in part]
                found, wanted = grads[f"blocks.{number}.att.qkv.{half.lower()}"].numpy(), np.concatenate(mine)
                np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())
        save_adapters(tmp_path / "ours", ours, base=str(tmp_path))
    first, second = (safetensors_torch.load_file(tmp_path / one / "adapter_model.safetensors") for one in
                     ("theirs", "ours"))  # fmt: skip
    assert first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)
    found = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "ours").eval()  # it finds them by the base model
    with torch.no_grad():
        np.testing.assert_allclose(found(torch.tensor(inputs)).logits, logits.detach(), rtol=0, atol=1e-5)


def test_a_tokenizer_goes_in_and_out_with_its_model(tmp_path):
    pytest.importorskip("tokenizers")
    config = transformers.LlamaConfig(**{**_LLAMA, "vocab_size": 300})
    theirs_of(config).save_pretrained(tmp_path / "theirs")
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer().to_json())
    before = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), eos_token="<|endoftext|>"
    )
    before.save_pretrained(tmp_path / "theirs")
    with pa.use_backend("numpy"):
        import_model(tmp_path / "theirs", tmp_path / "run")
        export_model(tmp_path / "run", tmp_path / "out")
    after, text = transformers.AutoTokenizer.from_pretrained(tmp_path / "out"), "naïve 🦊"
    assert after(text).input_ids == before(text).input_ids and after.eos_token_id == before.eos_token_id is not None


def test_a_tokenizer_of_characters_goes_out_with_its_model(tmp_path):
    text = "  naïve 🦊\r\n\n<s> don ' t ."
    recipe = PRESETS["demo"].changed(model={"emb_dim": 8, "n_heads": 1, "n_layers": 1, "context_length": 8})
    with pa.use_backend("numpy"):
        run = new_run(text * 9, recipe, 1)
        save_checkpoint(tmp_path, "best", checkpoint_of(run, None))
        export_model(tmp_path, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    tokens = run.tokenizer.encode(text).tolist()
    assert theirs(text).input_ids == tokens and theirs.decode(tokens) == text
    assert len(theirs) == run.tokenizer.vocab_size


# ---- the tutorial's GPT, as its state_dict names its parts ---------------------------------------------------------


class _Norm(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.scale, self.shift = (torch.nn.Parameter(torch.randn(size)) for _ in range(2))

    def forward(self, x):
        return torch.nn.functional.layer_norm(x, self.scale.shape, self.scale, self.shift)


class _Attention(torch.nn.Module):
    def __init__(self, size, heads, length):
        super().__init__()
        self.heads = heads
        self.W_query, self.W_key, self.W_value = (torch.nn.Linear(size, size, bias=False) for _ in range(3))
        self.out_proj = torch.nn.Linear(size, size)
        self.register_buffer("mask", torch.triu(torch.ones(length, length), diagonal=1))

    def forward(self, x):
        b, t, size = x.shape
        made = (layer(x) for layer in (self.W_query, self.W_key, self.W_value))
        parts = (a.view(b, t, self.heads, -1).transpose(1, 2) for a in made)
        y = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out_proj(y.transpose(1, 2).reshape(b, t, size))


class _Block(torch.nn.Module):
    def __init__(self, size, heads, length):
        super().__init__()
        self.att, self.norm1, self.norm2 = _Attention(size, heads, length), _Norm(size), _Norm(size)
        up, down = torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)
        self.ff = torch.nn.Module()
        self.ff.layers = torch.nn.Sequential(up, torch.nn.GELU(approximate="tanh"), down)

    def forward(self, x):
        x = x + self.att(self.norm1(x))
        return x + self.ff.layers(self.norm2(x))


class _Tutorial(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        size, length = config["emb_dim"], config["context_length"]
        self.tok_emb = torch.nn.Embedding(config["vocab_size"], size)
        self.pos_emb = torch.nn.Embedding(length, size)
        self.trf_blocks = torch.nn.Sequential(*(_Block(size, config["n_heads"], length) for _ in range(2)))
        self.final_norm = _Norm(size)
        self.out_head = torch.nn.Linear(size, config["vocab_size"], bias=False)

    def forward(self, tokens):
        x = self.tok_emb(tokens) + self.pos_emb(torch.arange(tokens.shape[1]))
        return self.out_head(self.final_norm(self.trf_blocks(x)))


def test_the_tutorials_state_dict_is_read_and_written(backend, tmp_path):
    config = {**_SMALL, "drop_rate": 0.1, "qkv_bias": False}
    torch.manual_seed(0)
    theirs, tokens = _Tutorial(config), np.random.default_rng(0).integers(0, 61, (2, 30))
    safetensors_torch.save_file(theirs.state_dict(), tmp_path / "gpt.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = load_pretrained(tmp_path / "gpt.safetensors")
    with torch.no_grad():
        wanted = theirs(torch.tensor(tokens)).numpy()
    np.testing.assert_allclose(ours(pa.asarray(tokens)).numpy(), wanted, rtol=0, atol=1e-4)
    save_pretrained(tmp_path / "again", ours, format="tutorial")
    found = safetensors_torch.load_file(tmp_path / "again" / "model.safetensors")
    lacking, more = theirs.load_state_dict(found, strict=False)
    assert not more and all(name.endswith("att.mask") for name in lacking)
    assert all(torch.equal(p, theirs.state_dict()[name]) for name, p in found.items())
