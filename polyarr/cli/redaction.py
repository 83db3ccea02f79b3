"""Removal of private data from a text that a user may attach to an issue."""

import getpass
import os
import platform
import re
import sys
from collections.abc import Iterable

HOMES = re.compile(r"(?:/home/|/Users/|[A-Za-z]:\\Users\\)[^/\\\s'\":;,]+")  # of any user


def redacted(text: str, hosts: Iterable[str] = ()) -> str:
    """Return a text without paths of home folders, and names of users and hosts.

    Args:
        text: Any text.
        hosts: Names of hosts besides the name of this one.

    Returns:
        The text with `~` for home folders, `<python>` for the folder of the Python environment, and `<user>`
        and `<host>` for names, which are replaced where they are whole words.
    """
    home = os.path.expanduser("~")
    folders = {sys.prefix: "<python>", home: "~", os.path.realpath(home): "~"}
    for folder in sorted(folders, key=len, reverse=True):
        if len(folder) > 1:
            text = re.sub(rf"{re.escape(folder)}(?![\w.-])", folders[folder], text)
    text = HOMES.sub("~", text)
    own = platform.node()
    for name in sorted({own, own.partition(".")[0], *hosts}, key=len, reverse=True):
        text = _without_word(text, name, "<host>")
    return _without_word(text, _user(), "<user>")


def _without_word(text: str, word: str, replacement: str) -> str:
    return re.sub(rf"(?i)(?<!\w){re.escape(word)}(?!\w)", replacement, text) if word else text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no variable and no entry of the system has a name
        return ""
