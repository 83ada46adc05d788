"""The user units in ``systemd/``, checked by systemd itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.distributions import ROOT

UNITS = ROOT / "systemd"
ANALYZE = shutil.which("systemd-analyze")


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """With the drop-in of the documented steps."""
    assert ANALYZE is not None
    program = tmp_path / "venv" / "ktuned"
    program.parent.mkdir()
    program.symlink_to("/bin/true")
    (step,) = [
        block for block in (ROOT / "docs/reference/settings.md").read_text().split("```") if "ExecStart=\n" in block
    ]
    shutil.copytree(UNITS, tmp_path / "units")
    edited = tmp_path / "units/ktuned.service.d/override.conf"
    edited.parent.mkdir()
    edited.write_text(step.replace("/home/me/venv/bin/ktuned", str(program)).replace("\n   ", "\n"))
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    done = subprocess.run(
        [ANALYZE, "verify", "--user", "--man=no", *map(str, sorted((tmp_path / "units").glob("ktuned.*t*e*")))],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if "ktuned" in line]
    assert complaints == []


def test_the_units_do_not_restrict_compilers_and_gpus() -> None:
    """No unit has an option that breaks a JIT compiler, a driver or a kernel file."""
    service = (UNITS / "ktuned.service").read_text()
    settings = {line.partition("=")[0] for line in service.splitlines() if "=" in line and not line.startswith("#")}
    harmful = {"MemoryDenyWriteExecute", "PrivateDevices", "DevicePolicy", "ProtectHome", "PrivateTmp", "ProtectClock"}
    assert not settings & harmful
    assert {"WatchdogSec", "Restart", "CPUWeight", "IOWeight", "MemoryMax", "NoNewPrivileges"} <= settings
