"""Headless Neovim, a MessagePack-RPC client that knows nothing of ktuned, drives the daemon."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.daemon_parts import PATIENCE_S
from tests.e2e.harness import Daemon, make_kernel_text

SCRIPT = Path(__file__).with_suffix(".lua").with_stem("neovim")


@pytest.mark.skipif(shutil.which("nvim") is None, reason="there is no nvim (apt-get install neovim)")
def test_neovim_gets_answers_errors_and_events(daemon: Daemon, tmp_path: Path) -> None:
    daemon.write_kernel(make_kernel_text("space([dict(us=300.0)])", default="dict(us=300.0)"))
    daemon.client.call("tune", path=str(tmp_path / "project"), trials=1)
    daemon.wait_until(lambda: daemon.look_up().status == "fresh", "the first winner")
    daemon.client.call("forget", kernel="it")
    answer = tmp_path / "answer.json"
    ended = subprocess.run(
        ["nvim", "--clean", "--headless", "-c", f"luafile {SCRIPT}", "-c", "qa!"],
        env={**daemon.env, "ANSWER": str(answer)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert answer.exists(), ended.stderr
    assert json.loads(answer.read_text()) == {
        "hello": 1,
        "status": "default",
        "refused": False,
        "events": ["job_queued", "job_done"],
        "tuned": "fresh",
        "many": ["fresh", "unknown"],
    }
