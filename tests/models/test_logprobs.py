"""Log-probabilities of prompts and of sampled tokens, logit bias and penalties in texts."""

import math
from collections import Counter

import numpy as np
import pytest

import polyarr as pa
from polyarr.models import GPTModel, LlamaModel, Writer, generate, logprobs
from polyarr.models.generation import sample
from polyarr.text import CharTokenizer, SubwordTokenizer, byte_tokenizer

SIZES = {"vocab_size": 40, "context_length": 24, "emb_dim": 32, "n_heads": 4, "n_layers": 2}
LETTERS = CharTokenizer("abcdefghijklmnopqrstuvwxyz .,:;!?-AB")  # fewer than the model's tokens
MODELS = {
    "gpt": lambda: GPTModel({**SIZES, "drop_rate": 0.5, "qkv_bias": True}),
    "llama": lambda: LlamaModel({**SIZES, "n_kv_heads": 2, "hidden_dim": 48, "head_size": 8}),
}


def small(name):
    pa.random.seed(0)
    return pa.tree.map(lambda p: p * 4 if p.ndim > 1 else p, MODELS[name]())


def reference(model, tokens):
    """Return the log-probabilities of the token after each one, (T, V), in float64."""
    logits = model.eval()(pa.asarray([tokens], dtype="int32")).numpy()[0].astype(np.float64)
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def check(found, tokens, wanted, first, top):
    """Compare the log-probabilities of tokens with the rows of a reference from `first`."""
    assert [one.token for one in found] == tokens and [one.text for one in found] == list(LETTERS.decode(tokens))
    for one, row in zip(found, wanted[first : first + len(tokens)], strict=True):
        assert one.logprob == pytest.approx(row[one.token], abs=2e-4)
        likely = np.argsort(-row[: LETTERS.vocab_size])[:top]
        assert [text for text, _ in one.top] == [LETTERS.decode([token]) for token in likely]
        np.testing.assert_allclose([value for _, value in one.top], row[likely], atol=2e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 1.3, "top_k": 9, "seed": 2}])
def test_prompts_of_several_lengths_and_what_follows_them(backend, monkeypatch, name, settings):
    """All tokens of all rows have the log-probabilities of a plain pass over the whole text."""
    monkeypatch.setattr(logprobs, "_MAX_LOGITS", 4 * 40 * 3)  # three positions at once
    computed, of = [], logprobs.logprobs_of
    monkeypatch.setattr(logprobs, "logprobs_of", lambda logits, *a: computed.append(logits.shape) or of(logits, *a))
    model, prompts = small(name), ["abc", "x", "hello there", "be a cab"]
    found = Writer(model, LETTERS).complete(prompts, 6, logprobs=3, echo=True, **settings)
    assert [count for _, count, _ in computed] == [3, 3, 3, 1]
    for prompt, one in zip(prompts, found, strict=True):
        tokens = LETTERS.encode(prompt + one.text).tolist()
        wanted, (first, *others) = reference(model, tokens), one.logprobs
        assert first.logprob is None and first.top == () and first.text == prompt[0]
        check(others, tokens[1:], wanted, 0, 3)
        assert [t.offset for t in others] == [0] * (len(prompt) - 1) + list(range(6))


def test_a_prompt_is_scored_in_one_pass(on_numpy, monkeypatch):
    model, passes = small("gpt"), []
    plain = GPTModel.features
    monkeypatch.setattr(GPTModel, "features", lambda self, x, *a: passes.append(x.shape) or plain(self, x, *a))
    writer = Writer(model, LETTERS)
    (part,) = writer.write(["hello"], 0, logprobs=1, echo=True)
    assert (part.text, part.tokens, part.finish) == ("", 0, "length") and len(part.logprobs) == 5
    assert passes == [(1, 5)]
    prompt, token = writer.write(["hello"], 1, logprobs=1, echo=True)
    assert passes == [(1, 5)] * 2 and prompt.logprobs == part.logprobs and token.tokens == 1
    assert [part.logprobs for part in writer.write(["hello"], 0, echo=True)] == [()] and len(passes) == 2


