"""Check that a function is pure, and computes the same when it is compiled and when it is mapped by vmap."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyarr import random
from polyarr.autograd import vjp
from polyarr.batching import vmap
from polyarr.capture.compile import Compiled
from polyarr.capture.compile import compile as compiled
from polyarr.core.array import Array, from_numpy
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend, use_backend
from polyarr.testing.arguments import Leaves, home_of, with_note
from polyarr.testing.compare import CheckFailure, bits, same_again, values
from polyarr.testing.gradients import Pulled, agree, check_width, cotangents_by_name

__tracebackhide__ = True  # from pytest: a failure is shown at the line of the test
EXAMPLES = 3  # sets of values that a function gets
SPREAD = 0.1  # by which the values differ between examples, relative to each: zeros and signs stay


def assert_transforms_agree(
    fn: Callable,
    args: Sequence[Any],
    transforms: str | Sequence[str] = ("compile", "vmap"),
    *,
    backend: str | Backend | None = None,
    seed: int = 0,
) -> None:
    """Check that `fn` changes no argument, and that `pa.compile` and `pa.vmap` of it compute what it computes.

    `fn` gets `args` in their own dtypes, and twice more with each floating-point value changed by up to a tenth of
    itself. Results and gradients must be those of the plain function: in one compiled function for all values, whose
    first call captures it, and in one call of vmap in which every floating-point array has one example per set of
    values along axis 0. Arguments that are not floating-point arrays stay fixed and, as numbers, are dynamic scalars
    of the compiled function: if `fn` reads one, give `pa.compile(fn, constants=("axis",))` or `lambda x: fn(x, 1)`.

    Code that a transform refuses, such as `if x > 0`, raises the transform's own error, which names the line.

    Args:
        fn: Function of `args` that returns a tree with at least one floating-point array. A compiled function, such as
            one with `captures`, is checked as it is.
        args: Tuple of the arguments, as in `check_grads`: those of one example.
        transforms: "compile", "vmap" or both.
        backend: Backend to compute on; None: the one on which the first polyarr array of `args` is, or the current one.
        seed: Seed of the values, the cotangent, and of the numbers that `fn` draws with polyarr.random.

    Raises:
        CheckFailure: An argument is changed in place, two calls differ, or a result or a gradient differs.
        CaptureError: `fn` cannot be compiled.
        BatchingError: `fn` cannot be mapped.
        GradientError: `args` holds no floating-point array, or `fn` returns none.
        TypeError: `args` is not a tuple, or `fn` is not callable.
        ValueError: `transforms` is empty or names another transform.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr.testing import assert_transforms_agree
        >>> x = pa.asarray([[0.5, -1.0], [2.0, 0.25]])
        >>> assert_transforms_agree(lambda x: pa.softmax(x @ x), (x,), backend="numpy")
    """
    chosen = (transforms,) if isinstance(transforms, str) else tuple(transforms)
    if not chosen or any(name not in _CHECKS for name in chosen):
        required = ", ".join(map(repr, _CHECKS))
        raise ValueError(f"assert_transforms_agree: transforms is {chosen!r}; it must hold some of {required}")
    leaves = Leaves.of("assert_transforms_agree", fn, args)
    home = home_of(args) if backend is None else get_backend(backend)
    with with_note(leaves, {"transforms": chosen, "backend": home.name, "seed": seed}), use_backend(home):
        whole = fn if isinstance(fn, Compiled) else compiled(fn)
        case = _Case.of(leaves._replace(fn=whole.fn), home, seed, whole)
        _check_arguments(case)
        plain = [case.pulled(case.gradients, hosts) for hosts in case.examples]
        check_width(case.where, leaves, plain[0].results)
        again = case.pulled(case.gradients, case.examples[0])
        for first, second in zip(plain[0], again, strict=True):
            same_again(case.where, [*first.values()], [*second.values()])
        for name in chosen:
            _CHECKS[name](case, plain)


class _Case(NamedTuple):
    """The arguments of one call of assert_transforms_agree."""

    leaves: Leaves
    backend: Backend
    seed: int
    placed: list[Any]  # leaves.placed
    examples: list[list[np.ndarray]]  # values of the floating-point arrays
    compiled: Compiled  # the function

    @classmethod
    def of(cls, leaves: Leaves, backend: Backend, seed: int, whole: Compiled) -> "_Case":
        rng = np.random.default_rng(seed)
        hosts = list(leaves.hosts.values())
        moved = [[_moved(host, rng) for host in hosts] for _ in range(EXAMPLES - 1)]
        return cls(leaves, backend, seed, leaves.placed(backend), [hosts, *moved], whole)

    @property
    def where(self) -> str:
        """The start of messages."""
        return f"{self.leaves.title} on {self.backend.name}"

    def arrays(self, hosts: Sequence[np.ndarray]) -> list[Array]:
        return [from_numpy(host, self.backend) for host in hosts]

    def args(self, hosts: Sequence[np.ndarray]) -> tuple:
        return self.leaves.filled(self.placed, self.arrays(hosts))

    def gradients(self, found: list[Array], rest: dict[int, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return results and gradients by name, for a cotangent that the results' Specs determine.

        Args:
            found: The floating-point arrays.
            rest: The other arrays by their positions among the leaves of args.
        """
        placed = [rest.get(i, leaf) for i, leaf in enumerate(self.placed)]
        results, pull = vjp(lambda *a: self.leaves.results(self.leaves.fn(*self.leaves.filled(placed, a))), *found)
        grads = pull(cotangents_by_name(results, self.backend, self.seed))
        return results, dict(zip(self.leaves.names, grads, strict=True))

    def pulled(self, gradients: Callable, hosts: Sequence[np.ndarray]) -> Pulled:
        """Return what `gradients`, self.gradients or a transform of it, computes."""
        rest = {i: leaf for i, leaf in enumerate(self.placed) if type(leaf) is Array and i not in self.leaves.hosts}
        with random.restored((self.seed, 0)):
            results, grads = gradients(self.arrays(hosts), rest)
        found, slopes = (dict(zip(named, values(self.where, named), strict=True)) for named in (results, grads))
        return Pulled(found, slopes)


