"""`polyarr import` and `polyarr export`: imported models generate, are trained, and are exported again."""

import json
import re
import shlex
import shutil
import tracemalloc

import click
import numpy as np
import pytest

import polyarr as pa
from polyarr.cli import main
from polyarr.core import current
from polyarr.models import GPTModel, LlamaModel, generate, load_pretrained, save_pretrained
from polyarr.models.llama import PRESETS
from polyarr.nn import shapes_only
from polyarr.text import NumberTokenizer, byte_tokenizer, load_tokenizer, same_tokens
from polyarr.training import load_checkpoint
from polyarr.training.pretrained import export_model, import_model, load_model
from tests.helpers.root import ROOT

PAGE = ROOT / "docs" / "run-gpt2-or-a-llama.md"
LLAMA = {
    "vocab_size": 260, "context_length": 32, "emb_dim": 8, "n_heads": 4, "n_layers": 1, "n_kv_heads": 2,
    "hidden_dim": 12, "head_size": 4, "tie_embeddings": True, "qkv_bias": True,
}  # fmt: skip
LLAMA_1B = PRESETS["llama-3.2-1b"]
LLAMA_3B = {**LLAMA_1B, "emb_dim": 3072, "n_heads": 24, "n_layers": 28, "head_size": 128}
LLAMA_8B = {
    **LLAMA_1B, "emb_dim": 4096, "n_layers": 32, "hidden_dim": 14336, "head_size": 128, "tie_embeddings": False,
}  # fmt: skip
LLAMAS = {"1B": LLAMA_1B, "3B": LLAMA_3B, "8B": LLAMA_8B}
TEXT = "the quick brown fox jumps over the lazy dog;\n" * 20


@pytest.fixture(autouse=True)
def _on_numpy(on_numpy, monkeypatch):
    monkeypatch.setattr(current, "_default", current._default)  # which commands set


@pytest.fixture
def folder(tmp_path):
    """A Hugging Face folder with a model that has a few tokens more than its tokenizer."""
    pa.random.seed(0)
    model = pa.tree.map(lambda p: p * 4, LlamaModel(LLAMA))
    save_pretrained(tmp_path / "theirs", model)
    (tmp_path / "theirs" / "tokenizer.json").write_text(byte_tokenizer().to_json())
    return tmp_path


def polyarr(*args):
    main([str(arg) for arg in args], standalone_mode=False)


def same(model, other):
    left, right = model.named_parameters(), other.named_parameters()
    return left.keys() == right.keys() and all(np.array_equal(left[n].numpy(), right[n].numpy()) for n in left)


def dtypes(model):
    return {leaf.dtype.name for leaf in model.named_parameters().values()}


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ((), r": no config\.json is here$"),
        (("model.Q4_K_M.gguf",), r"no config\.json is here; model\.Q4_K_M\.gguf is a model in llama\.cpp's"),
        (("adapter_config.json", "adapter_model.safetensors"), r"; adapter_config\.json is of adapters: take"),
        (("pytorch_model.bin",), r"; pytorch_model\.bin is pickled"),
        (("best.safetensors",), r"; best\.safetensors is of a run: polyarr train --from continues it"),
    ],
)
def test_a_folder_without_a_model_says_what_was_found(tmp_path, files, told):
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(FileNotFoundError, match=f"^{tmp_path}: .*{told}" if files else f"^{tmp_path}{told}"):
        import_model(tmp_path, tmp_path / "out")


