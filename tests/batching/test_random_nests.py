"""Random functions with transforms in transforms, beside the same functions with a loop, a gradient or nothing instead.

Each step of a function is an op of values from before it, or a transform of an inner function, which closes over all of
them. In place of vmap the reference has a loop, of a jacobian the gradient of each element, and of checkpoint nothing.
"""

from random import Random

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.backend import Backend

N = 3
OPS = (
    lambda x, y: pa.sin(x) * y, lambda x, y: pa.tanh(x + y), lambda x, y: pa.softmax(x) - y, lambda x, y: x * 0.5 - y,
    lambda x, y: pa.layer_norm(x, y, eps=0.25), lambda x, y: pa.sort(pa.cos(x)) + y, lambda x, y: written(x, y),
    lambda x, y: pa.take(x, pa.argsort(y)), lambda x, y: pa.silu(x) @ y + pa.flip(x), lambda x, y: pa.max(x) * y,
)  # fmt: skip


def written(x, y):
    z = x * 1.0
    z[1:] = z[:2] * y[0]
    z += y
    return z


def total(f, weights):
    return lambda x: pa.sum(f(x) * weights)


def rows(f, x):
    """Return the jacobian of f, a row at a time."""
    return pa.stack([pa.grad(lambda x, i=i: f(x)[i])(x) for i in range(N)])


def in_place(wrap, f, a, b, c):
    """Map f over a and b by `wrap`, with c changed in place in it, from around."""
    c = c * 1.0

    def changing(x):
        c[1] = 2.0
        return f(x) * c

    return wrap(changing)(pa.stack([a, b]))[1] + c


def looped(f):
    return lambda xs: pa.stack([f(xs[i]) for i in range(xs.shape[0])])


def stepped(f, a, b, c):
    first, second = f(a) + b, f(f(a) + b) + c
    return second + first * c


def scanned(f, a, b, c):
    last, found = pa.scan(lambda s, x: (f(s) + x, s * x), a, pa.stack([b, c]))
    return last + found[1]


def pulled(f, a, b, c):
    _, pull = pa.vjp(f, a)
    return pa.vmap(lambda g: pull(g)[0])(pa.stack([b, c]))[1] + pa.checkpoint(lambda g: pull(g)[0])(b)


TRANSFORMS = {  # name: (with the transform, without)
    "vmap": (lambda f, a, b, c: pa.vmap(f)(pa.stack([a, b]))[1] * c, lambda f, a, b, c: f(b) * c),
    "checkpoint": (lambda f, a, b, c: pa.checkpoint(f)(a), lambda f, a, b, c: f(a)),
    "grad": (lambda f, a, b, c: pa.grad(total(f, b))(a), lambda f, a, b, c: b @ rows(f, a)),
    "vjp": (lambda f, a, b, c: pa.vjp(f, a)[1](b)[0], lambda f, a, b, c: pa.grad(total(f, b))(a)),
    "pull": (pulled, lambda f, a, b, c: pa.grad(total(f, c))(a) + pa.grad(total(f, b))(a)),
    "jvp": (lambda f, a, b, c: pa.jvp(f, (a,), (b,))[1], lambda f, a, b, c: rows(f, a) @ b),
    "linearize": (lambda f, a, b, c: pa.linearize(f, a)[1](b), lambda f, a, b, c: rows(f, a) @ b),
    "jacrev": (lambda f, a, b, c: pa.jacrev(f)(a) @ b, lambda f, a, b, c: rows(f, a) @ b),
    "jacfwd": (lambda f, a, b, c: pa.jacfwd(f)(a) @ b, lambda f, a, b, c: rows(f, a) @ b),
    "hessian": (
        lambda f, a, b, c: pa.hessian(total(f, b))(a) @ c, lambda f, a, b, c: rows(pa.grad(total(f, b)), a) @ c
    ),
    "scan": (scanned, stepped),
    "in place": (
        lambda f, a, b, c: in_place(pa.vmap, f, a, b, c), lambda f, a, b, c: in_place(looped, f, a, b, c)
    ),
}  # fmt: skip


def drawn(random: Random, count: int, depth: int) -> list:
    """Return random steps of a function that sees `count` values."""
    steps = []
    for i in range(random.randint(2, 3)):
        chosen = [random.randrange(count + i) for _ in range(3)]
        if depth and random.random() < 0.6:
            name = random.choice([*TRANSFORMS])
            steps.append((name, chosen, drawn(random, count + i + 1, depth - 1)))
        else:
            steps.append((random.choice(OPS), chosen, None))
    return steps


def value_of(steps: list, seen: tuple, plain: bool):
    seen = [*seen]
    for what, chosen, inner in steps:
        a, b, c = (seen[i] for i in chosen)
        if inner is None:
            seen.append(what(a, b))
        else:
            f = lambda x, inner=inner, around=tuple(seen): value_of(inner, (*around, x), plain)
            seen.append(TRANSFORMS[what][plain](f, a, b, c))
    return seen[-1]


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_transforms_in_transforms(on_numpy: Backend, first: int) -> None:
    for seed in range(first, first + 10):
        steps = drawn(Random(seed), 3, 2)
        given = [pa.asarray(x) for x in np.random.default_rng(seed).standard_normal((3, N))]

        def found(*given, steps=steps):
            return value_of(steps, given, plain=False)

        def check(value, due, seed=seed):
            np.testing.assert_allclose(value.numpy(), due, 1e-9, 1e-9 * (1 + np.abs(due).max()), err_msg=f"seed {seed}")

        loss = lambda *given, steps=steps: pa.sum(pa.sin(value_of(steps, given, plain=True)))
        due, slope = value_of(steps, given, plain=True).numpy(), pa.grad(loss)(*given).numpy()
        check(found(*given), due)
        check(pa.vmap(found, in_axes=(0, None, None))(pa.stack(given[:2]), *given[1:])[0], due)
        for wrap in (lambda f: f, pa.checkpoint):
            closing = lambda x, wrap=wrap, given=given: pa.sum(pa.sin(wrap(lambda y, z: found(x, y, z))(*given[1:])))
            check(pa.grad(closing)(given[0]), slope)
            check(pa.jacrev(closing)(given[0]), slope)
        captured = [x * 0.5 for x in given]
        step = pa.compile(lambda captured=captured: found(*captured), captures=captured)
        step()
        for x in captured:
            x *= 2.0
        check(step(), due)
