"""Text generation from prompts: rows of different lengths equal single rows, stop strings, and seeds."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import polyarr as pa
from polyarr import nn
from polyarr.models import Completion, GPTModel, LlamaModel, Part, Writer, generate
from polyarr.models.completion import Stops
from polyarr.models.generation import stream
from polyarr.text import CharTokenizer, byte_tokenizer

SIZES = {"vocab_size": 40, "context_length": 16, "emb_dim": 32, "n_heads": 4, "n_layers": 2}
MODELS = {
    "gpt": lambda: GPTModel({**SIZES, "drop_rate": 0.5, "qkv_bias": True}),
    "llama": lambda: LlamaModel({**SIZES, "n_kv_heads": 2, "hidden_dim": 48, "head_size": 8}),
}
LETTERS = CharTokenizer("abcdefghijklmnopqrstuvwxyz .,:;!?-ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:40])


def small(name, factor=4):
    pa.random.seed(0)
    return pa.tree.map(lambda p: p * factor if p.ndim > 1 else p, MODELS[name]())


def writer(name="gpt"):
    return Writer(small(name), LETTERS)


def test_mixed_requests_give_no_warning(on_numpy):
    """A warning would be an error here: a server handles mixed requests."""
    one = writer()
    for top_k in range(2, 13):
        one.complete(["ab"], 2, seed=1, top_k=top_k)
    assert len(one._step.programs()) == 11


# ---- rows of different length ------------------------------------------------------------------------------------

SETTINGS = {
    "greedy": {"temperature": 0},
    "all": {"top_k": 20, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3, "seed": 5},
    "seeds": {"temperature": 0.7, "seed": [9, 8, 7, 6]},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", MODELS)
def test_a_row_of_a_batch_is_what_its_prompt_gives_alone(backend, name, settings):
    """Within the context and beyond it, which the rows reach one after the other."""
    model, rng = small(name), np.random.default_rng(1)
    prompts = [rng.integers(0, 40, size=n).astype(np.int32) for n in (1, 5, 16, 19)]
    padding = np.array([19 - len(p) for p in prompts], np.int32)
    padded = np.stack([np.concatenate([np.full(n, 39, np.int32), p]) for n, p in zip(padding, prompts, strict=True)])
    found = generate(model, pa.asarray(padded), 18, padding=pa.asarray(padding), **settings).numpy()
    for row, prompt in enumerate(prompts):
        own = dict(settings)
        if "seed" in own:
            own["seed"] = own["seed"] + row if isinstance(own["seed"], int) else [own["seed"][row]]
        alone = generate(model, pa.asarray(prompt[None]), 18, **own).numpy()[0]
        np.testing.assert_array_equal(found[row, padding[row] :], alone)
    assert len({tuple(row[-8:]) for row in found}) > 1


@pytest.mark.parametrize("name", MODELS)
def test_logits_behind_padding_are_those_without(backend, name):
    model, x = small(name).eval(), pa.asarray([[7, 1, 2, 3, 4], [7, 7, 7, 8, 9]], dtype="int32")
    padding, caches = pa.asarray([1, 3]), model.caches(2, 8)
    wanted = [model(x[:1, 1:]).numpy()[0, -1], model(x[1:, 3:]).numpy()[0, -1]]
    whole = model(x, padding=padding).numpy()
    model(x[:, :3], caches, None, padding)
    by_parts = model(x[:, 3:], caches, 3, padding).numpy()
    last = model.next_token_logits(x, padding=padding).numpy()
    for found in (whole[:, -1], by_parts[:, -1], last):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_of_a_prompt_the_head_sees_the_last_token_alone(on_numpy, monkeypatch, name):
    """All logits of a long prompt would be the largest array of the model."""
    real, shapes = nn.Linear.__call__, []

    def noting(layer, x):
        shapes.append((layer.weight.shape[0], x.shape))
        return real(layer, x)

    monkeypatch.setattr(nn.Linear, "__call__", noting)
    generate(small(name), pa.asarray(np.arange(15)[None]), 4, temperature=0)  # and beyond the context
    assert {shape for rows, shape in shapes if rows == 40} == {(1, 1, 32)} and (32, (1, 15, 32)) in shapes


def test_wrong_rows_are_refused_at_once(on_numpy):
    def refused(message, x=((1, 2), (3, 4)), **settings):
        with pytest.raises(ValueError, match=message):
            stream(None, pa.asarray(x), 1, **settings)

    refused(r"padding is int64\[3\]; it must be 2 integers", padding=pa.asarray([0, 0, 1]))
    refused(r"padding is float32\[2\]; it must be 2 integers", padding=pa.asarray([0.0, 1.0]))
    refused("there are 3 seeds; it must be one for each of 2 rows", seed=[1, 2, 3])
    refused("seed is 1.5; it must be an int, or one for each row", seed=1.5)
    refused(r"seed is \[1, 'a'\]; it must be an int, or one for each row", seed=[1, "a"])


def test_seeds_draw_as_often_as_the_model_says(on_numpy):
    """Pearson's chi-square of 3,000 rows of one prompt with consecutive seeds."""
    model, count = small("gpt", 12).eval(), 3000
    prompt = np.tile(np.int32([3, 1, 4]), (count, 1))
    drawn = generate(model, pa.asarray(prompt), 2, seed=100).numpy()
    for column in (3, 4):  # the second token of rows with the most common first one
        first = np.bincount(drawn[:, 3]).argmax()
        rows = drawn if column == 3 else drawn[drawn[:, 3] == first]
        logits = model(pa.asarray(rows[:1, :column])).numpy()[0, -1].astype(np.float64)
        weights = np.exp(logits - logits.max())
        wanted = len(rows) * weights / weights.sum()
        often = wanted > 5  # as the test requires; the others count as one
        found = np.bincount(rows[:, column], minlength=40)
        wanted, found = ([*a[often], a[~often].sum()] for a in (wanted, found))
        square = sum((f - w) ** 2 / w for f, w in zip(found, wanted, strict=True))
        degrees = len(wanted) - 1
        assert degrees > 3 and square < degrees + 4 * (2 * degrees) ** 0.5


