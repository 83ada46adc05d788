"""``ktuned.tune``: a tuning from a script, a test or a notebook, followed to its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ktuned.cli import choose_presenter, ensure_daemon, follow_tuning, print_message
from ktuned.model import JobState, KernelFileError, KtunedError, UsageError, canonical
from ktuned.protocol import FileError, read_jobs
from ktuned.python.origin import Origin, find_notebook_shell, find_origin
from ktuned.python.result import Result
from ktuned.spec import Kernel, end_declarations
from ktuned_client import Client, DaemonError, DaemonUnavailable, Tuning

LOOKUP_DEADLINE_S = 10.0
"""Deadline of the lookup behind a result: only the program that has waited for the tuning waits for it."""

Config = Mapping[str, Any]
Problem = Mapping[str, Any]


class TuningFailed(KtunedError):
    """A tuning ended without a winner; the message says why."""

    code = "tuning_failed"


def tune(
    kernel: Kernel | str,
    problem: Problem | None = None,
    *,
    configs: Sequence[Config] | None = None,
    device: str | None = None,
    preset: str | None = None,
    trials: int | None = None,
    seconds: float | None = None,
    strategy: str | None = None,
    until: str | None = None,
    seed: int | None = None,
    objective: str | None = None,
    again: bool = False,
    progress: bool | None = None,
) -> Result:
    """Tune a kernel for one problem in the daemon, which is started if none runs, and return the result.

    ``kernel`` is a declared kernel, of this very program or of a kernel file, or the name of one that the daemon knows.
    ``problem`` may be left out if the kernel declares one alone. ``configs`` are tried instead of the space that they
    are part of; ``again`` measures what was measured before once more. The rest overrides the kernel's own plan.
    ``progress`` is shown in terminals and notebooks, ``True`` prints lines elsewhere, too, and ``False`` nothing.

    Workers import the file that declares the kernel. That import ends at the first call of ``tune``, so what follows it
    runs in the program alone. An interrupt (Ctrl-C) detaches: the job goes on, and an equal call joins it.

    Raises:
        TuningFailed: no config could be measured, or the job was cancelled.
        KernelFileError: the file that declares the kernel cannot be imported by a worker.
        UsageError: the kernel is in no file, or its problem is not known.
        DaemonError: the daemon refused the request.
        DaemonUnavailable: the daemon ended, or did not answer.
    """
    try:
        return _run_tuning(
            kernel,
            problem,
            progress,
            configs=None if configs is None else [dict(config) for config in configs],
            device=device,
            preset=preset,
            trials=trials,
            seconds=seconds,
            strategy=strategy,
            until=until,
            seed=seed,
            objective=objective,
            again=again or None,
        )
    except (KtunedError, DaemonError, DaemonUnavailable) as error:
        # The mistake is the caller's or the job's: a traceback through this module helps no one.
        raise error.with_traceback(None) from None


def _run_tuning(kernel: Kernel | str, problem: Problem | None, progress: bool | None, **options: Any) -> Result:
    end_declarations()
    origin = find_origin(kernel)
    ensure_daemon()
    with Client(deadline_s=LOOKUP_DEADLINE_S, strict=True) as client:
        if problem is None:
            problem = _find_only_problem(kernel, client)
        python = _choose_interpreter(client, origin)
        asked = {**options, "problem": dict(problem), "python": python}
        with client.tune(origin.name, path=origin.path or None, **asked) as tuning:
            if tuning.errors and not tuning.jobs:
                raise _make_file_error(msgspec.convert(tuning.errors[0], FileError))
            _follow_to_end(tuning, progress)
        return _make_result(client, tuning, problem, options["device"])


def _find_only_problem(kernel: Kernel | str, client: Client) -> Problem:
    """Return a kernel's only declared problem.

    Raises:
        UsageError: It declares none, or several.
    """
    if isinstance(kernel, Kernel):
        name, problems = kernel.name, list[Problem](kernel.list_problems())
    else:
        (known,) = client.call("kernels", kernel=kernel)["kernels"]
        name, problems = known["name"], known["problems"]
    if len(problems) == 1:
        return problems[0]
    listed = ", ".join(map(canonical, problems[:3]))
    declares = f"declares {len(problems)} problems" if problems else "declares no problems"
    raise UsageError(
        f"the kernel {name!r} {declares}{f' ({listed} …)' if problems else ''}",
        hint="name the one to tune: ktuned.tune(kernel, problem=dict(…))",
    )


def _choose_interpreter(client: Client, origin: Origin) -> str | None:
    """Return this interpreter, for the workers of a project that is not watched yet; ``None`` for others."""
    if not origin.path:
        return None
    roots = client.call("kernels", path=origin.path)["roots"]
    is_watched = any(os.path.commonpath([root["path"], origin.path]) == root["path"] for root in roots)
    return None if is_watched else sys.executable


def _follow_to_end(tuning: Tuning, progress: bool | None) -> None:
    """Show a tuning until its jobs have ended; with ``None`` only in terminals and notebooks."""
    shell = find_notebook_shell()
    try:
        follow_tuning(tuning, choose_presenter(in_notebook=hasattr(shell, "kernel"), wanted=progress))
    except KeyboardInterrupt:
        job = tuning.jobs[0]["id"]
        print_message(f"detached; job {job} continues: the same call joins it, `ktuned jobs {job} --cancel` cancels it")
        raise


def _make_file_error(error: FileError) -> KernelFileError:
    return KernelFileError(error.message, path=error.path, line=error.line, hint=error.hint, excerpt=error.excerpt)


def _make_result(client: Client, tuning: Tuning, problem: Problem, device: str | None) -> Result:
    """Return the result of a job that has ended.

    Raises:
        TuningFailed: It has no winner.
    """
    job = read_jobs(tuning.jobs)[0]
    name = job.kernel
    if job.state is not JobState.DONE:
        raise TuningFailed(
            f"{name} could not be tuned: {job.message or job.state}",
            hint=f"`ktuned results {name}` lists the configs that failed",
        )
    hit = client.lookup(name, problem, device=device or job.device, objective=job.objective)
    if hit.config is None or hit.latency_us is None or hit.device is None:
        raise TuningFailed(f"{name} has no winner: {hit.message or hit.status}")
    return Result(
        kernel=name,
        problem=hit.problem,
        device=hit.device,
        config=hit.config,
        latency_us=hit.latency_us,
        hit=hit,
        job=tuning.jobs[0],
        default_us=job.default_us,
        reference_us=job.reference_us,
        message=job.message,
    )
