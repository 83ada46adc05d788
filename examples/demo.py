"""Demonstration of ktuned in three minutes, on any machine: tune, edit, tune again, look up. ``make demo`` runs it.

Everything happens in a temporary directory, with a private daemon; your own daemon, store and kernels are not touched.
Each step is one function below, in the order in which they run.
"""

from __future__ import annotations

import argparse
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

from ktuned.cli import output, text
from ktuned.cli.progress import FAILURES
from ktuned.model import KtunedError
from ktuned_client import Client, DaemonError, DaemonUnavailable

EXAMPLES = Path(__file__).resolve().parent
KERNEL = "cpu_gemm:gemm"

TUNING_S = 100.0
"""Budget of the first tuning: two idle cores finish the whole space earlier, a busy machine does not."""

COMMAND_S = TUNING_S + 50.0
"""Deadline of one command: running trials are finished, and the finalists are measured again."""

RETUNE_S = 20.0
"""Time for which the application runs while the edited kernel is tuned again; then the job is cancelled."""

PATIENCE_S = 60.0
"""Deadline of every other step."""

OWN_LOAD = 1.0
"""Load above the number of cores that tuning itself causes: a rule of thumb, used only for a warning."""

_POLL_S = 0.02

COMMENT = "# A comment is no reason to tune again.\n"
LINE = "    std::memcpy(row_of_b, b, sizeof(row_of_b));\n"
EDITED_LINE = f"{LINE}    __builtin_prefetch(b + kTileColumns);\n"

# On a busy machine a daemon repeats disturbed timings, which could leave the demo without figures.
SETTINGS = "contention = false\n"


class DemoFailed(Exception):
    """A step failed; the message names it and the failure."""


@dataclass(frozen=True)
class Stage:
    """The temporary directory in which everything happens."""

    directory: Path

    @property
    def home(self) -> Path:
        """The daemon's state directory."""
        return self.directory / "home"

    @property
    def socket(self) -> Path:
        """The daemon's socket."""
        return self.directory / "run" / "ktuned.sock"

    @property
    def log(self) -> Path:
        """The daemon's log."""
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
    def kernel_file(self) -> Path:
        """The kernel file, which declares the space and the problems."""
        return self.project / "tune_gemm.py"

    @property
    def environment(self) -> dict[str, str]:
        """Environment in which every process finds the demo's own daemon."""
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
        """Return every process of this daemon: itself, its workers, and their descendants."""
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
        """Yield and print its lines as they arrive; after ``at_most_s`` it is stopped, which ends them."""
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
        """Wait until a lookup has a status; return whether one had."""
        return any(status_in(line) == status for line in self.lines(PATIENCE_S))


def main(argv: Sequence[str] | None = None) -> int:
    """Run every step; return 0, or 1 after one line with the failure."""
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
    print(f"\nThat was ktuned, in {text.format_duration(time.monotonic() - began)}.")
    return 0


def demonstrate(stage: Stage, trials: int | None, retune_s: float) -> None:
    """Take one step after the other."""
    title("A private daemon, and a copy of examples/cpu_gemm")
    set_up(stage)
    with serving(stage) as client:
        title("Tune it: compile, check and time each config")
        job = tune(stage, client, trials)
        title("The results")
        show_results(client, job)
        title("Edit a comment: nothing is tuned again")
        edit_comment(stage, client, job)
        title("Edit the code: a running application sees `stale`, then `fresh`")
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
    """Run ``ktuned start --foreground``, and yield a client of it; the daemon ends with the block in any case."""
    with stage.log.open("wb") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "ktuned", "start", "--foreground"],
            env=stage.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C goes to the demo, which then ends its daemon in order.
            start_new_session=True,
        )
    with Client(stage.socket) as client:
        try:
            until(lambda: is_ready(stage, client, daemon), "the daemon to answer")
            print(f"ktuned start --foreground runs as pid {daemon.pid}; state and socket are in {stage.directory}")
            yield client
        finally:
            daemon.terminate()
            try:
                daemon.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def is_ready(stage: Stage, client: Client, daemon: subprocess.Popen[bytes]) -> bool:
    """Return whether the daemon answers."""
    if daemon.poll() is not None:
        words = stage.log.read_text(errors="replace").strip().splitlines() or ["its log is empty"]
        raise DemoFailed(f"the daemon ended with status {daemon.returncode}; its last line: {words[-1]}")
    try:
        client.call("hello")
    except DaemonUnavailable:
        return False
    return True


