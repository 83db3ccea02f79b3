"""Scaling of rotary embeddings in config.json: each kind's settings, read and written."""

import math
from collections.abc import Mapping
from typing import Any

from polyarr.models.formats.tables import positive, sizes_of
from polyarr.nn import RotaryScaling

_LENGTH, ORIGINAL_LENGTH = "max_position_embeddings", "original_max_position_embeddings"
_LLAMA3 = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_length": ORIGINAL_LENGTH,
}
_YARN = {
    "factor": "factor",
    "low_freq_factor": "beta_slow",
    "high_freq_factor": "beta_fast",
    "original_length": ORIGINAL_LENGTH,
    "attention_factor": "attention_factor",
    "truncate": "truncate",
}
_LONGROPE = {
    "factor": "factor",
    "original_length": ORIGINAL_LENGTH,
    "attention_factor": "attention_factor",
    "short_factors": "short_factor",
    "long_factors": "long_factor",
}
_SCALINGS = {"linear": {"factor": "factor"}, "llama3": _LLAMA3, "yarn": _YARN, "longrope": _LONGROPE}


def scaling_of(found: Mapping[str, Any], given: Mapping[str, Any], known: tuple[str, ...]) -> RotaryScaling | None:
    """Return the scaling that a dict of settings describes.

    "dynamic" changes nothing for texts that fit into the context.

    Args:
        found: The settings of the scaling.
        given: The content of config.json.
        known: The kinds of scaling that the family has.

    Raises:
        ValueError: The family has no such scaling, or settings are missing.
    """
    kind = found.get("rope_type", found.get("type", "default"))
    if kind in ("default", "dynamic"):
        return None
    if kind in ("su", "yarn") and "long_factor" in found:  # earlier names of Phi-3's scaling
        kind = "longrope"
    if kind not in known:
        listed = ", ".join(map(repr, ("default", "dynamic", *known)))
        raise ValueError(f"its rope_scaling is of type {kind!r}; this family's models have {listed}")
    if kind == "yarn":
        found = _whole_yarn(found, given)
    if kind == "longrope":
        found = _whole_longrope(found, given)
    return RotaryScaling(**sizes_of(found, _SCALINGS[kind]), kind=kind)


def mapping(given: Any) -> Mapping[str, Any]:
    """Return the dict of a rotary embedding's settings, empty for None."""
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"its rope_scaling is {given!r}; it must be a dict")
    return given or {}


def _whole_yarn(found: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of yarn with defaults for those that are left out."""
    found = {name: value for name, value in found.items() if value is not None}
    found = {"truncate": True, "beta_slow": 1, "beta_fast": 32, ORIGINAL_LENGTH: given.get(_LENGTH), **found}
    if "attention_factor" not in found:
        factor, scales = positive(found, "factor"), [found.get("mscale"), found.get("mscale_all_dim")]
        above, below = (positive({"mscale": s}, "mscale") for s in scales) if all(scales) else (1, 0)
        found["attention_factor"] = _magnitude(factor, above) / _magnitude(factor, below)
    return found


def _magnitude(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0


def _whole_longrope(found: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of longrope with defaults for those that are left out."""
    length = positive(given, ORIGINAL_LENGTH, 4096)  # Phi-3's default, which a number within `found` does not change
    found = {name: value for name, value in found.items() if value is not None} | {ORIGINAL_LENGTH: length}
    factor = positive(found, "factor", positive(given, _LENGTH) / length)
    attention = math.sqrt(1 + math.log(factor) / math.log(length)) if min(factor, length) > 1 else 1.0
    return {"attention_factor": attention, **found, "factor": factor}


def written_scaling(scaling: RotaryScaling) -> dict[str, Any]:
    """Return the dict of settings of a scaling."""
    names = _SCALINGS[scaling.kind]
    return {"rope_type": scaling.kind, **{theirs: getattr(scaling, own) for own, theirs in names.items()}}
