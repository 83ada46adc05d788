from __future__ import annotations

import pytest

from ktuned.model import MAX_ERRORS, CompilerError, find_compiler_errors

GCC = """src/gemm.cpp:3:7: error: expected ';' before 'float'
In file included from src/gemm.cpp:1:
src/gemm.hpp: In function 'void gemm()':
src/gemm.hpp:12:9: fatal error: missing.h: No such file or directory
   12 | #include "missing.h"
      |         ^~~~~~~~~~~
src/gemm.cpp:3:7: warning: unused variable 'x' [-Wunused-variable]
compilation terminated.
"""
NVCC = """gemm.cu(12): error: identifier "y" is undefined
      y[i] = x[i];
      ^

gemm.cu(20): error #20: too few arguments in function call
default_program(4): catastrophic error: cannot open source file "none.h"
gemm.cu(30): warning #177-D: variable "z" was declared but never referenced
2 errors detected in the compilation of "gemm.cu".
"""
PTXAS = "ptxas /tmp/gemm.ptx, line 31; error   : Unknown symbol 'q'"
LINKER = "gemm.cpp:9: undefined reference to `helper()'\ncollect2: error: ld returned 1 exit status"
TRACEBACK = """Traceback (most recent call last):
  File "/src/tune_gemm.py", line 40, in gemm
    return make(config)
  File "/src/helpers.py", line 3, in make
    return missing
           ^^^^^^^
NameError: name 'missing' is not defined
"""
SYNTAX = """  File "/src/candidate.py", line 7
    def f(:
          ^
SyntaxError: invalid syntax
"""
TRITON = """at 5:11:
def add(x, y, n: tl.constexpr):
    z = undefined
        ^
NameError('undefined is not defined')
NameError: undefined is not defined
"""


@pytest.mark.parametrize(
    ("message", "errors"),
    [
        (
            GCC,
            [
                ("src/gemm.cpp", 3, 7, "expected ';' before 'float'"),
                ("src/gemm.hpp", 12, 9, "missing.h: No such file or directory"),
            ],
        ),
        (
            NVCC,
            [
                ("gemm.cu", 12, None, 'identifier "y" is undefined'),
                ("gemm.cu", 20, None, "too few arguments in function call"),
                ("default_program", 4, None, 'cannot open source file "none.h"'),
            ],
        ),
        (PTXAS, [("/tmp/gemm.ptx", 31, None, "Unknown symbol 'q'")]),
        (LINKER, [("gemm.cpp", 9, None, "undefined reference to `helper()'")]),
        (TRACEBACK, [("/src/helpers.py", 3, None, "NameError: name 'missing' is not defined")]),
        (SYNTAX, [("/src/candidate.py", 7, None, "SyntaxError: invalid syntax")]),
        (TRITON, [("", 5, 11, "NameError: undefined is not defined")]),
        ("/src/tune_it.py:4: TypeError: no", [("/src/tune_it.py", 4, None, "TypeError: no")]),
        ("fake.c:1: error: no", [("fake.c", 1, None, "no")]),
        ("error: 3 errors", []),
        ("ValueError: without a place", []),
        ("", []),
    ],
)
def test_errors_have_their_place(message: str, errors: list[tuple[str, int, int | None, str]]) -> None:
    assert find_compiler_errors(message) == tuple(CompilerError(*error) for error in errors)


def test_errors_are_few_and_different() -> None:
    lines = [f"a.c:{number}:1: error: bad" for number in range(1, 2 * MAX_ERRORS)]
    found = find_compiler_errors("\n".join([lines[0], *lines]))
    assert [error.line for error in found] == list(range(1, MAX_ERRORS + 1))
