"""``ktuned check``: runs winners once more, with all checks or under a sanitizer."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import click

from ktuned.cli import output, text
from ktuned.cli.completion import complete_kernel
from ktuned.cli.options import json_option, problem_option
from ktuned.cli.output import Exit
from ktuned.model import Scalar
from ktuned.protocol import CHECK, CheckedWinner, CheckParams, call_method
from ktuned_client import Client

CHECK_DEADLINE_S = 3600.0
"""Deadline for all winners of a kernel; under a sanitizer, a single winner may take minutes."""

_CUDA_TOOLKIT = Path("/usr/local/cuda/bin/compute-sanitizer")


@click.command()
@click.argument("kernel", shell_complete=complete_kernel)
@problem_option
@click.option(
    "--sanitize", is_flag=True, help="Run under compute-sanitizer (GPU) or AddressSanitizer (C++ on the CPU)."
)
@json_option
def check(kernel: str, problem: dict[str, Scalar], sanitize: bool, as_json: bool) -> int:
    """Run KERNEL's winners once more and check their outputs.

    Each winner is checked before and after timing, and on two more sets of inputs. Writes outside its tensors are
    found, with --sanitize also reads. Exits with 1 if a winner is wrong or stale, or cannot be checked.
    """
    tools = {"address": _find_address_sanitizer(), "compute": _find_compute_sanitizer()} if sanitize else {}
    with Client() as client, output.report_waiting(f"checking the winners of {kernel}"):
        params = CheckParams(kernel, problem or None, sanitize, **tools)
        found = call_method(client, CHECK, params, deadline_s=CHECK_DEADLINE_S)
    if as_json:
        output.emit_json(found)
    else:
        for winner in found.winners:
            _print_checked_winner(found.kernel, winner)
    return Exit.DONE if all(winner.verdict == "right" for winner in found.winners) else Exit.NOT_REACHED


def _print_checked_winner(kernel: str, winner: CheckedWinner) -> None:
    place = f"{kernel} {text.format_values(winner.problem)} on {winner.device}"
    if winner.verdict == "not_checked":
        output.print_error(f"{place}: not checked: {winner.message}", winner.hint)
        return
    if winner.verdict == "right":
        output.emit_line(f"{place}: right ({', '.join(winner.checks)})")
        return
    output.emit_line(f"{place}: wrong: {winner.message}")
    output.emit_line(f"  config: {text.format_values(winner.config)}")
    for line in winner.report.splitlines():
        output.emit_line(f"  {line}")


def _find_address_sanitizer() -> str:
    """Return the path of the C++ compiler's ``libasan.so``; empty if it has none."""
    compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    try:
        library = subprocess.run(
            [*compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
    # A compiler that does not find the file prints only the file's name.
    return library if os.path.isabs(library) else ""


def _find_compute_sanitizer() -> str:
    return shutil.which("compute-sanitizer") or (str(_CUDA_TOOLKIT) if _CUDA_TOOLKIT.exists() else "")
