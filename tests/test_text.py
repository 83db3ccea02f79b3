"""The tokenizer and the corpora."""

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyarr.text import CharTokenizer, read_text, split_text, standard_library_text


@given(st.text(min_size=1))
def test_characters_come_back(text):
    tokenizer = CharTokenizer.from_text(text)
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.int32 and tokens.shape == (len(text),)
    assert tokenizer.decode(tokens) == text and tokenizer.vocab_size == len(set(text))
    assert (
        CharTokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict()))).characters
        == tokenizer.characters
    )


def test_numbering_does_not_depend_on_order():
    assert CharTokenizer.from_text("banana").characters == "abn" == CharTokenizer("nba").characters
    assert CharTokenizer.from_text("banana").encode("nab").tolist() == [2, 0, 1]


def test_unknown_characters_are_named():
    tokenizer = CharTokenizer.from_text("abc")
    with pytest.raises(
        ValueError, match=r"^encode: not in the vocabulary of 3 .*: 'd' \(U\+0064\), 'é' \(U\+00E9\)$"
    ):
        tokenizer.encode("aédb")
    with pytest.raises(ValueError, match=r"and 21 more$"):
        tokenizer.encode("abcdefghijklmnopqrstuvwxyzABC")
    with pytest.raises(ValueError, match="decode: 3 is no token; they are 0 to 2"):
        tokenizer.decode([0, 3])


@pytest.mark.parametrize(
    "saved", [{}, None, {"kind": "bytes"}, *({"kind": "characters", "characters": c} for c in (3, "aa", "", "a\ud800"))]
)
def test_a_damaged_description_is_refused(saved):
    with pytest.raises(ValueError, match="CharTokenizer"):
        CharTokenizer.from_dict(saved)


def test_empty_text_makes_no_tokenizer():
    with pytest.raises(ValueError, match="at least one"):
        CharTokenizer.from_text("")


def test_read_text_reads_utf8_and_unifies_line_ends(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffnaïve\r\ntext\r".encode())
    assert read_text(path) == "naïve\ntext\n"


def test_read_text_says_what_is_wrong(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"a.txt: the file is empty$"):
        read_text(path)
    path.write_bytes(b"abc\xff")
    with pytest.raises(ValueError, match=r"a.txt: not UTF-8, byte 0xff at position 3$"):
        read_text(path)
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "none.txt")
    with pytest.raises(OSError):
        read_text(tmp_path)


def test_what_has_no_end_is_not_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", "/dev/null", tmp_path / "pipe"):
        with pytest.raises(ValueError, match=rf"^{path}: a device, pipe or socket; it must be a regular file$"):
            read_text(path)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match=r"large: 1,099,511,627,776 bytes; at most 1,073,741,824 are read$"):
        read_text(tmp_path / "large")


def test_the_standard_library_is_source_in_plain_ascii():
    text = standard_library_text(300_000)
    assert len(text) == 300_000 and text.isascii() and len(set(text)) < 100
    assert "\ndef " in text and "\nclass " in text and "import " in text
    assert text == standard_library_text(300_000)


def test_split_keeps_everything_in_order():
    train, validation = split_text("0123456789" * 10)
    assert train + validation == "0123456789" * 10 and len(validation) == 10
