"""Special tokens: those that begin a text, those that stop a model, and round trips of both through model folders.

test_transformers.py compares them with transformers.
"""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyarr as pa
from polyarr.models import LlamaModel, Writer, load_pretrained, save_pretrained
from polyarr.serving.protocol import Limits, read
from polyarr.text import (
    CharTokenizer,
    Corpus,
    NumberTokenizer,
    SubwordTokenizer,
    byte_tokenizer,
    load_tokenizer,
    open_prepared,
    prepare,
    same_tokens,
)
from polyarr.text.constraints import Constraints
from polyarr.text.sandbox import SandboxedTokenizer
from polyarr.text.sources import PIECE
from polyarr.text.special import SpecialTokens
from polyarr.training import load_checkpoint
from polyarr.training.pretrained import export_model, import_model

pytest.importorskip("tokenizers")
from tests.helpers.family_tokenizers import FAMILIES, TEXT, llama2, write

LLAMA2 = SubwordTokenizer(llama2()[0].to_str(), special=SpecialTokens({"eos_token": "</s>"}))
LLAMA = {"context_length": 32, "emb_dim": 12, "n_heads": 2, "n_layers": 1, "n_kv_heads": 1, "hidden_dim": 8}


def model_in(folder, family):
    """Write a small model with a family's tokenizer; return the special tokens in its config.json."""
    settings = write(folder, family)
    pa.random.seed(0)
    model = LlamaModel({**LLAMA, "head_size": 6, "vocab_size": settings["vocab_size"]})
    special = {name: settings[name] for name in ("bos_token_id", "eos_token_id")}
    save_pretrained(folder, pa.tree.map(lambda p: p * 20, model), special_tokens=special)
    return settings


# ---- what a text begins with -------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_has_the_tokens_that_its_post_processor_puts_around_it(family, tmp_path):
    write(tmp_path, family)
    tokenizer, (library, _) = load_tokenizer(tmp_path), FAMILIES[family][0]()
    for text in (TEXT, "fox", ""):
        whole, plain = (library.encode(text, add_special_tokens=flag).ids for flag in (True, False))
        assert tokenizer.encode(text).tolist() == whole == [*tokenizer.begin, *plain]
        assert tokenizer.encode(text, add_special_tokens=False).tolist() == plain
    assert bool(tokenizer.begin) == family.startswith("llama")


