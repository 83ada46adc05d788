"""Candidates in C++: each file of ``candidates`` is one."""

from pathlib import Path

import torch

from ktuned import kernel, space, tensor
from ktuned_tvm_ffi import Build

HERE = Path(__file__).parent
N = 2048


def reference(x, y):
    """Return f(x), which the files of this directory compute."""
    value = torch.zeros_like(x)
    for _ in range(12):
        value = value * 0.5 + x
    return dict(y=value)


@kernel(
    backend="tvm_ffi",
    sources=["candidates.cc"],
    space=space(candidate=sorted(path.stem for path in HERE.glob("candidates/*.cc"))),
    problems=[dict(n=N)],
    inputs=lambda p: dict(x=tensor(p.n), y=tensor(p.n, output=True)),
    reference=reference,
    preset="fast",
)
def in_cpp(p, c):
    """Call the candidate's function ``launch``."""
    macros = dict(CANDIDATE=f'"candidates/{c.candidate}.cc"')
    return Build("launch", ("x", "y"), defines=macros, flags=("-fopenmp",))
