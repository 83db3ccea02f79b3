"""Op: an operation as a value. All calls take one path: infer the result, run a kernel, record for the gradient."""

import inspect
import warnings
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
    number_of,
    rounded,
    spec_of,
    specs_of_list,
    unheld,
    untracked,
    widened,
)
from polyarr.core.backend import Backend, Fused
from polyarr.core.binding import (
    GroupError,
    as_input,
    bound,
    bound_by_name,
    check_flags,
    hashable,
    lacking,
    missing_array,
    mixed_backends,
    signature,
    usage,
    wrong_input,
    wrong_result,
)
from polyarr.core.current import CaptureContext, capturing, get_backend
from polyarr.core.errors import BackendError, DtypeError, ShapeError
from polyarr.core.number import Number, check
from polyarr.core.precision import as_kernel_takes, decided
from polyarr.core.record import Need, need_of, record_fused, record_rules, run_custom_vjp
from polyarr.core.spec import (
    INEXACT,
    INTEGERS,
    NARROW,
    Spec,
    check_number,
    check_size,
    float32,
    int32,
    int64,
    may_not_fit,
    promote,
)
from polyarr.core.tape import reads, records

OPS: list["Op"] = []  # every Op, in order of definition
MAX_PLANS = 4096  # per op


class Plan(NamedTuple):
    """Result of inference for one combination of Specs and parameters.

    Attributes:
        out: Spec of the result, or a tuple of Specs.
        adapts: Whether `params`, `casts` or `numbers` requires work before the kernel runs.
        params: Parameters in canonical form; None if they are canonical as given.
        casts: dtype to cast each input to, or None; None if no input is cast.
        numbers: (input index, dtype) of each Python number to check, and the dtype that must be able to hold it.
        scalar_arrays: Indices of the scalar inputs that are arrays in this call.
        check: (*args) -> None, which raises for invalid values of scalar inputs; None if there is nothing to check.
        dtype: dtype of a primitive's result if no input has it, so that the backend may not support it; else None.
        carries: Whether a result is floating-point and so may have a gradient.
        widened: Whether float16 and bfloat16 inputs are computed in float32 by the decomposition and the VJP rules, and
            the results rounded once.
        programs: What runs further calls of a composed op in place of its decomposition; see polyarr.capture.repeated.
    """

    out: Any
    adapts: bool
    params: dict[str, Any] | None
    casts: tuple[np.dtype | None, ...] | None
    numbers: tuple[tuple[int, np.dtype], ...]
    scalar_arrays: tuple[int, ...]
    check: Callable[..., None] | None
    dtype: np.dtype | None
    carries: bool
    widened: bool
    programs: dict[Any, Any]


