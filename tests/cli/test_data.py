"""`polyarr tokenizer` and `polyarr prepare`, their documentation page, and errors in one line."""

import json
import sys

import pytest

from polyarr.cli import main
from polyarr.text import CharTokenizer, byte_tokenizer, open_prepared, train_bpe
from tests.helpers.pages import follow
from tests.helpers.root import ROOT

PAGE = ROOT / "docs" / "data.md"
TEXT = "the quick brown fox jumps over the lazy dog;\n" * 60


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with texts in it."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(TEXT)
    (tmp_path / "texts" / "b.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    (tmp_path / "char.json").write_text(json.dumps(CharTokenizer("abc").to_dict()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *args):
    """Run the command in this process; return its exit code, output and errors."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, args)))
    return ended.value.code, *capsys.readouterr()


def test_the_commands_of_the_page_run_in_their_order(folder):
    learned, shown, _, prepared, trained, written, checked, _, resumed, python = follow(PAGE, folder)
    assert checked.startswith("data: ") and checked.endswith(" tokens, as they were written\n")
    size = int(shown.split()[0])
    assert learned.startswith(f"{size} tokens (no further pairs occur twice, so not 512), saved in bpe.json; ")
    assert "of 2 texts are " in prepared and f"tokens of {size} different ones" in prepared
    assert "loss (" not in trained and f"tokens of {folder}/data, {size} different ones" in trained
    assert written.startswith("the quick") and "step     3/3" in resumed and "the fox" in python


def test_a_tokenizer_is_shown(folder, capsys):
    (folder / "byte.json").write_text(byte_tokenizer().to_json())
    code, out, _ = run(capsys, "tokenizer", "show", "byte.json")
    assert code == 0 and out.startswith("257 tokens; 0, <|endoftext|>, ends a text\n0 '<|endoftext|>'  1 '!'  ")
    code, out, _ = run(capsys, "tokenizer", "show", "byte.json", "--text", "é")
    assert code == 0 and out.splitlines()[1:] == ["1 characters, 2 bytes, 2 tokens:", "128 'Ã'  103 '©'"]
    code, out, _ = run(capsys, "tokenizer", "show", "char.json", "--json")
    assert code == 0 and json.loads(out) == {"vocab_size": 3, "unit": "characters", "end": None, "tokens": [*"abc"]}
    _, out, _ = run(capsys, "tokenizer", "show", "char.json", "--json", "--text", "b")
    assert json.loads(out)["tokens"] == [{"number": 1, "token": "b"}]
    _, out, _ = run(capsys, "tokenizer", "show", "char.json")
    assert out == "3 characters; none ends a text\n0 'a'  1 'b'  2 'c'\n"


def test_a_learned_tokenizer_is_a_file_of_the_library(folder, capsys):
    assert run(capsys, "tokenizer", "train", "texts/*.txt", "--size", 270, "--out", "bpe.json")[0] == 0
    assert (folder / "bpe.json").read_text() == train_bpe([TEXT], 270).to_json()


def test_tokens_are_replaced_only_if_asked_for(folder, capsys):
    prepare = ("prepare", "texts", "--out", "data")
    code, out, _ = run(capsys, *prepare)
    assert code == 0 and "2 texts are 5,400 tokens of 29 different ones; the last 540 are for validation" in out
    before = open_prepared(folder / "data").digest
    code, _, err = run(capsys, *prepare, "--validation", 0.2)
    assert code == 2 and "data holds tokens already; give another --out, or --overwrite" in err
    assert open_prepared(folder / "data").digest == before
    code, out, _ = run(capsys, *prepare, "--validation", 0.2, "--tokenizer", "byte", "--overwrite")
    assert code == 0 and open_prepared(folder / "data").tokenizer.vocab_size == 257
    assert run(capsys, "tokenizer", "show", "data")[1].startswith("257 tokens; ")


TRAIN = ("train", "--backend", "numpy", "--out", "run")
WRONG = {
    "tokenizer is missing": (("tokenizer", "show", "none.json"), 1, "polyarr: none.json: No such file or directory"),
    "tokenizer is none": (("tokenizer", "show", "texts/a.txt"), 1, "polyarr: texts/a.txt: no tokenizer.json, or a"),
    "unknown character": (("tokenizer", "show", "char.json", "--text", "aé"), 2, "for '--text': encode: "),
    "check of a file": (("prepare", "--check", "char.json"), 1, "polyarr: char.json: a file; give the folder that was"),
    "check of texts": (("prepare", "--check", "texts"), 1, "polyarr: texts: no prepared tokens are here (manif"),
    "check beside texts": (("prepare", "texts", "--check", "texts"), 2, "--check only verifies texts; leave out DATA"),
    "no out": (("prepare", "texts"), 2, "prepare: Missing option '--out'. (try: "),
    "no command": (("tokenizer",), 2, "tokenizer: Missing command."),
    "too small": (("tokenizer", "train", "texts", "--size", "256", "--out", "x"), 2, "'--size'"),
    "nowhere": (("tokenizer", "train", "texts", "--size", "300", "--out", "no/x"), 1, "polyarr: no/x: No such file"),
    "no texts": (("prepare", "run*", "--out", "data"), 1, "polyarr: run*: no file has such a name"),
    "no data": (("prepare", "--out", "data"), 2, "Missing argument 'DATA...'"),
    "no field": (("prepare", "texts", "--out", "data", "--field", "x"), 1, "b.jsonl: line 1: it must be a JSON object"),
    "no characters": (("prepare", "texts", "--out", "data", "--tokenizer", "char.json"), 1, "a.txt: encode: not in"),
    "strangers": (("prepare", "texts", "--out", "."), 2, "prepare: . holds other files; give a folder of its"),
    "out is a file": (("prepare", "texts", "--out", "char.json"), 2, "'--out'"),
    "train, no tokenizer": ((*TRAIN, "--data", "texts", "--tokenizer", "none"), 1, "polyarr: none: No such file or"),
    "resume with a tokenizer": ((*TRAIN, "--resume", "--tokenizer", "byte"), 2, "--tokenizer, --seed, --show"),
    "no folder of tokens": ((*TRAIN, "--data", "texts/none"), 1, "polyarr: texts/none: No such file or directory"),
}


@pytest.mark.parametrize(("command", "code", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_input_is_one_line_and_changes_nothing(folder, capsys, command, code, message):
    before = sorted(folder.rglob("*"))
    found, out, err = run(capsys, *command)
    assert (found, out) == (code, ""), err
    assert message in err and err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


def test_texts_without_a_character_are_named_so(folder, capsys):
    for lines in ("", "\n \n", '{"text": ""}\n' * 2):
        (folder / "none.jsonl").write_text(lines)
        for command in (("prepare", "none.jsonl", "--out", "data"), (*TRAIN, "--data", "none.jsonl")):
            code, _, err = run(capsys, *command)
            assert (code, err) == (1, "polyarr: the texts are empty; there must be at least one character\n")


def test_suggested_commands_have_names_with_blanks_in_quotes(folder, capsys):
    (folder / "my texts").mkdir()
    _, out, _ = run(capsys, "prepare", "texts", "--out", "my texts/of é")
    assert out.endswith("now try: polyarr train --data 'my texts/of é'\n")


def test_a_missing_library_says_what_to_install(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    code, _, err = run(capsys, "prepare", "texts", "--tokenizer", "byte", "--out", "data")
    assert code == 1 and "tokenizers cannot be imported" in err and "pip install 'polyarr[train]'" in err


def test_a_prepared_folder_has_its_tokenizer(folder, capsys):
    assert run(capsys, "prepare", "texts", "--out", "data")[0] == 0
    code, _, err = run(capsys, *TRAIN, "--data", "data", "--tokenizer", "byte")
    assert code == 2 and "data is prepared with a tokenizer; leave out --tokenizer" in err
    tokens = next((folder / "data").glob("tokens-*"))
    tokens.write_bytes(tokens.read_bytes()[::-1])
    for command in ((*TRAIN, "--data", "data"), ("prepare", "--check", "data")):
        code, _, err = run(capsys, *command)
        assert code == 1 and f"polyarr: data: damaged; prepare it again: {tokens.name} does not hold" in err
    (folder / "data" / "manifest.json").write_text("{}")
    code, _, err = run(capsys, *TRAIN, "--data", "data")
    assert code == 1 and err.startswith("polyarr: data: no prepared tokens, or damaged ones: ") and err.count("\n") == 1
