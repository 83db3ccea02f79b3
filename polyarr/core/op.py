"""Op, and the one path every operation takes: infer, run, record."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from polyarr.core.array import (
    NUMBERS,
    Array,
    arrays,
    buffer,
    cast,
    cast_spec,
    flatten,
    listed,
    number_of,
    rounded,
    spec_of,
    unheld,
    untracked,
    widened,
)
from polyarr.core.backend import Backend, Fused
from polyarr.core.binding import (
    GroupError,
    accepted,
    bound,
    bound_by_name,
    frozen,
    lacking,
    misshapen,
    mixed,
    no_array,
    signature,
    unfit,
    usage,
)
from polyarr.core.current import StandIn, get_backend, stand_in
from polyarr.core.errors import BackendError, DtypeError, ShapeError
from polyarr.core.number import Number, check
from polyarr.core.precision import as_kernel_takes, decided
from polyarr.core.record import Need, need_of, record_pair, record_rules, run_own_pair
from polyarr.core.spec import (
    FLOATS,
    INTEGERS,
    NARROW,
    Spec,
    check_number,
    check_size,
    int32,
    int64,
    may_not_fit,
    promote,
)
from polyarr.core.tape import reads, records

OPS: list["Op"] = []  # every Op, in order of definition
_PLANS_KEPT = 4096  # per op


class Plan(NamedTuple):
    """What inference found for one combination of Specs and parameters."""

    out: Any  # a Spec, or a tuple of them
    adapts: bool  # something is to be done by one of the next three
    params: dict[str, Any] | None  # canonical parameters; None: as given
    casts: tuple[np.dtype | None, ...] | None  # what to cast each input to; None: nothing
    numbers: tuple[tuple[int, np.dtype], ...]  # the inputs that are Python numbers to check, and what must hold them
    held: tuple[int, ...]  # the inputs for numbers that are arrays here
    check: Callable[..., None] | None  # (*args), which raises for values of numbers that cannot be
    dtype: np.dtype | None  # a primitive's result has it and no input does: a backend may lack it
    carries: bool  # a result is of floats, and may have a gradient
    widened: bool  # narrow floats go through body and VJP rules as float32, and what comes out is rounded once


class Op:
    """An operation as a value.

    Positional inputs are arrays (or Python numbers, None, lists of arrays); keyword-only ones are parameters.
    A primitive has a `rule` from Specs to a Spec and one VJP line. Any other op has a `body` made of ops; a backend
    may bring a kernel for it: a Fused pair, or a forward kernel where the op states its VJP. It may have a pair of its
    own, made of ops, for backends that bring none.
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
        numbers: str = "",
        checks: Callable | None = None,
        canonical: Callable | None = None,
        widen: bool = True,
        group: str = "",
    ) -> None:
        self.name, self.__doc__ = face.__name__.strip("_"), face.__doc__
        self.__name__, self.__module__, self.__wrapped__ = self.name, face.__module__, face
        self.rule, self.body = rule or body, body
        self.canonical, self.checks, self.widen, self.group = canonical, checks, widen, group
        arguments = inspect.signature(face).parameters.values()
        self.inputs = tuple(a.name for a in arguments if a.kind is not a.KEYWORD_ONLY)
        self.optional = {a.name: a.default for a in arguments if a.kind is not a.KEYWORD_ONLY}
        self.defaults = {a.name: a.default for a in arguments if a.kind is a.KEYWORD_ONLY}
        self.has_precision = "precision" in self.defaults
        self.__signature__ = signature(list(arguments))
        self.promoted = tuple(self.inputs.index(name) for name in promoted.split())
        self.indices = tuple(self.inputs.index(name) for name in indices.split())
        self.numbers = tuple(self.inputs.index(name) for name in numbers.split())
        self.fitting = tuple(self.inputs.index(name) for name in fits.split())
        self.rules: dict[str, tuple[Callable | None, tuple[str, ...]]] = {}
        self.gradients: list[tuple[int, Callable, tuple[Need | None, ...]]] = []  # the rules, as record.py takes them
        self.own_pair: Fused | None = None
        self._plans: dict[Any, Plan] = {}
        OPS.append(self)

    def __repr__(self) -> str:
        return f"<op {self.name}{self.__signature__}>"  # which is what help() shows of a value

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
            if rule:
                self.gradients.append((self.inputs.index(name), rule, tuple(need_of(self, need) for need in needs)))

    def pair(self, forward: Callable, backward: Callable) -> None:
        """State how value and gradient are found together, where what the body's gradient keeps is too much.

        They are as the halves of a backend's pair, but take and give arrays, and forward is told `wanted` instead of
        the Spec: forward(*inputs, wanted, **params), backward(g, saved, *inputs, wanted, **params). Higher derivatives
        are the body's.
        """
        self.own_pair = Fused(forward, backward)

    # ---- infer -----------------------------------------------------------------------------------------------

    def plan(self, specs: tuple[Any, ...], params: dict[str, Any]) -> Plan:
        """The result's Spec, checked; cached by Specs and parameters."""
        try:
            return self._plans[specs, *params.values()]
        except KeyError:
            key = (specs, *params.values())
        except TypeError:  # a list among the parameters
            params = {name: frozen(self, name, value) for name, value in params.items()}
            plan = self.plan(specs, params)
            return plan._replace(params=params) if plan.params is None else plan
        if len(self._plans) >= _PLANS_KEPT:
            for oldest in list(self._plans)[: _PLANS_KEPT // 2]:  # what is still needed is found anew, once
                self._plans.pop(oldest, None)
        plan = self._plans[key] = self._infer(specs, params)
        return plan

    def _infer(self, specs: tuple, params: dict[str, Any]) -> Plan:
        missing = [name for name, value in params.items() if value is inspect.Parameter.empty]
        if missing or len(params) > len(self.defaults):
            raise TypeError(usage(self, missing, set(params) - set(self.defaults)))
        casts = self._casts(specs)
        if casts:
            specs = tuple(cast_spec(s, c) for s, c in zip(specs, casts, strict=True))
        if self.rule is self.body and (complaint := no_array(self, specs)):
            raise TypeError(complaint)
        try:
            if self.canonical:
                params = {**params, **self.canonical(*specs, **params)}
            found = self.rule(*specs, **params)  # type: ignore[misc]
        except AttributeError as error:
            if complaint := unfit(self, specs, error):
                raise TypeError(complaint) from error
            raise
        out, canonical = found if type(found) is tuple and found and type(found[-1]) is dict else (found, None)
        if type(out) is Spec and out.is_number:
            raise TypeError(f"{self.name}: {self.inputs[0]} is {specs[0]}; it must be an array")
        for result in flatten((out,)):
            check_size(self.name, result)
        if canonical is not None:
            params = {**params, **canonical}
        changed = params if self.canonical or canonical is not None else None
        flat, numbers = [s for s in flatten(specs) if s is not None], self._numbers(specs, out)
        held = tuple(i for i in self.numbers if any(s and not s.is_number for s in flatten(specs[i : i + 1])))
        return Plan(
            out=out,
            adapts=bool(changed is not None or casts or numbers),
            params=changed,
            casts=casts,
            numbers=numbers,
            held=held,
            check=self.checks and self.checks(*specs, **params),
            dtype=None if self.body or type(out) is tuple or any(s.dtype is out.dtype for s in flat) else out.dtype,
            carries=any(type(s) is Spec and s.dtype in FLOATS for s in flatten((out,))),
            widened=self.widen and any(s.dtype in NARROW for s in flat),
        )

    def _numbers(self, specs: tuple, out: Any) -> tuple[tuple[int, np.dtype], ...]:
        """The Python numbers that must fit the dtype of the arrays they meet or, where there is none, of the result."""
        arrays = [s.dtype for i in self.promoted for s in flatten(specs[i : i + 1]) if s and not s.is_number]
        dtype = arrays[0] if arrays else getattr(out, "dtype", None)
        numbers = [i for i in self.promoted or self.fitting if type(specs[i]) is Spec and specs[i].is_number]
        return tuple((i, dtype) for i in numbers if dtype is not None and may_not_fit(specs[i].dtype, dtype))

    def _casts(self, specs: tuple) -> tuple[np.dtype | None, ...] | None:
        """What to cast each input to: what is promoted to one dtype, indices to one of the two that kernels know."""
        shared = self._shared_dtype(specs)
        casts = [shared if i in self.promoted else None for i in range(len(specs))]
        for i in self.indices:
            if type(specs[i]) is Spec and specs[i].dtype in (float, bool):
                raise DtypeError(f"{self.name}: {self.inputs[i]} is {specs[i]}; it must be integers")
            if type(specs[i]) is Spec and specs[i].dtype in INTEGERS and specs[i].dtype not in (int32, int64):
                casts[i] = int64
        return None if all(c is None for c in casts) else tuple(casts)

    def _shared_dtype(self, specs: tuple) -> np.dtype | None:
        flat = [s for i in self.promoted for s in (specs[i] if type(specs[i]) is tuple else (specs[i],)) if s]
        if not flat or (all(s.dtype == flat[0].dtype for s in flat) and not flat[0].is_number):
            return None
        if all(s.is_number for s in flat) and (lists := [i for i in self.promoted if type(specs[i]) is tuple]):
            name = self.inputs[lists[0]]
            raise TypeError(f"{self.name}: {name} is a list of Python numbers; make it an array, by polyarr.asarray")
        dtype = promote(self.name, flat)
        return dtype if any(not s.is_number and s.dtype != dtype for s in flat) else None

    # ---- run and record --------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **params: Any) -> Any:
        if len(args) != len(self.inputs):
            args, params = bound(self, args, params)
        elif params and not self.defaults.keys() >= params.keys():
            args, params = bound_by_name(self, args, params)
        params = {**self.defaults, **params} if params else self.defaults
        if self.has_precision:
            params = {**params, "precision": decided(self.name, params["precision"])}
        specs, backend, tracked, symbolic = [], None, False, False
        for a in args:
            kind = type(a)
            if kind is Array:
                specs.append(a.spec)
                if a.backend is not backend:
                    if backend is None:
                        backend = a.backend
                    elif not backend.meets(a.backend):
                        raise BackendError(mixed(self, args))
                if a.node is not None:
                    tracked = True
            elif kind in NUMBERS:
                specs.append(NUMBERS[kind])
            elif kind is Spec:
                symbolic = True
                specs.append(a)
            elif a is None:
                specs.append(None)
            elif kind is tuple and (found := listed(a, backend)) is not None:
                spec, backend, has_node = found
                specs.append(spec)
                tracked = tracked or has_node
            elif kind is list:
                return self(*[tuple(m) if type(m) is list else m for m in args], **params)
            else:
                return self._call_unusual(args, params)
        if symbolic:
            return self._inferred(args, tuple(specs), params)
        return self._run(args, tuple(specs), backend, tracked, params)

    def _call_unusual(self, args: tuple, params: dict[str, Any]) -> Any:
        """The call with a list of arrays, a NumPy scalar, what takes over the call, or what is no input at all."""
        for a in flatten(tuple(tuple(a) if type(a) is list else a for a in args)):
            if type(a) is not Array and hasattr(type(a), "polyarr_op"):
                found = a.polyarr_op(self, args, params)
                if found is not NotImplemented:
                    return found
        args = tuple(accepted(self, name, a) for name, a in zip(self.inputs, args, strict=True))
        flat = [a for a in flatten(args) if a is not None]
        specs = tuple(map(spec_of, args))
        if any(type(a) is Spec for a in flat):
            return self._inferred(args, specs, params)
        arrays = [a for a in flat if type(a) is Array]
        if any(not arrays[0].backend.meets(a.backend) for a in arrays):
            raise BackendError(mixed(self, flat))
        tracked = any(a.node is not None for a in arrays)
        return self._run(args, specs, arrays[0].backend if arrays else None, tracked, params)

    def _inferred(self, args: tuple, specs: tuple, params: dict[str, Any]) -> Any:
        """The result's Spec, for a call with Specs."""
        plan = self.plan(specs, params)
        if plan.check is not None:
            plan.check(*args)
        return plan.out

    def _run(self, args: tuple, specs: tuple, backend: Backend | None, tracked: bool, params: dict[str, Any]) -> Any:
        plan = self.plan(specs, params)
        if plan.adapts:
            args, params = self._adapted(plan, args, params)
        if (read := reads.get()) is not None:
            for a in flatten(args):
                if type(a) is Array:
                    read.note(a)
        if (trace := stand_in.get()) is not None:
            args, backend = lifted(trace, args, backend)
        if plan.check is not None:
            plan.check(*args) if trace is None else check(plan.check, *args)
        if backend is None:
            backend = get_backend()
        tracked = tracked and records()
        kernel = backend.kernels.get(self)
        if self.body is None:
            if kernel is None:
                raise lacking(self, backend)
            if plan.dtype is not None and plan.dtype not in backend.dtypes:
                raise DtypeError(unheld(self.name, plan.dtype, backend))
        elif self._needs_body(kernel, tracked):
            return self._run_defined(plan, args, params, tracked)
        if plan.held and kernel is not None:
            args = self._with_numbers(args, plan, backend)
        return self._run_kernel(kernel, backend, args, plan, tracked, params)

    def _adapted(self, plan: Plan, args: tuple, params: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Inputs and parameters as kernels expect them; numbers that do not fit raise."""
        if plan.casts:
            args = tuple([cast(a, c) for a, c in zip(args, plan.casts, strict=True)])
        for i, dtype in plan.numbers:
            if isinstance(args[i], Number):
                check(check_number, self.name, self.inputs[i], args[i], dtype)
            else:
                check_number(self.name, self.inputs[i], args[i], dtype)
        return args, params if plan.params is None else plan.params

    def _with_numbers(self, args: tuple, plan: Plan, backend: Backend) -> tuple:
        """The inputs that are numbers, as the backend's kernel takes them: plain, unless it says that it reads them."""
        reads = backend.reads.get(self, ())
        plain = [i for i in plan.held if self.inputs[i] not in reads]
        if not plain:
            return args
        args = tuple([number_of(a) if i in plain else a for i, a in enumerate(args)])
        if plan.check is not None:
            try:
                plan.check(*args)
            except ShapeError as error:  # of values, which a kernel that reads them can report at the next read only
                raise IndexError(*error.args) from None
        return args

    def _needs_body(self, kernel: Any, tracked: bool) -> bool:
        """True where nothing but the body can serve: no kernel, or a forward kernel without a stated VJP."""
        if kernel is None:
            return not (tracked and self.rules)
        return tracked and not self.rules and type(kernel) is not Fused

    def _run_defined(self, plan: Plan, args: tuple, params: dict[str, Any], tracked: bool) -> Any:
        """What the op says itself: its pair where a gradient may be asked for, else its body."""
        if tracked and self.own_pair is not None:
            return self.run_own_pair(plan, args, params)
        return self.run_body(plan, args, params)

    def run_own_pair(self, plan: Plan, args: tuple, params: dict[str, Any]) -> Any:
        """The value by the op's own pair, which the tape keeps."""
        return run_own_pair(self, args, params, plan)

    def run_body(self, plan: Plan, args: tuple, params: dict[str, Any]) -> Any:
        """The value by definition. The one place where the body of an op meets narrow floats."""
        try:
            if plan.widened:
                return rounded(self.body(*map(widened, args), **params), plan.out)  # type: ignore[misc]
            value = self.body(*args, **params)  # type: ignore[misc]
        except GroupError as error:  # it names an op of the body; the user called this one
            raise (lacking(self, error.backend) if self.group else error) from None
        # A body may have nothing to do; the result is a handle of its own all the same.
        return value.snapshot() if type(value) is Array and any(value is a for a in args) else value

    def _run_kernel(self, kernel: Any, backend: Backend, args: tuple, plan: Plan, tracked: bool, params: dict) -> Any:
        if kernel is None:  # the body's value, the stated gradient
            value = self.run_body(plan, tuple(map(untracked, args)), params)
        elif type(kernel) is Fused:
            bufs = [buffer(a) for a in args]
            found = kernel.forward(plan.out, *bufs, **self.kernel_params(backend, params))
            if found is NotImplemented:
                return self._run_defined(plan, args, params, tracked)
            if type(found) is not tuple or len(found) != 2:
                raise BackendError(misshapen(self, backend, "forward", found, "2, buffer and saved"))
            buf, saved = found
            value = arrays(backend, buf, plan.out)
            if tracked:
                record_pair(self, kernel, args, params, plan, saved, value)
            return value
        else:
            out = plan.out
            bufs = [a.buf if type(a) is Array else buffer(a) for a in args]
            buf = kernel(out, *bufs, **(self.kernel_params(backend, params) if self.has_precision else params))
            value = Array(backend, buf, out) if type(out) is Spec else arrays(backend, buf, out)
        if tracked and plan.carries:
            record_rules(self, args, params, plan, value)
        return value

    def kernel_params(self, backend: Backend, params: dict[str, Any]) -> dict[str, Any]:
        """What a backend's kernel gets of a call's parameters."""
        return as_kernel_takes(params, backend.precisions.get(self, ())) if self.has_precision else params


def lifted(trace: StandIn, args: tuple, backend: Backend | None) -> tuple[tuple, Backend | None]:
    """The inputs of a call in a function that is captured, as its trace has them, and where the call computes."""

    def lift(a: Any) -> Any:
        return trace.lift(a) if type(a) is Array else tuple(map(lift, a)) if type(a) is tuple else a

    found = tuple(map(lift, args))
    return found, next((a.backend for a in flatten(found) if type(a) is Array), backend)


def primitive(
    face: Callable | None = None,
    *,
    promote: str = "",
    indices: str = "",
    fits: str = "",
    numbers: str = "",
    checks: Callable | None = None,
    widen: bool = False,
    group: str = "",
) -> Any:
    """An op that every backend implements. The decorated function is its rule from Specs to a Spec.

    promote    the inputs that share one dtype
    indices    the inputs that kernels get as int32 or int64, whatever integers they are
    numbers    the inputs that are numbers, or lists of them, and change from call to call: Python's, or arrays without
               axes. They are in no key of a cache. Kernels get Python numbers, unless Backend.reads says otherwise
    checks     (*specs, **params) -> a function (*args), which raises ShapeError for values of numbers that cannot be;
               of arrays, that becomes an IndexError, at the next read where kernels read them
    fits       the inputs that, as Python numbers, must fit the result's dtype; what is promoted must fit the arrays'
    widen      run the VJP rules on float16 and bfloat16 in float32; for rules in which more than one op rounds
    group      of ops that a backend may lack together: see core/groups.py. "": it may not
    """
    if face is None:
        return lambda face: Op(
            face,
            rule=face,
            promoted=promote,
            indices=indices,
            fits=fits,
            numbers=numbers,
            checks=checks,
            widen=widen,
            group=group,
        )
    return Op(face, rule=face, widen=widen)


def composed(
    face: Callable | None = None,
    *,
    promote: str = "",
    indices: str = "",
    numbers: str = "",
    canonical: Callable | None = None,
    infer: Callable | None = None,
    widen: bool = True,
    group: str = "",
) -> Any:
    """An op made of other ops: the decorated function is its definition.

    promote    the inputs that share one dtype
    indices    the inputs that kernels get as int32 or int64, whatever integers they are
    numbers    the inputs that are numbers, or lists of them, and change from call to call: Python's, or arrays without
               axes. They are in no key of a cache. Kernels get Python numbers, unless Backend.reads says otherwise
    canonical  (*specs, **params) -> the parameters that change, in the form that kernels expect
    infer      (*specs, **params) -> the result's Spec, where the body cannot run on Specs
    widen      compute with float16 and bfloat16 in float32, and round once; False where at most one op rounds
    group      the group of primitives that the body needs, if there is one
    """
    if face is None:
        return lambda face: Op(
            face,
            rule=infer,
            body=face,
            promoted=promote,
            indices=indices,
            numbers=numbers,
            canonical=canonical,
            widen=widen,
            group=group,
        )
    return Op(face, body=face)


def _op_called(name: str) -> Op:
    return next(op for op in OPS if op.name == name)