def test_a_file_without_a_config_beside_it_says_nothing_of_its_neighbors(tmp_path):
    for name in ("notes.txt", "other.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(FileNotFoundError, match=r"notes\.txt: no config\.json is beside this file$"):
        import_model(tmp_path / "notes.txt", tmp_path / "out")


def test_the_error_for_a_hub_name_says_how_to_download_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("gpt2", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"):
        with pytest.raises(FileNotFoundError, match=f"; to fetch a model of .*: hf download {name} --local-dir DIR"):
            import_model(name, "out")
    with pytest.raises(FileNotFoundError, match=r"no such file or folder: '/none/x'$"):
        import_model("/none/x", "out")


def test_a_folder_is_not_named_as_a_gguf_file(folder):
    import_model(folder / "theirs", folder / "run")
    with pytest.raises(click.UsageError, match=r"x\.gguf would be a folder; --format gguf writes a GGUF file$"):
        polyarr("export", folder / "run", "--out", folder / "x.gguf")
    assert not (folder / "x.gguf").exists()


def test_a_tokenizer_of_sentencepiece_is_reported(folder):
    theirs = folder / "theirs"
    (theirs / "tokenizer.json").rename(theirs / "tokenizer.model")
    with pytest.warns(UserWarning, match=r"no tokenizer\.json is here.*; tokenizer\.model, which is Sentence"):
        found = import_model(theirs, folder / "run")
    assert isinstance(found.tokenizer, NumberTokenizer)


def test_a_folder_is_imported_generates_is_trained_and_goes_out(folder, capsys):
    with pytest.warns(RuntimeWarning, match="context becomes 16 tokens of 32"):
        polyarr("import", folder / "theirs", "--out", folder / "run", "--context", 16)
    said = capsys.readouterr().out
    due = "LlamaModel: 2,808 float32 parameters, 1 layers, texts of up to 16 tokens of 260 different ones\n"
    assert said.startswith(due)
    theirs = load_pretrained(folder / "theirs")
    found = load_checkpoint(folder / "run")
    assert same(found.model, theirs) and found.state == {"step": 0} and found.model.config.context_length == 16

    polyarr("generate", folder / "run", "--prompt", "fox", "--tokens", 9, "--temperature", 0, "--backend", "numpy")
    tokens = found.tokenizer.encode("fox")
    given = theirs.with_context(16), pa.asarray(tokens[None]), 9
    wanted = generate(*given, temperature=0, vocab_size=257).numpy()[0]
    assert capsys.readouterr().out == found.tokenizer.decode(wanted.tolist()) + "\n"

    (folder / "a.txt").write_text(TEXT)
    before = (folder / "run" / "best.safetensors").read_bytes()
    with pytest.raises(click.UsageError, match="was imported, and has no text to go on with; give one by --data"):
        polyarr("train", "--resume", "--out", folder / "run", "--backend", "numpy")
    assert (folder / "run" / "best.safetensors").read_bytes() == before
    options = ("--data", folder / "a.txt", "--backend", "numpy", "--steps", 3, "--lr", 1e-2)
    polyarr("train", "--resume", "--out", folder / "run", *options)
    said = capsys.readouterr().out
    assert "steps" in said and "the text is not the one" not in said and "schedule ends" not in said
    trained = load_checkpoint(folder / "run", "last")
    assert trained.info["step"] == 3 and trained.info["recipe"]["decay_steps"] == 3 and not same(trained.model, theirs)

    polyarr("export", folder / "run", "--out", folder / "out", "--checkpoint", "last", "--dtype", "float32")
    assert same(load_pretrained(folder / "out"), trained.model)
    assert json.loads((folder / "out" / "config.json").read_text())["max_position_embeddings"] == 16
    again = load_tokenizer(folder / "out")
    assert same_tokens(again, found.tokenizer) and again.ends == found.tokenizer.ends
    assert json.loads((folder / "out" / "tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"
    exported = json.loads((folder / "out" / "config.json").read_text())
    assert (exported["bos_token_id"], exported["eos_token_id"]) == (None, found.tokenizer.end)


def test_a_text_of_a_schema(folder, capsys):
    pytest.importorskip("llguidance")
    schema, asked = folder / "schema.json", ("--prompt", "fox", "--tokens", 9, "--json-schema")
    schema.write_text('{"enum": [{"a": 1}, {"a": 2}]}')
    polyarr("generate", folder / "theirs", *asked, schema)
    assert json.loads(capsys.readouterr().out.removeprefix("fox")) in ({"a": 1}, {"a": 2})
    schema.write_text('{"type": "strin"}')
    with pytest.raises(ValueError, match=r"schema.json: Invalid type: strin$"):
        polyarr("generate", folder / "theirs", *asked, schema)


def test_a_folder_generates_as_it_lies_there(folder, capsys):
    """The output equals that of the imported model, and nothing is written."""
    polyarr("import", folder / "theirs", "--out", folder / "run")
    capsys.readouterr()
    before, said = sorted(folder.rglob("*")), []
    drawn = ("--prompt", "fox", "--tokens", 9, "--seed", 3, "--backend", "numpy")
    for place in ("run", "theirs", "theirs/model.safetensors"):
        for weights in ((), ("--weights", "int8")):
            polyarr("generate", folder / place, *drawn, *weights)
            said.append(capsys.readouterr().out)
    assert said[:2] == said[2:4] == said[4:] and said[0].startswith("fox") and len(said[0]) > 4
    assert sorted(folder.rglob("*")) == before
    (folder / "theirs" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"load_pretrained: .*theirs: "):
        polyarr("generate", folder / "theirs", *drawn)


def test_a_model_without_a_tokenizer_reads_and_writes_numbers(folder, capsys):
    (folder / "theirs" / "tokenizer.json").unlink()
    polyarr("import", folder / "theirs", "--out", folder / "run")
    assert "no tokenizer is beside it: its text is the numbers of tokens" in capsys.readouterr().out
    assert type(load_checkpoint(folder / "run").tokenizer) is NumberTokenizer
    polyarr("generate", folder / "run", "--prompt", "5 27", "--tokens", 2, "--temperature", 0, "--backend", "numpy")
    model = load_pretrained(folder / "theirs")
    wanted = generate(model, pa.asarray([[5, 27]]), 2, temperature=0).numpy()[0]
    assert capsys.readouterr().out.split() == [str(n) for n in wanted]
    with pytest.raises(Exception, match=r"'fox' is no token; texts are numbers from 0 to 259"):
        polyarr("generate", folder / "run", "--prompt", "fox", "--backend", "numpy")
    polyarr("generate", folder / "run", "--tokens", 1, "--backend", "numpy")
    assert capsys.readouterr().out.startswith(" 0 ")
    polyarr("export", folder / "run", "--out", folder / "out")
    assert "its tokenizer of tokens is left out" in capsys.readouterr().out
    assert not (folder / "out" / "tokenizer.json").exists()
    (folder / "b.json").write_text(byte_tokenizer().to_json())
    polyarr("import", folder / "theirs", "--out", folder / "run", "--overwrite", "--tokenizer", folder / "b.json")
    assert load_checkpoint(folder / "run").tokenizer.vocab_size == 257


def test_a_run_that_is_there_stays_and_what_does_not_fit_is_refused_before_it_is_touched(folder):
    import_model(folder / "theirs", folder / "run")
    before = (folder / "run" / "best.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="holds a run already; give another folder, or overwrite=True"):
        import_model(folder / "theirs", folder / "run")
    with pytest.raises(ValueError, match="length is 33; it must be from 1 to 32"):
        import_model(folder / "theirs", folder / "run", context_length=33, overwrite=True)
    with pytest.raises(ValueError, match="the model has 260 tokens; it must have the tokenizer's 300"):
        import_model(folder / "theirs", folder / "run", tokenizer=NumberTokenizer(300), overwrite=True)
    (folder / "theirs" / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        import_model(folder / "theirs", folder / "run", overwrite=True)
    assert (folder / "run" / "best.safetensors").read_bytes() == before
    assert sorted(path.name for path in (folder / "run").iterdir()) == ["best.safetensors"]


def test_a_model_that_was_trained_here_goes_out_and_comes_back(folder):
    (folder / "a.txt").write_text(TEXT)
    polyarr(
        "train", "--data", folder / "a.txt", "--backend", "numpy", "--steps", 1, "--out", folder / "run", "--preset",
        "shakespeare-char",
    )  # fmt: skip
    trained = load_checkpoint(folder / "run").model
    for format in ("huggingface", "tutorial"):
        export_model(folder / "run", folder / format, format=format)
        found = import_model(folder / format, folder / f"from {format}").model
        assert type(found) is GPTModel and same(found, trained)
    shutil.rmtree(folder / "huggingface")
    export_model(folder / "run", folder / "huggingface", dtype="bfloat16")
    assert same(load_pretrained(folder / "huggingface"), trained.astype("bfloat16"))


def test_importing_and_exporting_take_the_models_memory_once(tmp_path):
    """Files read or written as a whole, a second dtype, weights drawn and thrown away, or a copy would exceed it."""
    sizes = {"vocab_size": 10_000, "context_length": 8, "emb_dim": 256, "n_heads": 2, "n_layers": 8}
    model = GPTModel({**sizes, "drop_rate": 0.0, "qkv_bias": True, "tie_embeddings": True})
    weights = 2 * model.num_parameters()
    save_pretrained(tmp_path / "theirs", model, shard_bytes=weights // 3, dtype="bfloat16")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 2
    del model
    run = tmp_path / "run"
    for work in (
        lambda: import_model(tmp_path / "theirs", run),
        lambda: load_model(run),
        lambda: export_model(run, tmp_path / "out"),
    ):
        tracemalloc.start()
        try:
            work()
            assert tracemalloc.get_traced_memory()[1] < 1.1 * weights
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_run_keeps_the_dtype_of_the_file_until_it_is_trained(dtype, folder, capsys):
    wide = load_pretrained(folder / "theirs")
    save_pretrained(folder / "narrow", wide, dtype=dtype)
    (folder / "narrow" / "tokenizer.json").write_text(byte_tokenizer().to_json())
    polyarr("import", folder / "narrow", "--out", folder / "run")
    narrow, tokenizer = load_model(folder / "run")
    assert dtypes(narrow) == {dtype} and same(narrow, wide.astype(dtype))
    capsys.readouterr()
    options = "--prompt", "fox", "--tokens", 9, "--temperature", 0, "--backend", "numpy"
    for given, due in ((), dtype), (("--dtype", "float32"), "float32"), (("--dtype", "bfloat16"), "bfloat16"):
        polyarr("generate", folder / "run", *options, *given)
        tokens = pa.asarray(tokenizer.encode("fox")[None])
        wanted = generate(narrow.astype(due), tokens, 9, temperature=0, vocab_size=257).numpy()[0]
        assert capsys.readouterr().out == tokenizer.decode(wanted.tolist()) + "\n"
    polyarr("export", folder / "run", "--out", folder / "out")
    assert same(load_pretrained(folder / "out"), narrow)

    (folder / "a.txt").write_text(TEXT)
    trained = "--data", folder / "a.txt", "--backend", "numpy", "--steps", 1, "--lr", 1e-9
    polyarr("train", "--resume", "--out", folder / "run", *trained)
    polyarr("train", "--from", folder / "narrow", "--out", folder / "new", *trained)
    for run in "run", "new":
        found = load_checkpoint(folder / run, "last").model
        assert dtypes(found) == {"float32"}
        for name, leaf in narrow.named_parameters().items():
            due = leaf.astype("float32").numpy()
            np.testing.assert_allclose(found.named_parameters()[name].numpy(), due, atol=1e-6)


def test_an_import_removes_what_a_killed_one_left(folder):
    (folder / "run").mkdir()
    (folder / "run" / ".best.safetensors.1.tmp").write_bytes(bytes(9))
    with pytest.raises(FileNotFoundError, match=r"no checkpoint 'best' here"):
        load_checkpoint(folder / "run")
    import_model(folder / "theirs", folder / "run")
    assert [path.name for path in (folder / "run").iterdir()] == ["best.safetensors"]


def test_numbers_are_a_tokenizers_text():
    tokenizer = NumberTokenizer(100)
    assert tokenizer.encode(" 5\n27 99").tolist() == [5, 27, 99] and tokenizer.decode([5, 27]) == " 5 27"
    assert NumberTokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict()))).vocab_size == 100
    for text in ("", "a", "100", "-1", "1.5", "٣", "9" * 5000):
        with pytest.raises(ValueError, match=r"^encode: .* texts are numbers from 0 to 99, with blanks between$"):
            tokenizer.encode(text)
    with pytest.raises(ValueError, match=r"^decode: 100 is no token; they are 0 to 99$"):
        tokenizer.decode([100])
    for saved in ({"kind": "numbers"}, {"kind": "numbers", "vocab_size": 0}, {"kind": "numbers", "vocab_size": True}):
        with pytest.raises(ValueError, match="NumberTokenizer"):
            NumberTokenizer.from_dict(saved)


def cache_bytes(config, tokens, itemsize):
    return 2 * config["n_layers"] * config["n_kv_heads"] * config["head_size"] * tokens * itemsize


def test_the_page_says_how_much_memory_weights_and_caches_take():
    rows = re.findall(r"^\| (\dB) \| (\w+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE.read_text(), re.M)
    assert len(rows) == 2 * len(LLAMAS)
    for name, dtype, *numbers in rows:
        with shapes_only():
            model = LlamaModel(LLAMAS[name]).astype(dtype)
        itemsize = model.tok_emb.weight.dtype.itemsize
        weights = model.num_parameters() * itemsize
        caches = [cache_bytes(LLAMAS[name], tokens, itemsize) for tokens in (1000, 8000)]
        due = f"{weights / 1e9:.2f}", f"{caches[0] / 1e9:.3f}", f"{(weights + caches[1]) / 1e9:.2f}"
        assert tuple(numbers) == due, (name, dtype)
    held = pa.tree.leaves(LlamaModel(LLAMA).astype("bfloat16").caches(1, 1000))
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in held) == cache_bytes(LLAMA, 1000, 2)


def test_the_page_is_what_happens(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYARR_BACKEND", "numpy")
    (tmp_path / "text.txt").write_text(TEXT)
    save_pretrained("SmolLM2-135M", LlamaModel({**LLAMA, "context_length": 64, "qkv_bias": False}))
    (tmp_path / "SmolLM2-135M" / "tokenizer.json").write_text(byte_tokenizer().to_json())
    others = r"^## (GGUF files|AWQ, GPTQ and MXFP4)\n.*?(?=^## )"  # see test_gguf.py and test_packed.py
    page = re.sub(others, "", PAGE.read_text(), flags=re.M | re.S)
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```$", page, re.M | re.S)
    assert [kind for kind, _ in blocks] == ["sh", "sh", "sh", "sh", "sh", "python", "python"]
    for line in (line for kind, block in blocks if kind == "sh" for line in block.replace("\\\n", " ").splitlines()):
        name, *args = shlex.split(line)
        assert name == "polyarr"
        main(args, standalone_mode=False)
    said = capsys.readouterr().out
    assert said.count("now try: polyarr generate runs/") == 5 and said.count("\nthe quick") == 3
    exec("\n".join(block for kind, block in blocks if kind == "python"), {})
    assert capsys.readouterr().out.startswith("the quick")
    found = {name: load_pretrained(name) for name in ("SmolLM2-135M", "mine", "adapted", "tuned")}
    assert all(type(model) is LlamaModel for model in found.values())
    assert len({model.blocks[0].att.qkv.weight.numpy().tobytes() for model in found.values()}) == 4  # each was trained
