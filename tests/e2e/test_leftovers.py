"""Nothing of one config reaches the next: whatever it does to its process, the others find that as it was."""

from __future__ import annotations

import random
import subprocess

import pytest

from tests.e2e.harness import Daemon, make_kernel_text

KINDS = (
    "rounding",
    "environment",
    "python_environment",
    "affinity",
    "directory",
    "umask",
    "signals",
    "limits",
    "timers",
    "slack",
    "blas",
    "thread",
)


def space_of(kinds: list[str]) -> str:
    """Return a space of one config for each kind, in this order."""
    return f"space([dict(us=20.0, does='pollutes', tag=tag) for tag in {kinds!r}])"


@pytest.mark.parametrize("seed", [1])
def test_the_order_of_configs_does_not_matter(daemon: Daemon, seed: int) -> None:
    """Each config is wrong where it finds what another one has changed; in any order all are right."""
    numbers = random.Random(seed)
    kinds = numbers.sample(KINDS, 8)
    orders = kinds, numbers.sample(kinds, len(kinds))
    outcomes = []
    for number, order in enumerate(orders):
        options = {"reference": "lambda x: dict(y=2 * x)", "strategy": "'exhaustive'", "name": f"'it{number}'"}
        # Some ways to change the process take longer than all else.
        daemon.write_kernel(make_kernel_text(space_of(order), early_stop="1e6", **options), f"tune_{number}.py")
        daemon.tune(path=str(daemon.directory / "project" / f"tune_{number}.py"))
        found = daemon.fetch_trials(f"it{number}")
        outcomes.append({tag: trial["outcome"] for tag, trial in found.items()})
    assert outcomes[0] == outcomes[1]
    assert set(outcomes[0].values()) == {"measured"}


def test_a_library_of_the_project_starts_afresh_for_each_config(daemon: Daemon) -> None:
    """What it counts in one config is not there for the next."""
    project = daemon.directory / "project"
    project.mkdir(exist_ok=True)
    source = project / "counts.c"
    source.write_text("static int n; int count(int step) { int before = n; n += step; return before; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(project / "libcounts.so")], check=True)
    text = make_kernel_text(
        "space([dict(us=20.0, does='counts', tag=tag) for tag in 'ab'])",
        reference="lambda x: dict(y=2 * x)",
    )
    daemon.write_kernel(text)
    daemon.tune(path=str(project))
    assert {trial["outcome"] for trial in daemon.fetch_trials().values()} == {"measured"}
