"""A daemon's real parts over one project, real workers and the fake backend, without socket and watcher at work."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec

from ktuned.catalog.catalog import make_root_environment
from ktuned.daemon import assembly
from ktuned.daemon.assembly import Replacements
from ktuned.daemon.daemon import Daemon
from ktuned.daemon.settings import ConfigFile, Settings, load_settings
from ktuned.daemon.systemd import Notifier
from ktuned.devices import SurveyIntervals
from ktuned.model.kernel import KernelInfo
from ktuned.model.keys import DeviceModel, KernelName, Role, WinnerKey, make_key_problem
from ktuned.model.trial import TrialDetail, TrialResult
from ktuned.model.values import Outcome, Problem
from ktuned.protocol import Event
from ktuned.protocol.kernels import Root
from ktuned.scheduling.idle_policy import Reading
from ktuned.scheduling.jobs import Intervals
from ktuned.scheduling.preparation import Preparation
from ktuned.serve.events import Events
from ktuned.store.database import Store
from ktuned.tuning.deadlines import merge_deadlines
from tests.fake_tensors import with_inputs
from tests.forked_processes.starting import start_process as start_forked

FAKE_BACKEND = Path(__file__).parent / "fake_backend"
ALL_ROUNDS = 1_000
"""As the detail ``rounds``: this trial has been a finalist, whatever the preset."""

_reports: dict[str, dict[str, Any]] = {}
"""What a probe found in the first test; the others know it as a daemon knows what the one before it has found."""

PATIENCE_S = 60.0
"""How long anything may take on a busy machine before a test gives up; nothing waits this long in vain."""


def kernel_text(name: str = "it", configs: str = "[dict(us=50.0), dict(us=90.0)]", **options: str) -> str:
    """Return a kernel file over the fake backend, with options as source text.

    It has tensors if a ``reference``, a ``check`` or ``inputs`` are among them.
    """
    given = {"problems": "[dict(n=64)]", "preset": "'fast'", **with_inputs(options)}
    arguments = "\n".join(f"    {key}={value}," for key, value in given.items() if value)
    return f"""\
from ktuned import kernel, space, tensor
from ktuned_fake import Build

@kernel(
    backend="fake",
    space=space({configs}),
{arguments}
)
def {name}(p, c):
    return Build(**c)
"""


def wanted(problem: Problem, *, kernel: str = "project:it", device: str = "Fake CPU") -> WinnerKey:
    """Return the key of a kernel that specialises for every problem, on the fake device."""
    return WinnerKey(KernelName(kernel), make_key_problem(problem), DeviceModel(device))


class Told(Events):
    """The daemon's events, which keeps all that were published, and waits for those that will be."""

    def __init__(self) -> None:
        super().__init__(epoch=7)
        self.events: list[dict[str, Any]] = []
        self._news = anyio.Event()

    def publish_event(self, event: Event) -> Event:
        """Publish an event, and keep its map."""
        published = super().publish_event(event)
        self.events.append(msgspec.msgpack.decode(msgspec.msgpack.encode(published)))
        self._news.set()
        return published

    def of(self, *types: str) -> list[dict[str, Any]]:
        """Return the events of some types."""
        return [event for event in self.events if event["type"] in types]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds, looking again at each event."""
        with anyio.fail_after(PATIENCE_S):
            while not condition():
                self._news = anyio.Event()
                await self._news.wait()

    async def ended(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many jobs have ended and return them as they were published."""
        await self.until(lambda: len(self.of("job_done")) >= count)
        return [event["job_state"] for event in self.of("job_done")]


