"""GGUF files: models and tokenizers are read back, as the library gguf has them, and damage is one line."""

import random
import re
import shlex
import struct
import tracemalloc

import numpy as np
import pytest

import polyarr as pa
from polyarr.cli import main
from polyarr.core import current
from polyarr.models import GPTModel, LlamaModel, PretrainedError, load_pretrained, save_gguf, save_pretrained
from polyarr.saving.gguf_file import GGUFFile
from polyarr.text import CharTokenizer, NumberTokenizer, byte_tokenizer, load_tokenizer
from polyarr.training.pretrained import load_model
from tests.helpers import family_tokenizers
from tests.helpers.root import ROOT

gguf = pytest.importorskip("gguf")

PAGE = ROOT / "docs" / "run-gpt2-or-a-llama.md"
SIZES = {"vocab_size": 13, "context_length": 8, "emb_dim": 32, "n_heads": 4, "n_layers": 2}
LLAMA = {**SIZES, "n_kv_heads": 2, "hidden_dim": 64, "head_size": 8}
GEMMA = {"activation": "gelu_tanh", "norm_offset": 1.0, "embedding_scale": 32**0.5, "tie_embeddings": True}
EXPERTS = {"n_experts": 3, "experts_per_token": 2}
MODELS = {
    "gpt2": lambda: GPTModel({**SIZES, "drop_rate": 0.0, "qkv_bias": True, "tie_embeddings": True}),
    "llama": lambda: LlamaModel({**LLAMA, "rope_theta": 5e5, "rope_scaling": [8.0, 1.0, 4.0, 8192]}),
    "llama, biases": lambda: LlamaModel({**LLAMA, "qkv_bias": True, "out_bias": True, "ff_bias": True}),
    "llama, linear": lambda: LlamaModel({**LLAMA, "rope_scaling": [4.0, 1.0, 4.0, 8192, "linear"]}),
    "qwen2": lambda: LlamaModel({**LLAMA, "qkv_bias": True, "tie_embeddings": True, "norm_eps": 1e-6}),
    "qwen2, yarn": lambda: LlamaModel(
        {**LLAMA, "qkv_bias": True, "rope_scaling": [4.0, 1.0, 32.0, 32, "yarn", float(0.1 * np.log(4) + 1)]}
    ),
    "qwen3": lambda: LlamaModel({**LLAMA, "qk_norm": "head", "head_size": 16}),
    "olmo2": lambda: LlamaModel({**LLAMA, "qk_norm": "all", "norm_place": "after"}),
    "gemma": lambda: LlamaModel({**LLAMA, **GEMMA}),
    "gemma2": lambda: LlamaModel(
        {**LLAMA, **GEMMA, "norm_place": "both", "windows": [4, 0], "attention_softcap": 5.0, "logit_softcap": 3.0}
    ),
    "gemma3": lambda: LlamaModel(
        {**LLAMA, **GEMMA, "norm_place": "both", "windows": [4, 4], "qk_norm": "head", "local_rope_theta": 9.0}
    ),
    "mixtral": lambda: LlamaModel({**LLAMA, **EXPERTS, "normalize_experts": True}),
    "qwen2moe": lambda: LlamaModel({**LLAMA, **EXPERTS, "qkv_bias": True, "shared_dim": 96, "expert_dim": 32}),
    "qwen3moe": lambda: LlamaModel(
        {**LLAMA, **EXPERTS, "qk_norm": "head", "expert_dim": 32, "normalize_experts": True, "tie_embeddings": True}
    ),
    "olmoe": lambda: LlamaModel({**LLAMA, **EXPERTS, "qk_norm": "all"}),
    "gpt-oss": lambda: LlamaModel(
        {
            **LLAMA, **EXPERTS, "normalize_experts": True, "expert_bias": True, "swiglu_limit": 7.0, "windows": [4, 0],
            "attention_sinks": True, "qkv_bias": True, "out_bias": True, "rope_theta": 150_000.0,
            "rope_scaling": [32.0, 1.0, 32.0, 8, "yarn", float(0.1 * np.log(32) + 1), [], [], False],
        }
    ),
}
TEXTS = ["the quick  brown fox;\n\n 1234's \tEnd. ", "naïve café 東京 🦊", " lead", "a<|im_end|>b", "it's IT'S we'LL"]


