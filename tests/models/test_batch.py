"""Batches: texts that come and go between tokens, each of which is written as if it were alone."""

import warnings

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.current import get_backend
from polyarr.core.errors import DeviceMemoryError
from polyarr.models import Batch, GPTModel, LlamaModel, Sampling, generate, parts
from polyarr.models.generation import sampled
from polyarr.models.prompts import CHUNK, SHORT

SIZES = {"vocab_size": 23, "context_length": 40, "emb_dim": 16, "n_heads": 2, "n_layers": 2}
EXPERTS = {"n_experts": 5, "experts_per_token": 2, "expert_dim": 40, "shared_dim": 10}
GPT_OSS = {"n_experts": 5, "experts_per_token": 2, "expert_bias": True, "swiglu_limit": 2.0, "attention_sinks": True}
MODELS = {
    "gpt": lambda: GPTModel({**SIZES, "drop_rate": 0.1, "qkv_bias": True}),
    "llama": lambda: LlamaModel({**SIZES, "n_kv_heads": 1, "hidden_dim": 24, "head_size": 8, "windows": [6, 0]}),
    "experts": lambda: LlamaModel({**SIZES, "n_kv_heads": 1, "hidden_dim": 24, "head_size": 8, **EXPERTS}),
    "gpt-oss": lambda: LlamaModel(
        {**SIZES, "n_kv_heads": 1, "hidden_dim": 24, "head_size": 8, **GPT_OSS, "windows": [6, 0]}
    ),
}
SAMPLINGS = (
    {"temperature": 0},
    {},
    {"temperature": 0.7, "top_k": 5},
    {"top_p": 0.8, "repetition_penalty": 1.3},
    {"temperature": 1.5, "top_p": 0.9, "min_p": 0.01},
    {"frequency_penalty": 0.5, "presence_penalty": -0.3, "logit_bias": {3: 2.0, 4: -100.0}},
)


def model_of(kind):
    pa.random.seed(0)
    return pa.tree.map(lambda p: p * 6, MODELS[kind]())


class Text:
    """A text to write: what is asked for, when it comes, and what was written so far."""

    def __init__(self, generator, number):
        self.prompt = generator.integers(0, 23, generator.integers(1, 20))
        self.count = int(generator.integers(1, 40 - len(self.prompt)))
        self.how = Sampling(**self.varied(SAMPLINGS[generator.integers(len(SAMPLINGS))], generator))
        self.seed, self.top = number, [None, 1, 3][generator.integers(3)]
        self.echo = bool(self.top) and bool(generator.integers(2))
        self.begin = int(generator.integers(30))
        self.is_masked = bool(generator.integers(2))
        self.found = []

    @staticmethod
    def varied(how, generator):
        """Return a sampling with numbers of its own: texts of one kind of sampling differ in them."""
        found = {n: value * generator.uniform(0.8, 1.1) if type(value) is float else value for n, value in how.items()}
        if "logit_bias" in how:
            found["logit_bias"] = {int(token): 3.0 for token in generator.integers(23, size=4)}
        return found

    def add(self, batch):
        self.found = []
        return batch.add(self.prompt, self.how, self.seed, self.top, self.echo, self.mask())

    def mask(self):
        """Return the tokens that the next one may be, which depend on those so far."""
        if not self.is_masked:
            return None
        last = self.found[-1][0] if self.found else None
        return np.arange(23) % 3 != (self.seed if last is None else last) % 3

    def take(self, one):
        """Take a result; return whether the text is complete."""
        scored = one.logprobs and tuple(each.tobytes() for each in one.logprobs)
        self.found.append((one.token, scored))
        return len(self.found) == self.count + self.echo


def write(batch, texts):
    """Write the texts as they come and as there are free rows."""
    waiting, rows, step = sorted(texts, key=lambda text: text.begin), {}, 0
    while waiting or rows:
        while waiting and waiting[0].begin <= step and batch.free:
            text = waiting.pop(0)
            rows[text.add(batch)] = text
        for one in batch.step():
            text = rows[one.row]
            allowed = text.mask()
            if allowed is not None and one.token is not None:
                assert allowed[one.token]
            if text.take(one):
                batch.remove(one.row)
                del rows[one.row]
            elif allowed is not None and one.token is not None:
                batch.restrict(one.row, text.mask())
        step += 1


