"""Completion, as a shell asks for it: the program's environment has the words so far."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ktuned.cli.completion import complete_kernel_names
from tests.cli.conftest import Serve
from tests.cli.samples import kernel_map


@pytest.mark.parametrize(
    ("incomplete", "expected"),
    [
        ("", ["add", "one:gemm", "two:gemm"]),
        ("a", ["add"]),
        ("one", ["one:gemm"]),
        ("one:", ["one:add", "one:gemm"]),
        ("g", ["one:gemm", "two:gemm"]),
        ("x", []),
    ],
)
def test_names_that_mean_one_kernel(incomplete: str, expected: list[str]) -> None:
    """A short name is offered where one kernel has it, full names else, for either of their parts."""
    assert sorted(complete_kernel_names(["two:gemm", "one:gemm", "one:add"], incomplete)) == expected


def completed(words: str) -> list[str]:
    """Return what bash is offered for the last of some words; the program says nothing else."""
    given = {**os.environ, "_KTUNED_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from ktuned.cli import main; sys.exit(main())"],
        env=given,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_a_shell_is_offered_kernels_and_paths(serve: Serve) -> None:
    """Names come from the daemon; without one, or for a path, the shell completes files; a wrong word is no error."""
    assert completed("ktuned lookup ge") == []
    assert completed("ktuned tune ge") == ["file,ge"]
    serve(kernels={"kernels": [kernel_map("project:gemm"), kernel_map("project:add")], "errors": [], "roots": []})
    assert completed("ktuned lookup ge") == ["plain,gemm"]
    assert completed("ktuned tune ge") == ["plain,gemm"]
    assert completed("ktuned tune ./ge") == ["file,./ge"]
    assert completed("ktuned nonsense ge") == []