def tune(stage: Stage, client: Client, trials: int | None) -> Mapping[str, Any]:
    """Tune the example through the command line, which shows it live; return the job's final state."""
    budget = ["--time-limit", f"{TUNING_S:g}"] if trials is None else ["--trials", str(trials)]
    status = stage.ktuned("tune", str(stage.project), *budget)
    if status:
        raise DemoFailed(f"`ktuned tune` found no winner (exit code {status}); its messages are above")
    job: Mapping[str, Any] = jobs(client)[0]
    return job


def show_results(client: Client, job: Mapping[str, Any]) -> None:
    """Print the winner beside the default, the slowest and torch; then the failures."""
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
    output.print_table(
        ["", "latency", "speed", "config"],
        (
            [
                name,
                text.format_latency(latency_us),
                speed(job["default_us"], latency_us),
                text.format_values(alike(config, default)),
            ]
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
    failed = [trial for outcome in FAILURES for trial in trials if trial["outcome"] == outcome]
    if not failed:
        print("No config failed.")
        return
    output.print_table(
        ["failed as", "config (the default, but …)", "because"],
        (
            [trial["outcome"], difference(trial["config"], default), text.first_line(trial["message"])]
            for trial in failed
        ),
    )


def speed(default_us: float | None, latency_us: float | None) -> str:
    """Return the speed-up over the default."""
    return text.format_factor(default_us / latency_us if default_us and latency_us else None)


def alike(config: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with its knobs in the default's order."""
    return {knob: config[knob] for knob in default if knob in config}


def difference(config: Mapping[str, Any], default: Mapping[str, Any]) -> str:
    """Return the knobs that differ from the default."""
    return text.format_values({knob: value for knob, value in config.items() if value != default.get(knob)})


def edit_comment(stage: Stage, client: Client, job: Mapping[str, Any]) -> None:
    """Save the kernel file with one more comment; the daemon reads it, and changes nothing."""
    save(stage.kernel_file, stage.kernel_file.read_text() + COMMENT)
    client.call("add", path=str(stage.kernel_file))  # It is answered when the daemon has read the saved file.
    # Stale for a moment: another look at the file may have been asked for meanwhile.
    until(lambda: look_up(client, job)["status"] == "fresh", "the winner to be fresh beside a new comment")
    if jobs(client) != [job]:
        raise DemoFailed("a comment made ktuned tune again")
    print("The daemon has read the saved file. There is no new job, and the winner is still fresh.")


def edit_code(stage: Stage, client: Client, job: Mapping[str, Any], retune_s: float) -> None:
    """Save the source with a prefetch in its inner loop, and follow an application during the tuning."""
    with stage.app() as app:
        if not app.sees("fresh"):
            raise DemoFailed("the application did not see the winner before the edit")
        save(stage.source, stage.source.read_text().replace(LINE, EDITED_LINE))
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
    """Start the application once more: it looks up the compiled winner, and runs it."""
    with stage.app() as app:
        if not any(status_in(line) == "fresh" and "kernel.so" in line for line in app.lines(PATIENCE_S)):
            raise DemoFailed("the application did not run the winner")


def stop(stage: Stage) -> None:
    """Stop the daemon, and look for processes that it left behind."""
    before = len(stage.processes())
    if stage.ktuned("stop"):
        raise DemoFailed("`ktuned stop` did not stop the daemon")
    left = stage.processes()
    if left:
        raise DemoFailed(f"processes are left: {', '.join(map(str, left))}")
    print(f"{before} processes before, none now.")


def save(file: Path, content: str) -> None:
    """Replace a file atomically, as an editor does."""
    if content == file.read_text():
        raise DemoFailed(f"{file.name} has no line to edit: {LINE.strip()}")
    written = file.with_suffix(".new")
    written.write_text(content)
    written.replace(file)


def look_up(client: Client, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to an application for the job's problem."""
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
    """Wait for an action of another process.

    Raises:
        DemoFailed: it did not happen within :data:`PATIENCE_S`.
    """
    deadline = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise DemoFailed(f"waited {PATIENCE_S:g} s for {what}")
        pause.wait(_POLL_S)


if __name__ == "__main__":
    sys.exit(main())
