"""The real parts of a daemon in the test's process: one project, real workers, the fake backend, no socket, no watcher.

Most tests take the fixture ``parts``; those that need other settings call :func:`assemble_daemon`.
"""

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

from ktuned.answers.kernel_state import make_kernel_state
from ktuned.catalog.catalog import Changes, make_root_environment
from ktuned.daemon import assembly
from ktuned.daemon.assembly import Replacements
from ktuned.daemon.daemon import Daemon
from ktuned.daemon.settings import ConfigFile, Settings, load_settings
from ktuned.daemon.systemd import Notifier
from ktuned.devices import SurveyIntervals
from ktuned.fleet import ClusterSettings, StartProcess
from ktuned.model.kernel import KernelInfo
from ktuned.model.keys import DeviceModel, KernelName, Role, WinnerKey, make_key_problem
from ktuned.model.trial import TrialResult
from ktuned.model.values import Outcome, Problem
from ktuned.protocol import Answer, AnswersChanged, Event, Job
from ktuned.protocol.kernels import Root
from ktuned.scheduling import Preparation, TuningRequest
from ktuned.scheduling.idle_policy import Reading
from ktuned.scheduling.jobs import Intervals
from ktuned.serve.events import Events
from ktuned.store.contexts import Context
from ktuned.store.database import Store
from ktuned.tuning.limits import merge_deadlines
from tests.fake_tensors import add_inputs
from tests.forked_processes.starting import start_process as start_forked
from tests.trials import make_detail

FAKE_BACKEND = Path(__file__).parent / "fake_backend"
ALL_ROUNDS = 1_000
"""A value for the detail ``rounds`` that makes a trial a finalist under every preset."""

_known_probes: dict[str, dict[str, Any]] = {}
"""Probe reports by key: the first test probes the backends, the others find its reports in their stores."""

PATIENCE_S = 60.0
"""How long a test waits for an event on a busy machine before it fails."""


def make_kernel_text(
    name: str = "it",
    configs: str = "[dict(us=50.0), dict(us=90.0)]",
    *,
    space: str = "",
    body: str = "Build(**c)",
    **options: str,
) -> str:
    """Return the text of a kernel file for the fake backend, whose kernel is the function ``name``.

    Args:
        name: the function's name.
        configs: the arguments of ``space()``, as source text.
        space: the whole space, as source text, in place of ``configs``.
        body: what the function returns, as source text.
        options: arguments of ``@kernel``, as source text; ``reference``, ``check`` and ``inputs`` bring tensors.
    """
    options = {"problems": "[dict(n=64)]", "preset": "'fast'", **add_inputs(options)}
    arguments = "\n".join(f"    {key}={value}," for key, value in options.items() if value)
    return f"""\
from ktuned import kernel, space, tensor
from ktuned_fake import Build

@kernel(
    backend="fake",
    space={space or f"space({configs})"},
{arguments}
)
def {name}(p, c):
    return {body}
"""


def make_winner_key(problem: Problem, *, kernel: str = "project:it", device: str = "Fake CPU") -> WinnerKey:
    """Return the winner key of a kernel that specialises for every part of a problem."""
    return WinnerKey(KernelName(kernel), make_key_problem(problem), DeviceModel(device))


class EventRecorder(Events):
    """The daemon's events; it keeps every published event in ``events``."""

    def __init__(self) -> None:
        super().__init__(epoch=7)
        self.events: list[dict[str, Any]] = []
        self._news = anyio.Event()

    def publish_event(self, event: Event) -> Event:
        """Publish an event and keep it as a subscriber receives it."""
        published = super().publish_event(event)
        self.events.append(msgspec.msgpack.decode(msgspec.msgpack.encode(published)))
        self._news.set()
        return published

    def list_events(self, *types: str) -> list[dict[str, Any]]:
        """Return the events of some types."""
        return [event for event in self.events if event["type"] in types]

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is evaluated again after each event."""
        with anyio.fail_after(PATIENCE_S):
            while not condition():
                self._news = anyio.Event()
                await self._news.wait()

    async def wait_for_ended_jobs(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait until ``count`` jobs have ended since the start; return all ended jobs as they were published."""
        await self.wait_until(lambda: len(self.list_events("job_done")) >= count)
        return [event["job_state"] for event in self.list_events("job_done")]