def compute_at_once(monkeypatch, backend, count):
    """Let batches compute short prompts together, as on devices that compute `count` rows in the time of one."""
    monkeypatch.setattr("polyarr.models.batch.get_backend", lambda: backend._replace(rows_at_once=count))


@pytest.mark.parametrize(("kind", "at_once"), [("gpt", 1), ("llama", 64), ("experts", 32), ("gpt-oss", 1)])
def test_a_text_does_not_depend_on_the_others_to_the_bit(kind, at_once, backend, monkeypatch):
    """In random schedules; the texts alone are written in the same batch, in any row.

    The seed is of texts with all samplings, which share few kinds of sampling. Two without masks have a bias, and some
    with masks have a penalty: a row's bias, numbers and history must be its own text's.
    """
    compute_at_once(monkeypatch, backend, at_once)
    batch, generator = Batch(model_of(kind), 3), np.random.default_rng(1545)
    texts = [Text(generator, number) for number in range(12)]
    write(batch, texts)
    wanted = [text.found for text in texts]
    assert batch.free == 3 and len({tuple(found) for found in wanted}) == len(texts)
    for text, found in zip(texts, wanted, strict=True):
        write(batch, [text])
        assert text.found == found
    for text in texts:
        text.begin = int(generator.integers(30))
    write(batch, texts)
    assert [text.found for text in texts] == wanted


@pytest.mark.polyarr_backend("opencl")
def test_one_text_of_many_rows_is_computed_and_sampled_alone(backend, monkeypatch):
    """On CPUs up to 64 rows have the same bits, however many there are."""
    if backend.upload.__self__.geometry.kind != "cpu":
        pytest.skip("for CPUs")
    batch, rows = Batch(model_of("gpt"), 64), []
    monkeypatch.setattr("polyarr.models.batch.sampled", lambda x, *given: rows.append(x.shape[0]) or sampled(x, *given))
    batch.add(np.array([1, 2, 3]), Sampling(), seed=0)
    for _ in range(3):
        batch.step()
    assert rows and set(rows) == {1}
    assert {part.rows for part in batch._parts.each} == {1, 2, 4, 8, 16, 32, 64}


def test_parts_of_a_span_are_compared_with_one_pass_of_the_whole(backend, monkeypatch):
    """Not with one for each number of rows: at most 32 for all of them."""
    computed, real = [], parts.Parts.logits
    monkeypatch.setattr(parts.Parts, "logits", lambda self, *given: computed.append(given[-1]) or real(self, *given))
    batch = Batch(model_of("gpt"), 8)
    assert {part.rows for part in batch._parts.each} <= {1, 2, 4, 8} and len(batch._parts.each) > 1
    assert 1 <= sum(part.rows == 8 for part in computed) <= 32


def test_more_rows_are_sampled_where_the_sums_of_few_are_rounded_otherwise(backend, monkeypatch):
    texts = [Text(np.random.default_rng(7), number) for number in range(3)]
    batch = Batch(model_of("gpt"), 8)
    write(batch, texts)
    wanted = [text.found for text in texts]
    real = parts.sums_of
    monkeypatch.setattr(parts, "sums_of", lambda x: [one + (1e-6 if len(x) < 4 else 0) for one in real(x)])
    batch = Batch(model_of("gpt"), 8)
    assert all(part.sampled == max(part.rows, 4) for part in batch._parts.each)
    write(batch, texts)
    assert [text.found for text in texts] == wanted