class Parts:
    """The parts of a real daemon over one project: ``daemon`` has them all, the names that tests use are here too."""

    def __init__(self, directory: Path, daemon: assembly.Parts, told: Told) -> None:
        self.project = directory / "project"
        self.root = daemon.settings.roots[0]
        self.environment = make_root_environment(self.root)
        self.daemon = daemon
        self.told = told
        self.new_roots = 0
        self.artifacts = daemon.artifacts
        self.catalog = daemon.catalog
        self.deadlines = daemon.deadlines
        self.fleet = daemon.fleet
        self.answering = Daemon(daemon, Notifier())
        self.intake = daemon.intake
        self.jobs = daemon.jobs
        self.lookups = daemon.lookups
        self.machine = daemon.machine
        self.preparation = daemon.preparation
        self.renewal = daemon.renewal
        self.requests = daemon.requests
        self.store = daemon.store
        self.inspector = daemon.inspector
        self._gates = directory / "gates"
        self.artifacts.clean_staging()
        self.catalog.when_roots_change(self._count_roots)

    def _count_roots(self) -> None:
        self.new_roots += 1

    def write(self, text: str, name: str = "tune_it.py") -> Path:
        """Write a file of the project."""
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def end_doubts(self) -> None:
        """End the doubts of a start, as when the watcher has looked at every file."""
        self.daemon.certainty.record_catch_up()
        self.daemon.caches.forget_all_answers()

    async def inspect(self, text: str | None = None, name: str = "tune_it.py") -> KernelInfo:
        """Write a kernel file, if its text is given, and return the kernel ``it`` as it was found there."""
        path = self.project / name if text is None else self.write(text, name)
        await self.inspector.inspect_files(self.root, [str(path)])
        return self.catalog.resolve_kernel("it")

    async def measured(
        self,
        kernel: KernelInfo,
        figures: Mapping[float, float],
        problem: Problem | None = None,
        *,
        keeps_winner: bool = False,
        metrics: Mapping[str, float] | None = None,
        **detail: Any,
    ) -> None:
        """Enter figures of a kernel's configs (by their ``us``) as a job would have left them, decided or not.

        While a job is at its opening, none of them becomes the winner.
        """
        problem = {"n": 64} if problem is None else problem
        device = self.machine.find_device(self.environment, "fake", None)
        context = self.machine.build_context(kernel, self.environment, problem, device)
        job = await self.store.create_job(context.key, problem, priority=100, reason="asked", plan=kernel.plan, now=0.0)
        for us, latency_us in figures.items():
            trial = await self.store.begin_trial(context, kernel.select_key_values(problem), job.id, {"us": us})
            result = TrialResult(Outcome.MEASURED, latency_us, 0.1, detail=TrialDetail(**detail), metrics=metrics or {})
            await self.store.finish_trial(trial, result, keeps_winner=keeps_winner)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run the jobs for the length of a block; the workers that they started end with it."""
        before = {worker.pid for worker in self.fleet.describe_workers()}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.jobs.run_until_cancelled)
            yield
            tasks.cancel_scope.cancel()
        self.kill_workers(spare=before)

    def kill_workers(self, spare: Container[int] = ()) -> None:
        """Kill every worker but some."""
        for worker in self.fleet.describe_workers():
            if worker.pid not in spare:
                with suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)

    async def reached(self, gate: str) -> None:
        """Wait until a config stands at a gate."""
        with anyio.fail_after(PATIENCE_S):
            while not (self._gates / f"{gate}.reached").exists():  # noqa: ASYNC110 - a file reports it, no event
                await anyio.sleep(0.005)

    def close_gate(self, gate: str) -> None:
        """Let no one through a gate that was open, and forget who stood at it."""
        (self._gates / gate).unlink()
        (self._gates / f"{gate}.reached").unlink(missing_ok=True)

    def open_gate(self, gate: str) -> None:
        """Let everyone through a gate."""
        (self._gates / gate).touch()


@asynccontextmanager
async def assembled(
    directory: Path,
    *,
    store_type: type[Store] = Store,
    policy: str = "always",
    preparation_type: type[Preparation] = Preparation,
    read: Callable[[], Awaitable[Reading]] | None = None,
    intervals: Intervals | None = None,
    env: Mapping[str, str] | None = None,
    cores: int | None = None,
) -> AsyncIterator[Parts]:
    """Assemble a daemon below a directory, and run what lookups set off; on leaving, no worker is left.

    One with an ``env`` of its own probes its backends itself.
    """
    directory = directory.resolve()
    for name in ("gates", "project"):
        (directory / name).mkdir(exist_ok=True)
    settings = _settings(directory, policy)
    places = {"PYTHONPATH": str(FAKE_BACKEND), "FAKE_GATE": str(directory / "gates")}
    given = {**places, "FAKE_TENSORS": "numpy", **(env or {})}
    told = Told()
    replaced = Replacements(
        adopts=False,
        base_env={**os.environ, **given},
        cores=cores,
        events=told,
        intervals=intervals,
        preparation_type=preparation_type,
        read=read,
        spare_modules=(),
        start_process=start_forked,
        toolchain_intervals=SurveyIntervals(recent_s=0.05, all_s=0.05),
    )
    async with store_type.open(directory / "k.sqlite") as store:
        for key, report in _reports.items() if env is None else ():
            await store.save_probe(key, report)
        parts = Parts(directory, assembly.Parts(settings, store, replaced), told)
        async with parts.fleet.run_workers():
            if not _reports or env is not None:
                await parts.machine.environments.probe_environment(parts.environment)
            if env is None:
                _reports.update(store.load_probes())
            async with parts.fleet.lend_worker(Role.INSPECT, parts.environment):
                # One worker is up, and is no one's leak.
                pass
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(parts.lookups.run_until_cancelled)
                yield parts
                tasks.cancel_scope.cancel()
        parts.lookups.table.close()


def _settings(directory: Path, policy: str) -> Settings:
    found = load_settings({"KTUNED_HOME": str(directory), "KTUNED_SOCKET": str(directory / "k.sock")})
    return msgspec.structs.replace(
        found,
        cache=directory / "cache",
        roots=(Root(str(directory / "project"), "project", sys.executable),),
        deadlines=merge_deadlines(
            {"spawn": PATIENCE_S, "inspect": 30.0, "first_launch": PATIENCE_S, "floor": PATIENCE_S}
        ),
        compile_slots=2,
        compile_cores=frozenset(),
        file=ConfigFile(policy=policy, contention=False, spares=False, compile_slots=2),
    )
