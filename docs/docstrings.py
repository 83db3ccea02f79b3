"""Docstrings on the site: Google style sections, with the prose escaped so that Markdown shows it unchanged."""

import inspect
import re

import griffe

SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Examples")
OPTIONS = {"returns_multiple_items": False, "warn_missing_types": False}  # of griffe's parser, as in mkdocs.yml
HEADING = re.compile(rf"^({'|'.join(SECTIONS)}):$")
LABEL = re.compile(r"^(Gradients|Source): (.*)$")  # one paragraph each, whose later lines are indented
ITEM = re.compile(r"^(    [*\w][\w., *]*: )(.*)$")  # a name, and the beginning of its description
ROW = re.compile(r"^([\w.*]+):?  +(\S.*)$")  # a row of a table in plain text: a name, spaces, a description
SPECIAL = re.compile(r"([\\*_\[\]#>])")


class Plain(griffe.Extension):
    """Has mkdocstrings show the prose of docstrings without reading it as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Escape the docstring of an object that was read."""
        if obj.docstring:
            obj.docstring.value = escaped_sections(obj.docstring.value)


def escaped_sections(docstring: str) -> str:
    """Return a docstring with its prose escaped; headings, names of arguments and examples stay as they are."""
    text, section = inspect.cleandoc(docstring), ""
    blocks = re.split(r"\n\s*\n", text)
    for i, block in enumerate(blocks):
        heading = HEADING.match(block.partition("\n")[0])
        section = heading[1] if heading else section if block.startswith(" ") else ""
        if section != "Examples":
            blocks[i] = _items(block) if section else _paragraph(block)
    return "\n\n".join(blocks)


def as_markdown(docstring: str) -> str:
    """Return a docstring as Markdown, for pages that mkdocstrings does not write."""
    found = griffe.Docstring(escaped_sections(docstring)).parse("google", warnings=False, **OPTIONS)
    return "\n\n".join(map(_section, found))


def escaped(text: str) -> str:
    """Return text as Markdown that shows it as it is, except for what stands in backticks."""
    parts = text.split("`")
    return "`".join(part if i % 2 else SPECIAL.sub(r"\\\1", part).replace("<", "&lt;") for i, part in enumerate(parts))


def _items(block: str) -> str:
    """Return one section with its descriptions escaped."""
    found = []
    for line in block.splitlines():
        item = ITEM.match(line)
        found.append(f"{item[1]}{escaped(item[2])}" if item else escaped(line))
    return "\n".join(found)


def _paragraph(text: str) -> str:
    """Return a paragraph as Markdown: indented text as code, rows of a table as a list, labels in bold."""
    lines = text.splitlines()
    if all(line.startswith("    ") for line in lines):
        return text
    found, before = [], ""
    for line in lines:
        row, label = ROW.match(line), LABEL.match(line)
        if label:
            found.append(f"\n**{label[1]}:** {escaped(label[2])}")
        elif row:
            start = "" if before == "row" else "\n"
            found.append(f"{start}- **{escaped(row[1])}** {escaped(row[2])}")
        else:
            found.append(("  " if before == "row" and line[0] == " " else "") + escaped(line.strip()))
        before = "label" if label else "row" if row else before if line[0] == " " else ""
    return "\n".join(found).strip("\n")


def _section(section: griffe.DocstringSection) -> str:
    """Return one parsed section as Markdown."""
    kind, value = section.kind.value, section.value
    if kind == "text":
        return value
    if kind == "examples":
        return "**Examples**\n\n" + "\n\n".join(
            f"```pycon\n{text}\n```" if part.value == "examples" else text for part, text in value
        )
    if kind == "returns":
        return "**Returns**\n\n" + "\n".join(item.description for item in value)
    name = {"parameters": "name", "attributes": "name", "raises": "annotation"}[kind]
    title = {"parameters": "Args"}.get(kind, kind.capitalize())
    rows = [f"- `{getattr(item, name)}`: {' '.join(item.description.split())}" for item in value]
    return f"**{title}**\n\n" + "\n".join(rows)
