"""What the tape keeps of a call: a pair with what it saved, or the op's VJP rules with what they name."""

from collections.abc import Callable, Iterator
from typing import Any

from polyarr.core.array import Array, buffer, flatten, rounded, snapshot, spec_of, untracked, widened
from polyarr.core.backend import Fused
from polyarr.core.binding import misshapen, unwanting
from polyarr.core.errors import BackendError
from polyarr.core.spec import FLOATS, Spec
from polyarr.core.tape import Node, Result, is_pulled_once


def track(value: Any, node: Node) -> None:
    """Make value, one Array or a tree of tuples of them, the result of a node."""
    if type(value) is Array:
        value.node = node
        return
    for i, member in enumerate(flatten(value)):
        if member.spec.dtype in FLOATS:
            member.node = Result(node, i)


def _results(out: Any) -> tuple:
    """What Node takes as results."""
    return () if type(out) is Spec else tuple(flatten(out))


def nested(out: Any, members: Iterator) -> Any:
    """The members, one after the other, in the tuples of out."""
    return tuple(nested(o, members) for o in out) if type(out) is tuple else next(members)


# ---- pairs -------------------------------------------------------------------------------------------------------


class Pair:
    """The pull of an op that ran the forward of a pair: the backward kernel, or the body where that is recorded.

    args     what the op was called with, which its definition would need for a higher derivative; Specs of the arrays
             that nobody needs
    backend  where the pair computes
    saved    what forward saved, a tree of buffers and plain values
    wanted   for every input if its gradient is wanted; a tuple for a list
    """

    __slots__ = ("args", "backend", "fused", "op", "params", "plan", "saved", "wanted")

    def __init__(self, op: Any, fused: Fused, args: tuple, params: dict, plan: Any, saved: Any) -> None:
        self.op, self.fused, self.args = op, fused, tuple(map(snapshot, args))
        self.backend = next(a for a in flatten(args) if type(a) is Array).backend
        self.params, self.plan, self.saved, self.wanted = params, plan, saved, _tracked(args)

    def __call__(self, node: Node, g: Any) -> list[Array | None]:
        cotangent = nested(self.plan.out, iter(g)) if type(g) is list else g
        bufs, params = map(buffer, self.args), self.op.kernel_params(self.backend, self.params)
        try:
            grads = self.fused.backward(buffer(cotangent), self.saved, *bufs, wanted=self.wanted, **params)
        except TypeError as error:
            if complaint := unwanting(self.op, self.fused.backward):
                raise BackendError(complaint) from error
            raise
        if type(grads) not in (tuple, list) or len(grads) != len(self.args):
            due = f"{len(self.args)}, one for each input"
            raise BackendError(misshapen(self.op, self.backend, "backward", grads, due))
        found = _chosen(self.wanted, grads)
        return [None if b is None else Array(self.backend, b, s) for b, s in zip(found, node.specs, strict=True)]

    @property
    def inputs(self) -> list[Array]:
        """The inputs whose gradients are wanted."""
        return list(_chosen(self.wanted, self.args))

    def give_up(self) -> None:
        """Keep no array that backward does not need."""
        names, needs = self.op.inputs, self.fused.needs
        wanted = [name for name, want in zip(names, self.wanted, strict=True) if any(flatten((want,)))]
        read = {needed for name in wanted for needed in needs.get(name, names)}
        self.args = tuple(a if name in read else _given_up(a) for name, a in zip(names, self.args, strict=True))

    def body(self, *inputs: Array) -> Any:
        """The op's definition, with other arrays in place of `inputs`."""
        if any(type(a) is Spec for a in flatten(self.args)):
            pair = f"the pair of {self.backend.name!r} says what its backward needs"
            raise BackendError(f"{self.op.name}: {pair}; it must then give every gradient that is wanted")
        args = _replaced(self.wanted, self.args, iter(inputs))
        return self.op.run_body(self.plan, args, self.params)


class OwnPair(Pair):
    """The same of a pair that the op has itself: it takes and gives arrays."""

    __slots__ = ()

    def __call__(self, node: Node, g: Any) -> list[Array | None]:
        args = map(untracked, self.args)
        return list(_chosen(self.wanted, self.fused.backward(g, self.saved, *args, wanted=self.wanted, **self.params)))


def run_own_pair(op: Any, args: tuple, params: dict, plan: Any) -> Any:
    """The value of an op by the pair that it has itself; the tape keeps it."""
    value, saved = op.own_pair.forward(*map(untracked, args), wanted=_tracked(args), **params)
    _keep(OwnPair(op, op.own_pair, args, params, plan, saved), value)
    return value


