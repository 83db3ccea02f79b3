"""Speculative decoding: the same texts in fewer passes."""

import numpy as np
import pytest

import polyarr as pa
from polyarr.models import GPTModel, LlamaModel, Writer, generate
from polyarr.models.speculation import (
    PENALTIES,
    Drafts,
    ModelDrafts,
    can_speculate,
    speculated,
    speculative_step,
)
from polyarr.text import CharTokenizer

SIZES = {"vocab_size": 23, "context_length": 120, "emb_dim": 16, "n_heads": 2, "n_layers": 2}
LLAMA = {**SIZES, "n_kv_heads": 1, "hidden_dim": 24, "head_size": 8}
MODELS = {
    "gpt": lambda **sizes: GPTModel({**SIZES, "drop_rate": 0.1, "qkv_bias": True, **sizes}),
    "windows": lambda **sizes: LlamaModel({**LLAMA, "windows": [6, 0], **sizes}),
    "experts": lambda **sizes: LlamaModel({**LLAMA, "n_experts": 4, "experts_per_token": 2, **sizes}),
    "sinks": lambda **sizes: LlamaModel({**LLAMA, "windows": [6, 0], "attention_sinks": True, **sizes}),
}
SAMPLINGS = (
    {"temperature": 0},
    {"temperature": 0.3, "seed": 3},
    {"temperature": 0.5, "seed": 5, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 0.4, "seed": 7, "top_k": 5, "logit_bias": {2: 1.0}},
)
PROMPT = np.array([1, 2, 3, 4, 1, 2, 3, 4, 1, 2])


def model_of(kind, factor=6, **sizes):
    pa.random.seed(0)
    return pa.tree.map(lambda p: p * factor, MODELS[kind](**sizes)).eval()


def undrafted(model, length, sampling):
    return generate(model, pa.asarray(PROMPT[None]), length, **sampling).numpy()[0, len(PROMPT) :].tolist()


def taken(samples):
    return [int(one.token.numpy()[0, 0]) for one in samples]


class Counted:
    """A step that counts its calls with at least this many positions; a draft model has fewer than 3."""

    def __init__(self, least=1):
        self.step, self.passes, self.least = speculative_step(), 0, least

    def __call__(self, model, tokens, *args):
        self.passes += tokens.shape[1] >= self.least
        return self.step(model, tokens, *args)


@pytest.mark.parametrize("kind", MODELS)
def test_texts_are_those_without_drafts(kind, backend):
    """Up to the end of the context, greedy and sampled; here no rounding decides between two tokens."""
    model, passes = model_of(kind, context_length=60), {1: [], 5: []}
    for sampling in SAMPLINGS:
        wanted = undrafted(model, 50, sampling)
        for drafts, each in passes.items():
            step = Counted()
            found = taken(speculated(model, PROMPT, 50, drafts, step=step, **sampling))
            assert found == wanted and len(found) == 50
            each.append(step.passes)
    assert all(min(each) < 48 and max(each) <= 49 for each in passes.values())


def test_a_text_that_repeats_takes_few_passes(on_numpy):
    model = model_of("gpt", factor=0)  # all logits are equal, and the first token is taken
    for drafts, most in ((1, 52), (4, 24), (9, 14)):
        step = Counted()
        assert taken(speculated(model, PROMPT, 100, drafts, step=step, temperature=0)) == [0] * 100
        assert step.passes <= most
        assert len(step.step.programs()) == 2  # with a draft and without


@pytest.mark.parametrize("kind", ["gpt", "windows"])
def test_texts_are_those_without_a_draft_model(kind, backend):
    model = model_of(kind, context_length=60)
    near = pa.tree.map(lambda p: p * 0.97, model)
    other = GPTModel({**SIZES, "context_length": 30, "n_layers": 1, "drop_rate": 0.0, "qkv_bias": False})
    for sampling in (SAMPLINGS[0], SAMPLINGS[2]):
        wanted = undrafted(model, 50, sampling)
        for draft, most in ((model, 12), (near, 25), (other.eval(), 50)):
            step = Counted(least=3)
            found = taken(speculated(model, PROMPT, 50, 4, step=step, draft_model=draft, **sampling))
            assert found == wanted
            assert step.passes <= most, (draft is model, sampling)


def test_a_draft_is_sampled_from_the_numbers_of_the_text(on_numpy):
    model, step = model_of("gpt", factor=2), Counted(least=3)  # many tokens are likely
    taken(speculated(model, PROMPT, 101, 4, step=step, draft_model=model, temperature=1.0, seed=2))
    assert step.passes == 20  # of 5 tokens each, after the first: all drafts are right


