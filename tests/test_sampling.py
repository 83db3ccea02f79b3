"""How a token is drawn from logits, where numbers end: every temperature and every top_p above 0, and ties."""

import math

import numpy as np
import pytest

import polyarr as pa
from polyarr.models import generation

LOGITS = [1.5, -0.25, 3.0, 2.75, 0.0, -4.0]


def rows(count, dtype=pa.float32):
    return pa.asarray(np.tile(np.asarray(LOGITS, np.float32), (count, 1))).astype(dtype)


def probabilities(**settings):
    """What choose draws with, by replacing the draw."""
    seen = []

    def note(logits):
        seen.append(logits.numpy())
        return pa.argmax(logits, axis=-1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pa.random, "choice_from_logits", note)
        generation.choose(rows(1), **settings)
    logits = seen[0][0].astype(np.float64)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


TEMPERATURES = [5e-324, 1e-320, 1e-60, 1e-46, 1e-45, 1e-38, 1e-30, 1e-3, 0.1, 1.0, 7.0, 1e3, 1e30, 1e39, 1e300]


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_probabilities_are_right_at_every_temperature(backend, temperature):
    behind = [value - max(LOGITS) for value in LOGITS]
    weights = [math.exp(max(value / temperature, -1e4)) for value in behind]
    expected = np.array(weights) / sum(weights)
    np.testing.assert_allclose(probabilities(temperature=temperature), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [pa.float32, pa.float16, pa.bfloat16, pa.float64])
@pytest.mark.parametrize("settings", [{"temperature": 1e-45}, {"top_p": 1e-46}, {"top_p": 5e-324}, {"top_k": 1}])
def test_the_limit_is_the_greedy_choice(backend, settings, dtype):
    drawn = generation.choose(rows(200, dtype), **settings).numpy()
    assert (drawn == generation.choose(rows(200, dtype), temperature=0).numpy()).all()


@pytest.mark.parametrize("dtype", [pa.float16, pa.bfloat16])
def test_a_temperature_that_a_narrow_dtype_cannot_hold(on_numpy, dtype):
    drawn = generation.choose(rows(3000, dtype), temperature=1e30).numpy()
    assert (np.bincount(drawn, minlength=6) > 400).all()


def test_top_p_keeps_the_fewest_that_have_it_together(backend):
    logits = pa.asarray(np.log(np.tile(np.float32([0.125, 0.5, 0.25, 0.125]), (500, 1))))
    for top_p, kept in [(0.5, {1}), (0.50001, {1, 2}), (0.75, {1, 2}), (0.8, {0, 1, 2}), (1.0, {0, 1, 2, 3})]:
        assert set(generation.choose(logits, top_p=top_p).numpy().tolist()) == kept, top_p


def test_of_equal_tokens_no_more_are_kept_than_asked_for(backend):
    even = pa.zeros((500, 8))
    assert set(generation.choose(even, top_k=3).numpy().tolist()) == {0, 1, 2}
    assert set(generation.choose(even, top_p=0.25).numpy().tolist()) == {0, 1}
    assert set(generation.choose(even, temperature=1e-45).numpy().tolist()) == set(range(8))


def test_top_k_may_be_larger_than_the_vocabulary(on_numpy):
    assert len(set(generation.choose(pa.zeros((500, 4)), top_k=10**30).numpy().tolist())) == 4
