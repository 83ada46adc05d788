"""The doctor's findings about compilers, drivers, backends and devices."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from ktuned.cli import equipment
from ktuned.cli.doctor import Level
from ktuned.protocol import EnvironmentInfo, KernelEntry, RootInfo
from tests.cli.samples import make_kernel_map

NVCC = "echo nvcc: NVIDIA; echo Copyright 2005-2025; echo Cuda compilation tools, release 13.0, V13.0.48"
CXX = "echo 'g++ (Debian 12.2.0-14) 12.2.0'; echo Copyright 2022"
GPU = {"name": "cuda:0", "model": "NVIDIA H200", "target": "sm_90a", "fingerprint": {"driver": "580.1"}}
GOOD: dict[str, Any] = {
    "version": "0.1.0",
    "fingerprint": {"nvrtc": "13.0.48"},
    "target": "sm_90a",
    "devices": [GPU],
    "absent": None,
    "error": None,
}
NO_GPU = {"reason": "no_hardware", "message": "no NVIDIA GPU in this machine", "hint": ""}
NO_NVCC = {"reason": "no_compiler", "message": "no nvcc on the PATH", "hint": "set CUDA_HOME"}
BROKEN = {"code": "backend", "message": "ImportError: y", "hint": ""}


def write_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def make_environment_report(**changes: Any) -> dict[str, Any]:
    return {"python": "/p/python", "version": "3.12.3", "error": None, "nvml": "", "backends": {}, **changes}


def check_report(report: dict[str, Any], roots: Any = ()) -> list[tuple[str, str, str, str]]:
    """Return the findings about one interpreter, as rows."""
    return [
        (f.level.value, f.what, f.message, f.mend)
        for f in equipment.check_backends([convert(report, EnvironmentInfo)], convert(roots, list[RootInfo]))
    ]


def test_compilers_are_listed_with_path_and_version(tmp_path: Path) -> None:
    """Nvcc is searched in ``CUDA_HOME``, then on ``PATH``, then where the Toolkit is installed."""
    gxx = write_program(tmp_path / "bin" / "g++", CXX)
    on_path = write_program(tmp_path / "bin" / "nvcc", NVCC)
    home = write_program(tmp_path / "cuda" / "bin" / "nvcc", NVCC)
    path = f"{tmp_path / 'bin'}:/bin"
    cxx, nvcc = equipment.check_compilers({"PATH": path, "CUDA_HOME": str(tmp_path / "cuda")})
    assert nvcc.message == f"{home} 13.0 (CUDA_HOME)"
    _, nvcc = equipment.check_compilers({"PATH": path})
    assert nvcc.message == f"{on_path} 13.0 (PATH)"
    on_path.unlink()
    cxx, nvcc = equipment.check_compilers({"PATH": str(tmp_path / "bin")}, tmp_path / "cuda")
    assert (cxx.level, cxx.message, nvcc.message) == (Level.OK, f"{gxx} 12.2.0", f"{home} 13.0")


def test_missing_compilers_have_a_remedy(tmp_path: Path) -> None:
    """A missing c++ has a command; a missing nvcc is no fault; a wrong ``CUDA_HOME`` is."""
    cxx, nvcc = equipment.check_compilers({"PATH": str(tmp_path)}, tmp_path)
    assert (cxx.level, cxx.mend) == (Level.WARN, "apt-get install g++")
    assert (nvcc.level, "tvm_ffi needs it" in nvcc.message) == (Level.OK, True)
    _, nvcc = equipment.check_compilers({"PATH": str(tmp_path), "CUDA_HOME": "/nowhere"}, tmp_path)
    assert (nvcc.level, nvcc.message) == (Level.WARN, "CUDA_HOME=/nowhere holds no bin/nvcc")
    assert nvcc.mend
    (tmp_path / "c++").write_text("no program")
    (tmp_path / "c++").chmod(0o700)
    assert "does not run" in equipment.check_compilers({"PATH": str(tmp_path)}, tmp_path)[0].message


def test_a_missing_driver_passes_and_a_forbidden_one_warns(tmp_path: Path) -> None:
    """A container may lack access to the driver. ``CUDA_VISIBLE_DEVICES`` is shown."""
    proc, control = tmp_path / "version", tmp_path / "nvidiactl"
    assert equipment.check_gpu({}, proc, control).level is Level.OK
    proc.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Nov 1 2025\nGCC version: 12.2.0\n")
    finding = equipment.check_gpu({}, proc, control)
    assert (finding.level, finding.mend) == (Level.WARN, "start the container with --gpus all")
    control.touch()
    assert equipment.check_gpu({}, proc, control).message == "580.159.04"
    finding = equipment.check_gpu({"CUDA_VISIBLE_DEVICES": "1"}, proc, control)
    assert finding.message == "580.159.04; CUDA_VISIBLE_DEVICES=1"


def test_each_backend_and_each_device_has_its_line() -> None:
    """The interpreter's line names the roots that use it."""
    roots = [{"path": "/a", "name": "mine", "python": "/p/python"}, {"path": "/b", "name": "other", "python": "/q"}]
    assert check_report(make_environment_report(backends={"nvrtc": GOOD}), roots) == [
        ("ok", "/p/python", "Python 3.12.3; for mine", ""),
        ("ok", "backend nvrtc", "0.1.0, nvrtc 13.0.48", ""),
        ("ok", "nvrtc on cuda:0", "NVIDIA H200, sm_90a, driver 580.1", ""),
    ]


