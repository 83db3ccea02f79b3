"""Recording a call on the tape: a Fused kernel with what it saved, or VJP rules with the values that they name."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from polyarr.core.array import Array, buffer, flatten, rounded, snapshot, spec_of, untracked, widened
from polyarr.core.backend import Backend, Fused
from polyarr.core.binding import outdated_backward, wrong_result
from polyarr.core.current import capturing
from polyarr.core.errors import BackendError, DtypeError, ShapeError
from polyarr.core.spec import INEXACT, Spec, described
from polyarr.core.tape import Node, Result, is_pulled_once, reads


def track(value: Any, node: Node) -> None:
    """Make `value`, an Array or a tree of tuples of them, the result of a node."""
    if type(value) is Array:
        value.node = node
        return
    for i, member in enumerate(flatten(value)):
        if member.spec.dtype in INEXACT:
            member.node = Result(node, i)


def _results(out: Any) -> tuple:
    """Return the Specs of the results as Node expects them: () for a single result."""
    return () if type(out) is Spec else tuple(flatten(out))


def nested(out: Any, members: Iterator) -> Any:
    """Arrange members, in order, in the tuple structure of `out`."""
    return tuple(nested(o, members) for o in out) if type(out) is tuple else next(members)


def check_gradient(given: str, g: Any, spec: Spec, backend: Backend | None = None) -> None:
    """Check that a cotangent, tangent or gradient has the shape, dtype and device of its array.

    Args:
        given: Start of the error message: what provided the array, and a verb.
        g: The array to check.
        spec: Spec of the array that it belongs to. Only the shape is compared if this is not floating-point.
        backend: Backend of that array; None if unknown.

    Raises:
        ShapeError: `g` is not an array of that shape.
        DtypeError: `g` has another dtype.
        BackendError: `g` is on another backend.
    """
    if type(g) is not Array or g.shape != spec.shape:
        due = "an array" if type(g) is Array else "a polyarr array"
        raise ShapeError(f"{given} {described(g)} for {spec}; it must be {due} of that shape")
    if g.dtype != spec.dtype and spec.dtype in INEXACT:
        raise DtypeError(f"{given} {g.spec} for {spec}; it must have that dtype: cast it with astype")
    if backend is not None and not backend.meets(g.backend):
        where = f"{g.spec} on {g.backend.name!r} for an array on {backend.name!r}"
        raise BackendError(f"{given} {where}; bring it there with .to({backend.name!r})")


def note(leaf: Any) -> None:
    """Note for a checkpoint around, if a leaf is an array, that it is read without an op."""
    if type(leaf) is Array and (read := reads.get()) is not None:
        read.note(leaf)


def as_read(a: Array) -> Array:
    """Return an array that is read without an op as an op would read it: noted, and as a tracer during a capture."""
    note(a)
    return a if (capture := capturing.get()) is None else capture.lift(a)


class FusedPull:
    """Pull function of an op that ran a Fused kernel: calls `backward`, or differentiates the decomposition.

    Attributes:
        args: Arguments of the call, kept for `backward` and for higher derivatives; Specs for arrays that were freed.
        backend: Backend of the kernel.
        saved: What `forward` saved: a tree of tuples of buffers and plain values.
        wanted: For each input, whether its gradient is wanted; a tuple for a list.
    """

    __slots__ = ("args", "backend", "fused", "op", "params", "plan", "saved", "wanted")

    def __init__(self, op: Any, fused: Fused, args: tuple, params: dict, plan: Any, saved: Any) -> None:
        self.op, self.fused, self.args = op, fused, tuple(map(snapshot, args))
        self.backend = next(a for a in flatten(args) if type(a) is Array).backend
        self.params, self.plan, self.saved, self.wanted = params, plan, saved, _tracked(args)

    def __call__(self, node: Node, g: Any) -> list[Array | None]:
        for a in flatten(self.args):
            note(a)
        parts = g if type(g) is list else (g,)
        for part in parts:
            if part.backend is not self.backend:
                check_gradient(f"{self.op.name}: a cotangent is", part, part.spec, self.backend)
        parts = [*map(as_read, parts)]
        cotangent = nested(self.plan.out, iter(parts)) if type(g) is list else parts[0]
        bufs, params = map(buffer, self.args), self.op.kernel_params(self.backend, self.params)
        try:
            grads = self.fused.backward(buffer(cotangent), self.saved, *bufs, wanted=self.wanted, **params)
        except TypeError as error:
            if message := outdated_backward(self.op, self.fused.backward):
                raise BackendError(message) from error
            raise
        if type(grads) not in (tuple, list) or len(grads) != len(self.args):
            due = f"{len(self.args)}, one for each input"
            raise BackendError(wrong_result(self.op, self.backend, "backward", grads, due))
        found = [*_chosen(self.wanted, grads)]
        for i, (buf, spec) in enumerate(zip(found, node.specs, strict=True)):
            self._check_buffer(i, buf, spec)
        return [None if b is None else Array(self.backend, b, s) for b, s in zip(found, node.specs, strict=True)]

    def _check_buffer(self, i: int, buf: Any, spec: Spec) -> None:
        """Raise BackendError if the i-th wanted gradient has another shape or dtype than its input."""
        dtype = getattr(buf, "dtype", None)
        if isinstance(dtype, np.dtype) and (dtype != spec.dtype or tuple(buf.shape) != spec.shape):
            wanted = zip(self.op.inputs, self.wanted, strict=True)
            name = [name for name, want in wanted for each in flatten((want,)) if each][i]
            given = f"from the Fused kernel of {self.backend.name!r} d/d{name} came as {Spec(tuple(buf.shape), dtype)}"
            raise BackendError(f"{self.op.name}: {given}; it must be {spec}")

    @property
    def inputs(self) -> list[Array]:
        """Inputs whose gradients are wanted."""
        return list(_chosen(self.wanted, self.args))

    def free_unneeded(self) -> None:
        """Replace the arrays that `backward` does not read by their Specs."""
        names, needs = self.op.inputs, self.fused.needs
        wanted = [name for name, want in zip(names, self.wanted, strict=True) if any(flatten((want,)))]
        read = {needed for name in wanted for needed in needs.get(name, names)}
        self.args = tuple(a if name in read else _specs_only(a) for name, a in zip(names, self.args, strict=True))

    def decomposition(self, *inputs: Array) -> Any:
        """Run the op's decomposition, with other arrays in place of `inputs`."""
        if any(type(a) is Spec for a in flatten(self.args)):
            kernel = f"the Fused kernel of {self.backend.name!r} states what its backward needs"
            raise BackendError(f"{self.op.name}: {kernel}; it must then give every gradient that is wanted")
        args = _replaced(self.wanted, self.args, iter(inputs))
        return self.op.run_decomposition(self.plan, args, self.params)