@pytest.fixture(autouse=True)
def _on_numpy(on_numpy, monkeypatch):
    monkeypatch.setattr(current, "_default", current._default)  # which commands set
    pa.random.seed(0)


@pytest.fixture
def file(tmp_path):
    """A complete file with a tokenizer, to be damaged."""
    family_tokenizers.write(tmp_path / "words", "llama 2")
    tokenizer = load_tokenizer(tmp_path / "words")
    model = LlamaModel({**LLAMA, "vocab_size": tokenizer.vocab_size + 3})
    save_gguf(tmp_path / "model.gguf", model, type="Q8_0", tokenizer=tokenizer)
    return tmp_path / "model.gguf"


def scattered(model):
    """Return a model whose norms and biases are not all ones and zeros."""
    draw = np.random.default_rng(0)
    return pa.tree.map(lambda p: p + pa.asarray(draw.normal(size=p.shape).astype("float32") * 0.1), model)


def differences(model, other):
    left, right = model.named_parameters(), other.named_parameters()
    assert left.keys() == right.keys()
    return {name: np.abs(left[name].numpy() - right[name].numpy().astype("float32")).max() for name in left}


def written(path, arch, tensors, alignment=None, **metadata):
    """Write a file with the library alone."""
    writer = gguf.GGUFWriter(path, arch)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, value in metadata.items():
        writer.add_key_value(key.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    for name, a in tensors.items():
        writer.add_tensor(name, a)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refusal(path, load=load_pretrained):
    with pytest.raises(ValueError) as caught:
        load(path)
    text = str(caught.value)
    assert str(path) in text and "\n" not in text and len(text) < 700
    return text


# ---- models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_is_read_back(name, tmp_path):
    model = scattered(MODELS[name]())
    save_gguf(tmp_path / "a.gguf", model)
    found = load_pretrained(tmp_path / "a.gguf")
    assert found.config == model.config and not found.training
    assert max(differences(found, model).values()) < 1e-6  # norms of Gemma are rounded when 1 is added
    tokens = pa.asarray(np.arange(8)[None] % 13)
    np.testing.assert_allclose(found(tokens).numpy(), model.eval()(tokens).numpy(), atol=1e-5)


@pytest.mark.parametrize(("type", "bound"), [("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 1e-2), ("Q4_0", 0.1)])
def test_tensors_are_those_of_the_library(type, bound, tmp_path):
    model = scattered(MODELS["qwen2"]())
    save_gguf(tmp_path / "a.gguf", model, type=type)
    file, reader = GGUFFile(tmp_path / "a.gguf"), gguf.GGUFReader(tmp_path / "a.gguf")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds["blk.0.ffn_up.weight"] == type and kinds["output_norm.weight"] == kinds["blk.0.attn_q.bias"] == "F32"
    for tensor in reader.tensors:
        due = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(file.array(tensor.name, np.dtype("float32")), due)
    found = load_pretrained(tmp_path / "a.gguf", dtype="float32")
    assert 0 < max(differences(found, model).values()) < bound
    narrow = load_pretrained(tmp_path / "a.gguf")
    assert {leaf.dtype.name for leaf in narrow.named_parameters().values()} == {"bfloat16"}


@pytest.mark.parametrize(("kind", "number"), [("q8_0", 7), ("q4_0", 2), (None, 0)])
def test_a_file_says_of_what_type_its_matrices_are(kind, number, tmp_path):
    model = MODELS["llama"]()
    save_gguf(tmp_path / "a.gguf", model.quantized(kind) if kind else model)
    assert GGUFFile(tmp_path / "a.gguf").metadata["general.file_type"] == number


def test_tensors_may_be_aligned_otherwise(tmp_path):
    given = {"a": np.arange(3, dtype=np.float32), "b": np.ones(5, np.float32)}
    found = GGUFFile(written(tmp_path / "a.gguf", "llama", given, alignment=256))
    assert all(np.array_equal(found.array(name, np.float32), a) for name, a in given.items())


@pytest.mark.parametrize(("name", "layers", "windows"), [("gemma2", 46, [4, 0]), ("gemma3", 62, [4, 4, 4, 4, 4, 0])])
def test_the_largest_gemmas_scale_scores_by_the_width_per_head(name, layers, windows, tmp_path):
    """llama.cpp knows them by their number of blocks, as a file does not say so."""
    changed = {"n_layers": layers, "windows": windows, "head_size": 16, "attention_scale": (32 / 4) ** -0.5}
    save_gguf(tmp_path / "a.gguf", LlamaModel({**vars(MODELS[name]().config), **changed}))
    assert load_pretrained(tmp_path / "a.gguf").config.attention_scale == changed["attention_scale"]


def test_rows_of_other_lengths_than_blocks_are_float16(tmp_path):
    save_gguf(tmp_path / "a.gguf", LlamaModel({**LLAMA, "hidden_dim": 12}), type="Q8_0")
    kinds = {name: entry.kind.name for name, entry in GGUFFile(tmp_path / "a.gguf").entries.items()}
    assert kinds["blk.1.ffn_down.weight"] == "F16" and kinds["blk.1.ffn_up.weight"] == "Q8_0"


def test_rows_of_queries_and_norms_are_as_llama_cpp_has_them(tmp_path):
    for name, model in (("llama", MODELS["llama"]()), ("gemma", MODELS["gemma"]())):
        model = scattered(model)
        save_gguf(tmp_path / f"{name}.gguf", model)
        stored = {t.name: t.data for t in gguf.GGUFReader(tmp_path / f"{name}.gguf").tensors}
        own = model.named_parameters()
        queries = own["blocks.1.att.qkv.weight"].numpy()[:32]  # 4 heads of 8
        order = [head * 8 + half * 4 + pair for head in range(4) for pair in range(4) for half in range(2)]
        np.testing.assert_array_equal(stored["blk.1.attn_q.weight"], queries[order] if name == "llama" else queries)
        offset = model.config.norm_offset
        np.testing.assert_allclose(stored["output_norm.weight"], own["final_norm.weight"].numpy() + offset, atol=1e-6)


def test_llama_3_has_its_scaling_as_a_tensor(tmp_path):
    save_gguf(tmp_path / "a.gguf", MODELS["llama"]())
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    (found,) = (tensor.data for tensor in reader.tensors if tensor.name == "rope_freqs.weight")
    # Pair i rotates 8192 / 2 pi * theta^(-i / 4) times. More than 4 times is fast, fewer than 1 slow.
    share = (8192 / (2 * np.pi) * 5e5**-0.5 - 1) / (4 - 1)
    np.testing.assert_allclose(found, [1, 1, 1 / (share + (1 - share) / 8), 8], rtol=1e-6)
    entries = {t.name: t.data for t in reader.tensors} | {"rope_freqs.weight": np.float32([1, 2, 3, 8])}
    keys = {k.replace(".", "__"): f.contents() for k, f in reader.fields.items() if k.startswith("llama.")}
    assert "rope_freqs.weight is not the scaling of Llama 3.1" in refusal(
        written(tmp_path / "b.gguf", "llama", entries, **keys)
    )


def test_experts_are_one_tensor_as_llama_cpp_has_them(tmp_path):
    """Routers and the gate of a shared expert are float32 in every file, and the gate is a vector."""
    model = scattered(MODELS["qwen2moe"]())
    save_gguf(tmp_path / "a.gguf", model, type="Q8_0")
    reader, own = gguf.GGUFReader(tmp_path / "a.gguf"), model.named_parameters()
    stored = {tensor.name.removeprefix("blk.1."): tensor for tensor in reader.tensors}
    for theirs, ours, type in (
        ("ffn_gate_exps", "expert_gate", "Q8_0"), ("ffn_up_exps", "expert_up", "Q8_0"),
        ("ffn_down_exps", "expert_down", "Q8_0"), ("ffn_gate_inp", "router", "F32"),
        ("ffn_gate_shexp", "shared.gate", "Q8_0"), ("ffn_up_shexp", "shared.up", "Q8_0"),
        ("ffn_down_shexp", "shared.down", "Q8_0"), ("ffn_gate_inp_shexp", "shared_gate", "F32"),
    ):  # fmt: skip
        tensor, due = stored[f"{theirs}.weight"], own[f"blocks.1.ff.{ours}.weight"].numpy()
        due = due[0] if theirs == "ffn_gate_inp_shexp" else due
        assert (tensor.tensor_type.name, tensor.shape.tolist()) == (type, list(due.shape[::-1]))
        found = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_allclose(found, due, atol=1e-2 if type == "Q8_0" else 0)
    counts = {key: reader.fields[f"qwen2moe.expert_{key}"].contents() for key in
              ("count", "used_count", "feed_forward_length", "shared_feed_forward_length")}  # fmt: skip
    assert [*counts.values()] == [3, 2, 32, 96]


def test_a_mixtral_is_a_llama_with_experts(tmp_path):
    """As llama.cpp's own files of it, which the library writes here; a router's loss is of training alone."""
    config, keys = {**LLAMA, **EXPERTS, "normalize_experts": True, "router_loss": 0.1}, {}
    save_gguf(tmp_path / "a.gguf", model := scattered(LlamaModel(config)))
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    keys = {key.replace(".", "__"): field.contents() for key, field in reader.fields.items() if "llama." in key}
    assert keys["llama__expert_count"] == 3 and not any("expert_feed_forward" in key for key in keys)
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    found = load_pretrained(written(tmp_path / "b.gguf", "llama", tensors, **keys))
    assert found.config == LlamaModel({**config, "router_loss": 0.0}).config
    assert max(differences(found, model).values()) == 0
    tensors["blk.0.ffn_up_exps.weight"] = tensors["blk.0.ffn_up_exps.weight"][:2]
    text = refusal(written(tmp_path / "c.gguf", "llama", tensors, **keys))
    assert "blk.0.ffn_up_exps.weight is [2, 64, 32] and must be [3, 64, 32]" in text


def test_models_that_llama_cpp_lacks_are_refused(tmp_path):
    for changes, told in (
        ({"windows": [4]}, "a model of the type 'mistral'; GGUF files have gpt2, llama"),
        ({"qk_norm": "head", "windows": [0, 4]}, "'qwen3' do not have all settings"),
        ({"rope_scaling": [4.0, 1.0, 32.0, 32, "yarn", 1.5]}, "'llama' do not have all settings"),
        (
            {"rope_scaling": [4.0, 1.0, 32.0, 32, "yarn", float(0.1 * np.log(4) + 1), [], [], False]},
            "'llama' do not have all settings",
        ),
        ({"rope_scaling": [4.0, 1.0, 5.0, 64]}, "not the scaling of Llama 3.1"),
        ({**EXPERTS, "normalize_experts": True, "windows": [4]}, "'llama' do not have all settings"),
        ({**EXPERTS, "qk_norm": "head"}, "'qwen3moe' do not have all settings"),
        ({**EXPERTS, "qkv_bias": True, "shared_dim": 9, "expert_blocks": [0, 1]}, "it has blocks.0.ff.gate, for which"),
    ):
        with pytest.raises(ValueError, match=f"^save_gguf: .*{told}"):
            save_gguf(tmp_path / "a.gguf", LlamaModel({**LLAMA, **changes}))
    assert not (tmp_path / "a.gguf").exists()
    with pytest.raises(ValueError, match=r"type is 'Q2_K'; it must be one of F32, F16, BF16, Q8_0, Q4_0, MXFP4"):
        save_gguf(tmp_path / "a.gguf", LlamaModel(LLAMA), type="Q2_K")
    (tmp_path / "a.gguf").touch()
    with pytest.raises(FileExistsError, match="it exists"):
        save_gguf(tmp_path / "a.gguf", LlamaModel(LLAMA))


def test_loading_takes_little_more_memory_than_the_model(tmp_path):
    sizes = {"vocab_size": 2000, "emb_dim": 256, "hidden_dim": 1024, "n_layers": 4, "head_size": 64}
    model = LlamaModel({**LLAMA, **sizes})
    save_gguf(tmp_path / "a.gguf", model, type="Q8_0")
    tracemalloc.start()
    found = load_pretrained(tmp_path / "a.gguf")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    largest = max(leaf.size for leaf in found.named_parameters().values())
    assert peak < 1.1 * 2 * model.num_parameters() + 4 * largest + 2**23


# ---- tokenizers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", family_tokenizers.FAMILIES)
def test_tokenizers_are_read_back(family, tmp_path):
    family_tokenizers.write(tmp_path, family)
    due = load_tokenizer(tmp_path)
    save_gguf(tmp_path / "a.gguf", LlamaModel({**LLAMA, "vocab_size": due.vocab_size + 3}), tokenizer=due)
    model, found = load_model(tmp_path / "a.gguf")
    assert model.config.vocab_size == due.vocab_size + 3 and found.vocab_size == due.vocab_size
    assert (found.begin, found.ends, found.chat, found.control) == (due.begin, due.ends, due.chat, due.control)
    for text in TEXTS:
        tokens = due.encode(text)
        np.testing.assert_array_equal(found.encode(text), tokens)
        assert found.decode(tokens) == due.decode(tokens)
    metadata = GGUFFile(tmp_path / "a.gguf").metadata
    assert len(metadata["tokenizer.ggml.tokens"]) == due.vocab_size + 3  # as many as llama.cpp requires


def test_files_without_a_tokenizer_have_numbers(tmp_path):
    save_gguf(tmp_path / "a.gguf", LlamaModel(LLAMA), tokenizer=CharTokenizer("abc"))
    assert isinstance(load_model(tmp_path / "a.gguf")[1], NumberTokenizer)
    with pytest.raises(FileNotFoundError, match=r"a\.gguf: it has no tokenizer"):
        load_tokenizer(tmp_path / "a.gguf")


@pytest.mark.parametrize("number", [-1, 3])
def test_special_tokens_that_are_none_are_left_out(number, tmp_path):
    """Some files say so by the largest number there is."""
    tokens = {"tokens": ["a", "b", "ab"], "merges": ["a b"], "model": "gpt2", "pre": "gpt-2"}
    words = {**tokens, "bos_token_id": number, "eos_token_id": number, "eot_token_id": 2}
    named = {f"tokenizer__ggml__{key}": value for key, value in words.items()}
    found = load_tokenizer(written(tmp_path / "a.gguf", "llama", {}, **named))
    assert (found.special.bos, found.begin, found.ends) == (None, (), (2,))


@pytest.mark.parametrize(
    ("tokens", "settings", "text", "found"),
    [
        (["a", "b", "c", "abc"], {"model": "gpt2", "pre": "llama-bpe"}, "abc", ["abc"]),  # a word needs no merges
        (["a", "b", "c", "abc"], {"model": "gpt2", "pre": "gpt-2"}, "abc", ["a", "b", "c"]),
        (["▁", "a", "▁a"], {"model": "llama", "scores": [-1.0] * 3}, "a", ["▁a"]),  # add_space_prefix is left out
        (["▁", "a", "▁a"], {"model": "llama", "scores": [-1.0] * 3, "add_space_prefix": False}, "a", ["a"]),
    ],
)
def test_words_are_those_of_the_models_program(tokens, settings, text, found, tmp_path):
    named = {f"tokenizer__ggml__{key}": value for key, value in {"tokens": tokens, **settings}.items()}
    tokenizer = load_tokenizer(written(tmp_path / "a.gguf", "llama", {}, **named))
    assert [tokenizer.token(number) for number in tokenizer.encode(text)] == found


def test_unknown_tokenizers_are_refused(tmp_path):
    words = {"tokenizer__ggml__tokens": ["a", "b"], "tokenizer__ggml__merges": ["a b"]}
    for number, (metadata, told) in enumerate(
        (
            ({"tokenizer__ggml__model": "rwkv"}, r"its tokenizer is 'rwkv'; polyarr reads 'gpt2' or 'llama'"),
            ({"tokenizer__ggml__model": "gpt2"}, r"its pre-tokenizer is None; .*import it with another --tokenizer"),
            ({"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "other"}, r"its pre-tokenizer is 'other'"),
            ({"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "qwen2"}, r"its tokenizer is damaged: "),
            ({"tokenizer__ggml__model": "llama"}, r"scores is not a list"),
        )
    ):
        path = written(tmp_path / f"{number}.gguf", "llama", {}, **words, **metadata)
        assert re.search(told, refusal(path, load_tokenizer))


# ---- damaged files -----------------------------------------------------------------------------------------------


def test_damaged_headers_are_refused(file):
    data = file.read_bytes()
    for at, part, told in (
        (0, b"GGML", "it begins with b'GGML'"),
        (4, struct.pack("<I", 1), "a GGUF file is b'GGUF' of version 2 or 3"),
        (8, struct.pack("<Q", 2**60), "tensors; at most 50,000 are read"),
        (16, struct.pack("<Q", 2**63), "settings; at most 50,000 are read"),
        (24, struct.pack("<Q", 2**40), "its header would have 1,099,511,627,776 more bytes"),
    ):
        file.write_bytes(data[:at] + part + data[at + len(part) :])
        assert told in refusal(file)
    file.write_bytes(data[:-64])
    assert "it is incomplete" in refusal(file)
    file.write_bytes(b"")
    assert "its header would have 4 more bytes" in refusal(file)


@pytest.mark.parametrize("moved", [-32, -8])
def test_tensors_that_overlap_or_are_not_aligned_are_refused(file, moved):
    """A changed offset must not give the model another tensor's numbers."""
    data, entries = bytearray(file.read_bytes()), GGUFFile(file).entries
    first, *_, (name, last) = sorted(entries.items(), key=lambda item: item[1].start)
    at = data.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name) + 4 + 8 * len(last.shape) + 4
    (offset,) = struct.unpack_from("<Q", data, at)
    assert offset == last.start - first[1].start
    struct.pack_into("<Q", data, at, offset + moved)
    file.write_bytes(data)
    assert f"{name} begins at byte {offset + moved:,} of the data, in another tensor or off the" in refusal(file)


def test_other_models_are_refused(tmp_path):
    sizes = {"llama__embedding_length": 8, "llama__attention__head_count": 2}
    others = {f"llama__{key}": 8 for key in ("context_length", "block_count", "feed_forward_length")}
    factor = {**sizes, **others, "llama__rope__scaling__attn_factor": 1.25}
    for number, (arch, tensors, metadata, told) in enumerate(
        (
            ("mamba", {}, {}, "its architecture is 'mamba'; polyarr reads 'gpt2', 'llama'"),
            ("llama", {}, {"split__count": 2}, "one of 2 files of a model; join them"),
            ("llama", {}, {}, "it lacks llama.context_length"),
            ("llama", {"token_embd.weight": np.zeros((3, 8), "int8")}, {}, "token_embd.weight is of I8, which is not"),
            ("llama", {"token_embd.weight": np.zeros((3, 8), "f")}, sizes, "it lacks llama.context_length, llama.bl"),
            ("llama", {"token_embd.weight": np.zeros((3, 8), "f")}, factor, "its rope.scaling.attn_factor is 1.25; it"),
            ("llama", {}, {"general__alignment": 3}, "its general.alignment is 3; it must be a power of 2"),
        )
    ):
        assert told in refusal(written(tmp_path / f"{number}.gguf", arch, tensors, **metadata))


def test_files_with_any_damage_are_read_or_refused_in_one_line(file):
    data, refused = file.read_bytes(), 0
    for seed in range(100):
        draw, changed = random.Random(seed), bytearray(data)
        if seed % 2:
            at = draw.randrange(len(data) // 2)
            changed[at : at + 8] = draw.choice([bytes(8), b"\xff" * 8, draw.randbytes(8), b""])
        else:
            del changed[draw.randrange(len(data)) :]
        file.write_bytes(changed)
        for load, kind in ((load_pretrained, PretrainedError), (load_tokenizer, (ValueError, FileNotFoundError))):
            try:
                load(file)
            except kind as error:
                assert "\n" not in str(error) and len(str(error)) < 700
                refused += 1
    assert refused > 50


def test_a_file_that_cannot_be_written_whole_is_named_and_not_left(tmp_path):
    """NumPy says only how many elements it has written."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    model = LlamaModel({**LLAMA, "vocab_size": 4000, "context_length": 64})
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"not all of it could be written; is the disk full\? \(") as raised:
            save_gguf(tmp_path / "model.gguf", model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.filename == str(tmp_path / "model.gguf") and not [*tmp_path.iterdir()]


# ---- commands ----------------------------------------------------------------------------------------------------


def test_the_page_is_what_happens(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYARR_BACKEND", "numpy")
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog;\n" * 20)
    save_pretrained("folder", LlamaModel({**LLAMA, "vocab_size": 260, "context_length": 64}))
    (tmp_path / "folder" / "tokenizer.json").write_text(byte_tokenizer().to_json())
    main(["import", "folder", "--out", "runs/smol"], standalone_mode=False)
    section = PAGE.read_text().partition("\n## GGUF files\n")[2].partition("\n## ")[0]
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```$", section, re.M | re.S) for line in block.splitlines()]
    assert len(lines) >= 4
    for line in lines:
        name, *args = shlex.split(line)
        assert name == "polyarr"
        main(args, standalone_mode=False)
    said = capsys.readouterr().out
    assert "parameters, for gguf" in said and "\nthe quick" in said and "bfloat16 parameters" in said
    with pytest.raises(Exception, match="--gguf-type is of GGUF files"):
        main(["export", "runs/smol", "--out", "x", "--gguf-type", "F16"], standalone_mode=False)