def _moved(host: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.asarray(host * (1 + SPREAD * rng.uniform(-1, 1, host.shape))).astype(host.dtype)


def _check_arguments(case: _Case) -> None:
    """Check that a plain call leaves its arguments as they are."""
    args = case.args(case.examples[0])
    before = bits(args)
    with random.restored((case.seed, 0)):
        case.leaves.results(case.leaves.fn(*args))
    after = bits(args)
    names = case.leaves.names_of(args)
    for path in [*before, *after]:
        if before.get(path) != after.get(path):
            raise CheckFailure(
                f"{case.where}: the call changes its argument {names.get(path, path)} in place, which grad and vmap "
                "do not do to the caller's array; return a new one: x = x - y, not x -= y, and for x[i] = v first "
                "x = polyarr.asarray(x, copy=True)"
            )


def _check_compiled(case: _Case, plain: list[Pulled]) -> None:
    """Check the value of the compiled function, called as its users do, and its gradients."""
    gradients = compiled(case.gradients, captures=case.compiled.captures)
    for n, (hosts, expected) in enumerate(zip([*case.examples, case.examples[0]], [*plain, plain[0]], strict=True)):
        where = f"{case.where}, compiled, {'first call' if not n else 'a later call'}"
        with random.restored((case.seed, 0)):
            results = case.leaves.results(case.compiled(*case.args(hosts)))
        got = Pulled(dict(zip(results, values(where, results), strict=True)), expected.grads)
        agree(where, case.leaves, got, expected)
        agree(where, case.leaves, case.pulled(gradients, hosts), expected)


def _check_mapped(case: _Case, plain: list[Pulled]) -> None:
    """Check that vmap over all examples computes what a loop over them does."""
    stacked = [np.stack(column) for column in zip(*case.examples, strict=True)]
    got = case.pulled(vmap(case.gradients, in_axes=(0, None), randomness="same"), stacked)
    for i, expected in enumerate(plain):
        example = Pulled(*({name: host[i] for name, host in hosts.items()} for hosts in got))
        agree(f"{case.where}, mapped by vmap, example {i}", case.leaves, example, expected)


_CHECKS = {"compile": _check_compiled, "vmap": _check_mapped}