class Parts:
    """The parts of a daemon: ``daemon`` holds all of them, and those that many tests use are attributes here as well.

    ``root_changes`` counts how often the catalog has announced a change of its roots.
    """

    def __init__(self, directory: Path, daemon: assembly.Parts, recorder: EventRecorder) -> None:
        self.project = directory / "project"
        self.root = daemon.settings.roots[0]
        self.environment = make_root_environment(self.root)
        self.daemon = daemon
        self.recorder = recorder
        self.root_changes = 0
        self.artifacts = daemon.artifacts
        self.catalog = daemon.catalog
        self.fleet = daemon.fleet
        self.api = Daemon(daemon, Notifier())
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
        self.catalog.when_roots_change(self._count_root_change)

    def _count_root_change(self) -> None:
        self.root_changes += 1

    def write_file(self, text: str, name: str = "tune_it.py") -> Path:
        """Write a file below the project's directory and return its path."""
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def end_doubts(self) -> None:
        """End the doubts of a start, as when the watcher has looked at every file."""
        self.daemon.states.start_doubts.end_doubts()
        self.touch_answers()

    def touch_answers(self, kernel: KernelName | None = None) -> None:
        """Announce that a kernel's answers may have changed, or all, as whoever changes something does."""
        self.daemon.router.publish_event(AnswersChanged(kernel=kernel))

    def check_states(self) -> None:
        """Check that each kept state equals one that is made now: every change was announced by an event."""
        for state in dict(self.daemon.states._states).values():
            kernel = self.catalog.find_kernel(state.kernel.name)
            if kernel is not None:
                assert state == make_kernel_state(kernel, self.daemon.known)

    async def inspect_file(self, text: str | None = None, name: str = "tune_it.py") -> KernelInfo:
        """Inspect a kernel file, after writing ``text`` to it if given, and return the kernel ``it``."""
        path = self.project / name if text is None else self.write_file(text, name)
        await self.inspector.inspect_files(self.root, [str(path)])
        self.touch_answers()
        return self.catalog.resolve_kernel("it")

    async def record_measurements(
        self,
        kernel: KernelInfo,
        figures: Mapping[float, float],
        problem: Problem | None = None,
        *,
        keeps_winner: bool = False,
        metrics: Mapping[str, float] | None = None,
        **detail: Any,
    ) -> None:
        """Store trials of a new job as measured.

        Args:
            kernel: the kernel.
            figures: the latency in µs of each config, by the config's ``us``.
            problem: the problem; ``n = 64`` by default.
            keeps_winner: whether the winner stays as it is.
            metrics: the metrics of every trial.
            detail: fields of every trial's detail.
        """
        problem = {"n": 64} if problem is None else problem
        context = self.build_context(kernel, problem)
        job = await self.store.create_job(context.key, problem, priority=100, reason="asked", plan=kernel.plan, now=0.0)
        for us, latency_us in figures.items():
            trial = await self.store.begin_trial(context, kernel.select_key_values(problem), job.id, {"us": us})
            result = TrialResult(Outcome.MEASURED, latency_us, 0.1, detail=make_detail(**detail), metrics=metrics or {})
            await self.store.finish_trial(trial, result, keeps_winner=keeps_winner)
        self.touch_answers(kernel.name)

    async def save_file(self, text: str, name: str = "tune_it.py", *, saved: bool = True) -> Changes:
        """Write a file, and react to what that changes, as the watcher does."""
        changes = await self.inspector.inspect_files(self.root, [str(self.write_file(text, name))])
        await self.renewal.react_to_changes(changes, saved=saved)
        return changes

    def set_variables(self, **env: str) -> None:
        """Give the project these environment variables."""
        self.root = msgspec.structs.replace(self.root, env=env)
        self.catalog.add_root(self.root)
        self.environment = make_root_environment(self.root)

    def build_context(self, kernel: KernelInfo | None = None, problem: Problem | None = None) -> Context:
        """Return the context in which a kernel is measured now; by default, the kernel ``it`` for ``n = 64``."""
        kernel = kernel or self.catalog.resolve_kernel("it")
        device = self.machine.find_device(self.environment, "fake", None)
        return self.machine.build_context(kernel, self.environment, problem or {"n": 64}, device)

    def look_up(
        self, name: str = "it", problem: Problem | None = None, *, tune: bool = False, **options: Any
    ) -> Answer:
        """Return the answer to a lookup, for ``n = 64`` by default."""
        return self.lookups.look_up(name, problem or {"n": 64}, None, tune=tune, **options).answer

    async def request_jobs(self, kernel: str = "it", **request: Any) -> list[Job]:
        """Request jobs of a kernel; ``request`` are fields of the request."""
        return await self.requests.request_jobs(self.catalog.resolve_kernel(kernel), TuningRequest(**request))

    async def tune(self, kernel: str = "it", **request: Any) -> dict[str, Any]:
        """Tune a kernel as requested, while :meth:`run_jobs` runs; return the last of its jobs when all have ended."""
        count = len(self.recorder.list_events("job_done"))
        jobs = await self.request_jobs(kernel, **request)
        return (await self.recorder.wait_for_ended_jobs(count + len(jobs)))[-1]

    async def wait_for_job(self, count: int = 1) -> dict[str, Any]:
        """Wait until exactly ``count`` jobs have ended, and return the last one as it was published."""
        ended = await self.recorder.wait_for_ended_jobs(count)
        assert len(ended) == count
        return ended[-1]

    @asynccontextmanager
    async def run_jobs(self) -> AsyncIterator[None]:
        """Run jobs inside a ``with`` block; at its end, kill the workers that the jobs started."""
        before = {worker.pid for worker in self.fleet.describe_workers()}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.jobs.run_until_cancelled)
            yield
            tasks.cancel_scope.cancel()
        self.kill_workers(spare=before)

    def kill_workers(self, spare: Container[int] = ()) -> None:
        """Kill every worker whose process id is not in ``spare``."""
        for worker in self.fleet.describe_workers():
            if worker.pid not in spare:
                with suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)

    async def wait_until_reached(self, gate: str) -> None:
        """Wait until a config has reached a gate."""
        with anyio.fail_after(PATIENCE_S):
            while not (self._gates / f"{gate}.reached").exists():  # noqa: ASYNC110 - a file reports it, no event
                await anyio.sleep(0.005)

    def close_gate(self, gate: str) -> None:
        """Close an open gate, so that the next config waits at it."""
        (self._gates / gate).unlink()
        (self._gates / f"{gate}.reached").unlink(missing_ok=True)

    def open_gate(self, gate: str) -> None:
        """Open a gate for all configs."""
        (self._gates / gate).touch()


