"""Sampling of tokens from logits: the probability of every token, and extreme logits."""

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import polyarr as pa
from polyarr.models import Sampling
from polyarr.models.sampling import choose, history_of, penalize, with_token

GRID = 1 << 12  # evenly spaced uniform numbers, so that the share of a token is its probability
LOGITS = [1.5, -0.25, 3.0, 2.75, 0.0, -4.0]


def shares(logits, dtype=pa.float32, grid=GRID, **settings):
    """Return each token's share of a grid of uniform numbers: its probability within 2 / grid."""
    how = Sampling(**settings)
    rows = pa.asarray(np.tile(np.asarray(logits, np.float32), (grid, 1))).astype(dtype)
    unit = pa.asarray(((np.arange(grid) + 0.5) / grid).astype(np.float32)[:, None])
    tokens = choose(rows, unit, how.numbers, how.top_k).numpy()
    return np.bincount(tokens, minlength=len(logits)) / grid


def expected(logits, temperature=1.0, top_k=None, top_p=None, min_p=None):
    """Return the probabilities by definition in float64, and the margins of the top_p and min_p thresholds."""
    behind = np.asarray(logits, np.float64) - max(logits)
    if temperature == 0:
        return np.eye(len(logits))[np.argmax(behind)], 1.0
    with np.errstate(over="ignore"):
        weights = np.exp(np.where(behind == 0, 0, np.maximum(behind / temperature, -1e4)))
    order = np.argsort(-np.asarray(logits), kind="stable")
    kept = np.zeros(len(logits))
    kept[order[: top_k or len(logits)]] = 1
    ranked = (weights * kept)[order] / (weights * kept).sum()
    before = np.cumsum(ranked) - ranked
    if top_p is not None:
        kept[order[(before >= top_p) & (np.arange(len(order)) > 0)]] = 0
    if min_p is not None:
        kept[weights < min_p] = 0
    margin = min(
        np.abs(before[1:] - (top_p or 2)).min(initial=1) if (top_p or 1) < 1 else 1,
        np.abs(weights[weights != 1] - (min_p or 2)).min(initial=1),
    )
    return weights * kept / (weights * kept).sum(), margin


VALUES = st.sampled_from([0.0, 0.5, 1.0, 3.0, -1.0, -20.0, -math.inf]) | st.floats(-8, 8, width=16)


@given(
    logits=st.lists(VALUES, min_size=1, max_size=12),
    temperature=st.sampled_from([0, 0.3, 1.0, 2.5]),
    top_k=st.none() | st.integers(1, 14),
    top_p=st.none() | st.floats(0.01, 1),
    min_p=st.none() | st.floats(0, 1),
)
@example(logits=[1.0] * 8, temperature=1.0, top_k=3, top_p=None, min_p=None)
@example(logits=[-math.inf, 0.0, -math.inf, 0.0, -math.inf], temperature=1.0, top_k=4, top_p=0.99, min_p=None)
def test_every_token_has_its_probability(backend, logits, **settings):
    assume(max(logits) > -math.inf)
    wanted, margin = expected(logits, **settings)
    assume(margin > 1e-5)
    found = shares(logits, grid=512, **settings)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2.01 / 512)
    assert not found[wanted == 0].any()


TEMPERATURES = [5e-324, 1e-320, 1e-60, 1e-46, 1e-45, 1e-38, 1e-30, 1e-3, 0.1, 1.0, 7.0, 1e3, 1e30, 1e39, 1e300]


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_probabilities_are_right_at_every_temperature(backend, temperature):
    wanted, _ = expected(LOGITS, temperature)
    np.testing.assert_allclose(shares(LOGITS, temperature=temperature), wanted, rtol=0, atol=2 / GRID)


@pytest.mark.parametrize("dtype", [pa.float32, pa.float16, pa.bfloat16, pa.float64])
@pytest.mark.parametrize("settings", [{"temperature": 1e-45}, {"top_p": 1e-46}, {"top_p": 5e-324}, {"top_k": 1}])
def test_the_limit_is_the_greedy_choice(backend, settings, dtype):
    assert shares(LOGITS, dtype, 200, **settings).tolist() == shares(LOGITS, dtype, 200, temperature=0).tolist()


@pytest.mark.parametrize("dtype", [pa.float16, pa.bfloat16])
def test_a_temperature_that_a_narrow_dtype_cannot_hold(on_numpy, dtype):
    np.testing.assert_allclose(shares(LOGITS, dtype, temperature=1e30), 1 / 6, atol=2 / GRID)


def test_top_p_keeps_the_fewest_that_have_it_together(backend):
    logits = np.log(np.float32([0.125, 0.5, 0.25, 0.125]))
    for top_p, kept in [(0.5, {1}), (0.50001, {1, 2}), (0.75, {1, 2}), (0.8, {0, 1, 2}), (1.0, {0, 1, 2, 3})]:
        assert set(np.flatnonzero(shares(logits, top_p=top_p)).tolist()) == kept, top_p