def test_short_prompts_are_computed_together(backend, monkeypatch):
    """Those of one size, three at a time; a text alone, in a pass with other rows filled up, has the same bits."""
    compute_at_once(monkeypatch, backend, 48)
    batch, passes = Batch(model_of("llama"), 6), []
    real = batch._prompts._computed
    batch._prompts._computed = lambda rows, *given: passes.append(rows) or real(rows, *given)
    prompts = [np.arange(n) * 7 % 23 for n in (3, 20, 16, 1, 2, 9)]  # the second one is longer than 16
    rows = [batch.add(prompt, Sampling(), seed=n, logprobs=1) for n, prompt in enumerate(prompts)]
    found = [one for _ in range(8) for one in batch.step()]
    if backend.name == "numpy" and passes == [[n] for n in range(6)]:
        pytest.skip("the bits of a row depend on the others, as with NumPy's BLAS on some processors")
    assert passes == [[0, 2, 3], [1], [4, 5]]
    for row in rows:
        batch.remove(row)
    assert not batch.step()
    for n, prompt in enumerate(prompts):
        row = batch.add(prompt, Sampling(), seed=n, logprobs=1)
        alone = [one for _ in range(5) for one in batch.step()]
        together = [one for one in found if one.row == rows[n]][:5]
        assert [one.token for one in alone] == [one.token for one in together]
        for one, other in zip(alone, together, strict=True):
            assert [a.tobytes() for a in one.logprobs] == [a.tobytes() for a in other.logprobs]
        batch.remove(row)
        batch.step()


def test_many_kinds_of_sampling_and_lengths_of_prompts_are_no_reason_to_warn(monkeypatch):
    """They are the callers' choice, who can do nothing about captures; 7 kinds and 5 lengths are more than 32."""
    with pa.use_backend("numpy"), warnings.catch_warnings():
        warnings.simplefilter("error", pa.CaptureWarning)
        compute_at_once(monkeypatch, get_backend(), CHUNK)
        sizes = {**SIZES, "context_length": CHUNK, "n_kv_heads": 1, "hidden_dim": 24, "head_size": 8}
        batch = Batch(LlamaModel(sizes), 2)
        for how in (*SAMPLINGS, {"frequency_penalty": 0.1}):
            for length in (*SHORT, 2 * SHORT[-1]):
                row = batch.add(np.arange(length - 1) % 23, Sampling(**how))
                assert batch.step() or batch.step()  # the first may be of the row before
                batch.remove(row)
        assert len(batch._first._signatures) == 35


def test_settings_are_inputs_of_one_program(backend):
    """Texts with other numbers, side by side, have the tokens of `generate` and share a compiled step."""
    model, settings = model_of("llama"), []
    for top_k, temperature, min_p in ((1, 1.0, None), (2, 0.5, 0.1), (7, 2.0, None), (22, 0.9, 0.01), (9, 1e-3, 0.5)):
        settings.append({"top_k": top_k, "temperature": temperature, "min_p": min_p})
    for others in ({}, {"top_p": 0.7}):
        batch = Batch(model, len(settings))
        for n, how in enumerate(settings):
            batch.add(np.array([1, 2, 3]), Sampling(**how, **others), seed=n, logprobs=(3, 4)[n % 2])
        found = [one for _ in range(12) for one in batch.step()]
        assert len(batch._choose) == 1
        for n, how in enumerate(settings):
            own = [one for one in found if one.row == n]
            wanted = generate(model, pa.asarray([[1, 2, 3]]), len(own), seed=n, **how, **others).numpy()[0, 3:]
            assert [one.token for one in own] == wanted.tolist() and len(own) == 12
            assert all([each.shape for each in one.logprobs[1:]] == [(1, (3, 4)[n % 2])] * 2 for one in own)


def test_short_prompts_are_computed_alone_where_bits_depend_on_the_row(backend, monkeypatch):
    """As in products of more than 32 rows of float32 on some GPUs."""
    compute_at_once(monkeypatch, backend, 64)
    batch, passes = Batch(model_of("gpt"), 4), []
    real, chunk = batch._prompts._computed, batch._prompts._chunk
    batch._prompts._computed = lambda rows, *given: passes.append(rows) or real(rows, *given)

    def rounded_by_row(*given):
        features = chunk(*given)
        return features + 1e-6 * pa.arange(features.shape[0], dtype=features.dtype)[:, None, None]

    batch._prompts._chunk = rounded_by_row
    for n in (3, 5, 20):
        batch.add(np.arange(n) % 23, Sampling())
    batch.step()
    batch.step()
    assert passes == [[0], [1], [2]]


