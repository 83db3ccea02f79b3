"""Runs whose linear layers keep the quantized weights of a GGUF file: the same logits, the same bytes, and adapters."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn
from polyarr.cli import main
from polyarr.core import current
from polyarr.models import GPTModel, LlamaModel, load_pretrained, save_gguf, save_pretrained
from polyarr.saving.tensor_file import TensorFile, source_of, write_arrays
from polyarr.text import byte_tokenizer
from polyarr.training import CheckpointError, load_checkpoint
from polyarr.training.checkpoint import _checksum
from polyarr.training.pretrained import export_model, import_model, load_model

gguf = pytest.importorskip("gguf")

SIZES = {"vocab_size": 13, "context_length": 16, "emb_dim": 32, "n_heads": 4, "n_layers": 2}
LLAMA = {**SIZES, "n_kv_heads": 2, "hidden_dim": 64, "head_size": 8}
MODELS = {
    "gpt2": lambda: GPTModel({**SIZES, "drop_rate": 0.0, "qkv_bias": True, "tie_embeddings": True}),
    "words": lambda: LlamaModel({**LLAMA, "vocab_size": 260}),
    "llama": lambda: LlamaModel({**LLAMA, "qkv_bias": True, "out_bias": True, "ff_bias": True}),  # permuted rows
    "experts": lambda: LlamaModel(
        {**LLAMA, "n_experts": 3, "experts_per_token": 2, "qkv_bias": True, "expert_dim": 32, "shared_dim": 96}
    ),
    "gemma": lambda: LlamaModel(
        {**LLAMA, "activation": "gelu_tanh", "norm_offset": 1.0, "embedding_scale": 32**0.5, "tie_embeddings": True}
    ),
}
TOKENS = np.array([[1, 5, 2, 7, 3]])


@pytest.fixture(autouse=True)
def _default_backend(monkeypatch):
    monkeypatch.setattr(current, "_default", current._default)  # which commands set


def written(folder, name, kind):
    """Write a model with weights of a type, on NumPy; return the path of the file."""
    draw = np.random.default_rng(0)
    with pa.use_backend("numpy"):
        pa.random.seed(0)
        model = pa.tree.map(lambda p: p + pa.asarray(draw.normal(size=p.shape).astype("float32") * 0.1), MODELS[name]())
        save_gguf(folder / f"{name}.gguf", model.eval(), type=kind)
    return folder / f"{name}.gguf"


def stored(path, kind):
    """Return the bytes of the linear layers of a type in a file."""
    tensors = {t.name: t for t in gguf.GGUFReader(path).tensors if t.tensor_type.name == kind}
    return {name: bytes(t.data) for name, t in tensors.items() if name.split(".")[0] in ("blk", "output")}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma", "experts"])
def test_a_run_keeps_the_bytes_of_a_file(tmp_path, backend, name, kind):
    path = written(tmp_path, name, kind)
    import_model(path, tmp_path / "run", keep_quantized=True, dtype="float32")
    model, _ = load_model(tmp_path / "run")
    assert type(model.blocks[0].att.qkv) is nn.QuantizedLinear
    whole = load_pretrained(path, dtype="float32")
    logits, wanted = (m(pa.asarray(TOKENS)).numpy() for m in (model, whole))
    np.testing.assert_allclose(logits, wanted, rtol=1e-5, atol=1e-5)

    export_model(tmp_path / "run", tmp_path / "out.gguf", format="gguf")
    assert stored(path, kind) and stored(tmp_path / "out.gguf", kind) == stored(path, kind)
    save_pretrained(tmp_path / "folder", model)  # dequantized
    found = load_pretrained(tmp_path / "folder")(pa.asarray(TOKENS)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_kept_weights_are_exported_as_exactly_as_the_dtype_allows(tmp_path, on_numpy, kind):
    """A run in bfloat16 computes with rounded weights; what its codes stand for is exact in float32."""
    path = written(tmp_path, "gpt2", kind)
    import_model(path, tmp_path / "run", keep_quantized=True, dtype="bfloat16")
    export_model(tmp_path / "run", tmp_path / "folder", dtype="float32")
    export_model(tmp_path / "run", tmp_path / "F32.gguf", format="gguf", gguf_type="F32")
    for found in (load_pretrained(tmp_path / "folder"), load_pretrained(tmp_path / "F32.gguf")):
        for ours, due in zip(found.blocks, load_pretrained(path, dtype="float32").blocks, strict=True):
            np.testing.assert_array_equal(ours.att.qkv.weight.numpy(), due.att.qkv.weight.numpy())


@pytest.mark.parametrize(
    ("format", "option"),
    [("gguf", {"dtype": "bfloat16"}), ("gguf", {"base": "gpt2"}), ("peft", {"gguf_type": "F16"}),
     ("huggingface", {"gguf_type": "F16"}), ("tutorial", {"base": "gpt2"})],
)  # fmt: skip
def test_an_option_of_another_format_is_refused(tmp_path, format, option):
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=f"^export_model: {name} is {value!r}, which the format {format!r} does not"):
        export_model(tmp_path / "run", tmp_path / "out", format=format, **option)


def test_another_type_is_converted_and_mixed_types_are_dequantized(tmp_path, on_numpy):
    path = written(tmp_path, "llama", "Q4_0")
    model = load_pretrained(path, keep_quantized=True)
    assert model.tok_emb.weight.dtype == pa.bfloat16 and model.blocks[0].att.qkv.weight.dtype == pa.bfloat16
    assert model.astype("float32").blocks[0].att.qkv.scale.dtype == pa.float16
    save_gguf(tmp_path / "wide.gguf", model, type="F32")
    assert not stored(tmp_path / "wide.gguf", "Q4_0")
    again = load_pretrained(tmp_path / "wide.gguf", keep_quantized=True)
    assert type(again.blocks[0].att.qkv) is nn.Linear
    save_gguf(tmp_path / "int8.gguf", again.quantized("int8"), type="Q8_0")  # rows are dequantized, then rounded
    assert stored(tmp_path / "int8.gguf", "Q8_0")


def test_adapters_are_trained_beside_kept_weights(tmp_path, backend, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYARR_BACKEND", backend.name)

    def polyarr(line):
        main(line.split(), standalone_mode=False)
        return capsys.readouterr().out

    written(tmp_path, "words", "Q4_0")
    (tmp_path / "a.txt").write_text("the quick brown fox;\n" * 40)
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer().to_json())
    polyarr("import words.gguf --tokenizer tokenizer.json --keep-quantized --out run")
    before = load_checkpoint(tmp_path / "run").model
    assert polyarr("generate run --prompt the --tokens 3 --temperature 0").startswith("the")
    polyarr("evaluate run --data a.txt")
    with pytest.raises(ValueError, match=r"^new_run: the model has quantized weights; train adapters beside them"):
        polyarr("train --from run --data a.txt --steps 1 --out full")

    polyarr("train --from run --data a.txt --lora 4 --steps 24 --set warmup=1 --set lr=0.02 --out tuned")
    saved = load_checkpoint(tmp_path / "tuned", "last")
    losses = [loss for _, loss in saved.info["curve"]]
    assert losses[-1] < 0.95 * losses[0]
    base = saved.model.blocks[0].att.qkv.base
    np.testing.assert_array_equal(base.codes.numpy(), before.blocks[0].att.qkv.codes.numpy())
    assert saved.model.blocks[0].att.qkv.a.dtype == pa.float32
    polyarr("train --resume --out tuned --steps 26")
    assert polyarr("generate tuned --prompt the --tokens 3 --temperature 0").startswith("the")

    export_model(tmp_path / "tuned", tmp_path / "out.gguf", name="last", format="gguf")
    kept = stored(tmp_path / "words.gguf", "Q4_0")
    others = {name: data for name, data in kept.items() if "attn" not in name}  # attention's have merged adapters
    assert stored(tmp_path / "out.gguf", "Q4_0") == others


def test_codes_that_do_not_fit_are_damage(tmp_path, on_numpy):
    import_model(written(tmp_path, "llama", "Q8_0"), tmp_path / "run", keep_quantized=True)
    path = tmp_path / "run" / "best.safetensors"
    file = TensorFile(path)
    name = "model.blocks.0.att.qkv.codes"
    for codes, reason in (
        (np.zeros((64, 96), np.int8), r"codes are int8\[64, 96\], .* they must be of a weight \[64, 32\]"),
        (np.zeros((64, 32), np.float32), "codes is of dtype F32; it must be I8 or U8"),
    ):
        arrays = {key: file.source(key) for key in file.entries} | {name: source_of(codes)}
        text = file.metadata["info"]
        write_arrays(path, arrays, {**file.metadata, "checksum": _checksum(text, arrays)})
        with pytest.raises(CheckpointError, match=reason):
            load_checkpoint(tmp_path / "run")