@asynccontextmanager
async def assemble_daemon(
    directory: Path,
    *,
    store_type: type[Store] = Store,
    policy: str = "always",
    preparation_type: type[Preparation] = Preparation,
    read: Callable[[], Awaitable[Reading]] | None = None,
    intervals: Intervals | None = None,
    env: Mapping[str, str] | None = None,
    cores: int | None = None,
    start_process: StartProcess = start_forked,
    cluster: ClusterSettings | None = None,
) -> AsyncIterator[Parts]:
    """Assemble a daemon whose files are below ``directory``, and run the work that lookups start.

    Args:
        directory: an existing directory.
        store_type: the store's class.
        policy: the policy of ``config.toml``.
        preparation_type: the class that prepares jobs.
        read: reads the machine's load for the policy.
        intervals: the jobs' intervals.
        env: further environment variables; a daemon that has some probes the backends itself.
        cores: how many cores the daemon is to find.
        start_process: starts workers.
        cluster: the cluster to join.
    """
    directory = directory.resolve()
    for name in ("gates", "project"):
        (directory / name).mkdir(exist_ok=True)
    settings = _make_settings(directory, policy, cluster or ClusterSettings())
    variables = {"PYTHONPATH": str(FAKE_BACKEND), "FAKE_GATE": str(directory / "gates"), "FAKE_TENSORS": "numpy"}
    recorder = EventRecorder()
    replacements = Replacements(
        adopts=False,
        base_env={**os.environ, **variables, **(env or {})},
        cores=cores,
        events=recorder,
        intervals=intervals,
        preparation_type=preparation_type,
        read=read,
        spare_modules=(),
        start_process=start_process,
        toolchain_intervals=SurveyIntervals(recent_s=0.05, all_s=0.05),
    )
    async with store_type.open(directory / "k.sqlite") as store:
        for key, report in _known_probes.items() if env is None else ():
            await store.save_probe(key, report)
        parts = Parts(directory, assembly.Parts(settings, store, replacements), recorder)
        async with parts.fleet.run_workers():
            if not _known_probes or env is not None:
                await parts.machine.environments.probe_environment(parts.environment)
            if env is None:
                _known_probes.update(store.load_probes())
            async with parts.fleet.lend_worker(Role.INSPECT, parts.environment):
                # This worker stays for all jobs, so run_jobs() does not kill it.
                pass
            await parts.jobs.take_up_jobs()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(parts.lookups.run_until_cancelled)
                yield parts
                parts.check_states()
                tasks.cancel_scope.cancel()
        parts.lookups.table.close()


def _make_settings(directory: Path, policy: str, cluster: ClusterSettings) -> Settings:
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
        file=ConfigFile(policy=policy, contention=False, spares=False, compile_slots=2, cluster=cluster),
    )
