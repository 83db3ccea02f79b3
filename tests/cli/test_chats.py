"""Conversations on the command line: training on them, `polyarr chat`, prompts from files, errors in one line."""

import io
import json
import re
import signal
import sys
from importlib import import_module

import pytest

import polyarr as pa
from polyarr.cli import main
from polyarr.models import LlamaModel, Writer, load_pretrained, save_pretrained
from polyarr.models.conversation import Conversation
from polyarr.text import byte_tokenizer, load_tokenizer
from polyarr.text.sandbox import SandboxedTokenizer
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
    trained, _, packed, prepared, again, preferred = follow(PAGE, folder)
    loss, first = map(float, re.findall(r"[0-9.]+", preferred))
    assert loss < first == 0.6931 and load_pretrained(folder / "preferred")
    assert f"records: 20 of {folder}/chats.jsonl, the last 2 for validation\n" in trained
    assert "cut: " not in trained and "left out: " not in trained and "packed: " not in trained
    assert trained.endswith("now try: polyarr chat runs/chat\n")
    records = f"records: 20 of {folder}/chats.jsonl, the last 2 for validation\n"
    assert f"{records}packed: into 3 windows to train on and 1 to validate with\n" in packed
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
    options = (*options[:-1], "one", "--set", "window=48")
    _, out, _ = run(capsys, "train", "--from", "smol", "--data", "chats.jsonl", *options)
    assert "\ncut: 1 record to 49 tokens, which drops 1 token\n" in out


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


