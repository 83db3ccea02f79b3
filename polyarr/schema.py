"""Validation of JSON files against a JSON schema that lies beside the module that reads them."""

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from polyarr.extras import extra

_SHOWN = 300  # largest number of characters of a reason, and of a path whose settings are nested further
_FEW = 8  # largest number of names that an error lists
_DEEP = "its JSON is nested too deeply"
_TYPES = {
    "string": "a text", "array": "a list", "object": "an object", "integer": "an integer", "number": "a number",
    "boolean": "true or false", "null": "null",
}  # fmt: skip
_RULES = {
    "minimum": "at least {}", "maximum": "at most {}", "exclusiveMinimum": "above {}",
    "exclusiveMaximum": "below {}", "minItems": "a list with {} or more elements",
    "maxItems": "a list with {} or fewer elements", "minLength": "a text with {} or more characters",
    "maxLength": "a text with {} or fewer characters", "maxProperties": "an object with {} or fewer keys",
    "pattern": "of the form {}",
}  # fmt: skip


class SchemaError(ValueError):
    """Value that does not match a schema.

    Attributes:
        key: The wrong key of the top-level object, if known.
    """

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


def check_json(value: Any, schema: Path, part: str | None = None) -> None:
    """Raise SchemaError, in one line, unless a value matches a JSON schema or one of its $defs."""
    validator = _validator(schema, part)
    try:
        error = next(validator.iter_errors(value), None)
        if error is not None:
            name, reason = _told(error, validator.schema)
            where = f"{error.json_path}.{name}" if name else error.json_path
            key = next(iter([*error.path, name]), None)
            where = in_one_line(where.removeprefix("$").removeprefix(".")) or "it"
            raise SchemaError(f"{where}{reason}", key or None)
    except RecursionError as deep:
        raise SchemaError(_DEEP) from deep


def _told(error: Any, root: dict[str, Any]) -> tuple[str, str]:
    """Return the key that is missing or unknown, or "", and an explanation: what was given and what is required."""
    rule, wanted, given = error.validator, error.validator_value, error.instance
    if rule == "required":
        return next(name for name in wanted if name not in given), " is missing; it is required"
    if rule in ("additionalProperties", "unevaluatedProperties"):
        known = _properties(error.schema, root)
        wrong = next((name for name in given if name not in known), "")
        near = get_close_matches(wrong, known, 1, cutoff=0.7) or (known if len(known) <= _FEW else [])
        way_out = f"there may be {', '.join(near)}" if near else "leave it out"
        return in_one_line(wrong), f" is not supported; {way_out}"
    return "", f": {_shown(given)} was given; it must be {_wanted(rule, wanted)}"


def _properties(schema: Any, root: dict[str, Any]) -> list[str]:
    """Return the property names of an object schema, including those of a referenced definition."""
    other = schema.get("$ref", "").removeprefix("#/$defs/")
    return [*schema.get("properties", {}), *(_properties(root["$defs"][other], root) if other else ())]


def _wanted(rule: str, value: Any) -> str:
    """Describe what a schema rule requires."""
    if rule in ("type", "enum", "const"):
        given = value if isinstance(value, list) else [value]
        *shown, last = [_TYPES[one] if rule == "type" else _shown(one) for one in given]
        return f"{', '.join(shown)} or {last}" if shown else last
    return _RULES.get(rule, "as {} has it").format(value)


def _shown(value: Any) -> str:
    return in_one_line(json.dumps(value, ensure_ascii=False, default=repr))


@cache
def _validator(schema: Path, part: str | None) -> Any:
    """Return a validator that rejects 1.0 as an integer and NaN as a number."""
    validators = extra("jsonschema.validators")
    plain = validators.Draft202012Validator
    types = plain.TYPE_CHECKER.redefine_many(
        {
            "integer": lambda _, value: type(value) is int,
            "number": lambda _, value: type(value) in (int, float) and value == value,
        }
    )
    rules = json.loads(schema.read_text(encoding="utf-8")) | ({"$ref": f"#/$defs/{part}"} if part else {})
    return validators.extend(plain, type_checker=types)(rules)


def parsed_json(text: str | bytes, schema: Path) -> Any:
    """Parse JSON text and validate it; ValueError if it is invalid."""
    value = loaded_json(text)
    check_json(value, schema)
    return value


def loaded_json(text: str | bytes) -> Any:
    """Parse JSON text; ValueError if it is invalid."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(_DEEP) from error


def flattened(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings by their dotted paths, to a limited depth."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and len(before) < _SHOWN:
            yield from flattened(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def in_one_line(reason: object) -> str:
    """Return a reason in one line of limited length, for an error; what a terminal would obey is escaped."""
    text = " ".join(str(reason).split())
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
