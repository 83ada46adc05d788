"""The daemon's deciding parts, without its socket and its watching, over real workers and the fake backend."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Container, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from ktuned.catalog.catalog import Catalog, environment_of
from ktuned.catalog.inspection import Survey
from ktuned.devices.machine import Machine
from ktuned.fleet.pool import Fleet
from ktuned.lookup.generations import Generations
from ktuned.lookup.service import Lookups
from ktuned.model.job import Job
from ktuned.model.kernel import KernelInfo, Root
from ktuned.model.keys import DeviceModel, KernelName, WinnerKey, key_problem
from ktuned.model.trial import TrialResult
from ktuned.model.values import Outcome, Problem
from ktuned.scheduling.intake import Intake
from ktuned.scheduling.jobs import Jobs
from ktuned.scheduling.preparation import JobSettings, Preparing
from ktuned.store.artifacts import Artifacts
from ktuned.store.database import Store
from ktuned.tuning.attempt import Work
from ktuned.tuning.deadlines import merged

FAKE_BACKEND = Path(__file__).parent / "fake_backend"
ALL_ROUNDS = 1_000
"""As the detail ``rounds``: this trial has been a finalist, whatever the preset."""

_reports: dict[str, dict[str, Any]] = {}
"""What a probe found in the first test; the others know it as a daemon knows what the one before it has found."""

PATIENCE_S = 60.0
"""How long anything may take on a busy machine before a test gives up; nothing waits this long in vain."""


def kernel_text(name: str = "it", configs: str = "[dict(us=50.0), dict(us=90.0)]", **options: str) -> str:
    """Return a kernel file over the fake backend, with options as source text."""
    given = {"problems": "[dict(n=64)]", "reference": "lambda x: dict(y=2 * x)", "preset": "'fast'", **options}
    arguments = "\n".join(f"    {key}={value}," for key, value in given.items() if value)
    return f"""\
from ktuned import kernel, space, tensor
from ktuned_fake import Build

@kernel(
    backend="fake",
    space=space({configs}),
    inputs=lambda p: dict(x=tensor((p.n,)), y=tensor((p.n,), output=True)),
{arguments}
)
def {name}(p, c):
    return Build(**c)