def test_a_draft_model_is_asked_within_its_context(on_numpy):
    short = GPTModel({**SIZES, "context_length": 30, "drop_rate": 0.0, "qkv_bias": False}).eval()
    how = (speculative_step(), {}, None, (None, 23))
    drafts = ModelDrafts(short, list(range(10)), 100, *how)
    assert drafts.next(4) == []  # nothing was added yet
    drafts.add(3)
    first = drafts.next(4)
    wanted = generate(short, pa.asarray([[*range(10), 3]]), 4, temperature=0).numpy()[0, 11:]
    assert first == wanted.tolist() and drafts.next(4) == first
    for token in range(15):
        drafts.add(token)
    wanted = generate(short, pa.asarray([[*range(10), 3, *range(15)]]), 4, temperature=0).numpy()[0, 26:]
    drafts = ModelDrafts(short, [*range(10), 3, *range(14)], 100, *how)
    drafts.add(14)
    assert drafts.next(4) == wanted.tolist() and drafts.next(5) == []
    assert ModelDrafts(short, [1] * 40, 100, *how).next(1) == []


def test_a_writer_has_a_draft_model(on_numpy):
    model, tokens = model_of("gpt"), CharTokenizer("abcdefghijklmnopqrstuvw")
    writer, plain = Writer(model, tokens, pa.tree.map(lambda p: p * 0.97, model)), Writer(model, tokens)
    for options in ({"temperature": 0}, {"temperature": 0.5, "seed": 3, "stop": ["b"]}, {"speculate": 0, "seed": 1}):
        assert writer.complete(["abcabcab"], 60, **options) == plain.complete(["abcabcab"], 60, **options)
    small = GPTModel({**SIZES, "vocab_size": 22, "drop_rate": 0.0, "qkv_bias": False})
    with pytest.raises(ValueError, match=r"^Writer: the draft model has 22 tokens; it must have 23$"):
        Writer(model, tokens, small)


def test_numbers_of_the_global_generator_are_those_without_drafts(on_numpy):
    model, found = model_of("gpt"), []
    for write in (
        lambda: generate(model, pa.asarray(PROMPT[None]), 90, temperature=0.4).numpy()[0, len(PROMPT) :].tolist(),
        lambda: taken(speculated(model, PROMPT, 90, 4, temperature=0.4)),
    ):
        pa.random.seed(11)
        found.append(write())
    assert found[0] == found[1]


def test_drafts_follow_the_longest_and_latest_ngram():
    drafts = Drafts([1, 2, 3, 7, 8, 2, 3, 9])
    assert drafts.next(2) == []
    for token, wanted in ((2, []), (3, [9, 2, 3]), (9, [2, 3, 9]), (1, []), (2, [3, 7, 8]), (3, [7, 8, 2])):
        drafts.add(token)
        assert drafts.next(3) == wanted
    assert Drafts([4, 4, 4]).next(3) == [4, 4, 4] and Drafts([1]).next(3) == []


def test_a_writer_speculates_where_it_can(on_numpy, monkeypatch):
    used = []

    def noted(*args, **options):
        used.append(args)
        return speculated(*args, **options)

    monkeypatch.setattr("polyarr.models.completion.speculated", noted)
    writer = Writer(model_of("gpt"), CharTokenizer("abcdefghijklmnopqrstuvw"))
    for count, (prompts, options) in enumerate(
        (
            (["abcabcab"], {"temperature": 0}),
            (["abcabcab"], {"temperature": 0.5, "seed": 3}),
            (["abcabcab"], {"temperature": 0.5, "seed": [3], "stop": ["b"]}),
        ),
        1,
    ):
        assert writer.complete(prompts, 60, speculate=3, **options) == writer.complete(prompts, 60, **options)
        assert len(used) == count
    for prompts, length, options in (
        (["abc", "ab"], 9, {}),
        (["abcabc"], 119, {}),
        (["abcabc"], 9, {"repetition_penalty": 1.2}),
        (["abcabc"], 9, {"logprobs": 1}),
    ):
        with pytest.warns(RuntimeWarning) if length == 119 else pytest.MonkeyPatch.context():
            found = writer.complete(prompts, length, speculate=3, seed=1, **options)
        assert len(found) == len(prompts) and len(used) == 3
    with pytest.raises(ValueError, match=r"^Writer: speculate is -1; it must not be negative$"):
        writer.write(["a"], 1, speculate=-1)


def test_penalties_cannot_be_speculated(on_numpy):
    model = model_of("gpt")
    assert can_speculate(model, [PROMPT], 110, temperature=0.5)
    assert not can_speculate(model, [PROMPT], 111)
    assert not any(can_speculate(model, [PROMPT], 9, **{name: 0.5}) for name in PENALTIES)
