"""Grammars: the bytes of tokens, and texts of tokenizers of each kind that follow a grammar."""

import json
import string

import pytest

from polyarr.text import CharTokenizer, NumberTokenizer, SubwordTokenizer
from polyarr.text.constraints import Constraints
from polyarr.text.grammar import json_rule, token_bytes

pytest.importorskip("llguidance")
pytest.importorskip("tokenizers")
from tests.helpers import family_tokenizers

FAMILIES = ("gpt2", "llama2", "llama3", "qwen2")
TOKENIZERS = {
    name: lambda name=name: SubwordTokenizer(getattr(family_tokenizers, name)()[0].to_str()) for name in FAMILIES
}
TOKENIZERS["characters"] = lambda: CharTokenizer(string.printable + "é日")
SCHEMA = {"enum": [{"the é 日": [1, True]}]}
TEXT = '{"the é 日": [1, true]}'


@pytest.mark.parametrize("name", TOKENIZERS)
def test_bytes_of_tokens_are_those_of_the_text(name):
    tokenizer = TOKENIZERS[name]()
    for text in ("the fox 12", "a\n é日") if name != "characters" else ("the fox", "é日"):
        tokens = tokenizer.encode(text, add_special_tokens=False).tolist()
        assert b"".join(token_bytes(tokenizer)[token] for token in tokens).strip() == text.encode()


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_grammar_allows_its_text_and_no_other(name):
    tokenizer = TOKENIZERS[name]()
    constraints, spelled = Constraints(tokenizer), token_bytes(tokenizer)
    constraints.check(grammar := f"start: {json_rule(SCHEMA)}")
    text, found = constraints.begin(grammar), b""
    while (mask := constraints.masks([text])[0]) is not None:
        allowed = mask.nonzero()[0].tolist()
        assert all(TEXT.encode()[len(found) :].startswith(spelled[token]) for token in allowed)
        text.tokens.append(allowed[-1])
        found += spelled[allowed[-1]]
    assert json.loads(found) == SCHEMA["enum"][0] and tokenizer.decode(text.tokens).strip() == TEXT
    constraints.close()


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (CharTokenizer("ab"), "the tokenizer has no tokens for a text that it requires"),
        (NumberTokenizer(9), "its tokenizer is neither byte-level, like SentencePiece's, nor of characters"),
    ],
)
def test_tokenizers_that_cannot_write_it(tokenizer, reason):
    constraints = Constraints(tokenizer)
    with pytest.raises(ValueError, match=f"^{reason}$"):
        constraints.check(f"start: {json_rule({'const': 1})}")
    constraints.close()


def test_a_grammar_that_is_too_large():
    constraints = Constraints(CharTokenizer(string.printable))
    with pytest.raises(ValueError, match=r"^it has 65,543 characters; there may be 65,536$"):
        constraints.check("start: " + "a" * 2**16)
    constraints.close()
