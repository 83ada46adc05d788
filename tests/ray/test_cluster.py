"""A daemon on a Ray cluster: tuning over nodes, and each part killed in the middle.

The last tests kill a node, and then the head of the shared cluster.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import anyio
import psutil
import pytest

from ktuned.scheduling import TuningRequest
from tests.daemon_parts import PATIENCE_S, Parts, make_kernel_text
from tests.ray.conftest import Nodes, assemble_member, run_cluster

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

CPU_GEMM = Path(__file__).parent.parent.parent / "examples/cpu_gemm"

US = (50.0, 60.0, 70.0, 80.0, 90.0)
"""The configs' times, by which they are known."""


def make_gated_kernel(gate: str) -> str:
    """Return a kernel whose third config waits at a gate in its launch."""
    configs = [f"dict(us={us}, gate={gate if us == US[2] else ''!r})" for us in US]
    # On a busy machine any of them may look hopeless.
    return make_kernel_text(configs=f"[{', '.join(configs)}]", reference="lambda x: 2 * x", early_stop="1e9")


async def submit_tuning(parts: Parts, gate: str) -> None:
    kernel = await parts.inspect_file(make_gated_kernel(gate))
    await parts.requests.request_jobs(kernel, TuningRequest())


def count_reports(parts: Parts) -> Counter[tuple[str, float]]:
    """Return the number of reports of each config and outcome."""
    trials = [event["trial"] for event in parts.recorder.list_events("trial_done")]
    return Counter((str(trial["outcome"]), trial["config"]["us"]) for trial in trials)


ALL = Counter({("measured", us): 1 for us in US})
"""Every config is measured, and counted once."""


async def test_a_job_is_tuned_on_all_nodes(tmp_path: Path, nodes: Nodes) -> None:
    """Lanes have the nodes' names, files travel by content, artifacts and the winner arrive here."""
    async with assemble_member(tmp_path, nodes, "n0", "n1", "n2") as parts:
        parts.write_file("US = 40.0\n", "beside.py")
        configs = ", ".join(f"dict(us=US + {us})" for us in US)
        text = "from beside import US\n" + make_kernel_text(configs=f"[{configs}]", reference="lambda x: 2 * x")
        kernel = await parts.inspect_file(text)
        async with parts.run_jobs():
            await parts.requests.request_jobs(kernel, TuningRequest())
            job = await parts.wait_for_job()
        assert (job["state"], sum(count_reports(parts).values())) == ("done", len(US))
        names = {lane.device.name for lane in parts.jobs.list_lanes()}
        assert {name.partition("/")[0] for name in names} == {"n0", "n1", "n2"}
        (winner,) = parts.store.list_winners(kernel.name)
        assert winner.config["us"] == 90.0
        trial = parts.store.get_trial(winner.trial)
        assert trial is not None
        assert trial.artifact is not None
        assert parts.artifacts.find_artifact(trial.artifact) is not None
        assert (cluster := parts.daemon.cluster.describe_cluster()) is not None
        assert {"n0", "n1", "n2"} == {host.name for host in cluster.hosts}
        actors = [psutil.Process(pid) for node in nodes.raylets for pid in nodes.list_descendants(node, "NodeActor")]
        assert len(actors) >= len(nodes.raylets)
    assert psutil.wait_procs(actors, timeout=PATIENCE_S)[1] == []


