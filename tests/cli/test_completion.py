"""Shell completion, called as bash calls it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ktuned.cli.completion import complete_kernel_names
from tests.cli.conftest import StartDaemon
from tests.cli.samples import make_kernel_map


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
def test_short_names_are_offered_if_they_are_unique(incomplete: str, expected: list[str]) -> None:
    """Otherwise full names are offered, by either of their parts."""
    assert sorted(complete_kernel_names(["two:gemm", "one:gemm", "one:add"], incomplete)) == expected


def complete_words(words: str) -> list[str]:
    """Return what bash is offered for the last word; the program prints nothing else."""
    environment = {**os.environ, "_KTUNED_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from ktuned.cli import main; sys.exit(main())"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_a_shell_is_offered_kernels_and_paths(start_daemon: StartDaemon) -> None:
    """The daemon knows the names; without a daemon, and for a path, the shell completes files."""
    assert complete_words("ktuned lookup ge") == []
    assert complete_words("ktuned tune ge") == ["file,ge"]
    start_daemon(
        kernels={
            "kernels": [make_kernel_map("project:gemm"), make_kernel_map("project:add")],
            "errors": [],
            "roots": [],
        }
    )
    assert complete_words("ktuned lookup ge") == ["plain,gemm"]
    assert complete_words("ktuned tune ge") == ["plain,gemm"]
    assert complete_words("ktuned tune ./ge") == ["file,./ge"]
    assert complete_words("ktuned nonsense ge") == []
