"""The processes that train a run together, its ranks: how they share a step, and what they tell each other.

Gradients are `polyarr.distributed`'s. What is here is small, and on the host.
"""

import contextlib
import json
import math
import pickle
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from polyarr.distributed import World
from polyarr.distributed.link import Link
from polyarr.training.recipes import Recipe

T = TypeVar("T")
ALONE = World(0, 1, 0, "", Link(), None)  # one process, which trains by itself
Content = tuple[dict[str, Any], dict[str, np.ndarray]]


def shared(recipe: Recipe, size: int) -> tuple[int, int]:
    """How many parts a recipe's step has on each of so many ranks, and how many windows a part.

    Whole batches are shared out first, and then what is in one: no rank has more at once than one process has.

    Errors:  ValueError if not all ranks would have the same
    """
    found = _share(recipe, size)
    if found is None:
        most = recipe.accumulation * recipe.batch_size
        fitting = [str(n) for n in range(2, min(most, 4 * size) + 1) if _share(recipe, n)]
        raise ValueError(
            f"a step is {recipe.accumulation} x {recipe.batch_size} windows, which {size} ranks cannot share equally; "
            f"take {_listed(fitting)} of them, or another batch size (--set batch_size=...)"
        )
    return found


def _share(recipe: Recipe, size: int) -> tuple[int, int] | None:
    groups = math.gcd(recipe.accumulation, size)
    windows, left = divmod(recipe.batch_size, size // groups)
    return None if left or not windows else (recipe.accumulation // groups, windows)


def _listed(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words or ["1"])


# ---- what ranks tell each other ----------------------------------------------------------------------------------


def largest(world: World, number: int) -> int:
    """The largest number, below 256, that a rank has."""
    return max(line[0] for line in world.link.gather(bytes([number])))


def told(world: World, value: Any) -> list[Any]:
    """What each rank has to tell, as JSON has it."""
    return [json.loads(text) for text in world.link.texts(json.dumps(value))]


def once(world: World, do: Callable[[], T]) -> T | None:
    """What do() gives on the first rank, which alone does it, when it is done; what it raises is raised on all."""
    found = None
    if world.rank == 0:
        try:
            with world.alone():
                found = do()
        except Exception as error:
            told(world, _pickled(error).hex())
            raise
    if failure := told(world, "")[0]:
        raise pickle.loads(bytes.fromhex(failure))
    return found


def _pickled(error: Exception) -> bytes:
    with contextlib.suppress(Exception):
        found = pickle.dumps(error)
        if type(pickle.loads(found)) is type(error):
            return found
    return pickle.dumps(RuntimeError(str(error)))


def given(world: World, read: Callable[[], Content]) -> Content:
    """What the first rank reads, for all: values that JSON has, and arrays; what it raises is raised on all."""
    content = once(world, read)
    if world.size == 1 and content:
        return content
    described = content and [content[0], {name: (a.shape, a.dtype.str) for name, a in content[1].items()}]
    info, specs = told(world, described)[0]
    arrays = {name: np.ascontiguousarray(a) for name, a in content[1].items()} if content else {}
    arrays = arrays or {name: np.empty(*spec) for name, spec in specs.items()}
    for a in arrays.values():
        world.link.spread(a.reshape(-1).view(np.uint8), 0)
    return info, arrays


def agree(world: World, facts: Callable[[], Mapping[str, Any]]) -> None:
    """Go on only if all ranks have the same facts, by name.

    Errors:  ValueError, on all ranks, with the first name that differs, and who has what
    """
    if world.size == 1:
        return
    rows = told(world, dict(facts()))
    for name in dict.fromkeys(name for row in rows for name in row):
        groups: dict[str, list[int]] = {}
        for rank, row in enumerate(rows):
            groups.setdefault(str(row.get(name, "nothing")), []).append(rank)
        if len(groups) > 1:
            parts = (f"{value} on rank{'s' * (len(ranks) > 1)} {_ranges(ranks)}" for value, ranks in groups.items())
            raise ValueError(f"the ranks differ: {name} is {', '.join(parts)}; it must be the same on all")


def _ranges(numbers: list[int]) -> str:
    """Rising numbers for people: 0-3, 5."""
    found: list[list[int]] = []
    for n in numbers:
        if found and n == found[-1][-1] + 1:
            found[-1][1:] = [n]
        else:
            found.append([n])
    return ", ".join("-".join(map(str, part)) for part in found)