class CustomPull(FusedPull):
    """Pull function of an op with a custom VJP, which takes and returns arrays."""

    __slots__ = ()

    def __call__(self, node: Node, g: Any) -> list[Array | None]:
        args = map(untracked, self.args)
        return list(_chosen(self.wanted, self.fused.backward(g, self.saved, *args, wanted=self.wanted, **self.params)))


def run_custom_vjp(op: Any, args: tuple, params: dict, plan: Any) -> Any:
    """Run an op's custom VJP and record it."""
    value, saved = op.custom_vjp.forward(*map(untracked, args), wanted=_tracked(args), **params)
    _keep(CustomPull(op, op.custom_vjp, args, params, plan, saved), value)
    return value


def record_fused(op: Any, kernel: Fused, args: tuple, params: dict, plan: Any, saved: Any, value: Any) -> None:
    """Record a Fused kernel that ran `forward`."""
    _keep(FusedPull(op, kernel, args, params, plan, saved), value)


def _keep(pull: FusedPull, value: Any) -> None:
    inputs = pull.inputs
    parents, specs = tuple(a.node for a in inputs), tuple(a.spec for a in inputs)
    if pull.fused.needs and is_pulled_once():
        pull.free_unneeded()
    track(value, Node(parents, specs, pull, _results(pull.plan.out)))


def _specs_only(a: Any) -> Any:
    """Replace arrays by their Specs, in tuples too."""
    return tuple(map(_specs_only, a)) if type(a) is tuple else a.spec if type(a) is Array else a


def _tracked(args: tuple) -> tuple:
    return tuple(_tracked(a) if type(a) is tuple else type(a) is Array and a.node is not None for a in args)


def _chosen(wanted: tuple, members: Any) -> Iterator[Any]:
    """Yield the members that `wanted` selects, in order."""
    for want, member in zip(wanted, members, strict=True):
        if type(want) is tuple:
            yield from _chosen(want, member or (None,) * len(want))
        elif want:
            yield member


def _replaced(wanted: tuple, args: tuple, inputs: Iterator[Array]) -> tuple:
    """Return args with the next of `inputs` in each position that `wanted` selects."""
    return tuple(
        _replaced(want, a, inputs) if type(want) is tuple else next(inputs) if want else a
        for want, a in zip(wanted, args, strict=True)
    )


# ---- VJP rules ---------------------------------------------------------------------------------------------------

Need = Callable[[tuple, dict], Any]


def need_of(op: Any, name: str) -> Need | None:
    """Return a getter (args, params) -> value for a name in a VJP rule; None for the result."""
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
    """Pull function of an op with VJP rules.

    Attributes:
        op: The op, for errors.
        work: (rule, its arguments, tracked members of a list or None) of each input with a tracked array.
        result: (backend, buffer) if a rule names `out`; else None, and the tape does not keep the result.
        plan: Plan of the call; it says whether the rules compute float16 and bfloat16 in float32.
    """

    __slots__ = ("op", "plan", "result", "work")
    op: Any

    def __init__(self, work: list, result: Any, plan: Any) -> None:
        self.work, self.result, self.plan = work, result, plan

    def __call__(self, node: Node, g: Any) -> list[Array | None]:
        wide = self.plan.widened
        g = nested(self.plan.out, iter(g)) if type(g) is list else g
        # The Array is made here: if the tape kept it, it would keep its own node alive in a cycle.
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


_OUT = object()  # placeholder of the result among a rule's arguments


def record_rules(op: Any, args: tuple, params: dict[str, Any], plan: Any, value: Any) -> None:
    """Record the VJP rules of an op's tracked inputs with the values that they name."""
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
        pull.op = op
        if type(value) is Array:
            value.node = Node(parents, specs, pull)
        else:
            track(value, Node(parents, specs, pull, _results(plan.out)))
