"""The user units: what systemd itself makes of them, and the command that writes them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ktuned.cli import main
from ktuned.cli import service_units as units

ROOT = Path(__file__).parents[2]
ANALYZE = shutil.which("systemd-analyze")

SYSTEMCTL = """\
#!/bin/sh
echo "$@" >> {log}
case "$2" in is-active) echo {active}; test {active} = active;; is-enabled) echo enabled;; esac
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home with nothing in it, where no daemon runs and systemctl is ours."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    manage(tmp_path, "inactive")
    return tmp_path


def manage(home: Path, active: str) -> None:
    """Put a systemctl into the way that notes what it is reported, and says whether units are active."""
    script = home / "bin" / "systemctl"
    script.write_text(SYSTEMCTL.format(log=home / "orders", active=active))
    script.chmod(0o755)


def orders(home: Path) -> list[str]:
    """Return what systemctl was asked to change."""
    said = (home / "orders").read_text().splitlines()
    return [line.removeprefix("--user ") for line in said if not line.startswith(("--user show", "--user is-"))]


def test_the_copies_to_read_are_what_is_written() -> None:
    """``systemd/`` holds the same units, for the place where pipx puts the program."""
    for name, text in units.compose_units(units.DEFAULT_COMMAND, listen=units.DEFAULT_LISTEN, environment={}).items():
        lines = (ROOT / "systemd" / name).read_text().splitlines(keepends=True)
        assert "".join(line for line in lines[2:]) == text
        assert all(line.startswith("# ") for line in lines[:2])


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
def test_systemd_takes_them(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say of the units, whatever the paths and values in them hold."""
    assert ANALYZE is not None
    python = tmp_path / "a b$c%d" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    environ = {
        "PATH": '/bin:/od%d "quoted"\\',
        "KTUNED_HOME": str(tmp_path / "ho me"),
        "KTUNED_SOCKET": str(tmp_path / "s" / "k%.sock"),
    }
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    for name, text in units.compose_installed_units(str(python), environ).items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [ANALYZE, "verify", "--user", "--man=no", *(str(tmp_path / name) for name in (units.SERVICE, units.SOCKET))],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "ktuned" in line]
    assert ours == []


def test_hardening_leaves_compilers_and_gpus_alone() -> None:
    """What would keep a JIT compiler, a driver or a kernel file away is in none of the units."""
    service = units.compose_units(units.DEFAULT_COMMAND, listen="x", environment={})[units.SERVICE]
    settings = {line.partition("=")[0] for line in service.splitlines() if "=" in line and not line.startswith("#")}
    harmful = {"MemoryDenyWriteExecute", "PrivateDevices", "DevicePolicy", "ProtectHome", "PrivateTmp", "ProtectClock"}
    assert not settings & harmful
    assert {"WatchdogSec", "Restart", "CPUWeight", "IOWeight", "MemoryMax", "NoNewPrivileges"} <= settings


def test_install_status_uninstall(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The units name this installation, the socket is enabled, and afterwards nothing of it is left."""
    place = home / ".config" / "systemd" / "user"
    assert main(["service", "status", "--json"]) == 1
    assert {one["file"] for one in json.loads(capsys.readouterr().out)["units"].values()} == {"absent"}

    assert main(["service", "install"]) == 0
    service = (place / units.SERVICE).read_text()
    assert f"ExecStart={sys.executable} -m ktuned start --foreground\n" in service
    assert f'Environment="PATH={os.environ["PATH"]}"\n' in service
    assert f"ListenStream={units.DEFAULT_LISTEN}\n" in (place / units.SOCKET).read_text()
    assert orders(home) == ["daemon-reload", f"enable --now {units.SOCKET}"]

    manage(home, "active")
    capsys.readouterr()
    assert main(["service", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["units"][units.SOCKET] == {
        "file": "current",
        "enabled": "enabled",
        "active": "active",
    }
    assert main(["service", "install", "--json"]) == 0
    assert main(["service", "uninstall"]) == 0
    assert list(place.iterdir()) == []
    assert orders(home)[-2:] == [f"disable --now {units.SERVICE} {units.SOCKET}", "daemon-reload"]
    assert main(["service", "uninstall"]) == 0


def test_what_was_written_by_hand_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A unit without our mark is neither replaced nor removed, unless that is asked for."""
    place = home / ".config" / "systemd" / "user"
    place.mkdir(parents=True)
    (place / units.SERVICE).write_text("[Service]\nExecStart=/bin/true\n")
    assert main(["service", "install"]) == 1
    assert "was written by hand; move it away, or give --force" in capsys.readouterr().err
    assert main(["service", "uninstall"]) == 0
    assert [path.name for path in place.iterdir()] == [units.SERVICE]
    assert main(["service", "install", "--force", "--no-start"]) == 0
    assert (place / units.SERVICE).read_text().startswith(units.MARK)


def test_a_manager_that_refuses_is_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What systemctl says goes into the line."""
    script = home / "bin" / "systemctl"
    script.write_text('#!/bin/sh\ntest "$2" = show && exit\necho "Access denied" >&2\nexit 1\n')
    assert main(["service", "install"]) == 1
    assert "systemctl --user daemon-reload failed: Access denied" in capsys.readouterr().err


def test_without_a_manager_the_units_are_written(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a container the files are there, and the line says what is left to do."""
    (home / "bin" / "systemctl").write_text("#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
    assert main(["service", "install"]) == 0
    assert "no user manager of systemd answers here; later: systemctl --user" in capsys.readouterr().err