def test_texts_are_those_of_generate(backend):
    """In chunks of the prompt, too: floating-point differences change no likeliest token here."""
    model = model_of("llama")
    batch = Batch(model, 3)
    prompts = [np.arange(n) * 7 % 23 for n in (3, 11, 1)]
    for prompt in prompts:
        batch.add(prompt, Sampling(temperature=0))
    found = [batch.step() for _ in range(20)]
    for row, prompt in enumerate(prompts):
        tokens = [one.token for step in found for one in step if one.row == row]
        wanted = generate(model, pa.asarray(prompt[None]), len(tokens), temperature=0).numpy()[0, len(prompt) :]
        assert tokens == wanted.tolist() and len(tokens) == 20


def test_seeds_are_those_of_generate(backend, monkeypatch):
    monkeypatch.setattr("polyarr.models.generation._DRAWS_AT_ONCE", 5)  # the next numbers are others
    model = model_of("gpt")
    batch = Batch(model, 2)
    batch.add(np.array([1, 2, 3]), Sampling(temperature=0.9, top_k=7), seed=5)
    tokens = [one.token for _ in range(12) for one in batch.step()]
    wanted = generate(model, pa.asarray([[1, 2, 3]]), 12, seed=5, temperature=0.9, top_k=7).numpy()[0, 3:]
    assert tokens == wanted.tolist()


def test_there_are_as_many_log_probabilities_as_were_asked_for(on_numpy):
    batch = Batch(model_of("gpt"), 2)
    for top in (3, 1):
        batch.add(np.array([1, 2, 3]), Sampling(temperature=0), logprobs=top, echo=True)
    sizes = {(one.row, one.token is None): [a.shape[-1] for a in one.logprobs[1:]] for one in batch.step()}
    assert sizes == {(0, True): [3, 3], (0, False): [3, 3], (1, True): [1, 1], (1, False): [1, 1]}


def test_a_long_prompt_holds_up_no_text_and_changes_nothing():
    with pa.use_backend("numpy"):
        pa.random.seed(0)
        length = 2 * CHUNK + 50
        sizes = {**SIZES, "context_length": 600, "drop_rate": 0.0, "qkv_bias": True}
        model = pa.tree.map(lambda p: p * 6, GPTModel(sizes))
        batch, prompt = Batch(model, 2), np.random.default_rng(0).integers(0, 23, length)
        batch.add(np.array([1]), Sampling(temperature=0))
        batch.step()
        batch.add(prompt, Sampling(temperature=0))
        steps = [[one.row for one in batch.step()] for _ in range(5)]
        assert steps == [[0], [0], [0], [0, 1], [0, 1]]
        batch.remove(0)
        found = [one.token for _ in range(5) for one in batch.step()]
        wanted = generate(model, pa.asarray(prompt[None]), 7, temperature=0).numpy()[0, -5:]
        assert found == wanted.tolist()


