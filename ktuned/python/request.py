"""``ktuned.tune``: a tuning from a script, a test or a notebook, followed to its end.

A kernel that a program passes has an *origin*: the file that workers import, and the kernel's name there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ktuned.cli import choose_presenter, ensure_daemon, follow_tuning, print_message
from ktuned.declaration import Kernel, end_declarations
from ktuned.model import KernelFileError, KtunedError, UsageError, canonical
from ktuned.protocol import (
    KERNELS,
    TUNE,
    FileError,
    JobInfo,
    JobState,
    KernelsParams,
    TuneAnswer,
    TuneParams,
    call_method,
    find_root,
)
from ktuned.python.cells import MARK, write_kernel_text
from ktuned.python.result import Result
from ktuned_client import Client, DaemonError, DaemonUnavailable
from ktuned_client.answers import TUNE_DEADLINE_S, Config, Problem


@dataclass(frozen=True)
class Origin:
    """The file that declares a kernel, and its name there; without a ``path`` the daemon knows the kernel by name."""

    name: str
    path: str = ""


def find_origin(kernel: Kernel | str) -> Origin:
    """Return where a kernel is declared; a notebook's kernel is written to a file first.

    Raises:
        UsageError: no file declares the kernel, or the file cannot be written.
        TypeError: the value is not a kernel.
    """
    if isinstance(kernel, str):
        return Origin(kernel)
    if not isinstance(kernel, Kernel):
        raise TypeError(f"give a kernel or its name, not a value of type {type(kernel).__name__}")
    path = os.path.abspath(kernel.file)
    if os.path.isfile(path):
        return Origin(kernel.name, path)
    shell = find_notebook_shell()
    if shell is None:
        raise UsageError(
            f"the kernel {kernel.name!r} is declared in {kernel.file}, which is not a file",
            hint="workers import the code that declares a kernel: put it into a file, or into a notebook",
        )
    return Origin(kernel.name, _write_kernel_file(kernel, shell))


def find_notebook_shell() -> Any:
    """Return IPython's shell if this process is a notebook or an interactive IPython, else ``None``."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def _write_kernel_file(kernel: Kernel, shell: Any) -> str:
    """Write a notebook's kernel to a kernel file in the working directory, if it differs; return its path.

    From there the kernel finds its sources and modules as the notebook does, and the daemon watches the file.
    """
    names = [name for name, value in shell.user_ns.items() if value is kernel]
    text = write_kernel_text(shell.history_manager.input_hist_parsed, kernel.name, names)
    path = Path.cwd() / f"tune_{kernel.name}_notebook.py"
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else None
        if before is not None and MARK not in before.partition("\n")[0]:
            hint = "rename it, or give the kernel another name=…"
            raise UsageError(f"{path} was not written from a notebook", hint=hint)
        if before != text:
            # Replaced in one step, because the daemon may read it at any time.
            fresh = path.with_name(f".{path.name}.new")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}",
            hint="a notebook's kernel goes to a file in its working directory: `%cd` to one of yours",
        ) from error
    return str(path)


LOOKUP_DEADLINE_S = 10.0
"""Deadline of the lookup that gives a result its winner. It is long because the program has waited for the tuning
anyway."""


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
    time_limit_s: float | None = None,
    strategy: str | None = None,
    until: str | None = None,
    seed: int | None = None,
    objective: str | None = None,
    again: bool = False,
    progress: bool | None = None,
) -> Result:
    """Tune a kernel for one problem in the daemon, which is started if none runs, and return the result.

    ``kernel`` is a kernel declared in this program or in a kernel file, or the name of a kernel that the daemon knows.
    ``problem`` may be left out if the kernel declares only one. ``configs`` are configs of the space; only these are
    tried. ``again`` measures configs that were measured before once more. The other arguments override the kernel's own
    plan. By default, progress is shown in terminals and notebooks; with ``progress=True`` lines are printed elsewhere,
    too, and with ``False`` nothing is shown.

    Workers import the file that declares the kernel. Their import ends at the first call of ``tune``, so the code after
    it runs only in the program. An interrupt (Ctrl-C) detaches: the job continues, and an equal call joins it.

    Raises:
        TuningFailed: no config could be measured, or the job was cancelled.
        KernelFileError: the file that declares the kernel cannot be imported by a worker.
        UsageError: no file declares the kernel, or the kernel does not declare exactly one problem and none is given.
        DaemonError: the daemon refused the request.
        DaemonUnavailable: the daemon ended, or did not answer.
    """
    wanted = TuneParams(
        configs=None if configs is None else [dict(config) for config in configs],
        device=device,
        preset=preset,
        trials=trials,
        time_limit_s=time_limit_s,
        strategy=strategy,
        until=until,
        seed=seed,
        objective=objective,
        again=again,
    )
    try:
        return _run_tuning(kernel, problem, wanted, progress)
    except (KtunedError, DaemonError, DaemonUnavailable) as error:
        # The caller or the job has made the mistake, so a traceback through this module would not help.
        raise error.with_traceback(None) from None