"""


def wanted(problem: Problem, *, kernel: str = "project:it", device: str = "Fake CPU") -> WinnerKey:
    """Return the key of a kernel that specialises for every problem, on the fake device."""
    return WinnerKey(KernelName(kernel), key_problem(problem), DeviceModel(device))


@dataclass
class Told:
    """What was published, and a way to wait for what will be."""

    on_event: Callable[[Mapping[str, Any]], None]
    events: list[dict[str, Any]] = field(default_factory=list)
    news: anyio.Event = field(default_factory=anyio.Event)

    def publish(self, type: str, **fields: Any) -> None:  # noqa: A002 - the protocol's word
        """Take an event."""
        self.events.append({"type": type, **fields})
        self.on_event(self.events[-1])
        self.news.set()

    def of(self, *types: str) -> list[dict[str, Any]]:
        """Return the events of some types."""
        return [event for event in self.events if event["type"] in types]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds, looking again at each event."""
        with anyio.fail_after(PATIENCE_S):
            while not condition():
                self.news = anyio.Event()
                await self.news.wait()

    async def ended(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many jobs have ended and return them as they were told."""
        await self.until(lambda: len(self.of("job_done")) >= count)
        return [event["job_state"] for event in self.of("job_done")]


class Parts:
    """The parts, wired as a daemon wires them; ``prepare`` may be replaced by a test."""

    def __init__(self, directory: Path, store: Store, fleet: Fleet, gates: Path, **manners: Any) -> None:
        self.project = directory / "project"
        self.project.mkdir(exist_ok=True)
        self.root = Root(str(self.project), "project", sys.executable)
        self.environment = environment_of(self.root)
        self.store = store
        self.fleet = fleet
        self.told = Told(self._published)
        self.new_roots = 0
        self.deadlines = merged({"inspect": 30.0, "first_launch": PATIENCE_S, "floor": PATIENCE_S})
        self.artifacts = Artifacts(directory / "artifacts", 2**30)
        self.artifacts.clean_staging()
        self.catalog = Catalog([self.root])
        self.machine = Machine(fleet, store, deadlines={"inspect": 30.0})
        self.survey = Survey(self.catalog, fleet, store, self.deadlines)
        self.preparing = Preparing(
            JobSettings(judges_contention=False, slots_are_given=True),
            catalog=self.catalog,
            machine=self.machine,
            fleet=fleet,
            trust=self.survey.trust,
            deadlines=self.deadlines,
            captured=lambda kernel, problem: "",
        )
        self.prepare: Callable[[Job], Work] = self.preparing.prepare
        self.jobs = Jobs(
            fleet=fleet,
            store=store,
            artifacts=self.artifacts,
            prepare=self._prepared,
            publish=self.told.publish,
            **manners,
        )
        self.generations = Generations(str(directory), epoch=7)
        self.lookups = Lookups(
            catalog=self.catalog,
            machine=self.machine,
            fleet=fleet,
            store=store,
            artifacts=self.artifacts,
            jobs=self.jobs,
            deadlines=self.deadlines,
            generations=self.generations,
        )
        self.intake = Intake(
            catalog=self.catalog,
            survey=self.survey,
            machine=self.machine,
            store=store,
            jobs=self.jobs,
            publish=self.told.publish,
            roots_changed=self._root_added,
        )
        self._gates = gates

    def _published(self, event: Mapping[str, Any]) -> None:
        if event.get("kernel") is not None and event["type"] in ("winner", "stale", "job_done"):
            self.lookups.changed(event["kernel"])

    def _prepared(self, job: Job) -> Work:
        return self.prepare(job)

    def _root_added(self) -> None:
        self.new_roots += 1

    def write(self, text: str, name: str = "tune_it.py") -> Path:
        """Write a file of the project."""
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    async def inspect(self, text: str | None = None, name: str = "tune_it.py") -> KernelInfo:
        """Write a kernel file, if its text is given, and return the kernel ``it`` as it was found there."""
        path = self.project / name if text is None else self.write(text, name)
        await self.survey.files(self.root, [str(path)])
        return self.catalog.resolve("it")

    async def measured(
        self, kernel: KernelInfo, figures: Mapping[float, float], problem: Problem | None = None, **detail: Any
    ) -> None:
        """Enter figures of a kernel's configs (by their ``us``) as a job would have left them, decided or not."""
        problem = {"n": 64} if problem is None else problem
        device = self.machine.device(self.environment, "fake", None)
        context = self.machine.context(kernel, self.environment, problem, device)
        job = await self.store.create_job(context.key, problem, priority=100, reason="asked", plan=kernel.plan, now=0.0)
        for us, latency_us in figures.items():
            trial = await self.store.begin_trial(context, kernel.specialized(problem), job.id, {"us": us})
            result = TrialResult(Outcome.MEASURED, latency_us, 0.1, detail=detail)
            await self.store.finish_trial(trial, result)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run the jobs for the length of a block; the workers that they started end with it."""
        before = {worker["pid"] for worker in self.fleet.describe()}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.jobs.run)
            yield
            tasks.cancel_scope.cancel()
        self.kill_workers(spare=before)

    def kill_workers(self, spare: Container[int] = ()) -> None:
        """Kill every worker but some."""
        for worker in self.fleet.describe():
            if worker["pid"] not in spare:
                with suppress(ProcessLookupError):
                    os.killpg(worker["pid"], signal.SIGKILL)

    async def reached(self, gate: str) -> None:
        """Wait until a config stands at a gate."""
        with anyio.fail_after(PATIENCE_S):
            while not (self._gates / f"{gate}.reached").exists():  # noqa: ASYNC110 - a file tells of it, no event
                await anyio.sleep(0.005)

    def open_gate(self, gate: str) -> None:
        """Let everyone through a gate."""
        (self._gates / gate).touch()


@asynccontextmanager
async def assembled(directory: Path, *, store_type: type[Store] = Store, **manners: Any) -> AsyncIterator[Parts]:
    """Put the parts together below a directory; on leaving, no worker is left. ``manners`` are for :class:`Jobs`."""
    directory = directory.resolve()
    gates = directory / "gates"
    gates.mkdir(exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(FAKE_BACKEND), "FAKE_GATE": str(gates)}
    fleet = Fleet(
        scratch=directory / "tmp",
        cache=directory / "cache",
        base_env=env,
        compile_slots=2,
        compile_cores=frozenset(),
        spawn_s=PATIENCE_S,
        keeps_spares=False,
    )
    async with store_type.open(directory / "k.sqlite") as store, fleet.running():
        for key, report in _reports.items():
            await store.save_probe(key, report)
        parts = Parts(directory, store, fleet, gates, **manners)
        if not _reports:
            await parts.machine.probe(parts.environment)
            _reports.update(store.probes())
        async with fleet.lend("inspect", parts.environment):
            # One worker is up, and is nobody's leak.
            pass
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(parts.lookups.run)
            yield parts
            tasks.cancel_scope.cancel()
        parts.generations.close()
