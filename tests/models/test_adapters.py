"""Low-rank adapters in PEFT's file format: round trips, and errors for damaged files and other kinds of adapters.

test_transformers.py compares them with PEFT itself.
"""

import json

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn
from polyarr.models import GPTModel, LlamaModel, PretrainedError, load_adapters, save_adapters, save_pretrained
from polyarr.models.adapters import CONFIG, WEIGHTS
from polyarr.models.gpt import GPTConfig
from polyarr.models.llama import LlamaConfig
from polyarr.nn import LoRALinear
from polyarr.training.pretrained import import_model, load_model

st = pytest.importorskip("safetensors.numpy")
pytestmark = pytest.mark.usefixtures("on_numpy")
SIZES = {"vocab_size": 31, "context_length": 16, "emb_dim": 24, "n_heads": 4, "n_layers": 2}
TOKENS = np.arange(12)[None] % 31


@pytest.fixture
def on_numpy(on_numpy):
    with pa.use_backend(on_numpy):
        yield on_numpy


def model_of(name):
    pa.random.seed(3)
    if name == "gpt2":
        return GPTModel(GPTConfig(**SIZES, drop_rate=0.0, qkv_bias=True)).eval()
    experts = {"n_experts": 3, "experts_per_token": 2, "normalize_experts": True} if name == "experts" else {}
    return LlamaModel(LlamaConfig(**SIZES, n_kv_heads=2, hidden_dim=40, head_size=8, **experts)).eval()


def adapted(model, rank=3, match="att.*", alpha=5.0):
    """Return a model with nonzero adapters."""
    found = nn.lora(model, rank, match, alpha=alpha).eval()
    rng = np.random.default_rng(1)
    return found.load_parameters(
        {
            name: rng.standard_normal(p.shape).astype("float32") if name.endswith((".a", ".b")) else p
            for name, p in found.named_parameters().items()
        }
    )


def logits(model):
    return model(pa.asarray(TOKENS)).numpy()


@pytest.mark.parametrize("match", ["att.*", "*", "att.[qv]", "att.k"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "experts"])
def test_what_is_written_is_read_again(name, match, tmp_path):
    model = model_of(name)
    before = adapted(model, match=match)
    save_adapters(tmp_path / "a", before)
    after = load_adapters(tmp_path / "a", model)
    assert not np.allclose(logits(before), logits(model), atol=1e-2)
    np.testing.assert_array_equal(logits(after), logits(before))
    if match in (parts := {"att.[qv]": {"q_proj", "v_proj"}, "att.k": {"k_proj"}}):
        named = {name.rpartition(".lora")[0][-6:] for name in st.load_file(tmp_path / "a" / WEIGHTS)}
        assert named == ({"c_attn"} if name == "gpt2" else parts[match])
        if name == "gpt2":
            return  # whose queries, keys and values are one layer in those files, too
    kept = {n: p.shape for n, p in before.named_parameters(only_trainable=True).items()}
    assert {n: p.shape for n, p in after.named_parameters(only_trainable=True).items()} == kept


def test_dropout_and_the_scale_of_rslora_are_read(tmp_path):
    model = model_of("llama")
    save_adapters(tmp_path, nn.lora(model, 4, alpha=6.0, dropout=0.25))
    for is_rank_stabilized, scale in ((False, 6.0 / 4), (True, 6.0 / 2)):
        config = json.loads((tmp_path / CONFIG).read_text()) | {"use_rslora": is_rank_stabilized}
        (tmp_path / CONFIG).write_text(json.dumps(config))
        found = load_adapters(tmp_path, model).blocks[0].att.qkv
        assert (config["lora_alpha"], found.scale, found.drop.rate) == (6.0, scale, 0.25)


