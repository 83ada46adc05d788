"""A toolchain that changes while the daemon runs: what is noticed, doubted and renewed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from ktuned.backends import cpu
from ktuned.devices import Environments, SurveyIntervals, ToolchainSurvey
from ktuned.devices.environment_report import find_difference
from ktuned.fleet import Environment
from ktuned.ipc import read_sight_text, replies
from ktuned.model import BackendReport, KernelInfo, Outcome
from ktuned.protocol import describe_change
from ktuned.scheduling.renewal import NEW_TOOLCHAIN
from ktuned.serve import Explainer
from ktuned.store import Context
from tests.daemon_parts import ALL_ROUNDS, FAKE_BACKEND, Parts, assemble_daemon, make_kernel_text
from tests.fleet.playground import wait_until

pytestmark = pytest.mark.anyio


def install_compiler(compiler: Path, get_library_version: str) -> None:
    """Replace the compiler by one of a version, as package managers do."""
    staged = compiler.with_suffix(".new")
    staged.write_text(f"#!/bin/sh\necho fakecc {get_library_version}\n")
    staged.chmod(0o755)
    staged.rename(compiler)


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    """A compiler in a directory of its own on the PATH."""
    path = tmp_path / "bin" / "fakecc"
    path.parent.mkdir()
    install_compiler(path, "1.0")
    return path


@pytest.fixture
async def parts_with_compiler(tmp_path: Path, compiler: Path) -> AsyncIterator[Parts]:
    """A daemon whose fake backend finds that compiler on the PATH."""
    path = f"{tmp_path / 'first'}:{compiler.parent}:{os.environ['PATH']}"
    async with assemble_daemon(tmp_path, env={"FAKE_CC": "fakecc", "PATH": path}) as parts:
        yield parts


def look_up(parts: Parts, *, tune: bool = False) -> tuple[str, str]:
    """Look ``it`` up; return the status and the message."""
    answer = parts.lookups.look_up("it", {"n": 64}, None, tune=tune).answer
    return answer.status.value, answer.message


@pytest.mark.parametrize("change", ["replaced", "shadowed"])
async def test_an_upgraded_compiler_is_probed_again_and_renews_what_it_made(
    parts_with_compiler: Parts, compiler: Path, change: str
) -> None:
    """The compiler is replaced, or shadowed by another one: lookups are stale, `--why` names it, and its winners are
    re-tuned.
    """
    parts = parts_with_compiler
    kernel = await parts.inspect_file(make_kernel_text(configs="us=[10.0, 20.0]"))
    await parts.record_measurements(kernel, {20.0: 5.0}, rounds=ALL_ROUNDS)
    parts.touch_answers(kernel.name)
    assert look_up(parts) == ("fresh", "")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parts.daemon.toolchain_survey.run_until_cancelled)
        if change == "replaced":
            install_compiler(compiler, "2.0")
        else:
            first = compiler.parents[1] / "first" / "fakecc"
            first.parent.mkdir()
            install_compiler(first, "2.0")
        await parts.recorder.wait_until(
            lambda: bool(parts.recorder.list_events("stale")) and bool(parts.jobs.list_live_jobs())
        )
        tasks.cancel_scope.cancel()
    assert look_up(parts) == ("stale", "")
    (job,) = parts.jobs.list_live_jobs()
    assert (job.kernel, job.reason) == (kernel.name, NEW_TOOLCHAIN)
    daemon = parts.daemon
    explain_winners = Explainer(daemon.catalog, daemon.states, daemon.store).explain_winners
    (entry,) = explain_winners(kernel)
    reasons = [describe_change(change) for change in entry.changes]
    assert "toolchain: compiler was fakecc 1.0, is fakecc 2.0" in reasons
    assert any(reason.startswith("toolchain: content of fakecc was ") for reason in reasons)
    parts.kill_workers()


class LateEnvironments:
    """Environments without a report until the test sets one."""

    known: replies.ProbeReport | None = None

    def when_host_changes(self, listener: object) -> None:
        """Do nothing."""

    def list_sites(self, environment: Environment) -> list[Environment]:
        """Return the environment only: there are no other hosts."""
        return [environment]

    def is_probed(self, environment: object) -> bool:
        return self.known is not None

    def check_toolchain(self, environment: object) -> str:
        """Return that nothing changed."""
        return ""

    def get_report(self, environment: object) -> replies.ProbeReport | None:
        return self.known


async def test_the_first_probe_of_an_environment_is_no_change(parts: Parts) -> None:
    """Jobs that began before their environment's first probe are not restarted by it, but by later changes."""
    await parts.inspect_file(make_kernel_text())
    environments: Any = LateEnvironments()
    probed = anyio.Event()
    changes: list[list[str]] = []

    async def record_change(kernels: list[KernelInfo], changed: list[KernelInfo]) -> None:
        changes.append([kernel.name for kernel in changed])
        probed.set()

    survey = ToolchainSurvey(
        parts.catalog,
        environments,
        list_used_kernels=lambda: (),
        on_probe=record_change,
        intervals=SurveyIntervals(recent_s=0.01, all_s=0.01),
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(survey.run_until_cancelled)
        await anyio.wait_all_tasks_blocked()
        for compiler in ("1.0", "2.0"):
            environments.known = replies.ProbeReport("", {"fake": BackendReport("", {"cc": compiler})})
            survey.survey_now()
            await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(10):
            await probed.wait()
        tasks.cancel_scope.cancel()
    assert changes == [["project:it"]]


async def test_until_the_probe_answers_are_stale_and_queue_nothing(parts_with_compiler: Parts, compiler: Path) -> None:
    """The message names the change; a probe that finds no difference makes answers certain again."""
    parts = parts_with_compiler
    kernel = await parts.inspect_file(make_kernel_text(configs="us=[10.0, 20.0]"))
    await parts.record_measurements(kernel, {20.0: 5.0}, rounds=ALL_ROUNDS)
    parts.touch_answers(kernel.name)
    os.utime(compiler)
    await wait_until(lambda: bool(parts.machine.environments.check_toolchain(parts.environment)))
    reason = f"the toolchain must be probed again: {compiler} changed"
    assert look_up(parts, tune=True) == ("stale", reason)
    assert parts.daemon.follow_ups.describe_queue().used == 0
    workers = {worker.pid for worker in parts.fleet.describe_workers()}
    await parts.machine.environments.probe_environment(parts.environment)
    assert look_up(parts, tune=True) == ("fresh", "")
    assert not workers & {worker.pid for worker in parts.fleet.describe_workers() if worker.state == "idle"}
    parts.kill_workers()


async def test_a_daemon_older_than_its_workers_says_so_and_does_not_probe_for_ever(parts_with_compiler: Parts) -> None:
    """A doubt that remains after a probe would remain after each probe: one line names the remedy instead."""
    parts, environment = parts_with_compiler, parts_with_compiler.environment
    # The daemon finds another PATH than its workers, as after an upgrade of the workers' code.
    other_env = {**os.environ, "PATH": "/elsewhere"}
    environments = Environments(parts.fleet, parts.store, base_env=other_env, look_s=0.0)
    assert environments.notices == []
    reason = environments.check_toolchain(environment)
    assert reason == "the environment variable PATH changed"
    await environments.probe_environment(environment)
    assert (environments.check_toolchain(environment), environments.find_doubt(environment)) == ("", "")
    assert environments.notices == [environments.explain_doubt(environment)]
    assert f": {reason})" in environments.notices[0]
    assert "`ktuned stop`" in environments.notices[0]
    parts.kill_workers()


async def test_a_daemon_whose_cpus_are_taken_and_given_back_disagrees_no_longer(
    parts_with_compiler: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time the daemon's CPUs differ from the workers', the toolchain is doubted and probed once more."""
    environments, environment = parts_with_compiler.machine.environments, parts_with_compiler.environment
    monkeypatch.setattr(environments, "_look_s", 0.0)
    await environments.probe_environment(environment)
    with monkeypatch.context() as patched:
        patched.setattr(cpu, "limits", lambda: {"affinity": "0"})
        reason = environments.check_toolchain(environment)
        await environments.probe_environment(environment)
        assert f": {reason})" in environments.explain_doubt(environment)
    assert environments.check_toolchain(environment) == f"{reason} again"
    await environments.probe_environment(environment)
    assert (environments.check_toolchain(environment), environments.notices) == ("", [])
    for cores in ("0", "1"):
        monkeypatch.setattr(cpu, "limits", lambda cores=cores: {"affinity": cores})
        assert environments.check_toolchain(environment).endswith(f"affinity {cores}")
        await environments.probe_environment(environment)
        assert environments.check_toolchain(environment) == ""
    parts_with_compiler.kill_workers()


async def test_a_compile_by_another_toolchain_is_repeated_under_its_key(
    parts_with_compiler: Parts, compiler: Path
) -> None:
    """If the compiler is replaced while it compiles, nothing is sealed under the old key, and the job restarts."""
    parts = parts_with_compiler
    await parts.inspect_file(make_kernel_text(configs="[dict(us=1.0, does='gate_compile', gate='door')]"))
    async with parts.run_jobs():
        assert look_up(parts, tune=True)[0] == "default"
        await parts.wait_until_reached("door")
        (job,) = parts.jobs.list_live_jobs()
        install_compiler(compiler, "2.0")
        parts.open_gate("door")
        await parts.recorder.wait_until(lambda: len(parts.recorder.list_events("job_queued")) == 2)
        assert "the toolchain changed" in parts.recorder.list_events("job_queued")[-1]["job_state"]["message"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(parts.daemon.toolchain_survey.run_until_cancelled)
            ended_job = await parts.wait_for_job()
            tasks.cancel_scope.cancel()
    assert (ended_job["id"], ended_job["state"]) == (job.id, "done")
    assert look_up(parts) == ("fresh", "")
    (trial,) = parts.store.list_trials(outcome=Outcome.MEASURED)
    assert [path.name for path in parts.artifacts.directory.glob("*/*")] == [trial.artifact]


async def test_an_upgraded_distribution_is_noticed(tmp_path: Path) -> None:
    """The RECORD of a plugin's requirement is part of the toolchain, whatever installs the new version."""
    site = tmp_path / "site"
    info = site / "ktuned_fake-1.dist-info"
    info.mkdir(parents=True)
    (source,) = FAKE_BACKEND.glob("*.dist-info")
    (info / "entry_points.txt").write_text((source / "entry_points.txt").read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ktuned-fake\nVersion: 1\nRequires-Dist: fakelib>=1\n")
    for module in ("ktuned_fake.py", "pollution.py", "without_torch.py"):
        (site / module).symlink_to(FAKE_BACKEND / module)
    library = site / "fakelib-1.0.dist-info"
    library.mkdir()
    (library / "METADATA").write_text("Metadata-Version: 2.1\nName: fakelib\nVersion: 1.0\n")
    (library / "RECORD").write_text("fakelib.py,sha256=1,1\n")
    async with assemble_daemon(tmp_path, env={"PYTHONPATH": str(site)}) as parts:

        def get_library_version() -> str:
            report = parts.machine.environments.get_report(parts.environment)
            assert report is not None
            return report.backends["fake"].fingerprint["distribution fakelib"]

        assert get_library_version() == "1.0"
        newer = library.rename(site / "fakelib-2.0.dist-info")
        (newer / "METADATA").write_text("Metadata-Version: 2.1\nName: fakelib\nVersion: 2.0\n")
        await wait_until(lambda: bool(parts.machine.environments.check_toolchain(parts.environment)))
        await parts.machine.environments.probe_environment(parts.environment)
        assert get_library_version() == "2.0"
        parts.kill_workers()


async def test_the_environment_of_a_measurement_is_part_of_its_context(parts: Parts) -> None:
    """Variables of the compiler key artifacts, variables of the runtime key measurements, and a project's own
    variables both.
    """
    kernel = await parts.inspect_file(make_kernel_text(configs="us=[10.0, 20.0]"))

    async def probe_and_build_context(**variables: str) -> Context:
        environment = replace(
            parts.environment, env=tuple(sorted({"PYTHONPATH": str(FAKE_BACKEND), **variables}.items()))
        )
        await parts.machine.environments.probe_environment(environment)
        device = parts.machine.find_device(environment, "fake", None)
        return parts.machine.build_context(kernel, environment, {"n": 64}, device)

    plain, other = await probe_and_build_context(), await probe_and_build_context(MY_SWITCH="on")
    assert plain.toolchain != other.toolchain
    assert plain.device_fingerprint != other.device_fingerprint
    versions = parts.store.load_fingerprint_versions(other.toolchain)
    assert versions is not None
    assert versions["env:MY_SWITCH"].startswith("sha256:")
    parts.kill_workers()


def test_what_a_report_depends_on(tmp_path: Path) -> None:
    """A report ends when its files, its decisive variables, search paths or CPU limits change."""
    present, absent = tmp_path / "there", tmp_path / "absent"
    present.write_text("1")
    files = {str(path): read_sight_text(str(path)) for path in (present, absent)}
    dependencies = replies.ProbeDependencies(
        files, ("CXX", "OMP_*"), {"env:OMP_NUM_THREADS": "4"}, {"quota": "2 cores"}
    )
    variables, limits = {"OMP_NUM_THREADS": "4", "HOME": "/"}, {"quota": "2 cores"}
    assert find_difference(dependencies, variables, limits) == ""
    assert (
        find_difference(dependencies, {**variables, "CXX": "clang++"}, limits) == "the environment variable CXX changed"
    )
    assert find_difference(dependencies, {"HOME": "/"}, limits) == "the environment variable OMP_NUM_THREADS changed"
    assert (
        find_difference(dependencies, {**variables, "PATH": "/bin"}, limits) == "the environment variable PATH changed"
    )
    assert find_difference(dependencies, variables, {}) == "the CPUs that it may use changed from quota 2 cores to all"
    absent.write_text("")
    assert find_difference(dependencies, variables, limits) == f"{absent} changed"
    assert find_difference(None, variables, limits) == "its toolchain was never probed"
