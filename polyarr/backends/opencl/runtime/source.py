"""The text of a program: which files it is made of, and what arguments its kernels take."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

KERNELS = files("polyarr.backends.opencl") / "kernels"
INCLUDE = re.compile(r'^#include "(\w+)\.cl"\n', re.MULTILINE)
# A macro that stands for arguments, with its own argument if it has one, and what it stands for; never under an #if.
MACRO = re.compile(r"^#define (\w+)(?:\((\w+)\))? ((?:.*\\\n)*.*)$", re.MULTILINE)
KERNEL = re.compile(r"__kernel\b[^;{]*?\bvoid (\w+)\(([^{]*)\) \{")
# The C types that numbers are passed in, and arithmetic is done in.
SCALARS = {
    "int": np.dtype("int32"),
    "uint": np.dtype("uint32"),
    "long": np.dtype("int64"),
    "ulong": np.dtype("uint64"),
    "float": np.dtype("float32"),
    "double": np.dtype("float64"),
}

MEMORY = "memory"
STRUCTURE = np.dtype("V")  # given as bytes; without a type, PyOpenCL would try everything else first, for 10 us
Arguments = tuple[Any, ...]  # of a kernel: a dtype for each number, STRUCTURE, or None for memory


@cache
def source_of(stem: str) -> str:
    """The prelude, the files that kernels/<stem>.cl includes, and that file; each with its own line numbers."""
    texts = {name: (KERNELS / f"{name}.cl").read_text() for name in ("prelude", stem)}
    included = {name: (KERNELS / f"{name}.cl").read_text() for name in INCLUDE.findall(texts[stem])}
    texts = {"prelude": texts["prelude"], **included, stem: INCLUDE.sub("\n", texts[stem])}
    return "\n".join(f'#line 1 "{name}.cl"\n{text}' for name, text in texts.items())


@cache
def declarations() -> str:
    """What stands before a program where the compiler is not to read all declarations that there are."""
    return f'#line 1 "builtins.cl"\n{(KERNELS / "builtins.cl").read_text()}'


# ---- arguments ---------------------------------------------------------------------------------------------------


def arguments_of(stem: str, macros: Mapping[str, Any]) -> dict[str, Arguments | None]:
    """What the kernels of a file take under these macros, by name; None where the file alone does not tell."""
    named = _type_names(stem)
    return {
        kernel: names and tuple(_passed_as(macros.get(name, name)) for name in names)
        for kernel, names in named.items()
    }


def _passed_as(name: str) -> np.dtype | None:
    return None if name == MEMORY else SCALARS.get(name, STRUCTURE)


@cache
def _type_names(stem: str) -> dict[str, tuple[str, ...] | None]:
    """The types of each kernel's arguments as they are written, MEMORY for pointers."""
    text = source_of(stem)
    macros = {name: (own, stands_for) for name, own, stands_for in MACRO.findall(text)}
    return {name: _types(_expanded(parameters, macros)) for name, parameters in KERNEL.findall(text)}


def _expanded(parameters: str, macros: dict[str, tuple[str, str]]) -> str:
    """A list of parameters with the macros in it written out; TENSOR(3) is one with an argument of its own."""
    for call in re.findall(r"\b[A-Z_]+\b(?:\(\d+\))?(?=,|$)", parameters.replace("\n", " ").strip()):
        name = call.partition("(")[0]
        if name in macros:
            parameters = parameters.replace(call, macros[name][1])
    return parameters


def _types(parameters: str) -> tuple[str, ...] | None:
    """The type of each parameter; None if one of them is no type and a name."""
    found = []
    for parameter in re.sub(r"\s+|\\\n", " ", parameters).split(","):
        words = [word for word in parameter.split() if word != "const"]
        is_memory = words[0] == "__global"
        if not is_memory and len(words) != 2:
            return None
        found.append(MEMORY if is_memory else words[0])
    return tuple(found)
