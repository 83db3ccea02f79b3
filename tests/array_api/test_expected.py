"""What the run of the array API standard's test suite expects to fail, and how tests are found in it."""

import pytest

from tests.array_api import expected


def test_each_entry_has_a_reason_of_one_line_and_a_source_and_names_what_there_is() -> None:
    everywhere = expected.entries("numpy", "2025.12")
    assert everywhere and len(expected.entries("opencl", "2025.12")) >= len(everywhere)
    for entry in (*everywhere, *expected.entries("opencl", "2024.12")):
        assert entry.keys() <= {"reason", "source", "tests", "backends", "versions", "sometimes"}
        assert entry["reason"] and "\n" not in entry["reason"] and entry["tests"]
        assert entry["source"].startswith("https://")
        assert all(text.startswith(("test_", "*")) for text in entry["tests"])


@pytest.mark.parametrize(
    ("text", "test", "is_meant"),
    [
        ("test_a.py::test_eig", "test_a.py::test_eig", True),
        ("test_a.py::test_eig", "test_a.py::test_eigh", False),
        ("test_a.py::test_eig", "test_a.py::test_eig[1 [2]]", True),
        ("test_a.py::test_eig[1]", "test_a.py::test_eig[2]", False),
        ("test_a.py::test_names[fft-*", "test_a.py::test_names[fft-ifft]", True),
        ("test_a.py::test_names[fft-*", "test_a.py::test_names[linalg-inv]", False),
        ("*imag(x_i)*", "test_s.py::test_unary[exp(imag(x_i) is +0) -> 1]", True),
        ("*imag(x_i)*", "test_s.py::test_unary[exp(x_i is +0) -> 1]", False),
    ],
)
def test_tests_that_an_entry_is_for(text: str, test: str, is_meant: bool) -> None:
    assert expected.is_meant(text, test) is is_meant
