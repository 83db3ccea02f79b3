"""Kernels for NVIDIA's GPUs compile, as far as a compiler sees that knows no PTX.

A program that does not build is set aside on a GPU, and slower kernels serve; no test of results sees that.
"""

import re
import warnings
from contextlib import suppress

import pyopencl as cl
import pytest

from polyarr.backends.opencl import devices
from polyarr.backends.opencl.nvidia import (
    attention_few,
    attention_wgmma,
    mma,
    skinny,
    skinny_gated,
    skinny_quantized,
    wgmma,
)
from polyarr.core.errors import BackendError
from tests.platforms import offline

MODULES = attention_few, attention_wgmma, mma, skinny, skinny_gated, skinny_quantized, wgmma
LIMITS = offline.Limits(is_cpu=False, fp64=True, max_work_group=1024, local_memory=227 * 1024)
ASSEMBLER = re.compile(r"\basm\b(?:\s+volatile)?\s*\(")
TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[()]', re.DOTALL)


def without_assembler(text: str) -> str:
    """Return a source in which inline PTX computes nothing."""
    parts, at = [], 0
    while begin := ASSEMBLER.search(text, at):
        parts.append(text[at : begin.start()])
        depth, end = 1, begin.end()
        while depth:
            token = TOKEN.search(text, end)
            assert token, "a parenthesis is missing"
            depth += {"(": 1, ")": -1}.get(token[0], 0)
            end = token.end()
        parts.append("(void)0")
        at = end
    return "".join([*parts, text[at:]])


def sources(variant, monkeypatch) -> dict[tuple[str, str], None]:
    """Return the programs of a variant's trial by file and text."""
    device = offline.Recorder(LIMITS)

    def unless_wrong(check):
        def checked(*args):
            with suppress(BackendError):  # the results are wrong, since nothing is computed
                check(*args)

        return checked

    scope = variant.trial.__globals__
    for name in variant.trial.__code__.co_names:
        if "check" in name:
            monkeypatch.setitem(scope, name, unless_wrong(scope[name]))
    variant.trial(device)
    return device.sources


def problem_of(text: str) -> str:
    """Return what the compiler of this device says of a source that is wrong; "" if it compiles."""
    device = devices.select().cl_device
    program = cl.Program(cl.Context([device]), text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyOpenCL's, that it caches no program that is compiled only
        with suppress(cl.Error):
            program.compile(["-w"])
            return ""
        return program.get_build_info(device, cl.program_build_info.LOG)


@pytest.mark.parametrize("variant", [module.VARIANT for module in MODULES], ids=lambda variant: variant.name)
def test_all_programs_of_a_trial_compile(variant, monkeypatch):
    found = sources(variant, monkeypatch)
    assert sum(stem == variant.stem for stem, _ in found) > 1
    problems = [(stem, problem_of(without_assembler(text))) for stem, text in found]
    assert [each for each in problems if each[1]] == []


def test_the_check_sees_a_macro_with_too_few_arguments():
    text = '#define TWO(a, b) (a + b)\n__kernel void k(__global int *p) { asm("mov;" ::"r"(")")); p[0] = TWO(%s); }'
    assert "asm" not in without_assembler(text)
    assert problem_of(without_assembler(text % "1, 2")) == ""
    assert "too few arguments" in problem_of(without_assembler(text % "1"))