# ---- the ends of texts -------------------------------------------------------------------------------------------


def told(parts, row=0):
    return "".join(part.text for part in parts if part.row == row)


def test_a_text_ends_before_a_stop_string_wherever_the_tokens_end(on_numpy):
    tokens = LETTERS.encode("abab, cabba").tolist()
    whole = writer().complete(["ab", tokens], 14, seed=3)
    assert [len(row.text) for row in whole] == [14, 14] and {row.finish for row in whole} == {"length"}
    stop = whole[0].text[4:7]
    parts = list(writer().write(["ab", tokens], 14, seed=3, stop=["ZZZZ", stop]))
    cut = whole[0].text.index(stop)
    assert told(parts) == whole[0].text[:cut]
    ends = [part for part in parts if part.finish]
    assert ends[0][:3:2] == (0, cut + 3) and ends[0].finish == "stop"
    assert len([part for part in parts if part.row == 0]) == cut + 3
    if stop not in whole[1].text:
        assert told(parts, 1) == whole[1].text and ends[1].finish == "length"
    begun = writer().complete(["ab", tokens], 14, seed=3, stop=[row.text[-2:] + "ZZ" for row in whole])
    assert [row.text for row in begun] == [row.text for row in whole]  # also what a stop string may begin with


class Ending(CharTokenizer):
    """A tokenizer with a character that ends texts."""

    end = 3


def test_a_text_ends_at_the_tokenizer_s_end_or_at_tokens_that_are_named(on_numpy):
    own = Writer(small("gpt", 1), Ending(LETTERS.characters))
    found = own.complete(["a", "bcd"], 400, seed=1)
    assert {row.finish for row in found} == {"stop"} and found[0].tokens != found[1].tokens
    assert not any(own.tokenizer.token(3) in row.text for row in found)
    assert [len(row.text) + 1 for row in found] == [row.tokens for row in found]
    on = own.complete(["a"], found[0].tokens + 2, seed=1, ends=())[0]
    assert on.finish == "length" and on.text.startswith(found[0].text + own.tokenizer.token(3))
    named = own.complete(["a"], 400, seed=1, ends=LETTERS.encode(found[0].text[2]).tolist())[0]
    assert named.finish == "stop" and named.text == found[0].text[: found[0].text.index(found[0].text[2])]


@pytest.mark.parametrize("name", MODELS)
def test_a_text_that_ends_as_long_as_the_context_takes_no_pass_beyond(on_numpy, name):
    """The next token is launched before one is read, but not there, where it would warn."""
    model, prompt = small(name), [1, 2, 3]
    rest = SIZES["context_length"] + 1 - len(prompt)  # after these tokens another one takes a whole context
    for seed in range(50):
        text = generate(model, pa.asarray([prompt]), rest, seed=seed, temperature=1.0)
        tokens = text[0, len(prompt) :].numpy().tolist()
        if tokens.index(tokens[-1]) == rest - 1:
            break
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Writer(model, LETTERS).complete([prompt], 30, seed=seed, temperature=1.0, ends={tokens[-1]})
    assert (found[0].tokens, found[0].finish) == (rest, "stop")


