"""Errors that type checkers must report: on every line that says so, and on no other."""

import polyarr as pa
from polyarr import nn


def keeps(x: pa.Array) -> pa.Array:
    """A function that has types."""
    return x


def wrong(x: pa.Array) -> None:
    """Names that are not there, arguments of other names and kinds."""
    pa.sum(x, axes=1)  # rejected
    x.summ()  # rejected
    x.sum(axes=1)  # rejected
    pa.softmx(x)  # rejected
    x + "1"  # rejected
    "1" - x  # rejected
    x[0] = "1"  # rejected
    x @ 2  # rejected
    x.shape = (2, 2)  # rejected
    pa.exp()  # rejected
    pa.exp(x, x)  # rejected
    pa.concat(x, axes=0)  # rejected
    pa.stack(x, axis="0")  # rejected
    pa.sum(x, axis="rows")  # rejected
    pa.sum(x, axis=0, keepdims=2)  # rejected
    pa.layer_norm(x, 1.0)  # rejected
    pa.sgd([x], [x])  # rejected
    pa.np.zeros(3)  # rejected
    pa.names.unknown("a", [])  # rejected
    nn.Linear(4, 3, baias=False)  # rejected
    nn.Linaer(4, 3)  # rejected
    pa.custom_vjp(pa.sum).defvpj(pa.sum, pa.sum)  # rejected
    pa.custom_vjp(keeps)(1.0)  # rejected
    pa.checkpoint(keeps)(y=x)  # rejected
    pa.compile(keeps)(1.0)  # rejected
    pa.compile(keeps).program()  # rejected
    pa.compile(donate="x")(keeps)(y=x)  # rejected
    number: int = pa.sum(x)  # rejected
    pair: int = pa.topk(x, k=1)  # rejected
    y: str = x + 1  # rejected
    print(number, pair, y)