@pytest.mark.parametrize(
    ("backend", "row"),
    [
        (
            {**GOOD, "devices": [], "absent": NO_GPU},
            ("ok", "no NVIDIA GPU in this machine; kernels still compile for sm_90a", ""),
        ),
        ({**GOOD, "devices": [], "absent": NO_NVCC}, ("warn", "no_compiler: no nvcc on the PATH", "set CUDA_HOME")),
        (
            {**GOOD, "target": "", "devices": [], "absent": NO_GPU},
            ("ok", "no NVIDIA GPU in this machine", ""),
        ),
        ({**GOOD, "devices": [], "error": BROKEN}, ("fail", "ImportError: y", "reinstall its distribution")),
        ({**GOOD, "devices": []}, ("warn", "finds no device", "reinstall its distribution")),
    ],
    ids=["no-gpu", "no-compiler", "nothing-to-compile-for", "broken", "silent"],
)
def test_a_missing_part_has_its_reason_and_remedy(backend: dict[str, Any], row: tuple[str, str, str]) -> None:
    _, finding = check_report(make_environment_report(backends={"x": backend}))
    level, message, mend = row
    assert finding == (level, "backend x", message, mend)


def test_backends_that_lack_the_same_thing_share_a_line() -> None:
    """Without a GPU, all backends for GPUs lack the same thing."""
    absent = {**GOOD, "devices": [], "absent": NO_GPU}
    _, *findings = check_report(
        make_environment_report(backends={"a": absent, "b": {**absent, "absent": NO_NVCC}, "c": absent})
    )
    assert [what for _, what, _, _ in findings] == ["backends a, c", "backend b"]


def test_missing_nvml_warns() -> None:
    """The finding has the command for the interpreter that lacks NVML."""
    missing = "nvidia-ml-py is not installed (pip install nvidia-ml-py)"
    *_, (level, what, message, mend) = check_report(make_environment_report(backends={"nvrtc": GOOD}, nvml=missing))
    assert (level, what, mend) == ("warn", "NVML", "/p/python -m pip install nvidia-ml-py")
    assert "contention is not detected" in message


def test_an_interpreter_that_cannot_be_probed_fails() -> None:
    """The finding names the roots that use it."""
    error = {"code": "worker", "message": "no such file", "hint": ""}
    report = {"python": "/gone", "error": error, "backends": {}}
    (row,) = check_report(report, [{"path": "/a", "name": "mine", "python": "/gone"}])
    assert row == ("fail", "/gone", "no such file; for mine", "check the python that the root's config names")


def test_a_kernel_s_missing_backend_fails() -> None:
    """The finding names the kernels and the interpreter."""
    roots = [{"path": "/src", "name": "mine", "python": "/p/python"}]
    kernels = [
        {"kernel": "mine:b", "backend": "tvm_ffi", "file": "/src/tune_b.py"},
        {"kernel": "mine:a", "backend": "tvm_ffi", "file": "/src/tune_b.py"},
        {"kernel": "mine:c", "backend": "nvrtc", "file": "/src/tune_c.py"},
        {"kernel": "else:d", "backend": "tvm_ffi", "file": "/elsewhere/tune_d.py"},
    ]
    entries = [convert(make_kernel_map(**kernel), KernelEntry) for kernel in kernels]
    reports = [convert(make_environment_report(backends={"nvrtc": GOOD}), EnvironmentInfo)]
    (finding,) = equipment.check_kernels(entries, reports, convert(roots, list[RootInfo]))
    assert (finding.level, finding.what) == (Level.FAIL, "backend tvm_ffi")
    assert finding.message == "not installed for /p/python, and needed by mine:a, mine:b"
    assert finding.mend == "/p/python -m pip install 'ktuned[tvm-ffi]'"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("sleep 100", "did not answer in 0 s"),
        ("echo ModuleNotFoundError: ktuned >&2; exit 1", "ModuleNotFoundError: ktuned"),
        ("exit 3", "exit status 3"),
        (None, "No such file"),
    ],
    ids=["hangs", "has-no-ktuned", "says-nothing", "is-not-there"],
)
def test_a_failed_probe_is_a_report_with_its_reason(tmp_path: Path, script: str | None, words: str) -> None:
    """The interpreter hangs, lacks ktuned, prints nothing or does not exist."""
    python = tmp_path / "python"
    if script is not None:
        write_program(python, script.replace("sleep", "exec sleep"))
    report = equipment.probe_here(str(python), deadline_s=0.2 if script == "sleep 100" else 30.0)
    assert report.error is not None
    assert words in report.error.message
    assert [finding.level for finding in equipment.check_backends([report])] == [Level.FAIL]
