"""Random numbers: the published Philox vectors, equal draws on every backend, and distributions."""

import threading

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops, random
from polyarr.core.backend import Backend
from polyarr.core.current import use_backend
from polyarr.testing.references import philox_block

FULL = 0xFFFFFFFF
# counter, key, result of philox4x32-10: the known answers that come with Random123
KNOWN = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([FULL] * 4, [FULL] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_block(counter: list, key: list, expected: list) -> None:
    assert philox_block(counter, key) == expected


def test_known_answer(backend: Backend) -> None:
    assert ops.random_bits(0, 0, shape=(4,)).tolist() == KNOWN[0][2]


def test_counter_and_key_have_64_bits(backend: Backend) -> None:
    key, counter = 0x299F31D0A4093822, 0x0370734413198A2E
    expected = philox_block([0, 0, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0])
    assert ops.random_bits(key, counter, shape=(4,)).tolist() == expected


def drawn() -> list[np.ndarray]:
    random.seed(1234)
    return [
        random.bits((3, 5)).numpy(),
        random.uniform((7,)).numpy(),
        random.uniform((2, 3), low=-1.0, high=3.0, dtype="float64").numpy(),
        random.randint(-5, 1000, (33,)).numpy(),
        random.bernoulli(0.3, (50,)).numpy(),
        random.permutation(20).numpy(),
        random.normal((31,)).numpy(),
        random.normal((4, 4), dtype="float64").numpy(),
    ]


def test_the_same_draws_on_every_backend(backend: Backend) -> None:
    here = drawn()
    with use_backend("numpy"):
        there = drawn()
    for i, (a, b) in enumerate(zip(here, there, strict=True)):
        if i < 6:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_draws_differ_and_the_seed_starts_again(backend: Backend) -> None:
    random.seed(7)
    first, second = random.uniform((8,)).tolist(), random.uniform((8,)).tolist()
    assert first != second
    random.seed(7)
    assert random.uniform((8,)).tolist() == first
    random.seed(8)
    assert random.uniform((8,)).tolist() != first


def test_state(on_numpy: Backend) -> None:
    random.seed(7)
    random.uniform((3,))
    state = random.get_state()
    after = random.uniform((3,)).tolist()
    random.set_state(state)
    assert random.uniform((3,)).tolist() == after
    with random.restored(state):
        assert random.uniform((3,)).tolist() == after
    assert random.uniform((3,)).tolist() != after


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform(on_numpy: Backend, dtype: str) -> None:
    random.seed(0)
    x = random.uniform((20_000,), dtype=dtype).numpy()
    assert x.dtype == dtype and 0 <= x.min() and x.max() < 1
    assert abs(x.mean() - 0.5) < 0.01 and abs(x.var() - 1 / 12) < 0.005
    assert len(np.unique(x)) > 19_900


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_uniform_stays_below_high(on_numpy: Backend, dtype: str) -> None:
    random.seed(0)
    assert random.uniform((50_000,), dtype=dtype).numpy().astype("float64").max() < 1


def test_normal(backend: Backend) -> None:
    random.seed(3)
    x = random.normal((20_001,), mean=2.0, std=0.5).numpy()
    assert x.shape == (20_001,) and np.isfinite(x).all()
    assert abs(x.mean() - 2) < 0.02 and abs(x.std() - 0.5) < 0.01
    z = (x - 2) / 0.5
    assert abs((z**3).mean()) < 0.1 and abs((z**4).mean() - 3) < 0.2
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 0.03


def test_randint_reaches_both_ends_and_only_those(backend: Backend) -> None:
    random.seed(0)
    x = random.randint(-2, 3, (1000,), dtype="int32")
    assert x.dtype == pa.int32
    assert set(x.tolist()) == {-2, -1, 0, 1, 2}
    wide = random.randint(0, 2**32, (100,)).numpy()
    assert wide.min() >= 0 and wide.max() > 2**31
    large = random.randint(2**64 - 3, 2**64, (100,), dtype="uint64").tolist()
    assert set(large) == {2**64 - 3, 2**64 - 2, 2**64 - 1}


def test_bernoulli(on_numpy: Backend) -> None:
    random.seed(0)
    assert not random.bernoulli(0.0, (100,)).numpy().any()
    assert random.bernoulli(1.0, (100,)).numpy().all()
    assert abs(random.bernoulli(0.25, (10_000,)).numpy().mean() - 0.25) < 0.02


def test_bernoulli_is_certain_whatever_the_bits_are(on_numpy: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    for drawn in (0, 2**32 - 1):
        monkeypatch.setattr(random, "bits", lambda shape, drawn=drawn: pa.full(shape, drawn, dtype=pa.uint32))
        assert not random.bernoulli(0.0, (3,)).numpy().any() and random.bernoulli(1.0, (3,)).numpy().all()


def test_draws_are_released_unless_others_were_made_since(on_numpy: Backend) -> None:
    for others in (0, 1):
        random.seed(7)
        state = random.reserve(3)
        for _ in range(others):
            random.draw()
        random.release(state, 3)
        assert random.get_state() == (7, 4 if others else 0)


def test_bernoulli_takes_an_array_of_probabilities(backend: Backend) -> None:
    p = pa.asarray([0.0, 0.25, 1.0])
    assert random.bernoulli(p).shape == (3,) and random.bernoulli(p[:0]).shape == (0,)
    found = pa.mean(random.bernoulli(p, (10_000, 3)).astype(pa.float32), axis=0).tolist()
    assert found[0] == 0 and found[2] == 1 and abs(found[1] - 0.25) < 0.02
    with pytest.raises(pa.DtypeError, match=r"^random.bernoulli: p is int64\[2\]; its dtype must be floating"):
        random.bernoulli(pa.asarray([0, 1]))
    for other in ([0.5], np.full(2, 0.5)):
        with pytest.raises(TypeError, match=r"^random.bernoulli: p is a \S+; it must be a polyarr array"):
            random.bernoulli(other)
    with pytest.raises(pa.ShapeError, match=r"^broadcast_to: "):
        random.bernoulli(p, (2,))


def test_permutation(backend: Backend) -> None:
    random.seed(0)
    assert sorted(random.permutation(33).tolist()) == list(range(33))
    x = pa.reshape(pa.arange(12), shape=(4, 3))
    shuffled = random.permutation(x).tolist()
    assert sorted(shuffled) == x.tolist()
    assert sorted(random.permutation(x, axis=1)[0].tolist()) == [0, 1, 2]


def test_choice_from_logits(backend: Backend) -> None:
    random.seed(0)
    logits = ops.broadcast_to(ops.log(pa.asarray([0.1, 0.0, 0.6, 0.3])), shape=(4000, 4))
    counts = np.bincount(random.choice_from_logits(logits).numpy(), minlength=4) / 4000
    np.testing.assert_allclose(counts, [0.1, 0, 0.6, 0.3], atol=0.03)


def test_dropout_keeps_what_the_bits_say(backend: Backend) -> None:
    x = pa.ones((1000,))
    kept = (ops.random_bits(11, 5, shape=(1000,)).numpy() >> 8) >= round(0.3 * 2**24)
    np.testing.assert_allclose(ops.dropout(x, 11, 5, rate=0.3).numpy(), kept / np.float32(0.7), rtol=1e-6)


def test_threads_never_share_a_draw(on_numpy: Backend) -> None:
    random.seed(0)
    seen: list = []
    threads = [threading.Thread(target=lambda: seen.extend(random.draw() for _ in range(500))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(seen)) == 4000


def test_a_seed_of_numpy_is_an_int(on_numpy):
    random.seed(np.int64(-3))
    first = random.uniform(3).tolist()
    random.seed(-3)
    assert random.uniform(3).tolist() == first
    with random.drawing_from(random.Generator(np.uint8(7))):
        second = random.uniform(3).tolist()
    with random.drawing_from(random.Generator(7)):
        assert random.uniform(3).tolist() == second


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: random.seed(1.5), TypeError, "random.seed: value is 1.5; it must be an int"),
        (lambda: random.Generator(1.5), TypeError, "random: seed is 1.5; it must be an int"),
        (lambda: random.randint(3, 3), ValueError, "low is 3, high is 3"),
        (lambda: random.bernoulli(1.5), ValueError, "p is 1.5; it must be from 0 to 1"),
        (lambda: random.randint(0, 300, dtype="int8"), OverflowError, "high - 1 is 299; int8 holds -128 to 127"),
        (lambda: random.randint(-1, 3, dtype="uint8"), OverflowError, "low is -1; uint8 holds 0 to 255"),
        (lambda: random.randint(0, 3, dtype="float32"), pa.DtypeError, "dtype is float32; it must be integer"),
        (lambda: random.uniform(3, dtype="int32"), pa.DtypeError, "dtype is int32; it must be floating"),
        (lambda: random.normal(3, dtype="complex64"), pa.DtypeError, "dtype is complex64; it must be floating"),
        (lambda: random.uniform((-1,)), ValueError, "lengths must not be negative"),
        (lambda: random.randint(0, 3, (2, -1)), ValueError, r"^random.randint: shape is \[2, -1\]; lengths must not"),
        (lambda: random.bernoulli(0.5, -1), ValueError, r"^random.bernoulli: shape is \[-1\]; lengths must not"),
        (lambda: random.permutation(-1), ValueError, "^random.permutation: x is -1; it must not be negative$"),
    ],
)
def test_errors(on_numpy: Backend, call, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