def said(monkeypatch, text):
    """Let standard input be a text."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), "utf-8"))


GREEDY = ("--backend", "numpy", "--tokens", 12, "--temperature", 0)


def test_a_chat_has_a_history(folder, capsys, monkeypatch):
    said(monkeypatch, b"a\n\nb\n/help\n/reset\na\n/exit\nc\n")
    code, out, err = run(capsys, "chat", "smol", *GREEDY, "--system", "s")
    with pa.use_backend("numpy"):
        tokenizer = load_tokenizer("smol")
        writer = Writer(load_pretrained("smol"), tokenizer)
        start = "<system>s</s><user>a</s><assistant>"
        first, second = [], []
        for found, before in ((first, start), (second, None)):
            text = before or f"{start}{first[0]}</s><user>b</s><assistant>"
            found += [one.text for one in writer.complete([tokenizer.encode(text).tolist()], 12, temperature=0)]
    assert code == 0 and err.startswith("/reset begins anew; ") and out == f"{first[0]}\n{second[0]}\n{first[0]}\n"


def test_the_oldest_turns_are_dropped_but_not_the_system_prompt(folder):
    with pa.use_backend("numpy"), SandboxedTokenizer(load_tokenizer("smol")) as tokenizer:
        chat = Conversation(Writer(load_pretrained("smol"), tokenizer), "s" * 9)
        for n in range(6):
            list(chat.answer(str(n) * 60, 10, temperature=0))
            kept = [message["content"] for message in chat.messages if message["role"] == "user"]
            assert kept == [str(m) * 60 for m in range(max(0, n - len(kept) + 1), n + 1)]
            assert chat.messages[0] == {"role": "system", "content": "s" * 9}
        assert 1 <= len(kept) < 4 and chat.dropped == 2
        before = chat.messages
        with pytest.raises(ValueError, match="it may have 246 of the model's context of 256"):
            list(chat.answer("x" * 250, 10))
        with pytest.raises(ValueError, match="top_k is 0; it must be an int of at least 1"):
            list(chat.answer("x", 10, top_k=0))
        assert chat.messages == before


def test_ctrl_c_ends_an_answer_and_not_the_chat(folder, capsys, monkeypatch):
    said(monkeypatch, b"a\nb\n")
    texts = []

    def interrupted(text):
        texts.append(text)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("polyarr.cli.chat.print_text", interrupted)
    code, out, err = run(capsys, "chat", "smol", *GREEDY)
    assert (code, out, err, len(texts)) == (0, "\n\n", "", 2)


def test_generate_answers_and_reads_prompts_from_files(folder, capsys, monkeypatch):
    said(monkeypatch, b"a\n")
    _, talked, _ = run(capsys, "chat", "smol", *GREEDY)
    assert run(capsys, "generate", "smol", "--chat", "--prompt", "a", *GREEDY) == (0, talked, "")
    (folder / "prompt.txt").write_bytes(b"\n a b \r\n")  # of which the last line end is left out
    _, wanted, _ = run(capsys, "generate", "smol", "--prompt", "\n a b ", *GREEDY)
    assert run(capsys, "generate", "smol", "--prompt-file", "prompt.txt", *GREEDY) == (0, wanted, "")
    said(monkeypatch, b"\n a b \n")
    assert run(capsys, "generate", "smol", "--prompt-file", "-", *GREEDY) == (0, wanted, "")


def test_drafts_leave_answers_as_they_are(folder, capsys, monkeypatch):
    answers = []
    for options in ((), ("--speculate", 3), ("--draft", "smol"), ("--draft", "smol", "--speculate", 2)):
        said(monkeypatch, b"a\nb\n")
        talked = run(capsys, "chat", "smol", *GREEDY, *options)
        answers.append((talked, run(capsys, "generate", "smol", "--prompt", "a b", *GREEDY, *options)))
    assert answers == answers[:1] * 4 and answers[0][0][0] == 0


@pytest.mark.parametrize(
    ("options", "drafts"), [((), 0), (("--draft", "smol"), 4), (("--draft", "smol", "--speculate", 2), 2)]
)
def test_a_server_drafts_as_it_is_asked_to(folder, capsys, monkeypatch, options, drafts):
    given = {}

    def server_of(*_, **settings):
        given.update(settings)
        raise ValueError("it begins")

    monkeypatch.setattr(import_module("polyarr.serving.server"), "server_of", server_of)
    assert run(capsys, "serve", "smol", "--port", 0, "--backend", "numpy", *options)[0] == 1
    assert given["drafts"] == drafts and (given["draft_model"] is None) == (not options)


def test_a_draft_model_of_other_tokens_is_refused(folder, capsys):
    with pa.use_backend("numpy"):
        save_pretrained(folder / "other", LlamaModel(LLAMA))  # its texts are the numbers of tokens
    code, out, err = run(capsys, "generate", "smol", "--prompt", "a", *GREEDY, "--draft", "other")
    assert (code, out) == (1, "")
    assert err == "polyarr: --draft: other has another tokenizer than smol; both must have the same tokens\n"


@pytest.mark.parametrize(
    "command",
    [
        ("chat", "none"),
        ("generate", "none"),
        ("generate", "smol", "--draft", "none"),
        ("evaluate", "none", "--data", "chats.jsonl"),
        ("train", "--from", "none", "--data", "chats.jsonl"),
    ],
    ids=" ".join,
)
def test_a_missing_model_is_found_before_a_backend_starts(folder, capsys, command):
    assert run(capsys, *command, "--backend", "nonsense") == (
        1, "", "polyarr: none: no such file or folder; to fetch a model of the Hugging Face Hub: "
        "hf download none --local-dir DIR\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "given", "code", "error"),
    [
        (("chat", "plain"), b"", 1, "plain: this model has no chat template"),
        (("chat", "smol"), b"\xff\n", 1, "standard input: 'utf-8' codec can't decode byte 0xff"),
        (("chat", "smol"), b"x" * 250, 1, "the message has 271 tokens or more"),
        (("generate", "plain", "--chat", "--prompt", "a"), b"", 1, "plain: this model has no chat template"),
        (("generate", "smol", "--chat"), b"", 2, "--chat answers a message"),
        (("generate", "smol", "--prompt-file", "-"), b"\xff", 1, "standard input: not UTF-8, byte 0xff at position 0"),
        (("generate", "smol", "--prompt-file", "-"), b"\n", 2, "Invalid value for '--prompt-file': it is empty"),
        (("generate", "smol", "--prompt-file", "none"), b"", 1, "none: No such file"),
        (("generate", "smol", "--prompt-file", "a", "--prompt", "a"), b"", 2, "--prompt-file are both given"),
    ],
)
def test_errors_of_chats_and_prompts_are_one_line(folder, capsys, monkeypatch, command, given, code, error):
    with pa.use_backend("numpy"):
        save_pretrained(folder / "plain", LlamaModel(LLAMA))
    (folder / "plain" / "tokenizer.json").write_text(byte_tokenizer().to_json())
    said(monkeypatch, given)
    found, out, err = run(capsys, *command, "--backend", "numpy")
    assert found == code and not out and error in err and err.count("\n") == 1
