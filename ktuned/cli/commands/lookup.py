"""``ktuned lookup``: the best config known now."""

from __future__ import annotations

import click
import msgspec

from ktuned.cli import output, text
from ktuned.cli.completion import complete_kernel
from ktuned.cli.options import (
    SectionedCommand,
    device_option,
    json_option,
    objective_option,
    problem_option,
)
from ktuned.cli.output import Exit
from ktuned.cli.progress import describe_peak_share
from ktuned.model import Scalar, format_objective_suffix, is_exact
from ktuned.protocol import (
    JOBS,
    KERNELS,
    LOOKUP,
    PEAKS,
    RESULTS,
    Answer,
    Change,
    JobsParams,
    JobState,
    KernelsParams,
    LookupParams,
    ResultsParams,
    Status,
    call_method,
    describe_change,
)
from ktuned_client import Client
from ktuned_client.answers import LEFT_OUT

SETTLE_S = 5.0
"""How long an answer may wait for a worker to start and to run the kernel file's constraints."""

MAX_JOBS = 1_000
"""Number of jobs that are searched for the job of a lookup."""


@click.command(cls=SectionedCommand)
@click.argument("kernel", shell_complete=complete_kernel)
@problem_option
@device_option
@click.option("--why", is_flag=True, help="Show the changes that made the answer stale.")
@json_option
@objective_option
def lookup(
    kernel: str,
    problem: dict[str, Scalar],
    device: str | None,
    objective: str | None,
    why: bool,
    as_json: bool,
) -> int:
    """Print the best config known for a kernel."""
    with Client() as client:
        # A person can wait until a worker has decided whether the winner of a near problem is valid for this problem.
        answer = call_method(
            client,
            LOOKUP,
            LookupParams(kernel, problem, device, objective=objective, settle=SETTLE_S),
        )
        is_known = answer.status is not Status.UNKNOWN
        if not is_known and not as_json:
            # The daemon refuses this request, with a similar name as a hint.
            call_method(client, KERNELS, KernelsParams(kernel))
        changes = _load_changes(client, answer) if why and is_known else []
        queue_place = _describe_queue_place(client, answer) if answer.status in (Status.DEFAULT, Status.NEAR) else ""
        # Only the few kernels with metrics need this second request.
        limits = call_method(client, PEAKS).by_device if answer.metrics else {}
        classes = _load_bit_classes(client, answer) if is_exact(answer.objective) and not as_json else []
    if as_json:
        plain = msgspec.to_builtins(answer) | ({"changes": msgspec.to_builtins(changes)} if why and is_known else {})
        output.emit_json({**plain, **LEFT_OUT, **plain})
    elif is_known:
        output.emit_line(text.format_values(answer.config))
        facts = [
            answer.status,
            format_objective_suffix(answer.objective).strip(),
            answer.device,
            text.format_latency(answer.latency_us),
            text.format_metrics(answer.metrics),
            describe_peak_share(answer.metrics, limits, answer.device),
            "" if answer.age_s is None else f"{text.format_duration(answer.age_s)} old",
        ]
        output.emit_line("  ".join(fact for fact in facts if fact))
        lines = [answer.artifact, text.first_line(answer.message), *classes, queue_place]
        for line in filter(None, lines):
            output.emit_line(line)
        for change in changes:
            output.emit_line(f"  {describe_change(change)}")
    if not is_known:
        output.print_error(
            f"no kernel {kernel!r} is known", "`ktuned kernels` lists them; `ktuned tune PATH` adds a file"
        )
        return Exit.NOT_REACHED
    return Exit.DONE


def _describe_queue_place(client: Client, answer: Answer) -> str:
    """Return the place in the queue of the job that a lookup has caused; empty if there is no such job, or not yet."""
    jobs = call_method(client, JOBS, JobsParams(limit=MAX_JOBS)).jobs
    live = [job for job in jobs if job.state in (JobState.RUNNING, JobState.QUEUED)]
    for place, job in enumerate(live):
        if job.kernel == answer.kernel and job.problem.items() <= answer.problem.items():
            if job.state is JobState.RUNNING:
                return f"job {job.id} tunes it now"
            after = f"after {text.format_count(place, 'other job')}" if place else "next"
            return f"job {job.id} tunes it {after}"
    return ""


def _load_bit_classes(client: Client, answer: Answer) -> list[str]:
    """Return the lines about the classes of equal bits for an answer's problem, except the answer's own message."""
    wanted = ResultsParams(answer.kernel, dict(answer.problem) or None, answer.device, current=True)
    found = call_method(client, RESULTS, wanted).numerics
    return [line for report in found for line in report.lines if line != answer.message]


def _load_changes(client: Client, answer: Answer) -> list[Change]:
    """Return the changes since the winner of an answer's problem and device was measured."""
    (kernel,) = call_method(client, KERNELS, KernelsParams(answer.kernel, why=True)).kernels
    return [
        change
        for standing in kernel.why or ()
        if (standing.device, standing.objective) == (answer.device, answer.objective)
        and standing.problem.items() <= answer.problem.items()
        for change in standing.changes
    ]
