"""Preparation of a job: its kernel, environment, devices and deadlines at the time when its turn comes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from ktuned.answers import KernelState, Knowledge
from ktuned.catalog import Catalog, Traces, make_root_environment, read_problem
from ktuned.devices import Machine, explain_unmeasurable
from ktuned.fleet import Fleet
from ktuned.model import (
    LATENCY,
    PRESETS,
    Config,
    KernelFileError,
    KernelInfo,
    NotFound,
    Objective,
    Problem,
    Unsupported,
    UsageError,
    is_exact,
)
from ktuned.protocol import Job, Trial
from ktuned.tuning import AwaitShared, Compiler, Grants, JobBrief, PresentKey, merge_deadlines


def find_present_key(
    catalog: Catalog, machine: Machine, kernel: KernelInfo, problem: Problem, device: str | None, objective: Objective
) -> PresentKey:
    """Return the key that a job would measure now, on a device model (``None``: the first one).

    Raises:
        KtunedError: The kernel's root or the device does not exist.
    """
    environment = catalog.find_kernel_environment(kernel)
    found = machine.find_device(environment, kernel.backend, device)
    return PresentKey(kernel, problem, machine.build_context(kernel, environment, problem, found), objective)


def find_judged_trial(
    known: Knowledge, kernel: KernelInfo, problem: Problem, device: str, config: Config
) -> Trial | None:
    """Return a config's latest judged trial in the context of a measurement that is made now, if there is one.

    Raises:
        KtunedError: The kernel's root or the device does not exist.
    """
    present = find_present_key(known.catalog, known.machine, kernel, problem, device, LATENCY)
    return known.store.find_trial(present.context.judged, config)


class Preparation(msgspec.Struct, eq=False):
    """Makes a job's brief from the facts known when its turn comes.

    Args:
        judges_contention: Whether load by other programs makes a measurement ``contended``; may be changed.
        find_state: Returns a kernel's state, from which its lookups are answered.
        await_shared: Waits for others' winners of a key.
    """

    known: Knowledge
    fleet: Fleet
    judges_contention: bool
    traces: Traces
    find_state: Callable[[KernelInfo], KernelState]
    await_shared: AwaitShared | None = None

    def prepare_brief(self, job: Job) -> JobBrief:
        """Return a job's brief.

        Raises:
            KtunedError: The job cannot run: its kernel is gone, has an error or has changed.
        """
        kernel = self.known.catalog.resolve_kernel(job.kernel)
        if fault := self.known.catalog.find_file_fault(kernel):
            raise KernelFileError(fault)
        read_problem(kernel, job.problem)
        root = self.known.catalog.find_root(kernel.file)
        if root is None:
            raise NotFound(f"{kernel.file} is below no watched root")
        environment, machine = make_root_environment(root), self.known.machine
        found = machine.find_job_devices(environment, kernel.backend, job.device, compile_only=job.plan.compile_only)
        objective = LATENCY if job.plan.is_judged else kernel.objective(job.objective)
        for device in found.devices:
            if unmeasurable := explain_unmeasurable(objective, device):
                raise Unsupported(unmeasurable)
        context = machine.build_context(kernel, environment, job.problem, found.representative)
        if job.plan.is_judged:
            context = context.judged
        declared_default = kernel.default
        find_state = partial(self.find_state, kernel)
        anchor = job.plan.anchor or find_state().anchors.get((context.problem, context.device))
        kernel = kernel.with_anchor(anchor, objective)
        if is_exact(objective) and kernel.default is None:
            raise UsageError(
                f"{kernel.name} declares no default whose bits the winner could have",
                hint="declare default=, or choose a config: `ktuned tune KERNEL --anchor KNOB=VALUE,…`",
            )
        job_deadlines = merge_deadlines(self.fleet.deadlines, kernel.plan.deadlines)
        return JobBrief(
            job=job,
            kernel=kernel,
            declared_default=declared_default,
            problem=job.problem,
            devices=found.devices,
            target=found.target,
            absence=found.absence,
            context=context,
            environment=environment,
            preset=PRESETS[job.plan.preset],
            deadlines=job_deadlines,
            in_hand=self.known.store.in_hand,
            grants=Grants(job_deadlines, self.fleet.machine.memory_limits, str(self.known.artifacts.directory)),
            judge_contention=self.judges_contention,
            admission=self.known.admission,
            traces=self.traces,
            served=lambda: tuple(find_state().winners.values()),
            toolchain=machine.environments.list_toolchain_files(environment),
            await_shared=self.await_shared,
            group_size=machine.get_group_size(environment.with_host_of(found.representative), kernel.backend),
            compilers=tuple(
                Compiler(site, machine.environments.list_toolchain_files(site))
                for site in machine.list_compilers(environment, kernel.backend, context.toolchain)
            ),
            lowers=machine.lowers_functions(environment, kernel.backend),
        )
