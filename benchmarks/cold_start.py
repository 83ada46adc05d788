"""A cold start: seconds from ``ktuned tune`` to the first measured config, with no daemon running, beside a script.

The script does what one config needs in one process, one thing after the other, as a program would that tunes itself:
it imports torch, makes the inputs and the expected outputs, compiles the default config, checks it and times it. Both
start in turns; the first turn is not counted: it brings files into the page cache and bytecode into the user's.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.direct import Space, compiled_launch, timer_for
from benchmarks.private_daemon import installed_environment, private_home, variables
from benchmarks.report import show
from benchmarks.sides import result_of
from ktuned.backends import Absent, Registry
from ktuned.model import PRESETS
from ktuned.worker.problem import ProblemData
from ktuned.worker.race import RaceRules
from ktuned.worker.timed_launches import TimedLaunches

GOAL_S = 3.0
DEADLINE_S = 60.0


def tuned_s(file: Path) -> float:
    """Return the seconds until ``ktuned tune`` has the first measured config of a kernel file.

    Raises:
        RuntimeError: the job ends without any.
    """
    with private_home() as home:
        project = home / "project"
        shutil.copytree(file.parent, project, ignore=shutil.ignore_patterns("__pycache__"))
        environment = installed_environment() | variables(home)
        command = [sys.executable, "-m", "ktuned", "tune", str(project / file.name), "--json"]
        log = home / "tune.log"
        began = perf_counter()
        with (
            log.open("wb") as errors,
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors) as process,
        ):
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    event = json.loads(line)
                    if event.get("type") == "trial_done" and event["trial"]["outcome"] == "measured":
                        return perf_counter() - began
                raise RuntimeError(f"`ktuned tune {file.name}` ended without a measured config: {log.read_text()}")
            finally:
                process.kill()
                stop = [sys.executable, "-m", "ktuned", "stop"]
                subprocess.run(stop, env=environment, stdout=subprocess.DEVNULL, timeout=DEADLINE_S, check=True)


def script_s(file: Path) -> float:
    """Return the seconds that the script takes, from its start to its latency."""
    took_s, _ = result_of(Path(__file__), "--as-script", str(file))
    return took_s


def measure_default(file: Path) -> float:
    """Compile, check and time the default config of a kernel file in this process; return its latency in µs.

    Raises:
        RuntimeError: it does not compile, or is wrong.
        SystemExit: there is no device for it.
    """
    space = Space.of(file)
    kernel, backend = space.kernel, Registry().load(space.backend)
    found = backend.devices()
    if isinstance(found, Absent):
        raise SystemExit(found.message)
    device, problem = found[0], kernel.list_problems()[0]
    timer = timer_for(kernel, backend, device)
    data = ProblemData(kernel, problem, device)
    data.provide_expected_outputs(Path("no outputs of an earlier run"))
    launch = compiled_launch(space, next(iter(kernel.iterate_default_configs(problem))), device, data)
    data.begin_trial()
    launch()
    timer.synchronize()
    if not (verdict := data.check_outputs()).ok:
        raise RuntimeError(verdict.message)
    return timer.time_launches(TimedLaunches(launch), RaceRules(PRESETS["default"])).samples.median_us


def main() -> None:
    """Start both in turns for each kernel file, and print how long each has taken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("kernels", nargs="+", type=Path, metavar="FILE", help="kernel files of one kernel each")
    parser.add_argument("--turns", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--as-script", action="store_true", help="be the script, for the first FILE")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.as_script:
        print(json.dumps({"latency_us": measure_default(arguments.kernels[0])}))
        return
    rows = []
    for file in map(Path.resolve, arguments.kernels):
        sides: dict[str, Callable[[], float]] = {
            "ktuned tune": partial(tuned_s, file),
            "a script": partial(script_s, file),
        }
        took: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(1 + arguments.turns):
            for name, side in sides.items():
                took[name].append(side())
        counted = {name: seconds[1:] for name, seconds in took.items()}
        ratios = [one / other for one, other in zip(*counted.values(), strict=True)]
        for name, seconds in counted.items():
            spread = {"least_s": min(seconds), "median_s": median(seconds), "most_s": max(seconds)}
            of_script = median(ratios) if name == "ktuned tune" else None
            rows.append({"what": f"{file.name}: {name}", **spread, "of the script's": of_script})
    show(f"cold start: ≤ {GOAL_S:g} s until the first config is measured", rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
