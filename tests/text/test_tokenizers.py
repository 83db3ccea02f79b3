"""Tokenizers of the library `tokenizers`: round trips, and reports of lost or damaged text."""

import json
import os
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyarr.text import (
    CharTokenizer,
    SubwordTokenizer,
    byte_tokenizer,
    load_tokenizer,
    tokenizer_from_dict,
    train_bpe,
)
from polyarr.text.panics import without_panics

library = pytest.importorskip("tokenizers")
TEXT = "the quick brown fox jumps over the lazy dog; naïve 日本 😀\n" * 20
BPE = train_bpe([TEXT], 300)
TOKENIZERS = {"bpe": BPE, "bytes": byte_tokenizer(), "gpt2": None}


def write_gpt2(folder, tokenizer=BPE):
    """Write a tokenizer as GPT-2's two files."""
    model = json.loads(tokenizer.to_json())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    pairs = (pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{pair}\n" for pair in pairs))


@pytest.fixture(params=TOKENIZERS, scope="module")
def tokenizer(request, tmp_path_factory):
    if request.param == "gpt2":
        folder = tmp_path_factory.mktemp("gpt2")
        write_gpt2(folder)
        return load_tokenizer(folder)
    return TOKENIZERS[request.param]


# ---- what is encoded comes back ----------------------------------------------------------------------------------


@given(text=st.text() | st.text(alphabet="the quick\n é日😀") | st.just("a<|endoftext|>b"))
def test_any_text_comes_back(tokenizer, text):
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.int32 and tokens.shape == (len(tokens),)
    assert tokenizer.decode(tokens) == text == "".join(tokenizer.stream(tokens))
    assert all(np.array_equal(tokens, found) for found in tokenizer.encode_batch([text, text]))


@given(numbers=st.lists(st.integers(0, 256)))
def test_the_parts_of_a_stream_are_the_text_of_any_tokens(tokenizer, numbers):
    assert "".join(tokenizer.stream(numbers)) == tokenizer.decode(numbers)


@given(texts=st.tuples(st.text(), st.text()))
def test_a_stream_goes_on_where_a_text_ends(tokenizer, texts):
    first, second = map(tokenizer.encode, texts)
    assert "".join(tokenizer.stream(second, after=first.tolist())) == texts[1]


def test_blanks_that_a_text_would_not_begin_with_are_in_a_stream():
    """In Llama's first tokenizers words begin with a space, which decoding drops at the start of a text."""
    made = library.Tokenizer(library.models.BPE({"▁a": 0, "▁b": 1, "▁": 2}, [], byte_fallback=True))
    made.decoder = library.decoders.Metaspace(prepend_scheme="always")
    tokenizer = SubwordTokenizer(made.to_str())
    assert tokenizer.decode([0, 1]) == "a b"
    assert "".join(tokenizer.stream([1], after=[0])) == " b" and "".join(tokenizer.stream([1])) == "b"


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_stream_gives_a_character_when_it_is_whole(is_nested):
    """Also where the decoder is one of several, and after a part of the character."""
    saved = json.loads(byte_tokenizer().to_json())
    if is_nested:
        saved["decoder"] = {"type": "Sequence", "decoders": [saved["decoder"]]}
    tokenizer, tokens = SubwordTokenizer(json.dumps(saved)), byte_tokenizer().encode("é日a").tolist()
    parts = ["", "é", "", "", "日", "a"]
    assert list(tokenizer.stream(tokens)) == parts and (tokenizer.bytes_of is None) == is_nested
    for done in (1, 2, 4):
        assert list(tokenizer.stream(tokens[done:], after=tokens[:done])) == parts[done:]


def test_added_tokens_are_in_a_stream_what_they_are_in_a_text():
    """Among them are characters that stand for no byte, and half of a character before them."""
    saved = json.loads(byte_tokenizer().to_json())
    for number, content in ((257, "<|日|>"), (258, "Ġé")):
        added = {"id": number, "content": content, "special": number == 257}
        saved["added_tokens"].append(added | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False))
    tokenizer = SubwordTokenizer(json.dumps(saved))
    half = tokenizer.encode("é").tolist()[0]
    tokens = [half, 257, 258, half, half, 257]
    assert tokenizer.decode(tokens) == "".join(tokenizer.stream(tokens))
    assert "".join(tokenizer.stream(tokens[2:], after=tokens[:2])) == tokenizer.decode(tokens[2:])