def test_one_adapter_for_each_of_queries_keys_and_values_becomes_one_for_all(tmp_path):
    """Separate adapters are merged into one; layers without PEFT adapters stay unchanged."""
    model = model_of("llama")
    save_adapters(tmp_path / "a", adapted(model, match="att.qkv"))
    tensors, rng = st.load_file(tmp_path / "a" / WEIGHTS), np.random.default_rng(2)
    tensors = {k: rng.standard_normal(v.shape).astype("float32") for k, v in tensors.items() if "k_proj" not in k}
    st.save_file(tensors, tmp_path / "a" / WEIGHTS)
    found = load_adapters(tmp_path / "a", model)
    for number, block in enumerate(found.blocks):
        at = f"base_model.model.model.layers.{number}.self_attn"
        parts = [tensors[f"{at}.{n}.lora_B.weight"] @ tensors[f"{at}.{n}.lora_A.weight"] for n in ("q_proj", "v_proj")]
        change = np.concatenate([parts[0], np.zeros_like(parts[1]), parts[1]]) * 5 / 3
        layer = block.att.qkv
        assert type(layer) is LoRALinear and type(block.att.out) is nn.Linear and layer.a.shape == (6, 24)
        np.testing.assert_allclose(layer.weight.numpy() - layer.base.weight.numpy(), change, rtol=0, atol=1e-5)
    save_adapters(tmp_path / "b", found)
    np.testing.assert_array_equal(logits(load_adapters(tmp_path / "b", model)), logits(found))


def phi3():
    scaling = [1.0, 1.0, 4.0, 8, "longrope", 1.2, [1.0] * 4, [2.0] * 4]
    pa.random.seed(3)
    return LlamaModel(LlamaConfig(**SIZES, n_kv_heads=2, hidden_dim=40, head_size=8, rope_scaling=scaling)).eval()


@pytest.mark.parametrize("match", ["*", "ff.*", "ff.up", "att.v"])
def test_adapters_of_gate_and_up_are_one_in_phi3(match, tmp_path):
    model = phi3()
    before = adapted(model, match=match)
    save_adapters(tmp_path / "a", before)
    named = {name.split(".lora")[0].rpartition(".")[2] for name in st.load_file(tmp_path / "a" / WEIGHTS)}
    wanted = {"att.v": {"qkv_proj"}, "ff.up": {"gate_up_proj"}, "ff.*": {"gate_up_proj", "down_proj"}}
    assert named == wanted.get(match, {"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"})
    after = load_adapters(tmp_path / "a", model)
    np.testing.assert_allclose(logits(after), logits(before), rtol=0, atol=1e-4)
    assert not np.allclose(logits(before), logits(model), atol=1e-2)
    save_adapters(tmp_path / "b", after)  # whose gate and up have a common first matrix
    first, again = (st.load_file(tmp_path / name / WEIGHTS) for name in "ab")
    assert first.keys() == again.keys() and all(np.array_equal(first[name], again[name]) for name in first)


def test_layers_are_named_as_in_the_base_model(tmp_path):
    """A Phi-3 without longrope is written as a llama, whose layers have other names."""
    model = model_of("llama")
    (tmp_path / "base").mkdir()
    settings = {"model_type": "phi3"}
    (tmp_path / "base" / "config.json").write_text(json.dumps(settings))
    before = adapted(model)
    save_adapters(tmp_path / "a", before, base=str(tmp_path / "base"))
    save_adapters(tmp_path / "b", before, base="microsoft/phi-4")
    assert any("qkv_proj" in name for name in st.load_file(tmp_path / "a" / WEIGHTS))
    assert any("q_proj" in name for name in st.load_file(tmp_path / "b" / WEIGHTS))
    for name in "ab":
        np.testing.assert_allclose(logits(load_adapters(tmp_path / name, model)), logits(before), rtol=0, atol=1e-4)


def test_ranks_and_scales_that_differ_become_one(tmp_path):
    model = model_of("gpt2")
    found = adapted(model, rank=4, match="ff.*")
    layer = found.blocks[0].ff.up
    layer.a, layer.b, layer.scale = layer.a[:2], layer.b[:, :2], 3.0
    save_adapters(tmp_path / "a", found)
    np.testing.assert_allclose(logits(load_adapters(tmp_path / "a", model)), logits(found), rtol=0, atol=1e-4)


def test_an_imported_model_has_them_in_its_weights(tmp_path):
    model = model_of("llama")
    save_pretrained(tmp_path / "base", model)
    save_adapters(tmp_path / "a", adapted(model))
    saved = import_model(tmp_path / "base", tmp_path / "run", adapters=tmp_path / "a")
    assert saved.info["base"] is None  # no other folder has these weights
    found, _ = load_model(tmp_path / "run")
    np.testing.assert_allclose(logits(found), logits(adapted(model)), rtol=0, atol=1e-4)


