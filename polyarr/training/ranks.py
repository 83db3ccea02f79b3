"""Ranks: how the processes of a run share a step, and collectives for small values on the host.

Gradients are reduced by `polyarr.distributed`.
"""

import contextlib
import json
import math
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np

from polyarr.core.spec import Spec, as_dtype
from polyarr.distributed import World
from polyarr.distributed.link import Link
from polyarr.saving.tensor_file import Source
from polyarr.training.recipes import Recipe

T = TypeVar("T")
ALONE = World(0, 1, 0, "", Link(), None)  # the world of a single process
Content = tuple[dict[str, Any], dict[str, Source]]


def split_step(recipe: Recipe, size: int) -> tuple[int, int]:
    """Return the number of parts that a recipe's step has on each of `size` ranks, and the number of windows per part.

    Whole batches are distributed first, then the windows of a batch; no rank has more windows at once than a single
    process has.

    Raises:
        ValueError: The ranks cannot share the step equally.
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


def all_max(world: World, number: int) -> int:
    """Return the largest of the ranks' numbers, which must be from 0 to 255."""
    return max(line[0] for line in world.link.gather(bytes([number])))


def all_gather(world: World, value: Any) -> list[Any]:
    """Return the values of all ranks, in their order; JSON must be able to hold them."""
    return [json.loads(text) for text in world.link.texts(json.dumps(value))]


def on_root(world: World, do: Callable[[], T]) -> T | None:
    """Run do() on the first rank only, and return its result there and None elsewhere; errors are raised on all."""
    found = None
    if world.rank == 0:
        try:
            with world.alone():
                found = do()
        except Exception as error:
            all_gather(world, _pickled(error).hex())
            raise
    if failure := all_gather(world, "")[0]:
        raise pickle.loads(bytes.fromhex(failure))
    return found


def _pickled(error: Exception) -> bytes:
    with contextlib.suppress(Exception):
        found = pickle.dumps(error)
        if type(pickle.loads(found)) is type(error):
            return found
    return pickle.dumps(RuntimeError(str(error)))


def broadcast_content(world: World, read: Callable[[], Content]) -> Content:
    """Return the info and arrays that the first rank reads, on all ranks; errors of `read` are raised on all.

    The arrays are broadcast as they are read, which all ranks must do in the same order.
    """
    content = on_root(world, read)
    if world.size == 1 and content:
        return content
    arrays = content[1] if content else {}
    described = content and [content[0], {name: (a.spec.shape, a.spec.dtype.name) for name, a in arrays.items()}]
    info, specs = all_gather(world, described)[0]

    def spread(name: str, spec: Spec) -> np.ndarray:
        found = on_root(world, lambda: arrays[name].read())
        a = np.empty(spec.shape, spec.dtype) if found is None else np.ascontiguousarray(found)
        world.link.spread(a.reshape(-1).view(np.uint8), 0)
        return a

    found = {name: Spec(tuple(shape), as_dtype(dtype)) for name, (shape, dtype) in specs.items()}
    return info, {name: Source(spec, partial(spread, name, spec)) for name, spec in found.items()}


def check_equal_on_ranks(world: World, facts: Callable[[], Mapping[str, Any]]) -> None:
    """Raise ValueError on all ranks unless all have the same facts; the error states the first fact that differs."""
    if world.size == 1:
        return
    rows = all_gather(world, dict(facts()))
    for name in dict.fromkeys(name for row in rows for name in row):
        groups: dict[str, list[int]] = {}
        for rank, row in enumerate(rows):
            groups.setdefault(str(row.get(name, "nothing")), []).append(rank)
        if len(groups) > 1:
            parts = (f"{value} on rank{'s' * (len(ranks) > 1)} {_ranges(ranks)}" for value, ranks in groups.items())
            raise ValueError(f"the ranks differ: {name} is {', '.join(parts)}; it must be the same on all")


def _ranges(numbers: list[int]) -> str:
    """Return ascending numbers as text: 0-3, 5."""
    found: list[list[int]] = []
    for n in numbers:
        if found and n == found[-1][-1] + 1:
            found[-1][1:] = [n]
        else:
            found.append([n])
    return ", ".join("-".join(map(str, part)) for part in found)

