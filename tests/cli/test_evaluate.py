"""`polyarr evaluate`: each token is scored once with context, numbers by hand, its page, errors in one line."""

import json
import math

import numpy as np
import pytest

import polyarr as pa
from polyarr.cli import main
from polyarr.models import LlamaModel, load_pretrained, save_pretrained
from polyarr.text import CharTokenizer, byte_tokenizer, load_tokenizer
from polyarr.text.documents import Document, read_documents
from polyarr.text.tokens import IGNORED
from polyarr.training.evaluation import _windows, score_documents, total_score
from tests.helpers.pages import follow
from tests.helpers.root import ROOT

pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")
PAGE = ROOT / "docs" / "evaluate.md"
LLAMA = {
    "vocab_size": 257, "context_length": 64, "emb_dim": 8, "n_heads": 2, "n_layers": 1, "n_kv_heads": 1,
    "hidden_dim": 12, "head_size": 4,
}  # fmt: skip
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}|{% endfor %}"
TEXTS = ("h\u00e9llo, ", "the quick brown fox jumps over the lazy dog; " * 3)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a model, texts and conversations."""
    monkeypatch.chdir(tmp_path)
    with pa.use_backend("numpy"):
        pa.random.seed(2)
        save_pretrained(tmp_path / "smol", LlamaModel(LLAMA))
    (tmp_path / "smol" / "tokenizer.json").write_text(byte_tokenizer().to_json())
    (tmp_path / "smol" / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(TEXTS[1])
    (tmp_path / "texts" / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in (*TEXTS, "")))
    chats = ([{"role": "user", "content": "?"}, {"role": "assistant", "content": text}] for text in TEXTS)
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": one}) + "\n" for one in chats))
    return tmp_path


def run(capsys, *args):
    """Run the command in this process; return its exit code, output and errors."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, args)))
    return ended.value.code, *capsys.readouterr()


def loss(model, before, token):
    """Return the loss of a token after others, by NumPy."""
    logits = model(pa.asarray([before])).numpy()[0, -1].astype(float)
    return float(np.log(np.exp(logits).sum()) - logits[token])


def test_quantized_weights_are_scored(folder, capsys):
    command = ("evaluate", "smol", "--data", "texts", "--backend", "numpy", "--json")
    code, out, _ = run(capsys, *command, "--weights", "int8")
    with pa.use_backend("numpy"):
        tokenizer, model = load_tokenizer(folder / "smol"), load_pretrained(folder / "smol")
        documents = read_documents([folder / "texts" / "a.txt", folder / "texts" / "b.jsonl"], tokenizer)
        wanted, whole = (
            total_score("all", score_documents(each, documents, 64, 32, 8)).loss
            for each in (model.quantized("int8"), model)
        )
    assert code == 0 and json.loads(out)["scores"][-1]["loss"] == wanted != whole


def test_the_commands_of_the_page_run_in_their_order(folder):
    whole, each, as_json = follow(PAGE, folder)
    assert whole.splitlines()[0].startswith("loss 5.") and "\n4 documents, 2" in whole
    lines = each.splitlines()
    assert [line.split("  ")[0] for line in lines[1:4]] == ["chats.jsonl: record 1", "chats.jsonl: record 2", "all"]
    assert lines[4].endswith("windows of 64 with a stride of 32")
    found = json.loads(as_json)
    assert (found["window"], found["stride"], found["documents"], len(found["scores"])) == (64, 16, 4, 1)


@pytest.mark.parametrize("stride", [1, 3, 8])
def test_each_token_is_scored_once_with_context(stride):
    tokens = np.arange(30, dtype=np.int32)
    scored, least = [], 8 - stride
    for inputs, targets in _windows(Document("", tokens, tokens > 0, 0), 8, stride):
        at = np.flatnonzero(targets != IGNORED)
        assert (inputs[at] == targets[at] - 1).all() and (at + 1 >= np.minimum(targets[at], least + 1)).all()
        scored += targets[at].tolist()
    assert scored == list(range(1, 30))


