"""Array and Op, and the one path every operation takes: infer, run, record."""

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyarr.core.backend import Backend, Fused, count_download, count_upload
from polyarr.core.errors import BackendError, DtypeError
from polyarr.core.record import Node, hold, is_recording, reads
from polyarr.core.spec import (
    DTYPES,
    FLOATS,
    INTEGERS,
    NARROW,
    Spec,
    check_number,
    float32,
    int32,
    int64,
    may_not_fit,
    promote,
    uint64,
)
from polyarr.plugins import get_backend

OPS: list["Op"] = []  # every Op, in order of definition
_NUMBERS = {kind: Spec((), kind) for kind in (bool, int, float)}
_PLANS_KEPT = 4096


class Array:
    """An n-dimensional array on one backend: a handle on a buffer that never changes.

    `x[i] = v` and `x += y` give the handle a new buffer; other handles on the old one do not see it.
    """

    __slots__ = ("__weakref__", "backend", "buf", "node", "spec")
    __array_ufunc__ = None  # so that NumPy leaves `ndarray + Array` to us

    def __init__(self, backend: Backend, buf: Any, spec: Spec, node: Node | None = None) -> None:
        self.backend, self.buf, self.spec, self.node = backend, buf, spec, node

    shape = property(lambda self: self.spec.shape, doc="The length of each axis.")
    dtype = property(lambda self: self.spec.dtype, doc="The element type, a numpy.dtype.")
    ndim = property(lambda self: len(self.spec.shape), doc="The number of axes.")
    size = property(lambda self: self.spec.size, doc="The number of elements.")
    device = property(lambda self: self.backend.name, doc="The name of the backend that holds the array.")

    def numpy(self) -> np.ndarray:
        """A copy on the host. Waits for the backend."""
        hold(self)
        host = self.backend.download(self.buf)
        count_download(host.nbytes)
        return host

    def to(self, backend: str | Backend) -> "Array":
        """The same values on another backend, through the host. A gradient comes back the same way."""
        target = get_backend(backend)
        if target is self.backend:
            return self
        moved, source = from_numpy(self.numpy(), target), self.backend
        if (read := reads.get()) is not None:
            read.note(self)
        if self.node is not None and is_recording():
            moved.node = Node((self.node,), (self.spec,), lambda node, g: [g.to(source)])
        return moved

    def untracked(self) -> "Array":
        """The same values, unknown to the tape."""
        hold(self)
        return Array(self.backend, self.buf, self.spec)

    def snapshot(self) -> "Array":
        """A second handle, which keeps today's buffer when this one is rebound."""
        hold(self)
        return Array(self.backend, self.buf, self.spec, self.node)

    def rebind(self, other: "Array") -> None:
        """Let this handle stand for other's values."""
        if (read := reads.get()) is not None:
            read.rebinds(self)
        self.buf, self.spec, self.node = other.buf, other.spec, other.node

    if TYPE_CHECKING:  # the operators and the rest come from polyarr.ops

        def __getattr__(self, name: str) -> Any: ...

    def __reduce__(self) -> tuple:
        return _restored, (self.numpy(), self.backend.name)


def _restored(host: np.ndarray, backend: str) -> Array:
    return from_numpy(host, get_backend(backend))


def from_numpy(host: np.ndarray, backend: Backend) -> Array:
    """An Array on backend with a copy of host's values.

    Errors:  DtypeError if the backend cannot hold the dtype
    """
    if host.dtype not in backend.dtypes:
        raise DtypeError(unheld("asarray", host.dtype, backend))
    count_upload(host.nbytes)
    return Array(backend, backend.upload(host), Spec(host.shape, host.dtype))


def unheld(op: str, dtype: np.dtype, backend: Backend) -> str:
    """What to say where a backend cannot hold a dtype."""
    held = ", ".join(d.name for d in DTYPES if d in backend.dtypes)
    return f"{op}: {dtype.name} on {backend.name!r} ({backend.device}); it holds {held}"


class Plan(NamedTuple):
    """What inference found for one combination of Specs and parameters."""

    out: Any  # a Spec, or a tuple of them
    params: dict[str, Any] | None  # canonical parameters; None: as given
    casts: tuple[np.dtype | None, ...] | None  # what to cast each input to; None: nothing
    numbers: tuple[tuple[int, np.dtype], ...]  # the inputs that are Python numbers to check, and what must hold them
    widened: bool  # narrow floats go through body and VJP rules as float32, and what comes out is rounded once


