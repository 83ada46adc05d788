"""The daemons of the tests fork their workers: one that starts them normally takes three times as much CPU."""

from pathlib import Path

import psutil

from tests.e2e.harness import Daemon, make_kernel_text


def test_a_daemon_s_workers_are_forked(tmp_path: Path) -> None:
    """Their parent is a process that has imported what they need."""
    with Daemon(tmp_path) as daemon:
        daemon.tune(path=daemon.write_kernel(make_kernel_text("space([dict(us=50.0)])")))
        assert daemon.process is not None
        parents = {psutil.Process(pid).ppid() for pid in daemon.list_worker_pids()}
        assert parents
        assert daemon.process.pid not in parents