def test_merges_make_texts_shorter():
    assert BPE.vocab_size == 300 and byte_tokenizer().vocab_size == 257
    assert len(BPE.encode(TEXT)) < 0.6 * len(TEXT.encode())
    assert BPE.token(int(BPE.encode("xy the")[-1])).startswith("Ġ")  # how GPT-2 writes a blank
    assert train_bpe([TEXT], 300).to_dict() == BPE.to_dict()


def test_the_end_of_a_text_is_a_token():
    assert BPE.encode("<|endoftext|>").tolist() == [BPE.end] and BPE.token(BPE.end) == "<|endoftext|>"
    assert CharTokenizer("ab").end is None


def test_characters_are_numbered_by_their_code_points():
    assert CharTokenizer("c\u00e9ab").encode("abc\u00e9").tolist() == [0, 1, 2, 3]


def test_a_tokenizer_is_its_description():
    for one in (BPE, CharTokenizer.from_text(TEXT)):
        again = tokenizer_from_dict(json.loads(json.dumps(one.to_dict())))
        assert again.to_dict() == one.to_dict() and again.vocab_size == one.vocab_size and again.end == one.end
        assert np.array_equal(again.encode("the fox"), one.encode("the fox"))


# ---- files -------------------------------------------------------------------------------------------------------


def test_gpt2s_files_and_tokenizer_json_are_the_same_tokenizer(tmp_path):
    write_gpt2(tmp_path)
    found = [load_tokenizer(tmp_path / name) for name in (".", "vocab.json", "merges.txt")]
    (tmp_path / "tokenizer.json").write_text(BPE.to_json())
    found += [load_tokenizer(tmp_path), load_tokenizer(tmp_path / "tokenizer.json")]
    for one in found:
        assert one.encode(TEXT).tolist() == BPE.encode(TEXT).tolist() and one.end == BPE.end


