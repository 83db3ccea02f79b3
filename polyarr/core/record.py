"""What the tape keeps of a call: a pair with what it saved, or the op's VJP rules with what they name."""

from typing import Any

from polyarr.core.array import Array, rounded, snapshot, spec_of, widened
from polyarr.core.backend import Fused
from polyarr.core.spec import Spec
from polyarr.core.tape import Node


class Pair:
    """The pull of a fused op that ran its forward kernel: the backward kernel, or the body where that is recorded."""

    __slots__ = ("args", "bufs", "fused", "op", "params", "plan", "positions", "saved")

    def __init__(
        self, op: Any, fused: Fused, args: tuple, bufs: list, params: dict, plan: Any, saved: Any, positions: list
    ) -> None:
        self.op, self.fused, self.args, self.bufs = op, fused, args, bufs
        self.params, self.plan, self.saved, self.positions = params, plan, saved, positions

    def body(self, *args: Any) -> Any:
        """The op's definition, for other arguments of the same Specs."""
        return self.op.run_body(self.plan, args, self.params)

    def __call__(self, node: Node, g: Array) -> list[Array | None]:
        grads = self.fused.backward(g.buf, self.saved, *self.bufs, **self.params)
        found = [grads[i] for i in self.positions]
        return [None if b is None else Array(g.backend, b, s) for b, s in zip(found, node.specs, strict=True)]


def record_pair(
    op: Any, kernel: Fused, args: tuple, bufs: list, params: dict, plan: Any, saved: Any, value: Array
) -> None:
    """Have the tape keep a pair that ran forward."""
    positions = [i for i, a in enumerate(args) if type(a) is Array and a.node is not None]
    kept = tuple(a.snapshot() if type(a) is Array else a for a in args)
    pull = Pair(op, kernel, kept, bufs, params, plan, saved, positions)
    value.node = Node(tuple(args[i].node for i in positions), tuple(args[i].spec for i in positions), pull)


def record_rules(op: Any, args: tuple, params: dict[str, Any], plan: Any, value: Array) -> None:
    """Have the tape keep the op's VJP rules, for its tracked inputs, and what they name."""
    parents: list[Node] = []
    specs: list[Spec] = []
    work = []
    for name, a in zip(op.inputs, args, strict=True):
        rule, needs = op.rules[name]
        members = a if type(a) is tuple else (a,)
        positions = [i for i, m in enumerate(members) if type(m) is Array and m.node is not None]
        if rule is None or not positions:
            continue
        parents += [members[i].node for i in positions]
        specs += [members[i].spec for i in positions]
        kept = [None if need == "out" else kept_of(op, need, args, params) for need in needs]
        work.append(
            (rule, kept, needs.index("out") if "out" in needs else None, positions if type(a) is tuple else None)
        )
    if not parents:
        return
    backend, buf, spec = value.backend, value.buf, value.spec

    def pull(node: Node, g: Array) -> list[Array | None]:
        grads: list[Array | None] = []
        g = widened(g) if plan.widened else g
        for rule, kept, out_at, positions in work:
            if out_at is not None:  # attached here and not before: a kept result would hold its own node alive
                kept = [*kept[:out_at], Array(backend, buf, spec, node), *kept[out_at + 1 :]]
            found = rule(g, *(map(widened, kept) if plan.widened else kept))
            grads += [found] if positions is None else [found[i] for i in positions]
        return [rounded(part, s) for part, s in zip(grads, specs, strict=True)] if plan.widened else grads

    value.node = Node(tuple(parents), tuple(specs), pull)


def kept_of(op: Any, need: str, args: tuple, params: dict[str, Any]) -> Any:
    if need in params:
        return params[need]
    if need in op.inputs:
        a = args[op.inputs.index(need)]
        return tuple(map(snapshot, a)) if type(a) is tuple else snapshot(a)
    return spec_of(args[op.inputs.index(need.removesuffix("_spec"))])
