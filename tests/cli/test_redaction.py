"""Removal of private data from a text."""

import getpass
import platform
import sys

import pytest

from polyarr.cli.redaction import redacted


@pytest.fixture(autouse=True)
def planted(monkeypatch, tmp_path):
    """Names and paths of this machine that no report may have."""
    home = tmp_path / "plantedhome"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(getpass, "getuser", lambda: "planteduser")
    monkeypatch.setattr(platform, "node", lambda: "plantedhost.example")
    return home


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("{home}/.cache/polyarr", "~/.cache/polyarr"),
        ("{home}", "~"),
        ("{home}work/x", "{home}work/x"),
        ("'/home/other one/x'", "'~ one/x'"),
        (r"C:\Users\other\x", r"~\x"),
        ("/Users/other: no file", "~: no file"),
        ("{prefix}/bin/python", "<python>/bin/python"),
        ("rank 0 on PlantedHost.example, plantedhost", "rank 0 on <host>, <host>"),
        ("rank 1 on far", "rank 1 on <host>"),
        ("planteduser and planteduser2", "<user> and planteduser2"),
        ("/usr/lib/libOpenCL.so.1", "/usr/lib/libOpenCL.so.1"),
    ],
)
def test_private_words_and_paths_are_replaced(planted, text, due):
    text, due = (part.replace("{home}", str(planted)).replace("{prefix}", sys.prefix) for part in (text, due))
    assert redacted(text, ["far"]) == due


@pytest.mark.parametrize("folder", ["/", ""])
def test_a_home_without_a_name_is_kept(monkeypatch, folder):
    monkeypatch.setenv("HOME", folder)
    assert redacted("/usr/lib") == "/usr/lib"


def test_a_process_without_a_user_has_a_report(monkeypatch):
    def no_name():
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr(getpass, "getuser", no_name)
    assert redacted("a b") == "a b"