def test_the_numbers_are_those_of_single_passes(folder):
    with pa.use_backend("numpy"):
        model, tokenizer = load_pretrained("smol"), load_tokenizer("smol")
        [long, short, long_again, empty] = list(read_documents(
            [folder / "texts" / "a.txt", folder / "texts" / "b.jsonl"], tokenizer
        ))  # fmt: skip
        assert long.tokens[0] == tokenizer.end and long.bytes == long.is_scored.sum() == len(TEXTS[1])
        scores = score_documents(model, [long, short, empty], 16, 1, 4)
        for document, score in zip((long, short), scores, strict=False):
            tokens = document.tokens.tolist()
            each = [loss(model, tokens[max(0, n - 16) : n], tokens[n]) for n in range(1, len(tokens))]
            assert score.tokens == len(each) and score.total == pytest.approx(math.fsum(each), rel=1e-5)
            assert score.bits_per_byte == pytest.approx(sum(each) / math.log(2) / len(each), rel=1e-5)
        assert (scores[2].tokens, scores[2].total) == (0, 0.0) and math.isnan(scores[2].loss)
        total = total_score("all", scores)
        assert total.tokens == len(TEXTS[1]) + 8 and total.perplexity == math.exp(total.loss)
        assert score_documents(model, [long_again], 16, 1, 3)[0].total == pytest.approx(scores[0].total, rel=1e-6)


def test_a_model_is_scored_in_the_dtype_that_is_asked_for(folder, capsys):
    def losses(*options):
        given = "--data", "texts/a.txt", "--backend", "numpy", "--window", 16, "--stride", 16, "--json", *options
        return json.loads(run(capsys, "evaluate", "smol", *given)[1])["scores"][0]["loss"]

    [document] = read_documents([folder / "texts" / "a.txt"], load_tokenizer("smol"))
    with pa.use_backend("numpy"):
        narrow = load_pretrained("smol").astype("bfloat16")
        assert losses("--dtype", "bfloat16") == score_documents(narrow, [document], 16, 16, 16)[0].loss != losses()


def test_only_answers_of_conversations_are_scored(folder):
    with pa.use_backend("numpy"):
        model, tokenizer = load_pretrained("smol"), load_tokenizer("smol")
        [first, _] = read_documents([folder / "chats.jsonl"], tokenizer)
        text = f"<user>?|<assistant>{TEXTS[0]}|"
        tokens = tokenizer.encode(text).tolist()
        assert first.tokens.tolist() == tokens
        begin = len(tokenizer.encode("<user>?|"))  # this template writes no generation prompt
        [score] = score_documents(model, [first], 64, 32, 2)
        each = [loss(model, tokens[:n], tokens[n]) for n in range(begin, len(tokens))]
        assert score.total == pytest.approx(math.fsum(each), rel=1e-5) and score.bytes == len(each)


def test_without_a_token_before_it_the_first_is_not_scored(folder):
    (folder / "c.txt").write_text("\u00e9ab")
    [document] = read_documents([folder / "c.txt"], CharTokenizer("ab\u00e9"))
    assert document.is_scored.tolist() == [False, True, True] and document.bytes == 2


def test_the_error_for_an_unknown_character_names_the_document(folder):
    with pytest.raises(ValueError, match=r"b\.jsonl: text 1: encode: not in the vocabulary of .*U\+00E9"):
        list(read_documents([folder / "texts" / "b.jsonl"], CharTokenizer("".join({*TEXTS[1]}))))


@pytest.mark.parametrize(
    ("content", "options", "error"),
    [
        (b'{"text": ', (), "a.jsonl: line 1: Expecting value"),
        (b'{"text": ""}', (), "a.jsonl: there is no token to score"),
        (b'{"text": "\xff"}', (), "a.jsonl: line 1: 'utf-8' codec"),
        (b'{"messages": []}', (), "a.jsonl: line 1: 'messages' is empty"),
        (b'{"text": "a"}', ("--window", 65), "evaluate: the window is 65"),
        (b'{"text": "a"}', ("--window", 8, "--stride", 9), "evaluate: the window is 8, the stride 9"),
    ],
)
def test_errors_are_one_line(folder, capsys, content, options, error):
    (folder / "a.jsonl").write_bytes(content)
    code, out, err = run(capsys, "evaluate", "smol", "--data", "a.jsonl", "--backend", "numpy", *options)
    assert code == 1 and not out and err.startswith(f"polyarr: {error}") and err.count("\n") == 1