HOLDER = """
import sys, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
(node,) = [one["NodeID"] for one in ray.nodes() if one["NodeName"] == "n1"]


@ray.remote(num_gpus=1, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
class Holder:
    def hold(self):
        pass


holder = Holder.remote()
ray.get(holder.hold.remote())
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("only_in_chaos")
async def test_a_gpu_that_another_job_holds_is_waited_for(tmp_path: Path) -> None:
    """The lane names the job that holds the GPU; the tuning ends once the GPU is free."""
    with run_cluster(2, tmp_path, {"FAKE_DEVICES": "cuda:0"}) as nodes:
        holder = await anyio.open_process([sys.executable, "-c", HOLDER, nodes.address])
        async with holder, assemble_member(tmp_path, nodes, "n1/cuda:0") as parts, parts.run_jobs():
            assert holder.stdout is not None
            assert holder.stdin is not None
            assert b"held" in await holder.stdout.receive()
            # No tensors, because there is no GPU for them.
            configs = ", ".join(f"dict(us={us})" for us in US)
            kernel = await parts.inspect_file(make_kernel_text(configs=f"[{configs}]", early_stop="1e9"))
            await parts.requests.request_jobs(kernel, TuningRequest())
            with anyio.fail_after(2 * PATIENCE_S):
                while not any("no GPU came free" in lane.describe_lane().reason for lane in parts.jobs.list_lanes()):  # noqa: ASYNC110
                    await anyio.sleep(0.1)
            await holder.stdin.aclose()
            job = await parts.wait_for_job()
            assert (job["state"], count_reports(parts)) == ("done", ALL)
            assert {lane.device.name for lane in parts.jobs.list_lanes()} == {"n1/cuda:0"}


@pytest.mark.usefixtures("only_in_chaos")
async def test_a_laptop_joins_through_the_client_server(tmp_path: Path, nodes: Nodes) -> None:
    """Everything works as with a node's address; workers have the runtime environment."""
    runtime_env = '{"env_vars": {"OF_THE_RUNTIME_ENV": "yes"}}'
    async with assemble_member(tmp_path, nodes, "n1", address=nodes.client, runtime_env=runtime_env) as parts:
        async with parts.run_jobs():
            await submit_tuning(parts, "")
            job = await parts.wait_for_job()
        assert (job["state"], count_reports(parts)) == ("done", ALL)
        worker, *_ = nodes.list_descendants("n1", "ktuned.worker")
        assert psutil.Process(worker).environ()["OF_THE_RUNTIME_ENV"] == "yes"
        actors = [psutil.Process(pid) for pid in nodes.list_descendants("n1", "NodeActor")]
        assert actors
    # The client's server would keep them for 30 s.
    assert psutil.wait_procs(actors, timeout=10)[1] == []


@pytest.mark.usefixtures("only_in_chaos")
async def test_a_real_kernel_is_tuned_over_the_cluster(tmp_path: Path, nodes: Nodes) -> None:
    """``examples/cpu_gemm`` is compiled and measured on the nodes alone, and its winner is served here."""
    async with assemble_member(tmp_path, nodes, "n0", "n1") as parts:
        for path in CPU_GEMM.iterdir():
            if path.suffix in (".py", ".h", ".cc"):
                parts.write_file(path.read_text(), path.name)
        await parts.inspector.inspect_files(parts.root, [str(parts.project / "tune_gemm.py")])
        kernel = parts.catalog.resolve_kernel("gemm")
        async with parts.run_jobs():
            await parts.requests.request_jobs(kernel, TuningRequest(trials=6))
            job = await parts.wait_for_job()
        assert job["state"] == "done", job["message"]
        assert {lane.device.host for lane in parts.jobs.list_lanes()} <= {"n0", "n1"}
        (winner,) = parts.store.list_winners(kernel.name)
        assert winner.latency_us > 0


def find_waiting_worker(parts: Parts) -> int:
    """Return the worker whose config waits at the gate."""
    (pid,) = {lane.worker_pid for lane in parts.jobs.list_lanes() if lane.worker_pid}
    return pid


def find_member_process() -> int:
    """Return the daemon's process that has joined the cluster."""
    (pid,) = [child.pid for child in psutil.Process().children() if "ktuned_ray" in child.cmdline()]
    return pid


