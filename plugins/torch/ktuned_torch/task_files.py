"""``ktuned judge --init``: turns problem files into kernel files, each beside the source file of one candidate.

``softmax.py`` becomes ``tune_softmax.py`` and ``candidate_softmax.cc`` (or ``.py``). The candidate does nothing at
first, so its verdict is ``wrong``. A problem that has a kernel file already is left as it is: its candidate may be
somebody's work.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ktuned.model import KtunedError, UsageError
from ktuned_torch.problem_file import Argument, load_problem

Language = Literal["c++", "python"]

KERNEL_FILE = '''\
"""Judges a candidate for {problem}.py, which has the reference: `ktuned judge {kernel_file}`.

The candidate is the function `candidate` in {candidate}, which computes {outputs} from the other tensors.
"""

from ktuned import kernel, space, tensor
from ktuned_torch import {imports}


@kernel(
    name="{kernel}",
    backend="{backend}",
    sources=["{candidate}"],
    depends=["{problem}.py"],
    problems=[dict({shapes})],
    space=space(CANDIDATE=["{candidate}"]),
    inputs=lambda p: dict(
{tensors}
    ),
    reference=lambda **tensors: load_problem("{problem}").run_reference(tensors),{tolerances}
)
def candidate(p, c):
    return Build(function="{function}", args=({arguments}))
'''

CPP = """\
// The candidate for {problem}.py. `ktuned judge {kernel_file}` judges it.
//
{table}

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

using tvm::ffi::TensorView;

void candidate({parameters}) {{
}}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(candidate, candidate);
"""

PYTHON = '''\
"""The candidate for {problem}.py. `ktuned judge {kernel_file}` judges it.

{table}
"""


def candidate({parameters}):
    """Compute {outputs} from the other arguments, and write into the tensors that are given."""
'''

CPP_TYPES = {bool: "bool", int: "int64_t", float: "double"}


@dataclass(frozen=True)
class TaskFiles:
    """The files of one problem, and whether they were written now; or the error of the problem file."""

    problem: str
    kernel_file: str = ""
    candidate: str = ""
    is_new: bool = False
    error: str = ""


def write_task_files(directory: Path, language: Language) -> list[TaskFiles]:
    """Write the files of all problems in a directory.

    Raises:
        UsageError: the directory has no problem file.
    """
    found = sorted(filter(_is_problem_file, directory.glob("*.py")))
    if not found:
        raise UsageError(f"{directory} has no problem file", hint="a problem file is Python that defines get_inputs()")
    sys.path.insert(0, str(directory))
    try:
        return [_write_files(path, language) for path in found]
    finally:
        sys.path.remove(str(directory))


def _is_problem_file(path: Path) -> bool:
    """Return whether a file defines ``get_inputs``. It is not run."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.FunctionDef) and node.name == "get_inputs" for node in body)


def _write_files(path: Path, language: Language) -> TaskFiles:
    problem = path.stem
    try:
        opened = load_problem(problem)
        arguments = opened.describe_arguments()
        tolerances = opened.read_tolerances(arguments)
    except Exception as error:  # the code of a problem file may raise anything
        message = str(error) if isinstance(error, KtunedError) else f"{path}: {type(error).__name__}: {error}"
        return TaskFiles(problem, error=message)
    texts = make_task_texts(problem, arguments, tolerances, language)
    kernel_file, candidate = texts
    is_new = not (path.parent / kernel_file).exists()
    # The candidate first: an interrupted command then leaves no kernel file without one.
    for name in (candidate, kernel_file) if is_new else ():
        (path.parent / name).write_text(texts[name])
    return TaskFiles(problem, kernel_file, candidate, is_new=is_new)


def make_task_texts(
    problem: str, arguments: Sequence[Argument], tolerances: Mapping[str, float], language: Language
) -> dict[str, str]:
    """Return the texts of a problem's kernel file and candidate, by the files' names."""
    is_cpp = language == "c++"
    # The name of a problem file need not be an identifier, but that of a module is.
    stem = re.sub(r"\W", "_", problem)
    kernel_file, candidate = f"tune_{stem}.py", f"candidate_{stem}.{'cc' if is_cpp else 'py'}"
    tensors = [one for one in arguments if one.dtype]
    outputs = [one for one in tensors if one.is_output]
    shapes = {one.name: _format_shape(one) for one in tensors if one.is_input}
    names = {
        "problem": problem,
        # A kernel's name begins with a letter, unlike those of KernelBench's files.
        "kernel": stem if stem[0].isalpha() else f"problem_{stem}",
        "kernel_file": kernel_file,
        "candidate": candidate,
        "backend": "tvm_ffi" if is_cpp else "torch",
        "imports": "load_problem\nfrom ktuned_tvm_ffi import Build" if is_cpp else "Build, load_problem",
        "function": "candidate" if is_cpp else f"candidate_{stem}:candidate",
        "outputs": " and ".join(one.name for one in outputs),
        "shapes": ", ".join(f'{name}="{shape}"' for name, shape in shapes.items()) or f'problem="{problem}"',
        "tensors": "\n".join(_declare_tensors(problem, tensors)),
        "tolerances": "".join(f"\n    {name}={value}," for name, value in tolerances.items()),
        # At least an output; a tuple of one has a comma.
        "arguments": ", ".join(f'"{one.name}"' if one.dtype else repr(one.value) for one in arguments)
        + ("," if len(arguments) == 1 else ""),
    }
    mark = "// " if is_cpp else ""
    width = max(len(one.name) for one in arguments)
    names["table"] = "\n".join(f"{mark}{one.name:<{width}}  {_describe(one)}" for one in arguments)
    parameters = (f"{_name_cpp_type(one)} {one.name}" if is_cpp else one.name for one in arguments)
    names["parameters"] = ", ".join(parameters)
    return {kernel_file: KERNEL_FILE.format(**names), candidate: (CPP if is_cpp else PYTHON).format(**names)}


def _declare_tensors(problem: str, tensors: Sequence[Argument]) -> Iterator[str]:
    """Yield the arguments of ``dict`` that are a kernel file's inputs."""
    if made := [f'"{one.name}"' for one in tensors if not (one.fill or one.is_output)]:
        yield f'        load_problem("{problem}").make_inputs({", ".join(made)}),'
    for one in tensors:
        fill = {**one.fill, **({"output": True} if one.is_output else {})}
        if fill:
            words = "".join(f", {name}={value!r}".replace("'", '"') for name, value in fill.items())
            yield f'        {one.name}=tensor({one.shape}, "{one.dtype}"{words}),'


def _format_shape(argument: Argument) -> str:
    return "x".join(map(str, argument.shape)) or "scalar"


def _describe(argument: Argument) -> str:
    if not argument.dtype:
        return f"always {argument.value}"
    return f"{argument.dtype} [{', '.join(map(str, argument.shape))}]{', to be written' if argument.is_output else ''}"


def _name_cpp_type(argument: Argument) -> str:
    return "TensorView" if argument.dtype else CPP_TYPES[type(argument.value)]
