"""All of ktuned in three minutes, on any machine: tune, edit, tune again, look up. ``make demo`` runs it.

Everything happens in a temporary directory, with a daemon of its own: a daemon, a store or a kernel of yours is neither
needed nor touched. Each step is one function below, in the order in which they run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ktuned.cli import output, progress, text
from ktuned.model import KtunedError
from ktuned_client import Client, DaemonError, DaemonUnavailable

EXAMPLES = Path(__file__).resolve().parent
KERNEL = "cpu_gemm:gemm"

TUNING_S = 100.0
"""When the first tuning stops trying: two idle cores are through the whole space before, a busy machine is not."""

COMMAND_S = TUNING_S + 50.0
"""How long one command may take: what was begun is measured to its end, and the finalists are measured again."""

RETUNE_S = 20.0
"""How long the application looks on while the edited kernel is tuned again; the rest is cancelled."""

PATIENCE_S = 60.0
"""How long anything else may take before the demo gives up."""

OWN_LOAD = 1.0
"""Load above the number of cores that is put down to tuning itself: a rule of thumb, which only words a warning."""

_POLL_S = 0.02

COMMENT = "// Whoever reads this: a comment is no reason to tune again.\n"
LINE = "    std::memcpy(row_of_b, b, sizeof(row_of_b));\n"
EDITED_LINE = f"{LINE}    __builtin_prefetch(b + kTileColumns);\n"

# Busy neighbours must not leave the demo without figures; a daemon repeats disturbed timings otherwise.
SETTINGS = "contention = false\n"


class DemoFailed(Exception):
    """A step did not end as it should; says which one, and how."""


@dataclass(frozen=True)
class Stage:
    """The temporary directory in which everything happens."""

    directory: Path

    @property
    def home(self) -> Path:
        """Where the daemon keeps its state."""
        return self.directory / "home"

    @property
    def socket(self) -> Path:
        """Where the daemon listens."""
        return self.directory / "run" / "ktuned.sock"

    @property
    def log(self) -> Path:
        """What the daemon says."""
        return self.directory / "serve.log"

    @property
    def project(self) -> Path:
        """The copy of the example that is tuned and edited."""
        return self.directory / "cpu_gemm"

    @property
    def source(self) -> Path:
        """The C++ that is edited."""
        return self.project / "gemm.cc"

    @property
    def environment(self) -> dict[str, str]:
        """What leads every process that the demo starts to the demo's own daemon."""
        return {**os.environ, "KTUNED_HOME": str(self.home), "KTUNED_SOCKET": str(self.socket)}

    def ktuned(self, *words: str) -> int:
        """Run one ``ktuned`` command on our terminal and return its exit code."""
        print(f"$ ktuned {' '.join(words)}", flush=True)
        command = [sys.executable, "-m", "ktuned", *words]
        try:
            return subprocess.run(command, env=self.environment, timeout=COMMAND_S, check=False).returncode
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"`ktuned {words[0]}` has not ended after {COMMAND_S:g} s") from None

    @contextmanager
    def app(self) -> Iterator[Application]:
        """Run ``examples/app.py`` for the length of a block."""
        print("$ python examples/app.py", flush=True)
        command = [sys.executable, str(EXAMPLES / "app.py"), "--kernel", KERNEL]
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield Application(process)
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=PATIENCE_S)
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            raise DemoFailed(f"examples/app.py ended with status {process.returncode}")

    def processes(self) -> list[int]:
        """Return every process of this daemon: itself, its workers, and whatever those started."""
        mark = f"KTUNED_HOME={self.home}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found


@dataclass(frozen=True)
class Application:
    """A running ``examples/app.py``."""

    process: subprocess.Popen[str]

    def lines(self, at_most_s: float) -> Iterator[str]:
        """Yield its lines and print them, as they come; after ``at_most_s`` it is asked to end, and with it they do."""
        assert self.process.stdout is not None
        timer = threading.Timer(at_most_s, self.process.send_signal, [signal.SIGINT])
        timer.start()
        try:
            for line in self.process.stdout:
                print(line, end="", flush=True)
                yield line
        finally:
            timer.cancel()

    def sees(self, status: str) -> bool:
        """Wait until a lookup has a status, and tell whether one had."""
        return any(status_in(line) == status for line in self.lines(PATIENCE_S))