class Pair:
    """The pull of a fused op that ran its forward kernel: the backward kernel, or the body where that is recorded."""

    __slots__ = ("args", "bufs", "fused", "op", "params", "plan", "positions", "saved")

    def __init__(
        self, op: "Op", fused: Fused, args: tuple, bufs: list, params: dict, plan: Plan, saved: Any, positions: list
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


class Op:
    """An operation as a value.

    Positional inputs are arrays (or Python numbers, None, lists of arrays); keyword-only ones are parameters.
    A primitive has a `rule` from Specs to a Spec and one VJP line. Any other op has a `body` made of ops; a backend
    may bring a kernel for it: a Fused pair, or a forward kernel where the op states its VJP.
    """

    def __init__(
        self,
        face: Callable,
        *,
        rule: Callable | None = None,
        body: Callable | None = None,
        promoted: str = "",
        indices: str = "",
        fits: str = "",
        canonical: Callable | None = None,
        widen: bool = True,
    ) -> None:
        self.name, self.__doc__ = face.__name__.strip("_"), face.__doc__
        self.__name__, self.__module__, self.__wrapped__ = self.name, face.__module__, face
        self.rule, self.body = rule or body, body
        self.canonical, self.widen = canonical, widen
        arguments = inspect.signature(face).parameters.values()
        self.inputs = tuple(a.name for a in arguments if a.kind is not a.KEYWORD_ONLY)
        self.optional = {a.name: a.default for a in arguments if a.kind is not a.KEYWORD_ONLY}
        self.defaults = {a.name: a.default for a in arguments if a.kind is a.KEYWORD_ONLY}
        self.__signature__ = _signature(list(arguments))
        self.promoted = tuple(self.inputs.index(name) for name in promoted.split())
        self.indices = tuple(self.inputs.index(name) for name in indices.split())
        self.fitting = tuple(self.inputs.index(name) for name in fits.split())
        self.rules: dict[str, tuple[Callable | None, tuple[str, ...]]] = {}
        self._plans: dict[Any, Plan] = {}
        OPS.append(self)

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __reduce__(self) -> tuple:
        return _op_called, (self.name,)

    # ---- stating the gradient --------------------------------------------------------------------------------

    def vjp(self, **rules: Callable | None) -> None:
        """State the gradient, one rule per input. What a rule names is what the tape keeps."""
        if set(rules) != set(self.inputs):
            raise TypeError(f"{self.name}.vjp: one rule per input {self.inputs}, got {tuple(rules)}")
        known = {"out", *self.inputs, *(f"{i}_spec" for i in self.inputs), *self.defaults}
        for name, rule in rules.items():
            needs = tuple(inspect.signature(rule).parameters)[1:] if rule else ()
            if unknown := sorted(set(needs) - known):
                raise TypeError(f"{self.name}.vjp({name}): unknown {unknown}; may name {sorted(known)}")
            self.rules[name] = rule, needs

    # ---- infer -----------------------------------------------------------------------------------------------

    def plan(self, specs: tuple, params: dict[str, Any]) -> Plan:
        """The result's Spec, checked; cached by Specs and parameters."""
        try:
            return self._plans[specs, *params.values()]
        except KeyError:
            key = (specs, *params.values())
        except TypeError:  # a list among the parameters
            params = {name: self._frozen(name, value) for name, value in params.items()}
            plan = self.plan(specs, params)
            return plan._replace(params=params) if plan.params is None else plan
        if len(self._plans) >= _PLANS_KEPT:
            self._plans.clear()
        plan = self._plans[key] = self._infer(specs, params)
        return plan

    def _infer(self, specs: tuple, params: dict[str, Any]) -> Plan:
        missing = [name for name, value in params.items() if value is inspect.Parameter.empty]
        if missing or len(params) > len(self.defaults):
            raise TypeError(self._usage(missing, set(params) - set(self.defaults)))
        casts = self._casts(specs)
        if casts:
            specs = tuple(_cast_spec(s, c) for s, c in zip(specs, casts, strict=True))
        try:
            if self.canonical:
                params = {**params, **self.canonical(*specs, **params)}
            found = self.rule(*specs, **params)  # type: ignore[misc]
        except AttributeError as error:  # the rule met None or a list where it takes an array
            odd = [name for name, s in zip(self.inputs, specs, strict=True) if type(s) is not Spec]
            raise TypeError(f"{self.name}: {' and '.join(odd)} must be one array") if odd else error from error
        out, canonical = found if type(found) is tuple and found and type(found[-1]) is dict else (found, None)
        if canonical is not None:
            params = {**params, **canonical}
        changed = params if self.canonical or canonical is not None else None
        widened = self.widen and any(s is not None and s.dtype in NARROW for s in _flatten(specs))
        return Plan(out, changed, casts, self._numbers(specs, out), widened)

    def _numbers(self, specs: tuple, out: Any) -> tuple[tuple[int, np.dtype], ...]:
        """The Python numbers that must fit the dtype of the arrays they meet or, where there is none, of the result."""
        arrays = [s.dtype for i in self.promoted for s in _flatten(specs[i : i + 1]) if s and not s.is_number]
        dtype = arrays[0] if arrays else getattr(out, "dtype", None)
        numbers = [i for i in self.promoted or self.fitting if type(specs[i]) is Spec and specs[i].is_number]
        return tuple((i, dtype) for i in numbers if dtype is not None and may_not_fit(specs[i].dtype, dtype))

    def _usage(self, missing: list[str], unknown: set[str]) -> str:
        given = f"missing {', '.join(missing)}" if missing else f"unknown argument {', '.join(sorted(unknown))}"
        return f"{self.name}: {given}; it takes {self.name}{inspect.signature(self.__wrapped__)}"

    def _casts(self, specs: tuple) -> tuple[np.dtype | None, ...] | None:
        """What to cast each input to: what is promoted to one dtype, indices to one of the two that kernels know."""
        shared = self._shared_dtype(specs)
        casts = [shared if i in self.promoted else None for i in range(len(specs))]
        for i in self.indices:
            if type(specs[i]) is Spec and specs[i].dtype in INTEGERS and specs[i].dtype not in (int32, int64):
                casts[i] = int64
        return None if all(c is None for c in casts) else tuple(casts)

    def _shared_dtype(self, specs: tuple) -> np.dtype | None:
        flat = [s for i in self.promoted for s in (specs[i] if type(specs[i]) is tuple else (specs[i],)) if s]
        if not flat or (all(s.dtype == flat[0].dtype for s in flat) and not flat[0].is_number):
            return None
        dtype = promote(self.name, flat)
        return dtype if any(not s.is_number and s.dtype != dtype for s in flat) else None

    # ---- run and record --------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **params: Any) -> Any:
        if len(args) != len(self.inputs):
            args, params = self._bind(args, params)
        elif params and not self.defaults.keys() >= params.keys():
            args, params = self._bind_named(args, params)
        params = {**self.defaults, **params} if params else self.defaults
        specs, backend, tracked, symbolic = [], None, False, False
        for a in args:
            kind = type(a)
            if kind is Array:
                specs.append(a.spec)
                if a.backend is not backend:
                    if backend is not None:
                        raise BackendError(self._mixed(args))
                    backend = a.backend
                tracked = tracked or a.node is not None
            elif kind in _NUMBERS:
                specs.append(_NUMBERS[kind])
            elif kind is Spec:
                symbolic = True
                specs.append(a)
            elif a is None:
                specs.append(None)
            else:
                return self._call_unusual(args, params)
        if symbolic:
            return self.plan(tuple(specs), params).out
        return self._run(args, tuple(specs), backend, tracked, params)

    def _call_unusual(self, args: tuple, params: dict[str, Any]) -> Any:
        """The call with a list of arrays, a NumPy scalar or something that is no input at all."""
        args = tuple(self._accepted(name, a) for name, a in zip(self.inputs, args, strict=True))
        flat = [a for a in _flatten(args) if a is not None]
        specs = tuple(map(spec_of, args))
        if any(type(a) is Spec for a in flat):
            return self.plan(specs, params).out
        arrays = [a for a in flat if type(a) is Array]
        if any(a.backend is not arrays[0].backend for a in arrays):
            raise BackendError(self._mixed(flat))
        tracked = any(a.node is not None for a in arrays)
        return self._run(args, specs, arrays[0].backend if arrays else None, tracked, params)

    def _accepted(self, name: str, a: Any) -> Any:
        if type(a) in (list, tuple):
            return tuple(self._accepted(name, member) for member in a)
        if isinstance(a, np.generic) and a.dtype.kind in "biuf":
            return a.item()
        if type(a) in (Array, Spec) or type(a) in _NUMBERS or a is None:
            return a
        if isinstance(a, (bool, int, float)):
            return next(kind for kind in (bool, int, float) if isinstance(a, kind))(a)
        raise TypeError(
            f"{self.name}: {name} is a {type(a).__module__}.{type(a).__qualname__}; "
            "it must be a polyarr array (see polyarr.asarray) or a Python number"
        )

    def _run(self, args: tuple, specs: tuple, backend: Backend | None, tracked: bool, params: dict[str, Any]) -> Any:
        plan = self.plan(specs, params)
        if plan.params is not None:
            params = plan.params
        if plan.casts:
            args = tuple(_cast(a, c) for a, c in zip(args, plan.casts, strict=True))
        for i, dtype in plan.numbers:
            check_number(self.name, self.inputs[i], args[i], dtype)
        if backend is None:
            backend = get_backend()
        if (read := reads.get()) is not None:
            for a in _flatten(args):
                if type(a) is Array:
                    read.note(a)
        tracked = tracked and is_recording()
        kernel = backend.kernels.get(self)
        if self.body is not None and self._needs_body(kernel, tracked):
            return self.run_body(plan, args, params)
        if self.body is None:
            if kernel is None:
                raise BackendError(self._lacking(backend))
            if plan.out.dtype not in backend.dtypes:
                raise DtypeError(unheld(self.name, plan.out.dtype, backend))
        return self._run_kernel(kernel, backend, args, plan, tracked, params)

    def _needs_body(self, kernel: Any, tracked: bool) -> bool:
        """True where nothing but the body can serve: no kernel, or a forward kernel without a stated VJP."""
        if kernel is None:
            return not (tracked and self.rules)
        return tracked and not self.rules and type(kernel) is not Fused

    def run_body(self, plan: Plan, args: tuple, params: dict[str, Any]) -> Any:
        """The value by definition. The one place where the body of an op meets narrow floats."""
        if plan.widened:
            return _rounded(self.body(*map(_widened, args), **params), plan.out)  # type: ignore[misc]
        value = self.body(*args, **params)  # type: ignore[misc]
        # A body may have nothing to do; the result is a handle of its own all the same.
        return value.snapshot() if type(value) is Array and any(value is a for a in args) else value

    def _run_kernel(self, kernel: Any, backend: Backend, args: tuple, plan: Plan, tracked: bool, params: dict) -> Any:
        if kernel is None:  # the body's value, the stated gradient
            value = self.run_body(plan, tuple(map(_untracked, args)), params)
        elif type(kernel) is Fused:
            bufs = [_buffer(a) for a in args]
            found = kernel.forward(plan.out, *bufs, **params)
            if found is NotImplemented:
                return self.run_body(plan, args, params)
            buf, saved = found
            value = _arrays(backend, buf, plan.out)
            if tracked:
                self._record_pair(kernel, args, bufs, params, plan, saved, value)
            return value
        else:
            value = _arrays(backend, kernel(plan.out, *[_buffer(a) for a in args], **params), plan.out)
        if tracked and type(value) is Array and value.spec.dtype in FLOATS:
            self._record_rules(args, params, plan, value)
        return value

    def _record_pair(
        self, kernel: Fused, args: tuple, bufs: list, params: dict, plan: Plan, saved: Any, value: Array
    ) -> None:
        positions = [i for i, a in enumerate(args) if type(a) is Array and a.node is not None]
        kept = tuple(a.snapshot() if type(a) is Array else a for a in args)
        pull = Pair(self, kernel, kept, bufs, params, plan, saved, positions)
        value.node = Node(tuple(args[i].node for i in positions), tuple(args[i].spec for i in positions), pull)

    def _record_rules(self, args: tuple, params: dict[str, Any], plan: Plan, value: Array) -> None:
        parents: list[Node] = []
        specs: list[Spec] = []
        work = []
        for name, a in zip(self.inputs, args, strict=True):
            rule, needs = self.rules[name]
            members = a if type(a) is tuple else (a,)
            positions = [i for i, m in enumerate(members) if type(m) is Array and m.node is not None]
            if rule is None or not positions:
                continue
            parents += [members[i].node for i in positions]
            specs += [members[i].spec for i in positions]
            kept = [None if need == "out" else self._kept(need, args, params) for need in needs]
            work.append(
                (rule, kept, needs.index("out") if "out" in needs else None, positions if type(a) is tuple else None)
            )
        if not parents:
            return
        backend, buf, spec = value.backend, value.buf, value.spec

        def pull(node: Node, g: Array) -> list[Array | None]:
            grads: list[Array | None] = []
            g = _widened(g) if plan.widened else g
            for rule, kept, out_at, positions in work:
                if out_at is not None:  # attached here and not before: a kept result would hold its own node alive
                    kept = [*kept[:out_at], Array(backend, buf, spec, node), *kept[out_at + 1 :]]
                found = rule(g, *(map(_widened, kept) if plan.widened else kept))
                grads += [found] if positions is None else [found[i] for i in positions]
            return [_rounded(part, s) for part, s in zip(grads, specs, strict=True)] if plan.widened else grads

        value.node = Node(tuple(parents), tuple(specs), pull)

    def _kept(self, need: str, args: tuple, params: dict[str, Any]) -> Any:
        if need in params:
            return params[need]
        if need in self.inputs:
            a = args[self.inputs.index(need)]
            return tuple(map(_snapshot, a)) if type(a) is tuple else _snapshot(a)
        return spec_of(args[self.inputs.index(need.removesuffix("_spec"))])

    # ---- arguments and messages ------------------------------------------------------------------------------

    def _bind(self, args: tuple, params: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Fill absent optional inputs, and take extra positional arguments as parameters in their order."""
        n = len(self.inputs)
        extra = dict(zip(self.defaults, args[n:], strict=False))
        if len(args) - n > len(self.defaults) or extra.keys() & params.keys():
            raise TypeError(
                f"{self.name}: too many arguments; it takes {self.name}{inspect.signature(self.__wrapped__)}"
            )
        return self._bind_named(args[:n], {**extra, **params})

    def _bind_named(self, args: tuple, params: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        inputs = {name: params.get(name, default) for name, default in list(self.optional.items())[len(args) :]}
        params = {name: value for name, value in params.items() if name not in inputs}
        missing = [name for name, value in inputs.items() if value is inspect.Parameter.empty]
        if missing or (unknown := params.keys() - self.defaults.keys()):
            raise TypeError(self._usage(missing, set() if missing else unknown))
        return (*args, *inputs.values()), params

    def _frozen(self, name: str, value: Any) -> Any:
        """A parameter that can be hashed: lists become tuples."""
        if isinstance(value, (list, tuple)):
            return tuple(self._frozen(name, member) for member in value)
        if type(value).__hash__ is None:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise TypeError(f"{self.name}: {name} is a {kind}; it must be made of Python numbers, tuples or names")
        return value

    def _mixed(self, args: Any) -> str:
        backends = {id(a.backend): a.backend.name for a in _flatten(args) if type(a) is Array}
        names = " and ".join(repr(name) for name in backends.values())
        return f"{self.name}: inputs live on {names}; bring them to one backend with .to(name)"

    def _lacking(self, backend: Backend) -> str:
        return (
            f'{self.name}: backend {backend.name!r} has no kernel for it; compute it on another one, with x.to("numpy")'
        )


def primitive(
    face: Callable | None = None, *, promote: str = "", indices: str = "", fits: str = "", widen: bool = False
) -> Any:
    """An op that every backend implements. The decorated function is its rule from Specs to a Spec.

    promote    the inputs that share one dtype
    indices    the inputs that kernels get as int32 or int64, whatever integers they are
    fits       the inputs that, as Python numbers, must fit the result's dtype; what is promoted must fit the arrays'
    widen      run the VJP rules on float16 and bfloat16 in float32; for rules in which more than one op rounds
    """
    if face is None:
        return lambda face: Op(face, rule=face, promoted=promote, indices=indices, fits=fits, widen=widen)
    return Op(face, rule=face, widen=widen)


def fused(
    face: Callable | None = None,
    *,
    promote: str = "",
    indices: str = "",
    canonical: Callable | None = None,
    infer: Callable | None = None,
    widen: bool = True,
) -> Any:
    """An op made of other ops: the decorated function is its definition.

    promote    the inputs that share one dtype
    indices    the inputs that kernels get as int32 or int64, whatever integers they are
    canonical  (*specs, **params) -> the parameters that change, in the form that kernels expect
    infer      (*specs, **params) -> the result's Spec, where the body cannot run on Specs
    widen      compute with float16 and bfloat16 in float32, and round once; False where at most one op rounds
    """
    if face is None:
        return lambda face: Op(
            face, rule=infer, body=face, promoted=promote, indices=indices, canonical=canonical, widen=widen
        )
    return Op(face, body=face)


def spec_of(a: Any) -> Any:
    """The Spec of an op's argument; None and tuples are passed through."""
    if type(a) is Array:
        return a.spec
    if type(a) is Spec or a is None:
        return a
    return tuple(map(spec_of, a)) if type(a) is tuple else _NUMBERS[type(a)]


def _op_called(name: str) -> Op:
    return next(op for op in OPS if op.name == name)


def _signature(arguments: list[inspect.Parameter]) -> inspect.Signature:
    """What a call accepts: `squeeze(x, 0)` as well as `squeeze(x, axis=0)`."""
    has_default = [a.default is not a.empty for a in arguments]
    if has_default != sorted(has_default):
        return inspect.Signature(arguments)
    return inspect.Signature([a.replace(kind=a.POSITIONAL_OR_KEYWORD) for a in arguments])


def _flatten(args: Any) -> Iterator[Any]:
    for a in args:
        if type(a) is tuple:
            yield from _flatten(a)
        else:
            yield a


def _cast_spec(spec: Any, dtype: np.dtype | None) -> Any:
    if dtype is None or spec is None:
        return spec
    if type(spec) is tuple:
        return tuple(_cast_spec(s, dtype) for s in spec)
    return spec if spec.is_number else Spec(spec.shape, dtype)


def _cast(a: Any, dtype: np.dtype | None) -> Any:
    if dtype is None:
        return a
    if type(a) is tuple:
        return tuple(_cast(member, dtype) for member in a)
    if type(a) is not Array or a.spec.dtype == dtype:
        return a
    return _as_position(a) if a.spec.dtype == uint64 and dtype == int64 else a.astype(dtype)


def _as_position(a: Array) -> Array:
    """uint64 indices as int64; one beyond int64 becomes the smallest number, which no axis has."""
    index = a.astype(int64)
    sign = index >> 63
    return (index & ~sign) | (sign << 63)


def _widened(a: Any) -> Any:
    """Narrow floats as float32; a list member by member, anything else as it is."""
    if type(a) is tuple:
        return tuple(map(_widened, a))
    return a.astype(float32) if type(a) is Array and a.spec.dtype in NARROW else a


def _rounded(value: Any, out: Any) -> Any:
    """What was computed wide, in the dtype that is due; with a handle of its own."""
    if value is None or type(out) is not Spec:
        return None if value is None else tuple(map(_rounded, value, out))
    return value.astype(out.dtype) if value.spec.dtype != out.dtype else value.snapshot()


def _buffer(a: Any) -> Any:
    if type(a) is Array:
        return a.buf
    return tuple(map(_buffer, a)) if type(a) is tuple else a


def _arrays(backend: Backend, buf: Any, out: Any) -> Any:
    if type(out) is Spec:
        return Array(backend, buf, out)
    return tuple(_arrays(backend, b, o) for b, o in zip(buf, out, strict=True))


def _untracked(a: Any) -> Any:
    if type(a) is Array:
        return a.untracked() if a.node is not None else a
    return tuple(map(_untracked, a)) if type(a) is tuple else a


def _snapshot(a: Any) -> Any:
    return a.snapshot() if type(a) is Array else a
