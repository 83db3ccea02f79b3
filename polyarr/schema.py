"""JSON that comes from a file, checked against a schema beside the module that reads it."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from polyarr.extras import extra

_SHOWN = 300  # characters of a reason


def check_json(value: Any, schema: Path) -> None:
    """Raise ValueError, in one line, unless a value is as a JSON schema has it."""
    error = next(_validator(schema).iter_errors(value), None)
    if error is not None:
        raise ValueError(f"{error.json_path.removeprefix('$.')}: {in_one_line(error.message)}")


@cache
def _validator(schema: Path) -> Any:
    """JSON calls 1.0 an integer and Python reads NaN as a number; here neither is."""
    validators = extra("jsonschema.validators")
    plain = validators.Draft202012Validator
    types = plain.TYPE_CHECKER.redefine_many(
        {
            "integer": lambda _, value: type(value) is int,
            "number": lambda _, value: type(value) in (int, float) and value == value,
        }
    )
    return validators.extend(plain, type_checker=types)(json.loads(schema.read_text()))


def parsed_json(text: str | bytes, schema: Path) -> Any:
    """The value of a JSON text that is as a schema has it; ValueError for any other text."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    check_json(value, schema)
    return value


def in_one_line(reason: object) -> str:
    """What is wrong, short enough for an error."""
    text = " ".join(str(reason).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