def change_config(**changes):
    return lambda config, tensors: config.update(changes)


def drop(half):
    return lambda config, tensors: tensors.pop(next(n for n in tensors if half in n))


def put(name, value):
    def change(config, tensors):
        at = next(n for n in tensors if name in n) if name in ("lora_A", "lora_B") else name
        tensors[at] = value(tensors.get(at))

    return change


WRONG = {
    "another kind": (change_config(peft_type="IA3"), "its peft_type is 'IA3'; polyarr's adapters have 'LORA'"),
    "dora": (change_config(use_dora=True), "its use_dora is True"),
    "patterns": (change_config(rank_pattern={"q_proj": 2}), "its rank_pattern is {'q_proj': 2}"),
    "biases": (change_config(bias="all"), "its bias is 'all'"),
    "rank": (change_config(r=True), "its r is True; it must be a positive integer"),
    "alpha": (change_config(lora_alpha=-1), "its lora_alpha is -1; it must be a positive number"),
    "dropout": (change_config(lora_dropout="x"), "its lora_dropout is 'x'; it must be from 0 to below 1"),
    "another rank": (change_config(r=4), "lora_A.weight is [3, 24] and must be [4, 24]"),
    "half": (drop("lora_B"), "missing base_model.model.transformer.h.0.attn.c_attn.lora_B.weight"),
    "unknown": (put("base_model.model.lm_tail.lora_A.weight", lambda _: np.zeros(3, "f4")), "unknown base_model"),
    "nan": (put("lora_A", lambda a: a * np.float32("nan")), "holds numbers that are not finite"),
    "integers": (put("lora_A", lambda a: a.astype("int32")), "is of I32 and must be of F64"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_one_line(change, message, tmp_path):
    model = model_of("gpt2")
    save_adapters(tmp_path, adapted(model))
    config, tensors = json.loads((tmp_path / CONFIG).read_text()), st.load_file(tmp_path / WEIGHTS)
    change(config, tensors)
    (tmp_path / CONFIG).write_text(json.dumps(config))
    st.save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(PretrainedError) as raised:
        load_adapters(tmp_path, model)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_damaged_files_are_one_error_each(tmp_path):
    """Files truncated anywhere, or with changed bytes, are refused."""
    model, rng = model_of("llama"), np.random.default_rng(5)
    save_adapters(tmp_path, adapted(model))
    for name, step in ((CONFIG, 40), (WEIGHTS, 2000)):
        whole = (tmp_path / name).read_bytes()
        for cut in range(0, len(whole) - 1, step):
            for damaged in (whole[:cut], whole[:cut] + rng.bytes(3) + whole[cut + 3 :]):
                (tmp_path / name).write_bytes(damaged)
                try:
                    load_adapters(tmp_path, model)  # numbers have no checksum here
                except (PretrainedError, FileNotFoundError) as error:
                    assert "\n" not in str(error)
        (tmp_path / name).write_bytes(whole)
    load_adapters(tmp_path, model)


def test_what_is_not_there_or_has_adapters_already(tmp_path):
    model = model_of("gpt2")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        load_adapters(tmp_path / "none", model)
    with pytest.raises(ValueError, match=r"the model has no adapters; nn\.lora, or train --lora, gives it some"):
        save_adapters(tmp_path, model)
    save_adapters(tmp_path, adapted(model))
    with pytest.raises(FileExistsError, match="it holds adapters already"):
        save_adapters(tmp_path, adapted(model))
    with pytest.raises(ValueError, match="the model has adapters already"):
        load_adapters(tmp_path, adapted(model))
    (tmp_path / WEIGHTS).rename(tmp_path / "adapter_model.bin")
    with pytest.raises(FileNotFoundError, match=r"adapter_model\.bin is pickled, which is never read"):
        load_adapters(tmp_path, model)
    with pytest.raises(ValueError, match="Linear as 'huggingface'; it must be one of polyarr's models"):
        load_adapters(tmp_path, nn.Linear(2, 2))
