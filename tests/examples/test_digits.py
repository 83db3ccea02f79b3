"""examples/digits: LeNet learns scikit-learn's digits, reproducibly from a seed."""

import runpy

import numpy as np
import pytest

import polyarr as pa
from tests.helpers.root import ROOT

EXAMPLE = ROOT / "examples" / "digits" / "digits.py"


@pytest.fixture(scope="module")
def example():
    pytest.importorskip("sklearn")
    return runpy.run_path(str(EXAMPLE))


@pytest.mark.polyarr_backend("opencl")
def test_digits_that_were_held_out_are_read(example, capsys):
    assert example["main"]([]) >= 0.985
    assert "of 360 scans held out are right" in capsys.readouterr().out


def test_a_fifth_is_held_out_and_a_seed_decides_everything(example, on_numpy):
    learnt, held_out = example["data"]()
    assert len(held_out[1]) == 360 and len(learnt[1]) + len(held_out[1]) == 1797
    assert not {a.tobytes() for a in held_out[0]} & {a.tobytes() for a in learnt[0]}

    def weights():
        pa.random.seed(5)
        return example["trained"](example["Digits"](), *learnt, seed=5, steps=2, batch_size=8).named_parameters()

    first, second = weights(), weights()
    assert all(np.array_equal(first[name].numpy(), second[name].numpy()) for name in first)
    assert not np.array_equal(first["norm.statistics.mean"].numpy(), [0])


def test_images_move_by_a_pixel_at_most(example):
    image = np.zeros((50, 8, 8, 1), "float32")
    image[:, 3, 4] = 1
    found = example["moved"](image, np.random.default_rng(0))
    places = {tuple(map(int, np.argwhere(a)[0][:2])) for a in found}
    assert found.shape == image.shape and places == {(i, j) for i in (2, 3, 4) for j in (3, 4, 5)}
