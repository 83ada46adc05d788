"""``ktuned tune --compile-only``: compiles a space without measuring, with or without a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ktuned.cli import output, text
from ktuned.cli.output import Exit
from ktuned.cli.present import Presenter, TuningInterrupted, cancel_jobs, follow_tuning, request_tuning
from ktuned.cli.progress import News, View
from ktuned.model import Outcome
from ktuned.protocol import COMPILE, CompileParams, ConfigCompiled, JobInfo
from ktuned_client import Client

if TYPE_CHECKING:
    from ktuned_client.messages import Event as EventMap

COMPILED = "ok"
"""Shown in place of an outcome for a config with an artifact."""

MAX_HELD = 20_000
"""Most lines that are held back; they take a few MiB."""

_WIDTH = len("compile_timeout")
_MESSAGE_CHARS = 160


def compile_space(client: Client, wanted: CompileParams, as_json: bool) -> int:
    """Compile a space's configs for later jobs, and print the result of each; Ctrl-C cancels."""
    accepted = request_tuning(client, COMPILE, wanted)
    presenter = CompilePresenter(as_json=as_json, several=len(accepted.jobs) > 1)
    try:
        view = follow_tuning(client, accepted, presenter)
    except TuningInterrupted as interrupt:
        cancel_jobs(client, interrupt.open_jobs)
        output.print_message("cancelled; compiled configs are kept")
        return Exit.INTERRUPTED
    jobs = [known.job for known in view.jobs.values()]
    if as_json:
        output.emit_json(jobs)
    _print_summary(jobs, presenter.reported, presenter.shown.refusal)
    ready = sum(job.outcomes.get("compiled", 0) for job in jobs)
    return Exit.DONE if ready and not accepted.errors else Exit.NOT_REACHED


class CompilePresenter(Presenter):
    """Prints every config when it is ready; ``reported`` is the number of configs so far."""

    def __init__(self, *, as_json: bool, several: bool) -> None:
        self.reported = 0
        self.shown = Lines()
        self._as_json = as_json
        self._several = several

    def show_event(self, received: EventMap | None, view: View, news: Sequence[News]) -> None:
        """Print the configs among the news."""
        for event in news:
            if not isinstance(event, ConfigCompiled):
                continue
            self.reported += 1
            if self._as_json:
                output.emit_json(received)
            else:
                refusal = event.message if event.outcome is Outcome.UNSUPPORTED else None
                for line in self.shown.take_line(describe_config(event, several=self._several), refusal):
                    output.emit_line(line)


class Lines:
    """Lines of configs. They are held back as long as all configs are unsupported for the same reason.

    The reason is then not a config's: the backend does not support the architecture.
    """

    def __init__(self) -> None:
        self._is_first = True
        self._reason: str | None = None
        self._held: list[str] = []

    @property
    def refusal(self) -> str:
        """The reason why all configs are unsupported, if no line was printed; else empty."""
        return self._reason or ""

    def take_line(self, line: str, refusal: str | None) -> list[str]:
        """Take a config's line and return the lines to print now; ``refusal`` is why the config is unsupported."""
        if self._is_first:
            self._is_first, self._reason = False, refusal
        if refusal and refusal == self._reason and len(self._held) < MAX_HELD:
            self._held.append(line)
            return []
        due, self._held, self._reason = [*self._held, line], [], None
        return due


def describe_config(event: ConfigCompiled, *, several: bool) -> str:
    """Return the result of one config as a line; with ``several`` jobs, it has the kernel and the problem."""
    config = text.format_values(event.config)
    if several:
        config = f"{event.kernel} [{text.format_values(event.problem)}] {config}"
    line = f"{event.outcome or COMPILED:<{_WIDTH}}  {event.compile_s:>7.2f} s  {config}"
    if event.outcome is not None:
        return f"{line}  {text.first_line(event.message, _MESSAGE_CHARS)}"
    facts = " ".join(f"{name}={value}" for name, value in event.facts.items() if isinstance(value, int | float))
    return "  ".join(filter(None, (line, facts, "(reused)" if event.reused else "")))


def _print_summary(jobs: Sequence[JobInfo], reported: int, refusal: str) -> None:
    """Print each job's end on stderr, with the reason if all configs were refused, and the number of missed events."""
    for job in jobs:
        counts = text.format_outcomes(job.outcomes)
        compile_s, wall_s = (text.format_duration(job.cost.get(name)) for name in ("compile_s", "wall_s"))
        cost = f"{compile_s} of compiling in {wall_s}"
        problem = f" [{text.format_values(job.problem)}]" if job.problem else ""
        why = f": {text.first_line(refusal, _MESSAGE_CHARS)}" if refusal else ""
        output.print_message(f"{job.kernel}{problem}: {job.message or job.state}{why} ({counts}; {cost})")
    missed = sum(job.done for job in jobs) - reported
    if missed > 0:
        output.print_message(f"{missed} configs are not listed: their events came faster than they were read")