def test_the_configuration_beside_it_says_what_ends_a_text(tmp_path):
    (tmp_path / "tokenizer.json").write_text(BPE.to_json())
    for written in ("the", {"content": "the"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": written}))
        assert load_tokenizer(tmp_path).token(load_tokenizer(tmp_path).end) == "the"
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer.json: tokenizer_config.json beside it is damaged: Expecting"):
        load_tokenizer(tmp_path)


def test_characters_are_a_file_too(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(CharTokenizer("abc").to_dict()))
    assert load_tokenizer(tmp_path / "a.json").characters == "abc"


def changed(**parts):
    """Return the description of the small tokenizer with other parts."""
    return json.dumps({**json.loads(BPE.to_json()), **parts})


def test_nothing_is_cut_filled_or_left_to_chance():
    model = {**json.loads(BPE.to_json())["model"], "dropout": 0.9}
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    filled = {"strategy": {"Fixed": 99}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    filled |= {"pad_type_id": 0, "pad_token": "[PAD]"}
    odd = SubwordTokenizer(changed(model=model, truncation=cut, padding=filled))
    assert np.array_equal(odd.encode(TEXT), BPE.encode(TEXT))
    assert odd.to_dict() == BPE.to_dict()


# ---- what is not in the vocabulary -------------------------------------------------------------------------------


def lossy(model):
    """Return a tokenizer of another model with words between spaces."""
    made = library.Tokenizer(model)
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    return SubwordTokenizer(made.to_str())


LOSSY = {
    "unknown": lambda: library.models.WordLevel({"[UNK]": 0, "ab": 1}, unk_token="[UNK]"),
    "dropped": lambda: library.models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]),
    "unigram": lambda: library.models.Unigram([("<unk>", 0.0), ("ab", -1.0)], 0, False),
}


@pytest.mark.parametrize("model", LOSSY.values(), ids=LOSSY.keys())
def test_unknown_characters_are_named(model):
    tokenizer = lossy(model())
    assert tokenizer.decode(tokenizer.encode("ab ab")).replace(" ", "") == "abab"
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^encode: not in the vocabulary of \d tokens: 'é' \(U\+00E9\)$"):
            tokenizer.encode("ab é")


def test_half_a_surrogate_pair_is_named():
    with pytest.raises(ValueError, match=r"^encode: not in the vocabulary of 300 tokens: '\\ud800' \(U\+D800\)$"):
        BPE.encode("a\ud800")


@pytest.mark.parametrize("number", [300, -1, 10**12])
def test_a_number_that_is_no_token_is_named(number):
    for read in (BPE.decode, lambda tokens: list(BPE.stream(tokens))):
        with pytest.raises(ValueError, match=rf"^decode: {number} is no token; they are 0 to 299$"):
            read([1, number])


@pytest.mark.parametrize("number", [5000, 4_000_000_000])
def test_a_token_that_a_file_adds_beyond_its_vocabulary_is_named(number):
    described = json.loads(BPE.to_json())
    parts = [{"SpecialToken": {"id": "<x>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    described["post_processor"] = {
        "type": "TemplateProcessing", "single": parts, "pair": [],
        "special_tokens": {"<x>": {"id": "<x>", "ids": [number], "tokens": ["<x>"]}},
    }  # fmt: skip
    wrong = SubwordTokenizer(json.dumps(described))
    with pytest.raises(ValueError, match=rf"^encode: tokenizer.json adds token {number} to a text; there are 300$"):
        wrong.encode("the")


def test_a_vocabulary_holds_the_bytes():
    with pytest.raises(ValueError, match=r"^train_bpe: size is 256; it must be at least 257, for the bytes and "):
        train_bpe([TEXT], 256)


def test_one_text_is_no_list_of_texts():
    with pytest.raises(TypeError, match=r"^train_bpe: texts is one text; it must be a list of texts, or another"):
        train_bpe(TEXT, 300)


# ---- damage ------------------------------------------------------------------------------------------------------


def refused(path):
    """Return the one-line error of loading a damaged tokenizer; None if it loads."""
    try:
        load_tokenizer(path)
    except ValueError as error:
        assert str(error).startswith(f"{path}: ") and "\n" not in str(error) and len(str(error)) < 700
        return str(error)
    return None


DAMAGED = {
    "empty": "",
    "null": "null",
    "no model": "{}",
    "deep": "[" * 100_000,
    "deep with a kind": '{"kind": ' + "[" * 100_000,
    "no characters": '{"kind": "characters"}',
    "another kind": '{"kind": ["x"]}',
    "no json": '{"kind": "tokenizer.json", "json": 3, "end": null}',
    "no such end": json.dumps({**BPE.to_dict(), "end": "nowhere"}),
    "no vocabulary": changed(added_tokens=[], model={"type": "BPE", "vocab": {}, "merges": []}),
    "a merge of nothing": changed(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}),
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_one_line(tmp_path, text):
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    assert refused(path)


def test_files_that_are_cut_or_have_a_flipped_bit_are_one_line_or_a_tokenizer(tmp_path):
    path, draw, whole = tmp_path / "tokenizer.json", random.Random(1), json.dumps(BPE.to_dict()).encode()
    for length in range(0, len(whole), len(whole) // 60):
        path.write_bytes(whole[:length])
        assert refused(path), length
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        if refused(path) is None:
            load_tokenizer(path).encode("the fox")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("merges.txt", "a\n", "a line of merges.txt is 'a'; it must be two tokens and a blank"),
        ("merges.txt", "a b c\n", "a line of merges.txt is 'a b c'"),
        ("merges.txt", "the nowhere\n", "damaged"),
        ("vocab.json", "[]", "vocab.json must be an object of tokens and their numbers"),
        ("vocab.json", '{"a": -1}', "vocab.json must be an object of tokens and their numbers"),
        ("vocab.json", "{", "Expecting property name"),
        ("vocab.json", "[" * 100_000, "vocab.json is nested too deeply"),
    ],
)
def test_damaged_files_of_gpt2_are_one_line(tmp_path, name, text, said):
    write_gpt2(tmp_path)
    (tmp_path / name).write_text(text)
    assert said in refused(tmp_path)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(FileNotFoundError, match=r"vocab\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match=r"^/dev/zero: .*a device, pipe or socket"):
        load_tokenizer("/dev/zero")


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Precompiled", "precompiled_charsmap": "//////////8="},  # found to be damaged when it is loaded
        {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"},  # when a text is encoded
        {"type": "Replace", "pattern": {"String": ""}, "content": "a"},
    ],
)
def test_what_the_library_writes_when_its_own_checks_fail_is_one_line(normalizer, capfd):
    damaged = json.dumps(json.loads(byte_tokenizer().to_json()) | {"normalizer": normalizer})
    with pytest.raises(ValueError, match=r"^no tokenizer.json, or a damaged one: [^\n]+$"):
        SubwordTokenizer(damaged).encode("hello")
    assert capfd.readouterr().err == ""


def test_what_others_write_meanwhile_is_written(capfd):
    with without_panics(), without_panics():
        os.write(2, b"a warning\n")
    assert capfd.readouterr().err == "a warning\n"
    with pytest.raises(KeyError), without_panics():
        os.write(2, b"a fault\n")
        raise KeyError
    assert capfd.readouterr().err == "a fault\n"
