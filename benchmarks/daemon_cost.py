"""Cost of a trial in the daemon itself: CPU and resident memory, over many trials in one daemon.

Budgets: at most 2 ms of CPU per trial; at most 10 MiB more resident after warm-up. The backend is a fake that compiles
in no time (``tests/fake_backend``), so that the daemon does little else than pass configs on; one client receives all
events, as ``ktuned tune`` does. The figures include the finalists' rounds. 10,000 trials take some minutes;
``--trials 1000`` gives a first impression.
"""

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

from benchmarks.private_daemon import private_home, serving
from benchmarks.report import show

CPU_BUDGET_MS = 2.0
RSS_BUDGET_MIB = 10.0
WARM_UP = 0.1
"""Share of the trials after which memory must not grow any more."""

FAKE_BACKEND = Path(__file__).parent.parent / "tests" / "fake_backend"
_MIB = 1024**2

KERNEL = """
from ktuned import kernel, space, tensor
from ktuned_fake import Build


@kernel(
    backend="fake",
    space=space(index=list(range({trials}))),
    problems=[dict(n=16)],
    inputs=lambda p: dict(x=tensor((p.n,)), y=tensor((p.n,), output=True)),
    reference=lambda x: dict(y=2 * x),
    preset="fast",
    trials={trials},
    early_stop=100.0,
)
def nothing(p, c):
    return Build(us=200.0, tag=str(c.index))
"""


def measure(trials: int) -> dict[str, Any]:
    """Tune a kernel of ``trials`` configs with a private daemon."""
    with private_home() as home:
        project = home / "project"
        project.mkdir()
        (project / "tune_nothing.py").write_text(KERNEL.format(trials=trials))
        (home / "state").mkdir()
        (home / "state" / "config.toml").write_text(
            f'contention = false\n[[roots]]\npath = "{project}"\nenv = {{ PYTHONPATH = "{FAKE_BACKEND}" }}\n'
        )
        with serving(home) as daemon, daemon.client() as client:
            with client.tune(path=project) as tuning:
                done = (event for event in tuning if event["type"] == "trial_done")
                for _ in itertools.islice(done, max(1, int(trials * WARM_UP))):
                    pass
                warm, began = client.call("status"), time.perf_counter()
                for _ in tuning:
                    pass
            took_s = time.perf_counter() - began
            status = client.call("status")
            (job,) = tuning.jobs
    if job["state"] != "done" or job["outcomes"] != {"measured": trials}:
        raise RuntimeError(f"the job is {job['state']} ({job['message']}): {job['outcomes']}")
    counted = trials - max(1, int(trials * WARM_UP))
    cpu_ms = 1000 * (status["cpu_s"] - warm["cpu_s"]) / counted
    growth_mib = (status["rss_bytes"] - warm["rss_bytes"]) / _MIB
    return {
        "trials": trials,
        "seconds": took_s,
        "wall_ms_per_trial": 1000 * took_s / counted,
        "cpu_ms_per_trial": cpu_ms,
        "rss_mib": status["rss_bytes"] / _MIB,
        "rss_growth_mib": growth_mib,
        "in_budget": cpu_ms <= CPU_BUDGET_MS and growth_mib <= RSS_BUDGET_MIB,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--trials", type=int, nargs="*", default=[10_000], help="number of trials; fewer for a quick look"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    title = f"the daemon's own cost (budget: {CPU_BUDGET_MS:g} ms CPU per trial, {RSS_BUDGET_MIB:g} MiB growth)"
    show(title, [measure(trials) for trials in arguments.trials], as_json=arguments.json)


if __name__ == "__main__":
    main()
