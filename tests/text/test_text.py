"""The character tokenizer, and the built-in text."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyarr.text import CharTokenizer, standard_library_text


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
    assert CharTokenizer(["b", "na"]).characters == "abn"
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


def test_the_standard_library_is_source_in_plain_ascii():
    text = standard_library_text(300_000)
    assert len(text) == 300_000 and text.isascii() and len(set(text)) < 100
    assert "\ndef " in text and "\nclass " in text and "import " in text
    assert text == standard_library_text(300_000)
