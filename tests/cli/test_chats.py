"""Fine-tuning on conversations from the command line: its documentation page, what is cut, errors in one line."""

import json

import pytest

import polyarr as pa
from polyarr.cli import main
from polyarr.models import LlamaModel, save_pretrained
from polyarr.text import byte_tokenizer
from tests.helpers.pages import follow
from tests.helpers.root import ROOT

pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")
PAGE = ROOT / "docs" / "fine-tune-on-chats.md"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
LLAMA = {
    "vocab_size": 257, "context_length": 256, "emb_dim": 8, "n_heads": 2, "n_layers": 1, "n_kv_heads": 1,
    "hidden_dim": 12, "head_size": 4, "tie_embeddings": True,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a model that has a chat template, and records."""
    monkeypatch.chdir(tmp_path)
    with pa.use_backend("numpy"):
        save_pretrained(tmp_path / "smol", LlamaModel(LLAMA))
    (tmp_path / "smol" / "tokenizer.json").write_text(byte_tokenizer().to_json())
    (tmp_path / "smol" / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    chats = ([{"role": "user", "content": "x" * n}, {"role": "assistant", "content": "<b>yes"}] for n in range(20))
    pairs = ({"prompt": f"{n}+1=", "completion": f"{n + 1}"} for n in range(20))
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": one}) + "\n" for one in chats))
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in pairs))
    return tmp_path


def run(capsys, *args):
    """Run the command in this process; return its exit code, output and errors."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, args)))
    return ended.value.code, *capsys.readouterr()


def test_the_commands_of_the_page_run_in_their_order(folder):
    trained, _, prepared, again = follow(PAGE, folder)
    assert f"records: 20 of {folder}/chats.jsonl, the last 2 for validation\n" in trained
    assert "cut: " not in trained and "left out: " not in trained
    assert "of 20 records are " in prepared and f"records: 20 of {folder}/pairs, the last 2 for" in again
    report = (folder / "runs" / "chat" / "report.html").read_text()
    assert "&lt;user&gt;&lt;/s&gt;&lt;assistant&gt;<mark>&lt;b&gt;yes&lt;/s&gt;</mark></pre>" in report


def test_what_is_cut_is_told(folder, capsys):
    """The prompt of record n has 21 + n tokens, and its answer 10."""
    options = ("--backend", "numpy", "--steps", 1, "--set", "window=31", "--out", "run")
    code, out, _ = run(capsys, "train", "--from", "smol", "--data", "chats.jsonl", *options)
    assert code == 1
    code, out, _ = run(capsys, "train", "--from", "smol", "--data", "chats.jsonl", *options, "--set", "window=40")
    lines = out.splitlines()
    assert code == 0 and lines[1].startswith("records: 20 of ")
    assert lines[2] == f"cut: 9 records to 41 tokens, which drops {sum(range(1, 10))} tokens"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"messages": [', "Expecting value"),
        (b'{"messages": [{"role": "robot", "content": ""}]}', "message 1 of 'messages': its role is 'robot'; it must"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_a_bad_record_is_an_error_of_one_line(folder, capsys, line, error):
    with (folder / "chats.jsonl").open("ab") as file:
        file.write(line)
    command = ("train", "--from", "smol", "--data", "chats.jsonl", "--backend", "numpy", "--out", "run")
    code, out, err = run(capsys, *command)
    assert code == 1 and not out and err.startswith(f"polyarr: chats.jsonl: line 21: {error}")
    assert err.count("\n") == 1
    code, out, err = run(capsys, "prepare", "chats.jsonl", "--tokenizer", "smol", "--out", "out")
    assert code == 1 and error in err and not (folder / "out").exists()