@pytest.mark.parametrize("between", [" ", "\n"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_text_has_the_tokens_of_one_that_is_encoded_at_once(family, between, tmp_path):
    """Texts are encoded in pieces, and some tokenizers begin each text that they encode with a blank."""
    write(tmp_path, family)
    tokenizer, (library, _) = load_tokenizer(tmp_path), FAMILIES[family][0]()
    text = between.join(["the quick brown fox"] * 8 + ["1234 apples aren't; 56 pears."]) * 2000
    assert len(text) > 5 * PIECE
    corpus = Corpus.of_text(text, tokenizer)
    found = np.concatenate([corpus.train, corpus.validation]).tolist()
    end = [] if tokenizer.end is None else [tokenizer.end]
    assert found == [*tokenizer.begin, *library.encode(text, add_special_tokens=False).ids, *end]


def test_a_server_adds_them_to_a_text_and_not_to_a_conversation(tmp_path):
    write(tmp_path, "llama 3")
    tokenizer = load_tokenizer(tmp_path)
    (bos,) = tokenizer.begin

    def prompt(is_chat, **asked):
        body = json.dumps({"model": "m", **asked}).encode()
        return read(body, is_chat, "m", programs, Constraints(tokenizer), Limits(1000)).prompts[0]

    with SandboxedTokenizer(tokenizer) as programs:
        assert prompt(False, prompt="fox") == tokenizer.encode("fox").tolist() and prompt(False, prompt="") == [bos]
        assert prompt(False, prompt=[5]) == [5]
        chat = prompt(True, messages=[{"role": "user", "content": "fox"}])
    assert chat[0] == bos and chat.count(bos) == 1 and "fox" in tokenizer.decode(chat)


def test_texts_to_train_on_begin_and_end_with_them(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": "the fox " * n}) + "\n" for n in range(1, 30)))
    prepare([tmp_path / "a.jsonl"], tmp_path / "data", LLAMA2)
    found = open_prepared(tmp_path / "data")
    tokens = np.concatenate([found.train, found.validation])
    starts = np.flatnonzero(tokens == 1)
    assert len(starts) == 29 and starts[0] == 0 and (tokens[starts[1:] - 1] == 2).all() and tokens[-1] == 2
    first = tokens[: starts[1]].tolist()
    assert first == [*LLAMA2.encode("the fox ").tolist(), 2]
    assert found.digest == Corpus.of_files([tmp_path / "a.jsonl"], LLAMA2).digest


def test_tokens_that_were_prepared_without_them_are_refused(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("the fox " * 50)
    with monkeypatch.context() as before:
        before.setattr(LLAMA2, "_begin", ())
        prepare([tmp_path / "a.txt"], tmp_path / "data", LLAMA2)
    with pytest.raises(ValueError, match=r"data: its texts lack <s>, which its tokenizer puts before each; prep"):
        open_prepared(tmp_path / "data")
    prepare([tmp_path / "a.txt"], tmp_path / "data", byte_tokenizer())  # as before: it has none
    assert open_prepared(tmp_path / "data").train[0] == byte_tokenizer().encode("t")[0]


# ---- what a text ends with ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_all_tokens_that_the_files_name_end_a_text_and_are_exported_again(family, tmp_path, on_numpy):
    settings = model_in(tmp_path / "theirs", family)
    _, ends, end = FAMILIES[family]
    tokenizer = load_tokenizer(tmp_path / "theirs")
    due = {tokenizer.number(name) for name in (*ends, end)}
    assert {*tokenizer.ends} == due and len(tokenizer.ends) == len(due)
    import_model(tmp_path / "theirs", tmp_path / "run")
    saved = load_checkpoint(tmp_path / "run").tokenizer
    assert saved.to_dict() == load_checkpoint(tmp_path / "run").tokenizer.to_dict() and {*saved.ends} == due
    export_model(tmp_path / "run", tmp_path / "out")
    again = load_tokenizer(tmp_path / "out")
    assert {*again.ends} == due and again.end == tokenizer.end and same_tokens(again, tokenizer)
    for name in ("config.json", "generation_config.json"):
        found = json.loads((tmp_path / "out" / name).read_text())
        eos = found["eos_token_id"]
        assert {*(eos if isinstance(eos, list) else [eos])} == due
        assert found.get("bos_token_id") == settings["bos_token_id"]


def test_a_model_stops_at_any_of_them(tmp_path, on_numpy):
    settings = model_in(tmp_path, "llama 3")
    model, tokenizer = load_pretrained(tmp_path), load_tokenizer(tmp_path)
    prompts, count = [[n] for n in range(5, 21)], 200
    found = Writer(model, tokenizer).complete(prompts, count, seed=1, temperature=4.0)
    endless = Writer(model, tokenizer).complete(prompts, count, seed=1, temperature=4.0, ends=())
    ended = [one.tokens for one in found if one.finish == "stop"]
    assert settings["eos_token_id"] != tokenizer.end and len(ended) > 8
    assert sum(one.finish == "length" for one in endless) == len(prompts)


def test_the_models_settings_count_whatever_tokenizer_it_gets(tmp_path, on_numpy):
    model_in(tmp_path / "a", "llama 2")
    with_bytes = import_model(tmp_path / "a", tmp_path / "run", tokenizer=byte_tokenizer()).tokenizer
    assert {*with_bytes.ends} == {with_bytes.end, 2}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "a" / name).unlink()
    assert NumberTokenizer(3, SpecialTokens(eos=(2, 3))).ends == (2,)  # 3 is no token
    numbers = import_model(tmp_path / "a", tmp_path / "numbers").tokenizer
    assert isinstance(numbers, NumberTokenizer) and numbers.ends == (2,)
    again = load_checkpoint(tmp_path / "numbers").tokenizer
    assert again.ends == (2,) and again.to_dict() == numbers.to_dict()


@pytest.mark.parametrize("value", ["2", 2.0, True, [1, "2"], {"a": 1}])
def test_a_setting_of_another_type_is_one_line(value, tmp_path):
    write(tmp_path, "llama 2")
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(ValueError, match=r"tokenizer\.json: its eos_token_id is .*; it must be an int or a list"):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [-1, 10**6, 2**40]}))
    assert load_tokenizer(tmp_path).ends == (2,)


