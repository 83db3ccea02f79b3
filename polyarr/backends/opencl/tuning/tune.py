"""`polyarr tune` on a device: kernel parameters are checked, timed in turns, and the fastest are kept."""

import statistics
import time
from collections.abc import Generator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.attention import attention_tuning
from polyarr.backends.opencl.gemm import matmul_tuning
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.variants import Verdicts
from polyarr.backends.opencl.tuning import tuned
from polyarr.backends.opencl.tuning.tuned import TUNABLES, NoParametersError, Trial, Tunable, check
from polyarr.core.errors import BackendError
from polyarr.core.tuning import Step, Tuning, Work

TUNABLES.update((tunable.op, tunable) for tunable in (matmul_tuning.TUNABLE, attention_tuning.TUNABLE))
TRIAL_FRACTION = 0.75  # fraction of the time for compiling, checking and a first timing
FINALISTS, ROUNDS = 3, 7  # candidates that are timed in turns against the current parameters, and rounds
MIN_SPEEDUP = 1.02  # minimal speedup in all rounds but one; less is noise
MIN_ROUNDS = 3  # rounds without which nothing is kept
RUNS, RUN_SECONDS = 3, 5e-3  # runs per round, and desired seconds of each, so that waiting for its end does not count


class Contender(NamedTuple):
    """Correct parameters, or None for the current ones, and their seconds per call, by rounds."""

    parameters: Any
    trial: Trial
    times: list[float]


class Contest:
    """Candidate parameters for one piece of work, timed in turns."""

    def __init__(self, device: Device, tunable: Tunable, work: Work) -> None:
        self._device, self._tunable, self._work = device, tunable, work
        self._case, self._calls = tunable.case(work), 1
        self._buffers = [device.upload(x) for x in self._case.arrays]
        self._contenders: list[Contender] = []
        self._enter(None)
        self._calls = max(1, min(100, round(RUN_SECONDS / self._contenders[0].times.pop())))

    def admit(self, parameters: Any) -> None:
        """Add parameters, if they compute correct results."""
        try:
            check(self._device, self._tunable, self._work, parameters, problems=1)
            self._enter(parameters)
        except NoParametersError as error:
            raise ValueError(f"tune: {error}") from None
        except BackendError:
            return

    def _enter(self, parameters: Any) -> None:
        entering = Contender(parameters, Trial(self._device, self._tunable, parameters), [])
        entering.times.append(self._seconds(entering.trial, 1))
        if not entering.trial.is_asked:
            raise NoParametersError(f"{self._work} runs on kernels without parameters")
        self._contenders.append(entering)

    def shorten(self) -> None:
        """Keep only the fastest candidates and the current parameters, and clear their times."""
        first, *others = self._contenders
        others.sort(key=lambda contender: contender.times[0])
        self._contenders = [first, *others[:FINALISTS]]
        for contender in self._contenders:
            contender.times.clear()

    def turn(self) -> None:
        """Time each contender by the best of some runs, as other load only makes runs slower."""
        for contender in self._contenders:
            runs = [self._seconds(contender.trial, self._calls) for _ in range(RUNS)]
            contender.times.append(min(runs))

    def _seconds(self, trial: Trial, calls: int) -> float:
        """Return the seconds per call, after a warm-up call."""
        trial.run(self._case, self._buffers)
        self._device.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            trial.run(self._case, self._buffers)
        self._device.synchronize()
        return (time.perf_counter() - began) / calls

    def settle(self, shape: str) -> str:
        """Keep the fastest parameters for a class of shapes if they beat the current ones; return the outcome."""
        first, *others = self._contenders
        if len(first.times) < MIN_ROUNDS:
            return "not finished"
        before, dtype = self._rate(first), np.dtype(self._work.dtype)
        for winner in sorted(others, key=lambda c: statistics.median(c.times)):
            if self._is_better(winner, first) and self._is_sound(winner):
                after = self._rate(winner)
                figures = {"GFLOP/s": round(after, 1), "before": round(before, 1)}
                tuned.change([tuned.entry(self._device, self._work, shape, winner.parameters, figures)])
                self._device.plans.renew(Verdicts)
                return f"{after:.1f} GFLOP/s, {after / before:.2f} times as fast as before"
        if tuned.best(self._device, self._work.op, dtype, shape) is None:  # what is stored is not used
            tuned.change([], without=(tuned.device_of(self._device), self._work.op, dtype.name, shape))
        return f"{before:.1f} GFLOP/s as it is; nothing is faster"

    def _is_better(self, winner: Contender, first: Contender) -> bool:
        ahead = [MIN_SPEEDUP * mine < theirs for mine, theirs in zip(winner.times, first.times, strict=False)]
        return sum(ahead) >= len(first.times) - 1

    def _is_sound(self, winner: Contender) -> bool:
        """Return whether all check problems are correct."""
        try:
            check(self._device, self._tunable, self._work, winner.parameters)
        except BackendError:
            return False
        return True

    def _rate(self, contender: Contender) -> float:
        return 1e-9 * self._tunable.operations(self._work) / statistics.median(contender.times)


def tune(device: Device, work: Work, seconds: float) -> Generator[Step, None, None]:
    """Yield the steps of a tuning run; at the end, the fastest parameters are kept.

    Raises:
        ValueError: The work cannot be tuned.
    """
    tunable = _tunable(work)
    tuned.read_user_file()  # fail early if results could not be kept
    timed, end = tunable.timed(device, work), time.monotonic() + TRIAL_FRACTION * seconds
    candidates = list(tunable.space(device, timed))
    contest, total, tried, outcome = Contest(device, tunable, timed), len(candidates) + ROUNDS, 0, ""
    try:
        for tried, parameters in enumerate(candidates, 1):
            contest.admit(parameters)
            yield Step(tried, total)
            if time.monotonic() > end:
                break
        contest.shorten()
        for turn in range(1, ROUNDS + 1):
            contest.turn()
            yield Step(len(candidates) + turn, total)
    finally:  # also if the caller stops early
        outcome = contest.settle(tunable.shape(device, work))
    yield Step(total, total, f"{outcome} ({tried} of {len(candidates)} candidates tried)")


def _tunable(work: Work) -> Tunable:
    tunable = TUNABLES.get(work.op)
    if tunable is None or work.form not in tunable.forms:
        there = "; ".join(f"{t.op} in {', '.join(t.forms)}" for t in TUNABLES.values())
        raise ValueError(f"tune: {work} has no parameters here; there are {there}")
    return tunable


def _shape(device: Device, work: Work) -> str:
    return _tunable(work).shape(device, work)


def _imported(found: Any) -> int:
    entries = tuned.entries_of(found)
    tuned.change(entries)
    return len(entries)


def tuning_of(device: Device) -> Tuning:
    """Return the functions of a device for `polyarr tune`."""
    return Tuning(
        tuple(TUNABLES), partial(_shape, device), partial(tune, device), partial(tuned.kept, device),
        lambda: [entry._asdict() for entry in tuned.read_user_file()], _imported,
    )  # fmt: skip
