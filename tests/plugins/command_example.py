"""The example that the command plugin shows the conformance suite: a program that prints how long it took."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ktuned.testing.backends import BackendExample
from ktuned_command import Build

SCRIPT = Path(__file__).with_name("says_how_long.sh")


def make_inputs(device: str) -> Mapping[str, Any]:
    """Return no tensors, because programs take none."""
    return {}


def verify_output(tensors: Mapping[str, Any]) -> None:
    """Do nothing: a program that fails has raised already."""


EXAMPLE = BackendExample(
    good=Build(
        ("sh", "{artifact}/copy.sh", 3),
        prepare=(("cp", "says_how_long.sh", "{artifact}/copy.sh"),),
        pattern=r"took ([\d.]+) ms",
    ),
    bad=Build(("sh", "{artifact}/copy.sh"), prepare=(("cp", "no_such_file", "{artifact}/copy.sh"),)),
    complaint="no_such_file",
    sources=(SCRIPT,),
    kernel_file=SCRIPT,
    kernel="says_how_long",
    inputs=make_inputs,
    verify=verify_output,
)
