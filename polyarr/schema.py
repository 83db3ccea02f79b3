"""JSON that comes from a file, checked against a schema beside the module that reads it."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from polyarr.extras import extra

_SHOWN = 300  # characters of a reason
_DEEP = "its JSON is nested too deeply"


def check_json(value: Any, schema: Path, part: str | None = None) -> None:
    """Raise ValueError, in one line, unless a value is as a JSON schema, or a part of its $defs, has it."""
    try:
        error = next(_validator(schema, part).iter_errors(value), None)
    except RecursionError as deep:  # while it is shown
        raise ValueError(_DEEP) from deep
    if error is not None:
        raise ValueError(f"{error.json_path.removeprefix('$.')}: {in_one_line(error.message)}")


@cache
def _validator(schema: Path, part: str | None) -> Any:
    """JSON calls 1.0 an integer and Python reads NaN as a number; here neither is."""
    validators = extra("jsonschema.validators")
    plain = validators.Draft202012Validator
    types = plain.TYPE_CHECKER.redefine_many(
        {
            "integer": lambda _, value: type(value) is int,
            "number": lambda _, value: type(value) in (int, float) and value == value,
        }
    )
    rules = json.loads(schema.read_text()) | ({"$ref": f"#/$defs/{part}"} if part else {})
    return validators.extend(plain, type_checker=types)(rules)


def parsed_json(text: str | bytes, schema: Path) -> Any:
    """The value of a JSON text that is as a schema has it; ValueError for any other text."""
    value = loaded_json(text)
    check_json(value, schema)
    return value


def loaded_json(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError for any other text."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(_DEEP) from error


def in_one_line(reason: object) -> str:
    """What is wrong, short enough for an error."""
    text = " ".join(str(reason).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
