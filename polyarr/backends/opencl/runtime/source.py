"""The source of a program: the files that it consists of, and the arguments that its kernels take."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from polyarr.core.errors import BackendError

FILES = {path.stem: path for path in Path(__file__).parents[1].rglob("*.cl")}  # beside their launchers
INCLUDE = re.compile(r'^#include "(\w+)\.cl"\n', re.MULTILINE)
# A macro for arguments, with its parameter if it has one, and its expansion; never under an #if.
MACRO = re.compile(r"^#define (\w+)(?:\((\w+)\))? ((?:.*\\\n)*.*)$", re.MULTILINE)
KERNEL = re.compile(r"__kernel\b[^;{]*?\bvoid (\w+)\(([^{]*)\) \{")
# The list of macros in a file's header, and one entry of it: names, a gap, and an explanation.
PARAMS = re.compile(r"^// Params  .*\n(?://          .*\n)*", re.MULTILINE)
ENTRY = re.compile(r"^//.{10}([A-Z]\w*(?:\(\w+\))?(?:, [A-Z]\w*)*) {2,}(?! |optional)", re.MULTILINE)
DEFINED = re.compile(r"^ *# *define (\w+)", re.MULTILINE)
# The C types in which scalars are passed and arithmetic is done.
SCALARS: dict[str, np.dtype] = {
    "int": np.dtype("int32"),
    "uint": np.dtype("uint32"),
    "long": np.dtype("int64"),
    "ulong": np.dtype("uint64"),
    "float": np.dtype("float32"),
    "double": np.dtype("float64"),
}

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# A kernel of another package, whichever way it is written.
ANY_KERNEL = re.compile(r"\b(?:__)?kernel\b[^;{]*?\bvoid\s+(\w+)\s*\(([^{;]*)\)\s*\{")
QUALIFIERS = {"const", "volatile", "__private", "private"}
ALIASES = {"unsigned": "uint", "unsigned int": "uint", "unsigned long": "ulong", "size_t": "ulong"}

MEMORY = "memory"
STRUCTURE = np.dtype("V")  # passed as bytes; without a type, PyOpenCL would try everything else first, for 10 us
Arguments = tuple[Any, ...]  # of a kernel: a dtype for each scalar, STRUCTURE, or None for memory


@cache
def source_of(stem: str) -> str:
    """Return the prelude, the files that <stem>.cl includes, and that file, with #line directives."""
    texts = {name: FILES[name].read_text(encoding="utf-8") for name in ("prelude", stem)}
    included = {name: FILES[name].read_text(encoding="utf-8") for name in included_in(stem)}
    texts = {"prelude": texts["prelude"], **included, stem: INCLUDE.sub("\n", texts[stem])}
    return "\n".join(f'#line 1 "{name}.cl"\n{text}' for name, text in texts.items())


def included_in(stem: str) -> list[str]:
    """Return the files that <stem>.cl includes."""
    return INCLUDE.findall(FILES[stem].read_text(encoding="utf-8"))


@cache
def needed(stem: str) -> frozenset[str]:
    """Return the macros that launchers must define: all that the headers of <stem>.cl and its includes list.

    Left out are those that an entry calls optional, and those of an include that the source itself defines. Files of
    nvidia/ state with `#error` what they need.
    """
    included, own = map(_listed_in, (included_in(stem), [stem]))
    return own | (included - {*DEFINED.findall(source_of(stem))})


def _listed_in(stems: list[str]) -> frozenset[str]:
    files = [FILES[stem] for stem in stems if FILES[stem].parent.name != "nvidia"]
    headers = [PARAMS.search(file.read_text(encoding="utf-8")) for file in files]
    entries = [names for header in headers if header for names in ENTRY.findall(header[0])]
    return frozenset(name.partition("(")[0] for names in entries for name in names.split(", "))


@cache
def declarations() -> str:
    """Return the declarations that replace the compiler's own of all OpenCL functions."""
    return f'#line 1 "builtins.cl"\n{FILES["builtins"].read_text(encoding="utf-8")}'


def arguments_of(stem: str, macros: Mapping[str, Any]) -> dict[str, Arguments | None]:
    """Return the argument types of a file's kernels with these macros, by name; None if the file does not tell."""
    named = _type_names(stem)
    return {
        kernel: names and tuple(passed_as(macros.get(name, name)) for name in names)
        for kernel, names in named.items()
    }


class ReadArguments(dict[str, Arguments]):
    """The argument types of kernels of another package by name, as far as its source tells."""

    def __missing__(self, name: str) -> Arguments:
        raise BackendError(f"kernel {name}: its parameters cannot be read; write `kernel void {name}(` without macros")


def arguments_in(text: str, macros: Mapping[str, Any]) -> ReadArguments:
    """Return the argument types of all kernels in another package's source with these macros, by name.

    Raises:
        BackendError: A parameter is neither global memory nor one of SCALARS, or a kernel is there twice with others.
    """
    found = ReadArguments()
    for name, listed in ANY_KERNEL.findall(COMMENT.sub(" ", text)):
        types = tuple(_passed_to(name, each, macros) for each in listed.split(",") if each.strip() not in ("", "void"))
        if found.setdefault(name, types) != types:
            raise BackendError(f"kernel {name}: the source has it twice, with different parameters")
    return found


def _passed_to(kernel: str, parameter: str, macros: Mapping[str, Any]) -> np.dtype | None:
    words = [word for word in parameter.replace("*", " * ").split() if word not in QUALIFIERS]
    if "*" in words and {"global", "__global"}.intersection(words):
        return None
    name = " ".join(words[:-1])
    name = str(macros.get(name, name))
    found = SCALARS.get(ALIASES.get(name, name))
    if found is None:
        raise BackendError(
            f"kernel {kernel}: a parameter is `{' '.join(parameter.split())}`; it must be a pointer to global memory, "
            f"or one of {', '.join(SCALARS)}"
        )
    return found


def passed_as(name: str) -> np.dtype | None:
    """Return the dtype as which an argument of a C type is passed: STRUCTURE unless it is a scalar or MEMORY."""
    return None if name == MEMORY else SCALARS.get(name, STRUCTURE)


@cache
def _type_names(stem: str) -> dict[str, tuple[str, ...] | None]:
    """Return the types of each kernel's arguments as written, MEMORY for pointers."""
    text = source_of(stem)
    macros = {name: (own, stands_for) for name, own, stands_for in MACRO.findall(text)}
    return {name: _types(_expanded(parameters, macros)) for name, parameters in KERNEL.findall(text)}


def _expanded(parameters: str, macros: dict[str, tuple[str, str]]) -> str:
    """Return a parameter list with its macros expanded, such as TENSOR(3)."""
    for call in re.findall(r"\b[A-Z_]+\b(?:\(\d+\))?(?=,|$)", parameters.replace("\n", " ").strip()):
        name = call.partition("(")[0]
        if name in macros:
            parameters = parameters.replace(call, macros[name][1])
    return parameters


def _types(parameters: str) -> tuple[str, ...] | None:
    """Return the type of each parameter; None if one of them is not a type and a name."""
    found = []
    for parameter in re.sub(r"\s+|\\\n", " ", parameters).split(","):
        words = [word for word in parameter.split() if word != "const"]
        is_memory = words[0] == "__global"
        if not is_memory and len(words) != 2:
            return None
        found.append(MEMORY if is_memory else words[0])
    return tuple(found)
