"""The checks of ``doctor``, which need no daemon."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ktuned.cli import doctor
from ktuned.cli.commands.doctor import format_findings
from ktuned.cli.doctor import Finding, Level
from ktuned.model import TOML_HINT
from tests.cli.conftest import RunCli, StartDaemon
from tests.cli.samples import make_status, make_status_map


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ((3, 10, 9), Level.FAIL),
        ((3, 11, 0), Level.OK),
        ((3, 13, 5), Level.OK),
        ((3, 14, 0), Level.WARN),
        ((4, 0, 0), Level.WARN),
    ],
)
def test_an_older_python_fails_and_a_newer_one_warns(version: tuple[int, ...], level: Level) -> None:
    assert doctor.check_python(version).level is level


def test_a_socket_directory_open_to_others_fails(tmp_path: Path) -> None:
    """The finding has the ``chmod`` that repairs it; a directory that does not exist yet passes, a file fails."""
    directory = tmp_path / "d"
    path = str(directory / "ktuned.sock")
    assert doctor.check_socket(path).level is Level.OK
    directory.mkdir(mode=0o700)
    assert doctor.check_socket(path).level is Level.OK
    directory.chmod(0o755)
    finding = doctor.check_socket(path)
    assert (finding.level, finding.mend) == (Level.FAIL, f"chmod 700 {directory}")
    assert doctor.check_socket(str(directory / ("x" * 200))).level is Level.FAIL
    directory.rmdir()
    directory.write_text("")
    assert doctor.check_socket(path).level is Level.FAIL
    assert doctor.check_socket(str(directory / "below" / "ktuned.sock")).level is Level.FAIL


def test_a_wrong_config_file_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``doctor`` reports a ``config.toml`` with which no daemon can start; the file is optional."""
    monkeypatch.setenv("KTUNED_HOME", str(tmp_path))
    assert doctor.check_settings().level is Level.OK
    (tmp_path / "config.toml").write_text("compile_slots = 2\n")
    assert doctor.check_settings().level is Level.OK
    (tmp_path / "config.toml").write_text("compile_slots = 'two'\n")
    finding = doctor.check_settings()
    assert (finding.level, finding.mend) == (Level.FAIL, TOML_HINT)
    assert "compile_slots takes a whole number" in finding.message


def test_a_home_that_cannot_be_written_fails(tmp_path: Path) -> None:
    """A home that exists or can be created passes."""
    assert doctor.check_home(tmp_path).level is Level.OK
    assert doctor.check_home(tmp_path / "a" / "b").level is Level.OK
    (tmp_path / "file").write_text("")
    assert doctor.check_home(tmp_path / "file").level is Level.FAIL
    assert doctor.check_home(tmp_path / "file" / "home").level is Level.FAIL
    if os.getuid() != 0:
        tmp_path.chmod(0o500)
        assert doctor.check_home(tmp_path).level is Level.FAIL
        tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    ("free_bytes", "level"), [(0, Level.FAIL), (2**29, Level.WARN), (2**40, Level.OK), (None, None)]
)
def test_little_disk_space_warns(tmp_path: Path, free_bytes: int | None, level: Level | None) -> None:
    """Without a given figure, the real one is read."""
    finding = doctor.check_disk(tmp_path, free_bytes)
    assert level is None or finding.level is level


@pytest.mark.parametrize(
    ("watches", "instances", "level"), [("65536", "128", Level.OK), ("100", "8", Level.WARN), ("many", "8", Level.WARN)]
)
def test_low_limits_of_inotify_warn(tmp_path: Path, watches: str, instances: str, level: Level) -> None:
    """The finding has the ``sysctl`` that raises the limits."""
    (tmp_path / "max_user_watches").write_text(watches)
    (tmp_path / "max_user_instances").write_text(instances)
    finding = doctor.check_inotify(tmp_path)
    assert finding.level is level
    if watches == "100":
        assert finding.mend.startswith("sudo sysctl fs.inotify.max_user_watches=")


def test_installed_plugins_are_listed_unimported() -> None:
    """Having no backend fails."""
    assert doctor.check_plugins([]).level is Level.FAIL
    point = EntryPoint("broken", "there_is_no_such_module:Backend", "ktuned.backends")
    assert doctor.check_plugins([point]).message == "broken"


def test_no_daemon_and_another_version_warn() -> None:
    """Neither is a fault of the installation."""
    assert doctor.check_daemon(None, "0.1.0", "none").level is Level.WARN
    assert doctor.check_daemon(make_status(), "0.1.0").level is Level.OK
    finding = doctor.check_daemon(make_status(), "0.2.0")
    assert (finding.level, finding.mend) == (Level.WARN, "ktuned stop")


def test_a_sick_lane_fails() -> None:
    sick = {"device": "cuda:0", "model": "m", "state": "sick", "reason": "the canary did not pass"}
    assert doctor.check_lanes(make_status()) == []
    (finding,) = doctor.check_lanes(make_status(lanes=[sick]))
    assert (finding.level, finding.message) == (Level.FAIL, "the canary did not pass")


def test_notices_of_the_daemon_are_passed_on() -> None:
    assert doctor.check_notices(make_status()) == []
    (finding,) = doctor.check_notices(make_status(notices=["config.toml: devices names 'cuda:9'"]))
    assert (finding.level, finding.message) == (Level.WARN, "config.toml: devices names 'cuda:9'")


def test_the_doctor_works_without_a_daemon(run_cli: RunCli) -> None:
    """Every check has its line, and this interpreter's backends are probed."""
    result = run_cli("doctor", "--json")
    (findings,) = result.json_lines
    levels = {finding["what"]: finding["level"] for finding in findings}
    # In a new home none was needed yet.
    assert (levels["daemon"], levels[sys.executable]) == ("ok", "ok")
    assert {"backend tvm_ffi", "NVIDIA driver", "nvcc"} <= set(levels)
    assert "nvrtc" in " ".join(levels)
    assert result.code == any(finding["level"] == "fail" for finding in findings)
    assert result.err == ""


def test_a_failed_check_exits_1(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """The line has the command that repairs it."""
    error = {"code": "worker", "message": "no such file", "hint": ""}
    start_daemon(
        status=make_status_map(),
        backends={"environments": [{"python": "/gone/python", "error": error, "backends": {}}]},
        kernels={"kernels": []},
    )
    result = run_cli("doctor")
    assert result.code == 1
    assert re.search(r"^fail +/gone/python", result.out, re.MULTILINE)


def test_what_is_fine_takes_one_line_and_the_rest_is_told_in_full() -> None:
    fine = Finding(Level.OK, "plugins", "nvrtc 0.1.0, " * 20)
    broken = Finding(Level.FAIL, "home", "/srv is on a read-only file system " * 4, "set KTUNED_HOME")
    first, *rest = format_findings([fine, broken], 80)
    assert (len(first), first[-1]) == (80, "…")
    assert " ".join(" ".join(rest).split()) == (
        "fail home " + " ".join(("/srv is on a read-only file system " * 4).split()) + " remedy: set KTUNED_HOME"
    )
    assert max(map(len, rest)) <= 80
    assert "…" not in "".join(format_findings([fine], None))