@pytest.mark.parametrize("saved", [{"eos": [[1]]}, {"eos": [{}]}, {"eos": [True]}, {"eos": [-1]}, {"bos": [1]}])
def test_saved_ids_of_another_type_are_an_error(saved):
    with pytest.raises(ValueError, match=r"^SpecialTokens: bos and eos must be ids of tokens"):
        SpecialTokens.from_dict(saved)


def test_the_token_that_begins_a_text_is_that_of_the_first_file_and_all_that_end_one_count():
    found = SpecialTokens.of({"bos_token": "<s>"}, {"eos_token_id": 3}, {"bos_token_id": 4, "eos_token_id": [5, 3]})
    assert found == SpecialTokens({"bos_token": "<s>"}, 4, (3, 5))
    assert SpecialTokens.of({}, {"bos_token_id": 1}, {"bos_token_id": 4}).bos == 1
    names = SpecialTokens({"eos_token": "a"}).union(SpecialTokens({"eos_token": "b", "bos_token": "c"})).names
    assert names == {"eos_token": "a", "bos_token": "c"}
    assert SpecialTokens(bos=1, eos=(2,)).union(SpecialTokens(bos=3, eos=(4,))) == SpecialTokens(bos=1, eos=(2, 4))


def test_another_programs_settings_beside_a_tokenizer_do_not_matter(tmp_path):
    (tmp_path / "bpe.json").write_text(byte_tokenizer().to_json())
    (tmp_path / "config.json").write_text('{"eos_token_id": "anything"}')
    assert load_tokenizer(tmp_path / "bpe.json").ends == byte_tokenizer().ends


# ---- bytes that are no UTF-8 -------------------------------------------------------------------------------------

_MOSTLY_BYTES = st.sampled_from([3 + byte for byte in (*"日é😀".encode(), 0xFF, 0x20)])


@given(numbers=st.lists(_MOSTLY_BYTES | st.integers(0, LLAMA2.vocab_size - 1)))
def test_the_parts_of_a_stream_with_byte_fallback_are_the_text_of_any_tokens(numbers):
    parts = list(LLAMA2.stream(numbers))
    assert "".join(parts) == LLAMA2.decode(numbers) and len(parts) in (len(numbers), len(numbers) + 1)


@given(texts=st.tuples(st.text(), st.text(alphabet="the fox日😀é\n")))
def test_a_stream_with_byte_fallback_goes_on_after_a_prompt(texts):
    first, whole = LLAMA2.encode(texts[0]).tolist(), LLAMA2.encode("".join(texts)).tolist()
    if whole[: len(first)] == first:
        found = "".join(LLAMA2.stream(whole[len(first) :], after=first))
        assert LLAMA2.decode(first) + found == LLAMA2.decode(whole)


def test_what_is_no_utf8_is_the_replacement_character():
    fox = int(LLAMA2.encode(" fox", add_special_tokens=False)[-1])
    assert list(LLAMA2.stream([fox, 3 + 0xFF, fox])) == ["fox", "", "\ufffd fox"]
    assert list(LLAMA2.stream([3 + 0xE6, 3 + 0x97, 3 + 0xA5, fox])) == ["", "", "", "日 fox"]
    assert list(LLAMA2.stream([3 + 0xA5, fox], after=[fox, 3 + 0xE6, 3 + 0x97])) == ["", "日 fox"]


# ---- characters as a tokenizer.json ------------------------------------------------------------------------------


def test_a_character_tokenizer_is_a_tokenizer_json():
    own = CharTokenizer.from_text(TEXT + "<unk>\r\u0301")
    other = SubwordTokenizer(own.to_json())
    for text in (TEXT, "  a\r\n\n<unk>", ""):
        tokens = own.encode(text)
        assert np.array_equal(other.encode(text), tokens) and other.decode(tokens) == text
    with pytest.raises(ValueError, match=r"^encode: not in the vocabulary of \d+ tokens: 'X' \(U\+0058\)$"):
        other.encode("aX")