def main(argv: Sequence[str] | None = None) -> int:
    """Run every step; return 0, or 1 after one line that says what failed."""
    parser = argparse.ArgumentParser(description="Tune, edit, tune again, look up: with a daemon of the demo's own.")
    parser.add_argument("--trials", type=int, help="configs of the first tuning (default: the whole space)")
    parser.add_argument("--seconds", type=float, default=RETUNE_S, help="of the second (default: %(default)g)")
    options = parser.parse_args(argv)
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="ktuned-demo-") as directory:
            demonstrate(Stage(Path(directory).resolve()), options.trials, options.seconds)
    except (DemoFailed, DaemonError, DaemonUnavailable, KtunedError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"\nThat was ktuned, in {text.duration(time.monotonic() - began)}.")
    return 0


def demonstrate(stage: Stage, trials: int | None, retune_s: float) -> None:
    """Take one step after the other."""
    title("A private daemon, and a copy of examples/cpu_gemm")
    set_up(stage)
    with serving(stage) as client:
        title("Tune it: compile, check and time each config, whatever it does")
        job = tune(stage, client, trials)
        title("What came out")
        show_results(client, job)
        title("Edit a comment: nothing is tuned again")
        edit_comment(stage, client, job)
        title("Edit the code: an application that goes on meanwhile sees `stale`, then `fresh`")
        edit_code(stage, client, job, retune_s)
        title("Look the winner up, load it, run it")
        run_winner(stage)
        title("Stop")
        stop(stage)


def title(words: str) -> None:
    """Begin a step."""
    print(f"\n── {words}\n", flush=True)


def set_up(stage: Stage) -> None:
    """Copy the example, and write the daemon's settings."""
    shutil.copytree(EXAMPLES / "cpu_gemm", stage.project, ignore=shutil.ignore_patterns("__pycache__"))
    stage.home.mkdir(mode=0o700)
    (stage.home / "config.toml").write_text(SETTINGS)


@contextmanager
def serving(stage: Stage) -> Iterator[Client]:
    """Run ``ktuned serve``, and yield a client of it; whatever happens, the daemon ends with the block."""
    with stage.log.open("wb") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "ktuned", "serve"],
            env=stage.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C is for the demo, which then ends its daemon in order.
            start_new_session=True,
        )
    with Client(stage.socket) as client:
        try:
            until(lambda: is_ready(stage, client, daemon), "the daemon to answer")
            print(f"ktuned serve runs as pid {daemon.pid}; state and socket are in {stage.directory}")
            yield client
        finally:
            daemon.terminate()
            try:
                daemon.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def is_ready(stage: Stage, client: Client, daemon: subprocess.Popen[bytes]) -> bool:
    """Tell whether the daemon answers."""
    if daemon.poll() is not None:
        words = stage.log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        raise DemoFailed(f"the daemon ended with status {daemon.returncode}; its last words: {words[-1]}")
    try:
        client.call("hello")
    except DaemonUnavailable:
        return False
    return True


def tune(stage: Stage, client: Client, trials: int | None) -> Mapping[str, Any]:
    """Tune the example through the command line, which shows it live; return the job as it ended."""
    budget = ["--seconds", f"{TUNING_S:g}"] if trials is None else ["--trials", str(trials)]
    status = stage.ktuned("tune", str(stage.project), "--no-spawn", *budget)
    if status:
        raise DemoFailed(f"`ktuned tune` found no winner (exit code {status}); its own words are above")
    job: Mapping[str, Any] = jobs(client)[0]
    return job


def show_results(client: Client, job: Mapping[str, Any]) -> None:
    """Print the winner beside the default, the slowest and torch; then what failed, and how."""
    default = client.call("kernels", kernel=KERNEL)["kernels"][0]["default"]
    winner = look_up(client, job)
    trials = client.call("results", kernel=KERNEL, limit=2000)["trials"]
    slowest = max((trial for trial in trials if trial["latency_us"]), key=lambda trial: float(trial["latency_us"]))
    contenders = [
        ("winner", winner["latency_us"], winner["config"]),
        ("default", job["default_us"], default),
        ("slowest", slowest["latency_us"], slowest["config"]),
        ("torch.matmul", job["reference_us"], {}),
    ]
    output.table(
        ["", "latency", "speed", "config"],
        (
            [name, text.latency(latency_us), speed(job["default_us"], latency_us), text.flat(alike(config, default))]
            for name, latency_us, config in contenders
        ),
        right=["latency", "speed"],
    )
    print(
        "\nSpeed is the default's latency over this one. The slowest was timed once, beside a compiler; the others in"
    )
    print("turns, while nothing compiled.\n")
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores + OWN_LOAD:
        print(f"This machine is busy otherwise (load {load:.1f} on {cores} cores), which disturbs these figures.\n")
    failed = [trial for outcome in progress.FAILURES for trial in trials if trial["outcome"] == outcome]
    if not failed:
        print("None of the configs that were tried failed.")
        return
    output.table(
        ["failed as", "config (the default, but …)", "because"],
        (
            [trial["outcome"], difference(trial["config"], default), text.first_line(trial["message"])]
            for trial in failed
        ),
    )


