"""Texts of many callers: each is what its caller would get alone, whoever comes and leaves."""

import numpy as np
import pytest

import polyarr as pa
from polyarr.models import LlamaModel, Writer
from polyarr.models.completion import joined
from polyarr.models.shared_writer import SharedWriter
from polyarr.text import CharTokenizer

LETTERS = "abcdefghijklmnopqrstuvw"
SIZES = {
    "vocab_size": 23, "context_length": 40, "emb_dim": 16, "n_heads": 2, "n_layers": 2, "n_kv_heads": 1,
    "hidden_dim": 24, "head_size": 8,
}  # fmt: skip


GPT_OSS = {
    "n_experts": 4, "experts_per_token": 2, "expert_bias": True, "swiglu_limit": 7.0, "attention_sinks": True,
    "windows": [6, 0],
}  # fmt: skip


def model(**changes):
    pa.random.seed(0)
    return pa.tree.map(lambda p: p * 6, LlamaModel({**SIZES, **changes}))


def asked(generator):
    """Return random arguments of `begin`: prompts, the number of tokens, and options."""
    lengths = generator.integers(1, 12, generator.integers(1, 4))
    texts = ["".join(generator.choice(list(LETTERS), length)) for length in lengths]
    options = {"seed": int(generator.integers(99)), "temperature": float(generator.choice([0.0, 0.8, 1.2]))}
    if generator.integers(2):
        options["stop"] = tuple(generator.choice(list(LETTERS), 2))
    if generator.integers(2):
        options |= {"logprobs": int(generator.integers(3)), "echo": bool(generator.integers(2))}
    if generator.integers(2):
        options |= {"top_k": 9, "frequency_penalty": 0.4}
    return texts, int(generator.integers(0 if options.get("echo") else 1, 20)), options


def finished(writer, calls):
    """Return the names of calls in the order in which they are complete."""
    found = []
    while not writer.is_idle:
        writer.step()
        found += [name for name, call in calls.items() if call.is_done and name not in found]
    return found


def test_a_client_with_many_texts_does_not_keep_another_waiting():
    with pa.use_backend("numpy"):
        writer = SharedWriter(model(), CharTokenizer(LETTERS), 2)
        calls = {f"a{n}": writer.begin(["abc"], 4, client="a") for n in range(9)}
        writer.step()
        calls |= {f"{name}{n}": writer.begin(["abc"], 4, client=name) for n in range(2) for name in "bc"}
        assert writer.waiting == {"row": 11, "prompt": 0}
        order = finished(writer, calls)
        assert sorted(order[:2]) == ["a0", "a1"] and sorted(order[2:4]) == ["b0", "c0"]
        # Then all have as many tokens in rows, none, and take turns.
        assert sorted(order[4:6]) == ["a2", "b1"] and sorted(order[6:8]) == ["a3", "c1"]
        assert sorted(order[8:]) == [f"a{n}" for n in range(4, 9)]


def test_clients_are_compared_by_tokens():
    with pa.use_backend("numpy"):
        writer = SharedWriter(model(), CharTokenizer(LETTERS), 3)
        calls = {"a": writer.begin(["abc"], 30, client="a"), "b": writer.begin(["abc"] * 2, 3, client="b")}
        writer.step()
        calls |= {"a1": writer.begin(["abc"], 3, client="a"), "b1": writer.begin(["abc"] * 4, 3, client="b")}
        assert finished(writer, calls) == ["b", "b1", "a1", "a"]


def written(writer, call):
    """Return the texts of a call that is alone."""
    parts = []
    while not call.is_done:
        parts += [part for other, part in writer.step() if other is call]
    return parts


def by_row(parts):
    """Return the parts of each text; those of different texts may alternate in any way."""
    return {row: [part for part in parts if part.row == row] for row in {part.row for part in parts}}


@pytest.mark.parametrize("changes", [{}, GPT_OSS], ids=["llama", "gpt-oss"])
def test_each_caller_gets_what_it_would_get_alone(changes, backend):
    """To the bit of each log-probability, in a random schedule in which some callers leave."""
    generator, writer = np.random.default_rng(0), SharedWriter(model(**changes), CharTokenizer(LETTERS), rows=4)
    waiting = [(int(generator.integers(60)), number, asked(generator)) for number in range(30)]
    calls, found, left = {}, {}, set()
    for step in range(10_000):
        for _, number, (texts, count, options) in [one for one in waiting if one[0] == step]:
            calls[writer.begin(texts, count, **options)] = number
        for call, part in writer.step():
            found.setdefault(calls[call], []).append(part)
        for call in [call for call in calls if not call.is_done and generator.integers(80) == 0]:
            writer.end(call)
            left.add(calls[call])
        if step > 60 and writer.is_idle:
            break
    assert 2 < len(left) < 15 and writer.is_idle
    for _, number, (texts, count, options) in waiting:
        alone = written(writer, writer.begin(texts, count, **options))
        parts = found.get(number, [])
        if number not in left:
            assert by_row(parts) == by_row(alone)
        assert all(mine == by_row(alone)[row][: len(mine)] for row, mine in by_row(parts).items())


@pytest.mark.parametrize("changes", [{}, GPT_OSS], ids=["llama", "gpt-oss"])
def test_texts_are_those_of_a_writer(changes):
    with pa.use_backend("numpy"):
        tokenizer = CharTokenizer(LETTERS)
        shared, writer = SharedWriter(model(**changes), tokenizer, rows=3), Writer(model(**changes), tokenizer)
        options = {"temperature": 0, "stop": ("q",), "logprobs": 2, "echo": True}
        prompts = ["abc", "w", "fghijk"]
        wanted = writer.complete(prompts, 9, **options)
        parts = by_row(written(shared, shared.begin(prompts, 9, **options)))
        for row, text in enumerate(wanted):
            mine = joined(parts[row])
            assert (mine.text, mine.tokens, mine.finish) == (text.text, text.tokens, text.finish)
            assert [one.text for one in mine.logprobs] == [one.text for one in text.logprobs]
            values = [[one.logprob for one in each.logprobs[1:]] for each in (mine, text)]
            assert values[0] == pytest.approx(values[1], rel=1e-4)


def test_a_prompt_may_fill_the_context_and_text_ends_with_it():
    with pa.use_backend("numpy"):
        writer = SharedWriter(model(), CharTokenizer(LETTERS), rows=2, length=12)
        parts = written(writer, writer.begin(["a" * 10], 50, temperature=0))
        assert [part.finish for part in parts] == [None, "length"]
        scored = written(writer, writer.begin(["abcdefghijkl"], 5, logprobs=0, echo=True))
        assert [part.finish for part in scored] == ["length"] and len(scored[0].logprobs) == 12
        with pytest.raises(ValueError, match="a prompt has 13 tokens; it must have at most 12"):
            writer.begin(["a" * 13], 1)
        with pytest.raises(ValueError, match="SharedWriter: max_new_tokens is -1; it must not be negative"):
            writer.begin(["a"], -1)
        assert writer.is_idle


def test_after_a_reset_all_goes_on():
    with pa.use_backend("numpy"):
        writer = SharedWriter(model(), CharTokenizer(LETTERS), rows=2)
        writer.begin(["ab", "c", "d"], 9)
        writer.step()
        writer.reset()
        assert writer.is_idle and writer.step() == []
        assert len(written(writer, writer.begin(["ab"], 3))) == 3