@pytest.mark.parametrize("kind", MODELS)
def test_reused_prefixes_change_no_bit(kind, backend):
    """In random schedules of prompts with common beginnings; alone, the caches of other texts are forgotten."""
    sizes = {**SIZES, "context_length": 3 * CHUNK + 50}
    long = {
        "gpt": lambda: GPTModel({**sizes, "drop_rate": 0.0, "qkv_bias": True}),
        "llama": lambda: LlamaModel(
            {**sizes, "n_kv_heads": 1, "hidden_dim": 24, "head_size": 8, "windows": [CHUNK + 9, 0]}
        ),
        "experts": lambda: LlamaModel({**sizes, "n_kv_heads": 1, "hidden_dim": 24, "head_size": 8, **EXPERTS}),
        "gpt-oss": lambda: LlamaModel(
            {**sizes, "n_kv_heads": 1, "hidden_dim": 24, "head_size": 8, **GPT_OSS, "windows": [CHUNK + 9, 0]}
        ),
    }
    pa.random.seed(0)
    batch, generator = Batch(pa.tree.map(lambda p: p * 6, long[kind]()), 3), np.random.default_rng(0)
    beginnings = [generator.integers(0, 23, 3 * CHUNK) for _ in range(2)]
    texts = [Text(generator, number) for number in range(12)]
    for text in texts:
        beginning = beginnings[generator.integers(2)][: generator.integers(CHUNK - 5, 3 * CHUNK)]
        text.prompt, text.count = np.concatenate([beginning, text.prompt]), 3
        text.echo = text is texts[1]
    texts[0].prompt = beginnings[0][: 2 * CHUNK]  # whole chunks, the last of which is computed for its logits
    write(batch, texts)
    wanted = [text.found for text in texts]
    assert batch.reused > 5 * CHUNK and batch.reused % CHUNK == 0
    for text, found in zip(texts, wanted, strict=True):
        before = batch.reused
        batch.forget()
        write(batch, [text])
        assert text.found == found and batch.reused == before
        write(batch, [text])
        assert text.found == found and (batch.reused > before or text.echo or len(text.prompt) <= CHUNK)


def test_rows_without_a_text_keep_their_prefix():
    """While other texts go on: a third text begins with the prompt of the first, which has ended."""
    with pa.use_backend("numpy"):
        pa.random.seed(0)
        sizes = {**SIZES, "context_length": 2 * CHUNK, "drop_rate": 0.0, "qkv_bias": True}
        model = pa.tree.map(lambda p: p * 6, GPTModel(sizes))
        batch, prompt = Batch(model, 2), np.arange(CHUNK + 9) * 7 % 23
        batch.add(prompt, Sampling(temperature=0))
        batch.add(np.array([1]), Sampling(temperature=0))
        for _ in range(3):
            batch.step()
        batch.remove(0)
        for _ in range(5):
            batch.step()
        batch.add(prompt, Sampling(temperature=0))
        found = [one.token for _ in range(4) for one in batch.step() if one.row == 0]
        wanted = generate(model, pa.asarray(prompt[None]), 4, temperature=0).numpy()[0, -4:]
        assert len(found) > 1 and found == wanted[: len(found)].tolist() and batch.reused == CHUNK


def test_too_many_rows_for_the_memory_are_named(backend):
    """Whatever the device says comes after the sizes that were asked for."""
    wanted = r"^Batch: no memory for the key-value caches of 1,000,000,000,000 texts \(batch\) of \d+ tokens \("
    with pytest.raises(DeviceMemoryError, match=wanted):
        Batch(model_of("gpt"), 10**12, length=10)


def test_rows_and_lengths_have_limits():
    with pa.use_backend("numpy"):
        batch = Batch(model_of("gpt"), 2, length=10)
        with pytest.raises(ValueError, match=r"^Batch: the prompt has 11 tokens; it must have 1 to 10$"):
            batch.add(np.arange(11), Sampling())
        with pytest.raises(ValueError, match=r"^Batch: the prompt has 0 tokens; it must have 1 to 10$"):
            batch.add(np.arange(0), Sampling())
        rows = [batch.add(np.arange(n), Sampling()) for n in (9, 7)]
        assert rows == [0, 1] and batch.free == 0
        with pytest.raises(ValueError, match=r"^Batch: all 2 rows have a text; remove one first$"):
            batch.add(np.arange(3), Sampling())
        assert [one.row for _ in range(2) for one in batch.step()] == [0, 1, 0, 1]
        with pytest.raises(ValueError, match=r"^Batch: the text of row 0 has 10 tokens, which is all it may have$"):
            batch.step()
        batch.remove(0)
        assert [one.row for _ in range(2) for one in batch.step()] == [1, 1]
        batch.remove(1)
        assert batch.free == 2 and batch.step() == []