def test_of_equal_tokens_no_more_are_kept_than_asked_for(backend):
    def kept(**settings):
        return set(np.flatnonzero(shares([0.0] * 8, **settings)).tolist())

    assert kept(top_k=3) == {0, 1, 2}
    assert kept(top_p=0.25) == {0, 1}
    assert kept(temperature=1e-45) == kept(top_k=10**30) == kept(min_p=1) == set(range(8))


def test_a_large_vocabulary_with_a_token_that_hardly_ever_comes(backend):
    """Tokens of probability 0 are never drawn, despite rounding errors in long cumulative sums."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=20_000).astype(np.float32) * 3
    logits[rng.random(20_000) < 0.5] = -math.inf
    wanted, _ = expected(logits.tolist())
    units = np.float32([0, 2**-24, 0.25, 0.5, 0.75, 1 - 2**-23, 1 - 2**-24])
    rows = pa.asarray(np.tile(logits, (len(units), 1)))
    found = choose(rows, pa.asarray(units[:, None]), Sampling().numbers).numpy()
    assert (wanted[found] > 0).all()
    # The cumulative sum up to the token equals the uniform number, within the float32 error of so long a sum.
    together = np.cumsum(wanted)
    assert (together[found] + 1e-5 >= units).all() and (together[found] - wanted[found] - 1e-5 <= units).all()


@given(
    logits=st.lists(st.floats(-5, 5, width=32), min_size=3, max_size=3),
    texts=st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), min_size=1, max_size=3),
    penalty=st.sampled_from([0.5, 1.2, 3.0]),
    padding=st.integers(0, 3),
)
def test_the_penalty_is_transformers_s(on_numpy, logits, texts, penalty, padding):
    numbers = Sampling(repetition_penalty=penalty).numbers
    history = history_of(pa.asarray(texts, dtype="int32"), pa.asarray([padding] * len(texts)), 3, numbers)
    found = penalize(pa.asarray([logits] * len(texts), dtype="float32"), history, numbers).numpy()
    for row, text in zip(found, texts, strict=True):
        for token, logit in enumerate(logits):
            due = (logit * penalty if logit < 0 else logit / penalty) if token in text[padding:] else logit
            np.testing.assert_allclose(row[token], due, rtol=1e-6, atol=2e-45)  # a denormal number's last bit
    assert with_token(history, pa.asarray([2] * len(texts)))["occurred"].numpy()[:, 2].all()


@given(
    sampled=st.lists(st.integers(0, 2), max_size=5),
    frequency=st.sampled_from([0.0, 0.5, -2, 2]),
    presence=st.sampled_from([0.0, 0.25, -1.5, 2]),
)
def test_penalties_of_sampled_tokens_are_the_api_s(on_numpy, sampled, frequency, presence):
    """logit - count * frequency_penalty - (count > 0) * presence_penalty, where the prompt does not count."""
    numbers = Sampling(temperature=0, frequency_penalty=frequency, presence_penalty=presence).numbers
    prompt, logits = pa.asarray([[0, 1, 2]], dtype="int32"), np.float32([[1.5, -0.5, 0.25]])
    history = history_of(prompt, None, 3, numbers)
    for token in sampled:
        history = with_token(history, pa.asarray([token], dtype="int32"))
    counts = np.bincount(np.array(sampled, int), minlength=3)
    wanted = logits - counts * frequency - (counts > 0) * presence
    np.testing.assert_allclose(penalize(pa.asarray(logits), history, numbers).numpy(), wanted, rtol=1e-6)
    assert bool(history) == bool(frequency or presence)


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        ({"temperature": -1}, "temperature is -1; it must be 0 or more, and finite"),
        ({"temperature": math.nan}, "temperature is nan; it must be 0 or more, and finite"),
        ({"temperature": math.inf}, "temperature is inf; it must be 0 or more, and finite"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be 0 or more, and finite"),
        ({"top_k": 0}, "top_k is 0; it must be an int of at least 1"),
        ({"top_k": 1.5}, "top_k is 1.5; it must be an int of at least 1"),
        ({"top_p": 0}, "top_p is 0; it must be above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p is 1.1; it must be above 0 and at most 1"),
        ({"min_p": -0.1}, "min_p is -0.1; it must be from 0 to 1"),
        ({"min_p": True}, "min_p is True; it must be from 0 to 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be above 0"),
        ({"frequency_penalty": 2.5}, "frequency_penalty is 2.5; it must be from -2 to 2"),
        ({"presence_penalty": math.nan}, "presence_penalty is nan; it must be from -2 to 2"),
        ({"logit_bias": {3: 101}}, "logit_bias has 101 for token 3; it must be a mapping from tokens to numbers .*"),
        ({"logit_bias": {"3": 1}}, "logit_bias has 1 for token '3'; it must be a mapping from tokens to numbers .*"),
        ({"logit_bias": [3]}, r"logit_bias is \[3\]; it must be a mapping from tokens to numbers .*"),
    ],
)
def test_wrong_settings_are_named(settings, due):
    with pytest.raises(ValueError, match=f"^Sampling: {due}$"):
        Sampling(**settings)
