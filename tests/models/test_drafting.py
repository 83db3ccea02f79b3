"""Drafts in a Batch: texts with drafts are those without, to the bit, in fewer passes of the model."""

import numpy as np
import pytest

import polyarr as pa
from polyarr.models import Batch, Sampling
from polyarr.models.shared_writer import SharedWriter
from polyarr.models.speculation import accepted
from polyarr.text import CharTokenizer
from tests.models.test_batch import Text, model_of, write


@pytest.fixture
def opencl():
    with pa.use_backend("opencl"):
        yield


class Counted(Batch):
    """Batch that counts passes of its model."""

    passes = 0

    def _launch(self, before=()):
        found = super()._launch(before)
        self.passes += bool(found)
        return found


def test_a_draft_is_right_up_to_the_first_other_token():
    assert accepted([1, 2, 3], [1, 2, 3, 4]) == [1, 2, 3, 4]
    assert accepted([1, 2, 3], [1, 5, 3, 4]) == [1, 5]
    assert accepted([1, 2, 3], [0, 2, 3, 4]) == [0]


@pytest.mark.parametrize(
    ("kind", "has_model"), [("gpt", False), ("llama", True), ("experts", False), ("gpt-oss", False)]
)
def test_texts_are_those_without_drafts(opencl, kind, has_model):
    """Alone, and in random schedules, so that drafts begin and end within texts."""
    model, generator = model_of(kind), np.random.default_rng(0)
    texts = [Text(generator, number) for number in range(8)]
    plain, drafted = Batch(model, 3), Counted(model, 3, drafts=3, draft_model=model if has_model else None)
    write(plain, texts)
    wanted = [text.found for text in texts]
    for text, found in zip(texts, wanted, strict=True):
        write(drafted, [text])
        assert text.found == found
    for text in texts:
        text.begin = int(generator.integers(100))
    write(drafted, texts)
    assert [text.found for text in texts] == wanted


@pytest.mark.parametrize("how", [{"temperature": 0}, {"temperature": 0.9, "top_k": 7, "logit_bias": {3: 2.0}}])
def test_right_drafts_save_passes(opencl, how):
    """A model that drafts for itself is always right: a pass gives four tokens."""
    model, found = model_of("gpt"), []
    for drafts in (0, 3):
        batch = Counted(model, 2, drafts=drafts, draft_model=model)
        row = batch.add(np.array([1, 2, 3]), Sampling(**how), seed=5)
        found.append([one.token for _ in range(33) for one in batch.step()])
        batch.remove(row)
        assert batch.passes >= 32 if drafts == 0 else batch.passes <= 12
    assert found[0] == found[1] and len(found[0]) == 33


def test_a_text_may_end_within_a_draft(opencl):
    model = model_of("gpt")
    batch, plain = Batch(model, 2, drafts=3, draft_model=model), Batch(model, 2)
    plain.add(np.array([7, 8]), Sampling(temperature=0))
    wanted = [one.token for _ in range(5) for one in plain.step()]
    for count in (2, 3, 4):
        row = batch.add(np.array([1, 2, 3]), Sampling(temperature=0))
        assert [one.row for _ in range(count) for one in batch.step()]
        batch.remove(row)
        row = batch.add(np.array([7, 8]), Sampling(temperature=0))
        other = [one.token for _ in range(8) for one in batch.step()]
        batch.remove(row)
        assert other[:5] == wanted


def test_a_shared_writer_drafts(opencl):
    model, letters = model_of("llama"), CharTokenizer("abcdefghijklmnopqrstuvw")
    texts = []
    for drafts in (0, 2):
        writer = SharedWriter(model, letters, 2, drafts=drafts)
        call, parts = writer.begin(["abcab"], 30, temperature=0), []
        while not call.is_done:
            parts += [part.text for _, part in writer.step()]
        texts.append("".join(parts))
    assert texts[0] == texts[1] and len(texts[0]) == 30


def test_drafts_of_other_bits_are_refused(opencl, monkeypatch):
    monkeypatch.setattr(Batch, "_logits_of_first", lambda self, token, position: pa.zeros((23,)))
    with pytest.raises(ValueError, match=r"^Batch: drafts is 3, for which this device .*; it must be smaller, or 0$"):
        Batch(model_of("gpt"), 2, drafts=3)