class Op:
    """An operation as a value: the key of a backend's table of kernels, and the function that users call.

    The positional arguments of an op are its inputs: arrays, and where the op allows them Python numbers, None or lists
    of arrays. Its keyword-only arguments are its parameters: hashable constants.

    An op is either a primitive or composed. A primitive has a shape rule and VJP rules, and every backend implements
    it. A composed op has a decomposition into other ops, which computes its value and its gradient on every
    backend. A backend may add a kernel for it: a Fused kernel with its VJP or, if the op states VJP rules, a forward
    kernel alone.

    Use `@primitive` and `@composed` to define an op.

    Attributes:
        name: Name of the op, unique among all ops.
        rule: (*specs, **params) -> Spec of the result, or a tuple of Specs.
        decomposition: The op computed with other ops. None for a primitive.
        inputs: Names of the inputs, in order.
        optional: Input name -> default value; inspect.Parameter.empty if the input is required.
        defaults: Parameter name -> default value; inspect.Parameter.empty if the parameter is required.
        promoted: Indices of the inputs that are promoted to one dtype.
        floats: Indices of the inputs that are cast to float32 if they are integers or bools.
        indices: Indices of the inputs that kernels receive as int32 or int64.
        numbers: Indices of the scalar inputs, whose values may change between calls without a new plan or capture.
        fitting: Indices of the inputs that, if they are Python numbers, must be representable in the result's dtype.
        canonical: (*specs, **params) -> changed parameters, in the form that kernels receive. None: unchanged.
        checks: (*specs, **params) -> function (*args) that raises ShapeError for invalid values of scalar inputs. None:
            no check.
        widen: Whether float16 and bfloat16 are computed in float32 and rounded once.
        group: Group of ops that a backend may omit together, such as "linalg"; "" if the op is in no group.
        has_precision: Whether the op has the parameter `precision`.
        rules: Input name -> (VJP rule or None, names of the rule's arguments after the cotangent). Empty if the
            gradient is that of the decomposition.
        gradients: The VJP rules in the form that the tape records: (input index, rule, getters of its arguments).
        custom_vjp: Custom VJP of a composed op, made of ops; used if the backend has no kernel. See `defvjp`.
    """

    def __init__(
        self,
        face: Callable[..., Any],
        *,
        rule: Callable[..., Any] | None = None,
        decomposition: Callable[..., Any] | None = None,
        promoted: str = "",
        floats: str = "",
        indices: str = "",
        fits: str = "",
        numbers: str = "",
        checks: Callable[..., Any] | None = None,
        canonical: Callable[..., Any] | None = None,
        widen: bool = True,
        group: str = "",
    ) -> None:
        self.name, self.__doc__ = face.__name__.strip("_"), face.__doc__
        self.__name__, self.__module__, self.__wrapped__ = self.name, face.__module__, face
        self.rule, self.decomposition = rule or decomposition, decomposition
        self.canonical, self.checks, self.widen, self.group = canonical, checks, widen, group
        arguments = inspect.signature(face).parameters.values()
        self.inputs = tuple(a.name for a in arguments if a.kind is not a.KEYWORD_ONLY)
        self.optional = {a.name: a.default for a in arguments if a.kind is not a.KEYWORD_ONLY}
        self.defaults = {a.name: a.default for a in arguments if a.kind is a.KEYWORD_ONLY}
        self.has_precision = "precision" in self.defaults
        self.__signature__ = signature(list(arguments))
        self.promoted = tuple(self.inputs.index(name) for name in promoted.split())
        self.floats = tuple(self.inputs.index(name) for name in floats.split())
        self.indices = tuple(self.inputs.index(name) for name in indices.split())
        self.numbers = tuple(self.inputs.index(name) for name in numbers.split())
        self.fitting = tuple(self.inputs.index(name) for name in fits.split())
        self.rules: dict[str, tuple[Callable[..., Any] | None, tuple[str, ...]]] = {}
        self.gradients: list[tuple[int, Callable[..., Any], tuple[Need | None, ...]]] = []  # as record.py takes them
        self.custom_vjp: Fused | None = None
        self._plans: dict[Any, Plan] = {}
        OPS.append(self)

    def __repr__(self) -> str:
        return f"<op {self.name}{self.__signature__}>"  # shown by help()

    def __reduce__(self) -> tuple[Any, ...]:
        return _op_called, (self.name,)

    # ---- stating the gradient --------------------------------------------------------------------------------

    def vjp(self, **rules: Callable[..., Any] | None) -> None:
        """State the VJP: one rule per input.

        A rule is a function of the cotangent and of any of: inputs by name, parameters by name, the Spec of an input as
        `<input>_spec`, and the result as `out`. The tape keeps exactly what the rules name.

        Args:
            **rules: Input name -> rule, or None if the input has no gradient.

        Raises:
            TypeError: An input has no entry, or a rule names something unknown.
        """
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

    @property
    def body(self) -> Callable[..., Any] | None:
        """Former name of `decomposition`."""
        message = "Op.body is called decomposition now; the old name goes with version 1.0"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.decomposition

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """State a custom VJP made of ops, for a composed op whose decomposition would keep too much for its gradient.

        The functions are those of a Fused kernel, except that they take and return arrays, and that `forward` receives
        `wanted` instead of the Spec of the result. Higher derivatives are those of the decomposition.

        Args:
            forward: (*inputs, wanted, **params) -> (value, saved).
            backward: (g, saved, *inputs, wanted, **params) -> one gradient or None per input.
        """
        self.custom_vjp = Fused(forward, backward)

    # ---- infer -----------------------------------------------------------------------------------------------

    def plan(self, specs: tuple[Any, ...], params: dict[str, Any]) -> Plan:
        """Return the plan for these Specs and parameters: validated, and cached under both."""
        try:
            return self._plans[specs, *params.values()]
        except KeyError:
            key = (specs, *params.values())
        except TypeError:  # a list among the parameters
            params = {name: hashable(self, name, value) for name, value in params.items()}
            plan = self.plan(specs, params)
            return plan._replace(params=params) if plan.params is None else plan
        if len(self._plans) >= MAX_PLANS:
            for oldest in list(self._plans)[: MAX_PLANS // 2]:
                self._plans.pop(oldest, None)
        plan = self._plans[key] = self._infer(specs, params)
        return plan

    def _infer(self, specs: tuple, params: dict[str, Any]) -> Plan:
        missing = [name for name, value in params.items() if value is inspect.Parameter.empty]
        if missing or len(params) > len(self.defaults):
            raise TypeError(usage(self, missing, set(params) - set(self.defaults)))
        check_flags(self, params)
        casts = self._casts(specs)
        if casts:
            specs = tuple(cast_spec(s, c) for s, c in zip(specs, casts, strict=True))
        if self.rule is self.decomposition and (message := missing_array(self, specs)):
            raise TypeError(message)
        try:
            if self.canonical:
                params = {**params, **self.canonical(*specs, **params)}
            found = self.rule(*specs, **params)  # type: ignore[misc]
        except AttributeError as error:
            if message := wrong_input(self, specs, error):
                raise TypeError(message) from error
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
        scalar_arrays = tuple(i for i in self.numbers if any(s and not s.is_number for s in flatten(specs[i : i + 1])))
        return Plan(
            out=out,
            adapts=bool(changed is not None or casts or numbers),
            params=changed,
            casts=casts,
            numbers=numbers,
            scalar_arrays=scalar_arrays,
            check=self.checks and self.checks(*specs, **params),
            dtype=None if self.decomposition else self._new_dtype(flat, out),
            carries=any(type(s) is Spec and s.dtype in INEXACT for s in flatten((out,))),
            widened=self.widen and any(s.dtype in NARROW for s in flat),
            programs={},
        )

    def _new_dtype(self, specs: list[Spec], out: Any) -> np.dtype | None:
        return None if type(out) is tuple or any(s.dtype is out.dtype for s in specs) else out.dtype

    def _numbers(self, specs: tuple, out: Any) -> tuple[tuple[int, np.dtype], ...]:
        """List the Python numbers to check against the arrays' dtype or, without an array, the result's dtype."""
        arrays = [s.dtype for i in self.promoted for s in flatten(specs[i : i + 1]) if s and not s.is_number]
        dtype = arrays[0] if arrays else getattr(out, "dtype", None)
        numbers = [i for i in self.promoted or self.fitting if type(specs[i]) is Spec and specs[i].is_number]
        return tuple((i, dtype) for i in numbers if dtype is not None and may_not_fit(specs[i].dtype, dtype))

    def _casts(self, specs: tuple) -> tuple[np.dtype | None, ...] | None:
        """Return the dtype that each input is cast to, or None for each that stays; None if all do."""
        shared = self._shared_dtype(specs)
        casts = [shared if i in self.promoted else None for i in range(len(specs))]
        for i in self.floats:
            if type(specs[i]) is Spec and not specs[i].is_number and (shared or specs[i].dtype) not in INEXACT:
                casts[i] = float32
        for i in self.indices:
            if type(specs[i]) is Spec and specs[i].dtype in (float, bool, complex):
                raise DtypeError(f"{self.name}: {self.inputs[i]} is {specs[i]}; it must be integers")
            if type(specs[i]) is Spec and specs[i].is_number:
                raise TypeError(f"{self.name}: {self.inputs[i]} is {specs[i]}; it must be an integer array")
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
                        raise BackendError(mixed_backends(self, args))
                if a.node is not None:
                    tracked = True
            elif kind in NUMBERS:
                specs.append(NUMBERS[kind])
            elif kind is Spec:
                symbolic = True
                specs.append(a)
            elif a is None:
                specs.append(None)
            elif kind is tuple and (found := specs_of_list(a, backend)) is not None:
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
        """Call with inputs that need conversion: lists, NumPy scalars, or objects with `polyarr_op`."""
        for a in [member for each in args for member in (each if type(each) in (tuple, list) else (each,))]:
            if type(a) is not Array and hasattr(type(a), "polyarr_op"):
                found = a.polyarr_op(self, args, params)
                if found is not NotImplemented:
                    return found
        args = tuple(as_input(self, name, a) for name, a in zip(self.inputs, args, strict=True))
        flat = [a for a in flatten(args) if a is not None]
        specs = tuple(map(spec_of, args))
        if any(type(a) is Spec for a in flat):
            return self._inferred(args, specs, params)
        arrays = [a for a in flat if type(a) is Array]
        if any(not arrays[0].backend.meets(a.backend) for a in arrays):
            raise BackendError(mixed_backends(self, flat))
        tracked = any(a.node is not None for a in arrays)
        return self._run(args, specs, arrays[0].backend if arrays else None, tracked, params)

    def _inferred(self, args: tuple, specs: tuple, params: dict[str, Any]) -> Any:
        """Return the Spec of the result of a call with Specs."""
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
        if (capture := capturing.get()) is not None:
            args, backend = lift_inputs(capture, args, backend)
            tracked = tracked and any(type(a) is Array and a.node is not None for a in flatten(args))
        if plan.check is not None:
            plan.check(*args) if capture is None else check(plan.check, *args)
        if backend is None:
            backend = get_backend()
        tracked = tracked and records()
        kernel = backend.kernels.get(self)
        if self.decomposition is None:
            if kernel is None:
                raise lacking(self, backend)
            if plan.dtype is not None and plan.dtype not in backend.dtypes:
                raise DtypeError(unheld(self.name, plan.dtype, backend))
        elif self._needs_decomposition(kernel, tracked):
            return self._run_default(plan, backend, args, params, tracked)
        if plan.scalar_arrays and kernel is not None:
            args = self._read_scalars(args, plan, backend)
        return self._run_kernel(kernel, backend, args, plan, tracked, params)

    def _adapted(self, plan: Plan, args: tuple, params: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Cast inputs, check that numbers fit, and return inputs and parameters as kernels receive them."""
        if plan.casts:
            args = tuple([cast(a, c) for a, c in zip(args, plan.casts, strict=True)])
        for i, dtype in plan.numbers:
            if isinstance(args[i], Number):
                check(check_number, self.name, self.inputs[i], args[i], dtype)
            else:
                check_number(self.name, self.inputs[i], args[i], dtype)
        return args, params if plan.params is None else plan.params

    def _read_scalars(self, args: tuple, plan: Plan, backend: Backend) -> tuple:
        """Convert scalar inputs that are arrays to Python numbers, except those that the kernel reads itself."""
        reads = backend.reads.get(self, ())
        plain = [i for i in plan.scalar_arrays if self.inputs[i] not in reads]
        if not plain:
            return args
        args = tuple([number_of(a) if i in plain else a for i, a in enumerate(args)])
        if plan.check is not None:
            try:
                plan.check(*args)
            except ShapeError as error:  # IndexError, as a kernel that reads the values on the device reports it
                raise IndexError(*error.args) from None
        return args

    def _needs_decomposition(self, kernel: Any, tracked: bool) -> bool:
        """Return whether only the decomposition can serve: no kernel, or a gradient that the kernel lacks."""
        if kernel is None:
            return not (tracked and self.rules)
        return tracked and not self.rules and type(kernel) is not Fused

    def _run_default(self, plan: Plan, backend: Backend, args: tuple, params: dict[str, Any], tracked: bool) -> Any:
        """Run the op's own definition: its custom VJP if a gradient may be requested, else its decomposition."""
        if tracked and self.custom_vjp is not None:
            return self.run_custom_vjp(plan, args, params)
        if not tracked and backend.fusion is not None and capturing.get() is None:
            return _run_untracked(self, plan, backend, args, params)
        return self.run_decomposition(plan, args, params)

    def run_custom_vjp(self, plan: Plan, args: tuple, params: dict[str, Any]) -> Any:
        """Run the op's custom VJP and record it."""
        return run_custom_vjp(self, args, params, plan)

    def run_decomposition(self, plan: Plan, args: tuple, params: dict[str, Any]) -> Any:
        """Run the decomposition; float16 and bfloat16 are widened to float32 here and the result rounded once."""
        try:
            if plan.widened:
                return rounded(self.decomposition(*map(widened, args), **params), plan.out)  # type: ignore[misc]
            value = self.decomposition(*args, **params)  # type: ignore[misc]
        except GroupError as error:  # names an op of the decomposition, but the user called this one
            raise (lacking(self, error.backend) if self.group else error) from None
        # A decomposition may return its input; the result still needs a handle of its own.
        return value.snapshot() if type(value) is Array and any(value is a for a in args) else value

    def _run_kernel(self, kernel: Any, backend: Backend, args: tuple, plan: Plan, tracked: bool, params: dict) -> Any:
        if kernel is None:  # no kernel, but stated VJP rules: run the decomposition untracked, record the rules
            value = self._run_default(plan, backend, tuple(map(untracked, args)), params, False)
        elif type(kernel) is Fused:
            bufs = [buffer(a) for a in args]
            found = kernel.forward(plan.out, *bufs, **self.kernel_params(backend, params))
            if found is NotImplemented:
                return self._run_default(plan, backend, args, params, tracked)
            if type(found) is not tuple or len(found) != 2:
                raise BackendError(wrong_result(self, backend, "forward", found, "2, buffer and saved"))
            buf, saved = found
            value = arrays(backend, buf, plan.out)
            if tracked:
                record_fused(self, kernel, args, params, plan, saved, value)
            return value
        else:
            out = plan.out
            bufs = [a.buf if type(a) is Array else buffer(a) for a in args]
            buf = kernel(out, *bufs, **(self.kernel_params(backend, params) if self.has_precision else params))
            if buf is NotImplemented and self.decomposition is not None:
                return self._run_default(plan, backend, args, params, tracked)
            value = Array(backend, buf, out) if type(out) is Spec else arrays(backend, buf, out)
        if tracked and plan.carries:
            record_rules(self, args, params, plan, value)
        return value

    def kernel_params(self, backend: Backend, params: dict[str, Any]) -> dict[str, Any]:
        """Return a call's parameters as the backend's kernel receives them."""
        return as_kernel_takes(params, backend.precisions.get(self, ())) if self.has_precision else params


def _run_decomposition(op: Op, plan: Plan, backend: Backend, args: tuple, params: dict[str, Any]) -> Any:
    return op.run_decomposition(plan, args, params)


_run_untracked: Callable[[Op, Plan, Backend, tuple, dict[str, Any]], Any] = _run_decomposition


def run_untracked_with(run: Callable[[Op, Plan, Backend, tuple, dict[str, Any]], Any]) -> None:
    """Set the function that runs the decomposition of a call without gradient, on a backend that fuses steps."""
    global _run_untracked
    _run_untracked = run


def lift_inputs(capture: CaptureContext, args: tuple, backend: Backend | None) -> tuple[tuple, Backend | None]:
    """Return the inputs of a call during a capture as tracers, and the backend that computes."""

    def lift(a: Any) -> Any:
        return capture.lift(a) if type(a) is Array else tuple(map(lift, a)) if type(a) is tuple else a

    found = tuple(map(lift, args))
    return found, next((a.backend for a in flatten(found) if type(a) is Array), backend)


def primitive(
    face: Callable[..., Any] | None = None,
    *,
    promote: str = "",
    floats: str = "",
    indices: str = "",
    fits: str = "",
    numbers: str = "",
    checks: Callable[..., Any] | None = None,
    widen: bool = False,
    group: str = "",
) -> Any:
    """Define an op that every backend implements. The decorated function is its shape rule, from Specs to a Spec.

    Names of inputs are given as one string, separated by spaces.

    Args:
        face: The shape rule: (*specs, **params) -> Spec.
        promote: Inputs that are promoted to one dtype.
        floats: Inputs that are cast to float32 if they are integers or bools.
        indices: Inputs that kernels receive as int32 or int64, whatever integer dtype they have.
        numbers: Scalar inputs, or lists of them, whose values change from call to call: Python numbers or 0-d arrays.
            They are part of no cache key. Kernels receive Python numbers unless Backend.reads says otherwise.
        checks: (*specs, **params) -> function (*args) that raises ShapeError for invalid values of scalar inputs. For
            values in arrays the error is an IndexError, raised at the next read if the kernel reads them on the device.
        fits: Inputs that, if they are Python numbers, must be representable in the result's dtype. (Promoted inputs
            must be representable in the dtype of the arrays.)
        widen: Run the VJP rules on float16 and bfloat16 in float32; for rules with more than one rounding op.
        group: Group of ops that a backend may omit together (see core/groups.py); "": every backend has the op.

    Returns:
        The Op; without a function, a decorator.
    """
    named: dict[str, Any] = {"promoted": promote, "floats": floats, "indices": indices, "numbers": numbers}
    made = lambda face: Op(face, rule=face, **named, fits=fits, checks=checks, widen=widen, group=group)
    return made if face is None else made(face)


def composed(
    face: Callable[..., Any] | None = None,
    *,
    promote: str = "",
    floats: str = "",
    indices: str = "",
    numbers: str = "",
    canonical: Callable[..., Any] | None = None,
    infer: Callable[..., Any] | None = None,
    widen: bool = True,
    group: str = "",
) -> Any:
    """Define an op made of other ops. The decorated function is its decomposition.

    Names of inputs are given as one string, separated by spaces.

    Args:
        face: The decomposition: (*inputs, **params) -> value.
        promote: Inputs that are promoted to one dtype.
        floats: Inputs that are cast to float32 if they are integers or bools.
        indices: Inputs that kernels receive as int32 or int64, whatever integer dtype they have.
        numbers: Scalar inputs, or lists of them, whose values change from call to call: Python numbers or 0-d arrays.
            They are part of no cache key. Kernels receive Python numbers unless Backend.reads says otherwise.
        canonical: (*specs, **params) -> changed parameters, in the form that kernels receive.
        infer: (*specs, **params) -> Spec of the result; for a decomposition that cannot run on Specs.
        widen: Compute float16 and bfloat16 in float32 and round once; False if at most one op rounds.
        group: Group of the primitives that the decomposition needs; "": none.

    Returns:
        The Op; without a function, a decorator.
    """
    named: dict[str, Any] = {"promoted": promote, "floats": floats, "indices": indices, "numbers": numbers}
    made = lambda face: Op(face, rule=infer, decomposition=face, **named, canonical=canonical, widen=widen, group=group)
    return made if face is None else made(face)


def _op_called(name: str) -> Op:
    return next(op for op in OPS if op.name == name)
