"""What docstrings look like on the site: the labels and tables that they have in plain text become lists."""

import inspect
import re

import griffe

ROW = re.compile(r"^([\w.*]+):?  +(\S.*)$")  # a label, or a name of a table, and what is said of it
SPECIAL = re.compile(r"([\\*_\[\]#>])")


class Plain(griffe.Extension):
    """Has mkdocstrings show docstrings as they were meant."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite the docstring of an object that was read."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """A docstring's text, its rows as lists, its indented blocks as code."""
    return "\n\n".join(map(_paragraph, re.split(r"\n\s*\n", inspect.cleandoc(docstring))))


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if all(line.startswith("    ") for line in lines):
        return text
    found: list[str] = []
    for line in lines:
        row = ROW.match(line)
        start = "" if found and not found[-1].startswith("- ") else "\n"
        if row:
            found.append(f"{start}- **{escaped(row[1])}** {escaped(row[2])}")
        else:
            found.append(f"  {escaped(line.strip())}" if line.startswith(" ") else escaped(line))
    return "\n".join(found).strip("\n").replace("\n\n- ", "\n- ")


def escaped(text: str) -> str:
    """Text as Markdown that shows it as it is, except for what stands in backticks."""
    parts = text.split("`")
    return "`".join(part if i % 2 else SPECIAL.sub(r"\\\1", part).replace("<", "&lt;") for i, part in enumerate(parts))
