"""What the doctor says of compilers, drivers, backends and devices, from reports that tests make up."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from ktuned.cli import equipment
from ktuned.cli.doctor import Level
from ktuned.protocol import EnvironmentInfo, KernelEntry, RootInfo
from ktuned.store.artifacts import Artifacts
from ktuned.worker.seal import seal_artifact
from tests.cli.conftest import Run, Serve
from tests.cli.samples import kernel_map, status_map

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


def program(path: Path, script: str) -> Path:
    """Write a program that says something."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def environment(**changes: Any) -> dict[str, Any]:
    """Return an interpreter's report."""
    return {"python": "/p/python", "version": "3.12.3", "error": None, "nvml": "", "backends": {}, **changes}


def judged(report: dict[str, Any], roots: Any = ()) -> list[tuple[str, str, str, str]]:
    """Return what is found of one interpreter, as rows."""
    return [
        (f.level.value, f.what, f.message, f.mend)
        for f in equipment.check_backends([convert(report, EnvironmentInfo)], convert(roots, list[RootInfo]))
    ]


def test_compilers_are_told_with_their_place_and_version(tmp_path: Path) -> None:
    """c++ on the PATH; nvcc where CUDA_HOME says, else on the PATH, else where the Toolkit installs itself."""
    gxx = program(tmp_path / "bin" / "g++", CXX)
    on_path = program(tmp_path / "bin" / "nvcc", NVCC)
    home = program(tmp_path / "cuda" / "bin" / "nvcc", NVCC)
    path = f"{tmp_path / 'bin'}:/bin"
    cxx, nvcc = equipment.check_compilers({"PATH": path, "CUDA_HOME": str(tmp_path / "cuda")})
    assert nvcc.message == f"{home} 13.0 (CUDA_HOME)"
    _, nvcc = equipment.check_compilers({"PATH": path})
    assert nvcc.message == f"{on_path} 13.0 (PATH)"
    on_path.unlink()
    cxx, nvcc = equipment.check_compilers({"PATH": str(tmp_path / "bin")}, tmp_path / "cuda")
    assert (cxx.level, cxx.message, nvcc.message) == (Level.OK, f"{gxx} 12.2.0", f"{home} 13.0")


def test_missing_compilers_say_what_mends_them(tmp_path: Path) -> None:
    """Without c++ there is a command; without nvcc only who needs it; a CUDA_HOME that leads nowhere is a mistake."""
    cxx, nvcc = equipment.check_compilers({"PATH": str(tmp_path)}, tmp_path)
    assert (cxx.level, cxx.mend) == (Level.WARN, "apt-get install g++")
    assert (nvcc.level, "tvm_ffi needs it" in nvcc.message) == (Level.OK, True)
    _, nvcc = equipment.check_compilers({"PATH": str(tmp_path), "CUDA_HOME": "/nowhere"}, tmp_path)
    assert (nvcc.level, nvcc.message) == (Level.WARN, "CUDA_HOME=/nowhere holds no bin/nvcc")
    assert nvcc.mend
    (tmp_path / "c++").write_text("no program")
    (tmp_path / "c++").chmod(0o700)
    assert "does not run" in equipment.check_compilers({"PATH": str(tmp_path)}, tmp_path)[0].message