def _run_tuning(kernel: Kernel | str, problem: Problem | None, wanted: TuneParams, progress: bool | None) -> Result:
    end_declarations()
    origin = find_origin(kernel)
    ensure_daemon()
    with Client(deadline_s=LOOKUP_DEADLINE_S, strict=True) as client:
        if problem is None:
            problem = _find_only_problem(kernel, client)
        wanted = msgspec.structs.replace(
            wanted,
            kernel=origin.name,
            path=origin.path or None,
            problem=dict(problem),
            python=_choose_interpreter(client, origin),
        )
        accepted = call_method(client, TUNE, wanted, deadline_s=TUNE_DEADLINE_S)
        if accepted.errors and not accepted.jobs:
            raise _make_file_error(accepted.errors[0])
        job = _follow_to_end(client, accepted, progress)
        return _make_result(client, job, problem, wanted.device)


def _find_only_problem(kernel: Kernel | str, client: Client) -> Problem:
    """Return a kernel's only declared problem.

    Raises:
        UsageError: the kernel declares none, or several.
    """
    if isinstance(kernel, Kernel):
        name, problems = kernel.name, list[Problem](kernel.list_problems())
    else:
        (known,) = call_method(client, KERNELS, KernelsParams(kernel)).kernels
        name, problems = known.name, list(known.problems)
    if len(problems) == 1:
        return problems[0]
    listed = ", ".join(map(canonical, problems[:3]))
    declares = f"declares {len(problems)} problems" if problems else "declares no problems"
    raise UsageError(
        f"the kernel {name!r} {declares}{f' ({listed} …)' if problems else ''}",
        hint="name the one to tune: ktuned.tune(kernel, problem=dict(…))",
    )


def _choose_interpreter(client: Client, origin: Origin) -> str | None:
    """Return this interpreter for the workers of a project that is not watched yet, else ``None``."""
    if not origin.path:
        return None
    roots = call_method(client, KERNELS, KernelsParams(path=origin.path)).roots
    return sys.executable if find_root(origin.path, roots) is None else None


def _follow_to_end(client: Client, accepted: TuneAnswer, progress: bool | None) -> JobInfo:
    """Show a tuning's progress until its job has ended; return the job.

    With ``progress=None`` it is shown only in terminals and notebooks.
    """
    shell = find_notebook_shell()
    presenter = choose_presenter(in_notebook=hasattr(shell, "kernel"), wanted=progress)
    number = accepted.jobs[0].id
    try:
        return follow_tuning(client, accepted, presenter).jobs[number].job
    except KeyboardInterrupt:
        print_message(
            f"detached; job {number} continues: the same call joins it, `ktuned jobs {number} --cancel` cancels it"
        )
        # A new KeyboardInterrupt, because only for exactly this class the interpreter exits with 130.
        raise KeyboardInterrupt from None


def _make_file_error(error: FileError) -> KernelFileError:
    return KernelFileError(error.message, path=error.path, line=error.line, hint=error.hint, excerpt=error.excerpt)


def _make_result(client: Client, job: JobInfo, problem: Problem, device: str | None) -> Result:
    """Return the result of a job that has ended.

    Raises:
        TuningFailed: the job has no winner.
    """
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
        job=msgspec.to_builtins(job),
        default_us=job.default_us,
        reference_us=job.reference_us,
        message=job.message,
    )
