"""Commands that start a daemon at the same moment share one."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from ktuned.serve import find_holder
from tests.daemon_parts import PATIENCE_S
from tests.e2e.harness import Daemon

COMMANDS = 8


def start_at_once(daemon: Daemon) -> list[str]:
    """Run ``ktuned start`` in several processes at once; return what each printed."""
    started = [
        subprocess.Popen([sys.executable, "-m", "ktuned", "start"], env=daemon.env, stderr=subprocess.PIPE, text=True)
        for _ in range(COMMANDS)
    ]
    outputs = [process.communicate(timeout=PATIENCE_S)[1] for process in started]
    assert [process.returncode for process in started] == [0] * COMMANDS, outputs
    return outputs


def list_daemons(home: Path) -> list[int]:
    """Return the processes that are a home's daemon, or wait to become it."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"--foreground" in (place / "cmdline").read_bytes().split(b"\0"):
                variables = (place / "environ").read_bytes().split(b"\0")
                found += [int(place.name)] if f"KTUNED_HOME={home}".encode() in variables else []
    return found


def test_commands_that_start_at_once_share_one_daemon(tmp_path: Path) -> None:
    """All succeed, one of them says that it has started the daemon, and the lock's file names that process.

    The second time they start while the daemon before still ends.
    """
    daemon = Daemon(tmp_path)
    for _ in range(2):
        starts = [
            line for output in start_at_once(daemon) for line in output.splitlines() if "started a daemon" in line
        ]
        holder = find_holder(daemon.home)
        assert holder is not None
        assert holder.socket == str(daemon.socket)
        assert starts == [f"started a daemon (pid {holder.pid}); `ktuned stop` ends it"]
        assert daemon.client.call("hello")["pid"] == holder.pid
        assert list_daemons(daemon.home) == [holder.pid], "another one would serve when this one is stopped"
        daemon.client.call("shutdown")
    assert daemon.run_ktuned("start").returncode == 0
    assert daemon.run_ktuned("stop").returncode == 0