def test_a_missing_driver_is_no_fault_a_forbidden_one_is(tmp_path: Path) -> None:
    """None is no fault; one that a container may not use is; the environment's choice of GPUs is reported."""
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
    """With versions, and with the roots that use the interpreter."""
    roots = [{"path": "/a", "name": "mine", "python": "/p/python"}, {"path": "/b", "name": "other", "python": "/q"}]
    assert judged(environment(backends={"nvrtc": GOOD}), roots) == [
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
def test_what_is_missing_says_what_mends_it(backend: dict[str, Any], row: tuple[str, str, str]) -> None:
    """The reason, what works nevertheless, and the command."""
    _, found = judged(environment(backends={"x": backend}))
    level, message, mend = row
    assert found == (level, "backend x", message, mend)


def test_backends_that_lack_the_same_thing_share_a_line() -> None:
    """Without a GPU that is one fact, however many backends are for GPUs."""
    absent = {**GOOD, "devices": [], "absent": NO_GPU}
    _, *found = judged(environment(backends={"a": absent, "b": {**absent, "absent": NO_NVCC}, "c": absent}))
    assert [what for _, what, _, _ in found] == ["backends a, c", "backend b"]


def test_contention_that_cannot_be_judged() -> None:
    """NVML that is missing is a warning with its command, for the interpreter that misses it."""
    missing = "nvidia-ml-py is not installed (pip install nvidia-ml-py)"
    *_, (level, what, message, mend) = judged(environment(backends={"nvrtc": GOOD}, nvml=missing))
    assert (level, what, mend) == ("warn", "NVML", "/p/python -m pip install nvidia-ml-py")
    assert "timings ignore it" in message


def test_interpreter_that_cannot_be_asked() -> None:
    """It fails, with the roots that it is for."""
    error = {"code": "worker", "message": "no such file", "hint": ""}
    report = {"python": "/gone", "error": error, "backends": {}}
    (row,) = judged(report, [{"path": "/a", "name": "mine", "python": "/gone"}])
    assert row == ("fail", "/gone", "no such file; for mine", "check the python that the root's config names")


def test_backend_that_a_kernel_needs() -> None:
    """A kernel's backend that its interpreter has not is a failure, with the pip of that interpreter."""
    roots = [{"path": "/src", "name": "mine", "python": "/p/python"}]
    kernels = [
        {"name": "mine:b", "backend": "tvm_ffi", "file": "/src/tune_b.py"},
        {"name": "mine:a", "backend": "tvm_ffi", "file": "/src/tune_b.py"},
        {"name": "mine:c", "backend": "nvrtc", "file": "/src/tune_c.py"},
        {"name": "else:d", "backend": "tvm_ffi", "file": "/elsewhere/tune_d.py"},
    ]
    known = [convert(kernel_map(**kernel), KernelEntry) for kernel in kernels]
    reports = [convert(environment(backends={"nvrtc": GOOD}), EnvironmentInfo)]
    (finding,) = equipment.check_kernels(known, reports, convert(roots, list[RootInfo]))
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
def test_probe_of_an_interpreter_that_fails(tmp_path: Path, script: str | None, words: str) -> None:
    """It hangs, has no ktuned, says nothing or is not there: each is a report with its reason."""
    python = tmp_path / "python"
    if script is not None:
        program(python, script.replace("sleep", "exec sleep"))
    report = equipment.probe_here(str(python), deadline_s=0.2 if script == "sleep 100" else 30.0)
    assert report.error is not None
    assert words in report.error.message
    assert [finding.level for finding in equipment.check_backends([report])] == [Level.FAIL]


def sealed(artifacts: Artifacts, key: str, backend: str) -> None:
    """Leave an artifact of a backend."""
    staged = artifacts.make_staging_directory(key)
    (staged / "kernel").write_bytes(b"x" * 100)
    seal_artifact(staged, artifacts.locate_artifact(key), key=key, backend=backend, facts={}, required=["kernel"])


@pytest.mark.anyio
async def test_artifacts_of_a_backend_that_is_no_more_are_listed(tmp_path: Path, run: Run, serve: Serve) -> None:
    """They are kept; so is one whose manifest cannot be read, until someone asks for it."""
    artifacts = Artifacts(tmp_path / "artifacts", 2**20)
    for key, backend in (("a1", "tvm_ffi"), ("a2", "tvm_ffi"), ("b1", "gone"), ("c1", "gone")):
        sealed(artifacts, key, backend)
    manifest = artifacts.locate_artifact("c1") / "manifest.json"
    manifest.chmod(0o600)
    manifest.write_text("{")
    census = artifacts.count_by_backend()
    assert {backend: count for backend, (count, _) in census.items()} == {"tvm_ffi": 2, "gone": 1, "": 1}
    found = {"bytes": 1, "cap_bytes": 2, "directory": str(artifacts.directory)}
    backends = {"environments": status_map()["environments"]}
    serve(status=status_map(artifacts=found), backends=backends, kernels={"kernels": []})
    (findings,) = run("doctor", "--json").values
    said = {finding["what"]: finding["message"] for finding in findings}
    assert said["artifacts of tvm_ffi"].startswith("2, ")
    assert said["artifacts of gone"].endswith("; kept, though no such backend is installed")