def speed(default_us: float | None, latency_us: float | None) -> str:
    """Return how many times as fast as the default something is."""
    return text.times(default_us / latency_us if default_us and latency_us else None)


def alike(config: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with its knobs in the default's order."""
    return {knob: config[knob] for knob in default if knob in config}


def difference(config: Mapping[str, Any], default: Mapping[str, Any]) -> str:
    """Return the knobs that are not as in the default."""
    return text.flat({knob: value for knob, value in config.items() if value != default.get(knob)})


def edit_comment(stage: Stage, client: Client, job: Mapping[str, Any]) -> None:
    """Save the source with one more comment; the daemon reads it, and leaves everything as it is."""
    save(stage, COMMENT + stage.source.read_text())
    until(lambda: has_read(stage, client), "the daemon to read the saved file")
    status = look_up(client, job)["status"]
    if jobs(client) != [job] or status != "fresh":
        raise DemoFailed(f"a comment made ktuned tune again, or its winner {status}")
    print(f"The daemon has read the saved file. There is no new job, and the winner is still {status}.")


def edit_code(stage: Stage, client: Client, job: Mapping[str, Any], retune_s: float) -> None:
    """Save the source with a prefetch in its inner loop, and follow an application while that is tuned."""
    with stage.app() as app:
        if not app.sees("fresh"):
            raise DemoFailed("the application did not see the winner before the edit")
        save(stage, stage.source.read_text().replace(LINE, EDITED_LINE))
        saved_at = time.monotonic()
        print(f"           saved {stage.source.name}: + {EDITED_LINE.removeprefix(LINE).strip()}", flush=True)
        if not app.sees("stale"):
            raise DemoFailed("the application did not see `stale` after the edit")
        for _ in app.lines(max(0.0, saved_at + retune_s - time.monotonic())):
            pass
    until(lambda: look_up(client, job)["status"] == "fresh", "the edited kernel's first winner")
    for stopped in client.call("cancel", kernel=KERNEL)["jobs"]:
        tried = f"{stopped['done']} of {stopped['total']} configs"
        print(f"\n{tried} have been tried again; the demo cancels the rest to save your time.")


def run_winner(stage: Stage) -> None:
    """Start the application once more: what it looks up now is compiled, and it runs that."""
    with stage.app() as app:
        if not any(status_in(line) == "fresh" and "kernel.so" in line for line in app.lines(PATIENCE_S)):
            raise DemoFailed("the application was to run the winner, and did not")


def stop(stage: Stage) -> None:
    """Stop the daemon, and look for what it left."""
    before = len(stage.processes())
    if stage.ktuned("stop"):
        raise DemoFailed("`ktuned stop` did not stop the daemon")
    left = stage.processes()
    if left:
        raise DemoFailed(f"processes are left: {', '.join(map(str, left))}")
    print(f"{before} processes before, none now.")


def save(stage: Stage, source: str) -> None:
    """Write the source as an editor does, at once."""
    if source == stage.source.read_text():
        raise DemoFailed(f"{stage.source.name} has no line to edit: {LINE.strip()}")
    written = stage.source.with_suffix(".new")
    written.write_text(source)
    written.replace(stage.source)


def has_read(stage: Stage, client: Client) -> bool:
    """Tell whether the daemon knows the source as it is on the disk."""
    (kernel,) = client.call("kernels", kernel=KERNEL)["kernels"]
    known: str = kernel["stamps"][str(stage.source)]
    return known == hashlib.sha256(stage.source.read_bytes()).hexdigest()


def look_up(client: Client, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an application is answered for the job's problem."""
    answer: dict[str, Any] = client.call("lookup", kernel=KERNEL, problem=job["problem"])
    return answer


def jobs(client: Client) -> list[dict[str, Any]]:
    """Return the kernel's jobs, the newest first."""
    found: list[dict[str, Any]] = client.call("jobs", kernel=KERNEL)["jobs"]
    return found


def status_in(line: str) -> str:
    """Return the lookup's status in a line of the application: `` 1.2 s  fresh  kernel.so …``."""
    words = line.split()
    return words[2] if len(words) > 2 else ""


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that another process does.

    Raises:
        DemoFailed: it did not within :data:`PATIENCE_S`.
    """
    deadline = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise DemoFailed(f"waited {PATIENCE_S:g} s for {what}")
        pause.wait(_POLL_S)


if __name__ == "__main__":
    sys.exit(main())
