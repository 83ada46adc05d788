"""No config affects the next one, whatever it does to its process."""

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


def make_space(kinds: list[str]) -> str:
    """Return a space with one config for each kind of state, in this order."""
    return f"space([dict(us=20.0, does='pollutes', tag=tag) for tag in {kinds!r}])"


@pytest.mark.parametrize("seed", [1])
def test_the_order_of_configs_does_not_matter(daemon: Daemon, seed: int) -> None:
    """Each config is wrong if it finds state that another one has changed."""
    numbers = random.Random(seed)
    kinds = numbers.sample(KINDS, 8)
    orders = kinds, numbers.sample(kinds, len(kinds))
    outcomes = []
    for number, order in enumerate(orders):
        options = {"reference": "lambda x: dict(y=2 * x)", "strategy": "'exhaustive'", "name": f"it{number}"}
        # Some ways to change the process take longer than all else.
        daemon.write_kernel(make_kernel_text(make_space(order), early_stop="1e6", **options), f"tune_{number}.py")
        daemon.tune(path=daemon.directory / "project" / f"tune_{number}.py")
        trials = daemon.fetch_trials(f"it{number}")
        outcomes.append({tag: trial["outcome"] for tag, trial in trials.items()})
    assert outcomes[0] == outcomes[1]
    assert set(outcomes[0].values()) == {"measured"}


def test_a_project_s_library_is_reloaded_for_each_config(daemon: Daemon) -> None:
    """Its counter starts again."""
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
    daemon.tune(path=project)
    assert {trial["outcome"] for trial in daemon.fetch_trials().values()} == {"measured"}