def test_parts_are_whole_characters_and_together_the_text(on_numpy):
    """é is two tokens of byte_tokenizer: the first one yields nothing."""
    tokenizer = byte_tokenizer()
    pa.random.seed(0)
    model = GPTModel({**SIZES, "vocab_size": 257, "drop_rate": 0.0, "qkv_bias": False})
    drawn = generate(model, pa.asarray(tokenizer.encode("é")[None]), 60, seed=2, vocab_size=257)
    parts = list(Writer(model, tokenizer).write(["é"], 60, seed=2, ends=()))
    assert "" in [part.text for part in parts] and [part.tokens for part in parts] == list(range(1, 61))
    whole = tokenizer.decode(drawn.numpy()[0].tolist())
    assert "é" + told(parts) == whole


@given(
    text=st.text(alphabet="ab", max_size=30),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
@example(text="aba", stops=["aba", "b"], cuts=[])  # the first one to end begins later
@example(text="aab", stops=["aab"], cuts=[2])  # all but the last character are held back
def test_the_first_stop_string_is_found_whatever_the_parts_are(text, stops, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    found, given_out = Stops(stops), ""
    for start, end in pairwise(edges):
        given_out += found.add(text[start:end])
        if found.is_found:
            break
        # Everything is yielded except a possible start of a stop string.
        held = text[len(given_out) : end]
        assert given_out + held == text[:end] and (not held or any(stop.startswith(held) for stop in stops))
    first = next((n for n in range(len(text) + 1) if any(text[:n].endswith(stop) for stop in stops)), None)
    if first is None:
        assert not found.is_found and given_out + found.rest() == text
    else:
        longest = max(len(stop) for stop in stops if text[:first].endswith(stop))
        assert found.is_found and given_out == text[: first - longest] and found.rest() == ""


# ---- many texts --------------------------------------------------------------------------------------------------


def test_one_capture_serves_many_texts(on_numpy):
    own = writer()
    for prompt, count, settings in (("a", 4, {"seed": 1}), ("abc", 9, {"temperature": 0.3}), ("b, c", 6, {})):
        assert own.complete([prompt], count, **settings)[0].tokens == count
    assert len(own._step.programs()) == 1
    own.complete(["a", "bc"], 4, top_k=3)
    assert len(own._step.programs()) == 2


def test_a_writer_that_is_left_goes_on_with_the_next_text(on_numpy):
    own = writer()
    wanted = own.complete(["abc"], 6, seed=1)
    first = own.write(["xyz"], 50)
    assert next(first)[:3:2] == (0, 1)
    second = own.write(["abc"], 6, seed=1)
    both = [part for pair in zip(second, first, strict=False) for part in pair]
    assert Completion(told(both[::2]), both[-2].tokens, both[-2].finish) == wanted[0]


def test_what_is_wrong_is_said_at_once(on_numpy):
    own = writer()
    for message, prompts, settings in (
        ("there is no prompt; give at least one", [], {}),
        ("a prompt is empty; it must have at least one token", [""], {}),
        ("a prompt is empty; it must have at least one token", [[]], {}),
        ("a prompt's tokens must be integers from 0 to 39", [[0, 40]], {}),
        ("a prompt's tokens must be integers from 0 to 39", [[0.5]], {}),
        ("a stop string is empty; it must have at least one character", ["a"], {"stop": ["b", ""]}),
        ("Sampling: min_p is 2; it must be from 0 to 1", ["a"], {"min_p": 2}),
    ):
        with pytest.raises(ValueError, match=message):
            own.write(prompts, 3, **settings)
    for name, prompts, settings in (("prompts", "abc", {}), ("stop", ["a"], {"stop": "abc"})):
        with pytest.raises(TypeError, match=rf"Writer: {name} is 'abc'; it must be a list of texts, such as \['abc'\]"):
            own.write(prompts, 3, **settings)
    with pytest.raises(ValueError, match="max_new_tokens is -1; it must not be negative"):
        own.write(["a"], -1, stop_at_context=True)
    with pytest.raises(ValueError, match="a prompt's tokens must be integers from 0 to 39"):
        Writer(small("gpt"), byte_tokenizer()).write(["a"], 1)
    assert own.complete(["a"], 0) == [Completion("", 0, "length")] and list(own.write(["a"], 0)) == []
    assert isinstance(next(own.write(["a"], 1)), Part)