KILLS: dict[str, Callable[[Nodes, Parts], int]] = {
    "worker": lambda nodes, parts: find_waiting_worker(parts),
    "actor": lambda nodes, parts: psutil.Process(find_waiting_worker(parts)).ppid(),
    "member": lambda nodes, parts: find_member_process(),
}


@pytest.mark.parametrize("what", KILLS)
async def test_a_kill_loses_and_repeats_nothing(
    what: str, tmp_path: Path, nodes: Nodes, request: pytest.FixtureRequest
) -> None:
    """After a SIGKILL in a trial, each config is measured once, on the node that returns."""
    if what != "actor":
        request.getfixturevalue("only_in_chaos")
    async with assemble_member(tmp_path, nodes, "n1") as parts, parts.run_jobs():
        gate = f"kill-{what}"
        await submit_tuning(parts, gate)
        await nodes.wait_until_reached(gate)
        pid = KILLS[what](nodes, parts)
        children = (
            [] if what == "worker" else psutil.Process(find_waiting_worker(parts)).parents()[0].children(recursive=True)
        )
        workers = [child for child in children if "ktuned.worker" in child.cmdline()]
        os.kill(pid, signal.SIGKILL)
        nodes.open_gate(gate)
        job = await parts.wait_for_job()
        assert (job["state"], count_reports(parts)) == ("done", ALL)
        survivors = psutil.wait_procs(workers, timeout=5)[1]
        assert [worker for worker in survivors if worker.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.usefixtures("only_in_chaos")
async def test_a_node_that_dies_leaves_its_work_to_others(tmp_path: Path, nodes: Nodes) -> None:
    """The node ends with its raylet; its configs are measured elsewhere."""
    async with assemble_member(tmp_path, nodes, "n1", "n2") as parts, parts.run_jobs():
        kernel = await parts.inspect_file(
            make_kernel_text(
                configs="[" + ", ".join(f"dict(us={us}, gate='raylet')" for us in US) + "]",
                reference="lambda x: 2 * x",
            )
        )
        await parts.requests.request_jobs(kernel, TuningRequest())
        await nodes.wait_until_reached("raylet")
        with anyio.fail_after(PATIENCE_S):
            while sum(lane.worker_pid is not None for lane in parts.jobs.list_lanes()) < 2:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        below = psutil.Process(nodes.raylets["n2"]).children(recursive=True)
        os.kill(nodes.raylets["n2"], signal.SIGKILL)
        nodes.open_gate("raylet")
        job = await parts.wait_for_job()
        assert (job["state"], count_reports(parts)) == ("done", ALL)
        _, survivors = psutil.wait_procs(below, timeout=PATIENCE_S)
        assert [process.cmdline() for process in survivors if "ktuned" in " ".join(process.cmdline())] == []


@pytest.mark.usefixtures("only_in_chaos")
async def test_local_tuning_goes_on_when_the_cluster_ends(tmp_path: Path, nodes: Nodes) -> None:
    """The cluster ends with its head; its configs are measured here, and a notice reports it."""
    async with assemble_member(tmp_path, nodes) as parts, parts.run_jobs():
        # Each lane stands at a gate, this machine's at its own: whichever is open first would have measured all.
        configs = ", ".join(f"dict(us={us}, gate='head')" for us in US)
        text = make_kernel_text(configs=f"[{configs}]", reference="lambda x: 2 * x", early_stop="1e9")
        await parts.requests.request_jobs(await parts.inspect_file(text), TuningRequest())
        await nodes.wait_until_reached("head")
        os.kill(nodes.head, signal.SIGKILL)
        nodes.open_gate("head")
        parts.open_gate("head")
        job = await parts.wait_for_job()
        assert (job["state"], count_reports(parts)) == ("done", ALL)
        with anyio.fail_after(PATIENCE_S):
            while not any("cluster" in line for line in parts.daemon.cluster.notices):  # noqa: ASYNC110
                await anyio.sleep(0.05)
        assert parts.machine.environments.hosts == ()
        assert sys.executable == parts.environment.python