def test_log_probabilities_change_no_text(on_numpy):
    writer = Writer(small("gpt"), LETTERS)
    how = {"seed": 3, "temperature": 0.9, "frequency_penalty": 0.5, "logit_bias": {4: -100}}
    plain = writer.complete(["abc", "he"], 20, **how)
    found = writer.complete(["abc", "he"], 20, logprobs=0, **how)
    assert [one.text for one in found] == [one.text for one in plain] and plain[0].logprobs == ()
    assert all(token.top == () and token.logprob < 0 for one in found for token in one.logprobs)
    assert [len(one.logprobs) for one in found] == [20, 20]  # beyond the context of 24 tokens


def test_tokens_of_a_stop_string_and_an_end_have_log_probabilities(on_numpy):
    writer = Writer(small("gpt"), LETTERS)
    (whole,) = writer.complete(["abc"], 9, temperature=0.9, seed=3)
    (found,) = writer.complete(["abc"], 9, temperature=0.9, seed=3, stop=[whole.text[4:6]], logprobs=1)
    assert found.text == whole.text[:4] and len(found.logprobs) == found.tokens == 6
    assert [token.offset for token in found.logprobs] == list(range(6))
    end = LETTERS.encode(whole.text[2]).item()
    (found,) = writer.complete(["abc"], 9, temperature=0.9, seed=3, ends=[end], logprobs=1)
    assert found.finish == "stop" and found.logprobs[-1].token == end and len(found.logprobs) == found.tokens


def test_the_texts_of_tokens_keep_blanks_and_show_parts_of_characters():
    metaspace = SubwordTokenizer(
        '{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,'
        '"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true},'
        '"post_processor":null,"decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true},'
        '"model":{"type":"WordLevel","vocab":{"▁be":0,"▁":1,"<unk>":2},"unk_token":"<unk>"}}'
    )
    model = GPTModel({**SIZES, "drop_rate": 0.0, "qkv_bias": False})
    assert [Writer(model, metaspace)._text(token) for token in range(3)] == [" be", " ", "<unk>"]
    bytes_ = Writer(model, byte_tokenizer())
    assert [bytes_._text(token) for token in byte_tokenizer().encode("a é").tolist()] == ["a", " ", "\ufffd", "\ufffd"]


def test_a_bias_forces_and_excludes_tokens(backend):
    model = small("llama")
    prompt = pa.asarray([[1, 2, 3]], dtype="int32")
    forced = generate(model, prompt, 5, temperature=0, logit_bias={7: 100}).numpy()[0, 3:]
    assert forced.tolist() == [7] * 5
    plain = generate(model, prompt, 1, temperature=0).numpy()[0, -1].item()
    without = generate(model, prompt, 12, temperature=1, seed=1, logit_bias={plain: -100}).numpy()[0, 3:]
    assert plain not in without
    logits = np.sort(model.eval()(prompt).numpy()[0, -1])
    gap = float(logits[-1] - logits[-2])
    for bias, is_changed in ((-gap * 0.9, False), (-gap * 1.1, True)):
        found = generate(model, prompt, 1, temperature=0, logit_bias={plain: bias}).numpy()[0, -1]
        assert (found != plain) == is_changed
    with pytest.raises(ValueError, match="logit_bias has token 40; tokens are from 0 to 39"):
        generate(model, prompt, 1, logit_bias={40: 1})


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_penalties_make_a_text_vary(backend, name):
    model, prompt = small("gpt"), pa.asarray([[1, 2, 3], [4, 4, 4]], dtype="int32")

    def repeated(penalty):
        tokens = generate(model, prompt, 20, temperature=0.3, seed=1, **{name: penalty}).numpy()[:, 3:]
        return sum(max(Counter(row).values()) for row in tokens.tolist())

    assert repeated(2) < repeated(0) < repeated(-2)


def test_errors_of_log_probabilities(on_numpy):
    writer = Writer(small("gpt"), LETTERS)
    with pytest.raises(ValueError, match="Writer: logprobs is -1; it must not be negative"):
        writer.write(["a"], 1, logprobs=-1)
    with pytest.raises(pa.ShapeError, match=r"generate: tokens is int32\[1, 25\]; it must be \[batch, at most 24\]"):
        writer.write(["a" * 25], 1, logprobs=1, echo=True)
    with pytest.raises(ValueError, match="generate: echo is given without logprobs"):
        sample(small("gpt"), pa.asarray([[1, 2]]), 1, echo=True)
    (part,) = writer.write(["a"], 1, logprobs=99)  # more than there are: all that the tokenizer has
    assert len(part.logprobs[0].top) == LETTERS.vocab_size
    assert 0.5 < sum(math.exp(value) for _, value in part.logprobs[0].top) < 1
