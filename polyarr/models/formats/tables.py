"""Format of another program's models: a table of layer names, and functions between settings."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from polyarr.models.decoder import Config, LanguageModel

_MAX_NUMBER = 1e12


class Layer(NamedTuple):
    """Name of one of polyarr's layers in another program.

    Usually one layer is one layer. Or polyarr concatenates the rows of several, or the other program does.

    Attributes:
        names: Names of the other program's layers, with a star for the number of the block, and # for the number of the
            expert where polyarr's weight has those of all experts, one after the other.
        share: (i, n) if polyarr's layer is part i of n equal parts of the rows of the other program's; of each expert's
            rows in a stacked layer, where the parts alternate: row i is of part i % n.
        transposed: Whether the other program stores weights as (in, out); polyarr has (out, in).
        parameter: Whether the weight is of a layer that PEFT does not know: an adapter of it is one of a parameter.
        stacked: Whether the other program's array has the weights of all experts, (experts, out, in), as polyarr's.
        weight: Name of the weight.
        bias: Name of the bias.
        sinks: Name of the sinks of attention. Other arrays have polyarr's names.
    """

    names: tuple[str, ...]
    share: tuple[int, int] = (0, 1)
    transposed: bool = False
    parameter: bool = False
    stacked: bool = False
    weight: str = "weight"
    bias: str = "bias"
    sinks: str = "sinks"

    def arrays(self, own: str, number: str) -> tuple[str, ...]:
        """Return the other program's names of the array `own`, such as "weight", in the block with this number."""
        suffix = {"weight": self.weight, "bias": self.bias, "sinks": self.sinks}.get(own, own)
        return tuple(f"{name.replace('*', number)}.{suffix}" for name in self.names)


def layer(*names: str, **settings: Any) -> Layer:
    """Return a Layer with these names."""
    return Layer(names, **settings)


class Format(NamedTuple):
    """Format of another program's models of one family.

    Attributes:
        layers: Layers of the other program by the name of polyarr's layer, with a star for the number of a block.
        config_of: Function from the content of config.json to polyarr's configuration.
        settings_of: Function from polyarr's configuration to the content of config.json.
        prefix: Prefix of all names but the head's, which some files leave out.
        ignored: Names of arrays in files that are not weights, with stars.
        complete: Function that adds arrays the other program always has, to a model that computes the same.
        fits: Function from polyarr's configuration to whether the other program has models with it.
    """

    layers: Mapping[str, Layer]
    config_of: Callable[[Mapping[str, Any]], Config]
    settings_of: Callable[[Any], dict[str, Any]]
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    complete: Callable[[Any], LanguageModel] = lambda model: model
    fits: Callable[[Any], bool] = lambda config: True

    def parts(self, name: str) -> tuple[tuple[str, ...], bool]:
        """Return the names of the arrays that make up one of polyarr's, and whether these are transposed."""
        found, own, number = self._layer(name)
        return found.arrays(own, number), found.transposed and own == "weight"

    def layer(self, name: str) -> Layer:
        """Return the layer of one of polyarr's arrays in the other program."""
        return self._layer(name)[0]

    def with_experts(self, config: Config) -> "Format":
        """Return the format with the names of the layers of each expert that a configuration has."""

        def expanded(found: Layer) -> Layer:
            experts = range(getattr(config, "n_experts", 0))
            return found._replace(names=tuple(found.names[0].replace("#", str(expert)) for expert in experts))

        return self._replace(
            layers={own: expanded(found) if "#" in found.names[0] else found for own, found in self.layers.items()}
        )

    def _layer(self, name: str) -> tuple[Layer, str, str]:
        """Return the layer of one of polyarr's arrays, its name there, and the number of the block."""
        path, _, own = name.rpartition(".")
        number = re.search(r"\.(\d+)\.", path)
        found = self.layers.get(path.replace(number[0], ".*.", 1) if number else path)
        if found is None:
            raise ValueError(f"it has {path}, for which the format has no name")
        return found, own, number[1] if number else ""

    def ignores(self, name: str) -> bool:
        """Return whether an array of this name is not a weight."""
        return re.sub(r"\.\d+\.", ".*.", name, count=1) in self.ignored


def sizes_of(given: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Return polyarr's fields, taken from the other program's settings, all of which must be there."""
    missing = [theirs for theirs in fields.values() if theirs not in given]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    return {own: given[theirs] for own, theirs in fields.items()}


def positive(given: Mapping[str, Any], name: str, default: Any = None, or_zero: bool = False) -> Any:
    """Return a setting, which must be a positive number, and small enough to compute with."""
    value = given.get(name, default)
    if type(value) not in (int, float) or not (0 < value <= _MAX_NUMBER or (or_zero and value == 0)):
        due = f"{'0 or ' if or_zero else ''}a positive number of at most {_MAX_NUMBER:g}"
        raise ValueError(f"its {name} is {value!r}; it must be {due}")
    return value


def check_fixed(given: Mapping[str, Any], fixed: Mapping[str, tuple]) -> None:
    """Raise ValueError for settings that polyarr does not support; the first of the known values is the default."""
    for name, known in fixed.items():
        if given.get(name, known[0]) not in known:
            listed = " or ".join(repr(value) for value in known)
            raise ValueError(f"its {name} is {given[name]!r}; polyarr's models have {listed}")


def settings_with(config: Config, fields: Mapping[str, str], fixed: Mapping[str, tuple]) -> dict[str, Any]:
    settings = {theirs: getattr(config, own) for own, theirs in fields.items()}
    return settings | {name: known[0] for name, known in fixed.items()}