def record_pair(op: Any, kernel: Fused, args: tuple, params: dict, plan: Any, saved: Any, value: Any) -> None:
    """Have the tape keep a pair that ran forward."""
    _keep(Pair(op, kernel, args, params, plan, saved), value)


def _keep(pair: Pair, value: Any) -> None:
    inputs = pair.inputs
    parents, specs = tuple(a.node for a in inputs), tuple(a.spec for a in inputs)
    if pair.fused.needs and is_pulled_once():
        pair.give_up()
    track(value, Node(parents, specs, pair, _results(pair.plan.out)))


def _given_up(a: Any) -> Any:
    """The Specs of arrays; what else there is, as it is."""
    return tuple(map(_given_up, a)) if type(a) is tuple else a.spec if type(a) is Array else a


def _tracked(args: tuple) -> tuple:
    return tuple(_tracked(a) if type(a) is tuple else type(a) is Array and a.node is not None for a in args)


def _chosen(wanted: tuple, members: Any) -> Iterator[Any]:
    """The members where wanted says so, in order."""
    for want, member in zip(wanted, members, strict=True):
        if type(want) is tuple:
            yield from _chosen(want, member or (None,) * len(want))
        elif want:
            yield member


def _replaced(wanted: tuple, args: tuple, inputs: Iterator[Array]) -> tuple:
    """args with the next of the inputs wherever one is wanted."""
    return tuple(
        _replaced(want, a, inputs) if type(want) is tuple else next(inputs) if want else a
        for want, a in zip(wanted, args, strict=True)
    )


# ---- VJP rules ---------------------------------------------------------------------------------------------------

Need = Callable[[tuple, dict], Any]


def need_of(op: Any, name: str) -> Need | None:
    """How to find what a rule names, in a call's arguments and parameters; None for the result."""
    if name == "out":
        return None
    if name in op.defaults:
        return lambda args, params: params[name]
    if name in op.inputs:
        i = op.inputs.index(name)
        return lambda args, params: snapshot(args[i])
    i = op.inputs.index(name.removesuffix("_spec"))
    return lambda args, params: spec_of(args[i])


class Rules:
    """The pull of an op that states its gradient.

    work    for every input with a tracked array: the rule, what it names, and of a list which members are tracked
    result  (backend, buffer) if some rule names `out`, else None: then the tape does not keep it
    plan    of the call; if it says so, narrow floats go through the rules as float32
    """

    __slots__ = ("plan", "result", "work")

    def __init__(self, work: list, result: Any, plan: Any) -> None:
        self.work, self.result, self.plan = work, result, plan

    def __call__(self, node: Node, g: Any) -> list[Array | None]:
        wide = self.plan.widened
        g = nested(self.plan.out, iter(g)) if type(g) is list else g
        # Attached here and not before: a kept result would hold its own node alive.
        out = None if self.result is None else self._result(node)
        if wide:
            g, out = widened(g), widened(out)
        grads: list[Array | None] = []
        for rule, kept, members in self.work:
            named = [out if k is _OUT else widened(k) if wide else k for k in kept]
            found = rule(g, *named)
            grads += [found] if members is None else [found[i] for i in members]
        return [rounded(part, s) for part, s in zip(grads, node.specs, strict=True)] if wide else grads

    def _result(self, node: Node) -> Any:
        (backend, buf), out = self.result, self.plan.out
        if type(out) is Spec:
            return Array(backend, buf, out, node)
        members = (Array(backend, b, s) for b, s in zip(flatten(buf), flatten(out), strict=True))
        value = nested(out, members)
        track(value, node)
        return value


_OUT = object()  # stands for the result among what a rule names


def record_rules(op: Any, args: tuple, params: dict[str, Any], plan: Any, value: Any) -> None:
    """Have the tape keep the op's VJP rules, for its tracked inputs, and what they name."""
    parents: list[Node] = []
    specs: list[Spec] = []
    work: list[tuple] = []
    result = None
    for i, rule, needs in op.gradients:
        a, members = args[i], None
        if type(a) is Array:
            if a.node is None:
                continue
            parents.append(a.node)
            specs.append(a.spec)
        elif type(a) is tuple:
            members = [j for j, m in enumerate(a) if type(m) is Array and m.node is not None]
            if not members:
                continue
            parents += [a[j].node for j in members]
            specs += [a[j].spec for j in members]
        else:
            continue
        if needs:
            if None in needs:
                result = (value if type(value) is Array else next(flatten(value))).backend, buffer(value)
            work.append((rule, [_OUT if need is None else need(args, params) for need in needs], members))
        else:
            work.append((rule, needs, members))
    if parents:
        pull = Rules(work, result, plan)
        if type(value) is Array:
            value.node = Node(parents, specs, pull)
        else:
            track(value, Node(parents, specs, pull, _results(plan.out)))
