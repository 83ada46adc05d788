"""What a probe records about its environment, and which fingerprint it enters."""

from __future__ import annotations

from importlib.metadata import EntryPoint, PackageNotFoundError
from pathlib import Path

import pytest

from ktuned.backends import Registry
from ktuned.ipc import requests
from ktuned.model import BackendReport
from ktuned.worker.probe import probe_interpreter
from tests.daemon_parts import FAKE_BACKEND


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry with the fake backend only."""
    monkeypatch.syspath_prepend(str(FAKE_BACKEND))
    return Registry([EntryPoint("fake", "ktuned_fake:Fake", "ktuned.backends")])


def probe_backend(registry: Registry, directory: Path, *project_variables: str, **variables: str) -> BackendReport:
    """Return the fake backend's report in an environment; the project itself sets ``project_variables``."""
    environ = directory / "environ"
    environ.write_bytes(b"".join(f"{name}={value}\0".encode() for name, value in variables.items()))
    return probe_interpreter(registry, requests.Probe(project_variables), environ).backends["fake"]


def test_compilers_variables_key_artifacts_and_runtimes_variables_measurements(
    registry: Registry, tmp_path: Path
) -> None:
    """Each declared variable enters one fingerprint by its name. Variables that only say where files go enter none."""
    plain_report = probe_backend(registry, tmp_path)
    decisive_variables = {
        "CPATH": "/include",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OMP_NUM_THREADS": "4",
        "TORCH_X": "1",
        "TRITON_Y": "2",
        "CUDA_Z": "3",
    }
    report = probe_backend(
        registry, tmp_path, **decisive_variables, TRITON_CACHE_DIR="/c", CUDA_VISIBLE_DEVICES="0", HOME="/h"
    )
    (device,), (plain_device,) = report.devices, plain_report.devices
    assert dict(report.fingerprint) == {**plain_report.fingerprint, "env:CPATH": "/include"}
    assert dict(device.fingerprint) == {
        **plain_device.fingerprint,
        "env:ATEN_CPU_CAPABILITY": "avx2",
        "env:ONEDNN_MAX_CPU_ISA": "AVX2",
        "env:CUDA_Z": "3",
        "env:OMP_NUM_THREADS": "4",
        "env:TORCH_X": "1",
        "env:TRITON_Y": "2",
    }


@pytest.mark.parametrize(
    ("error", "message_start", "hint"),
    [
        (
            PackageNotFoundError("nvidia-cutlass-dsl"),
            "nvidia-cutlass-dsl is not installed",
            "install nvidia-cutlass-dsl",
        ),
        (
            ModuleNotFoundError("No module named 'cutlass'", name="cutlass"),
            "cutlass is not installed",
            "install cutlass",
        ),
    ],
)
def test_a_library_that_is_missing_is_named(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message_start: str, hint: str
) -> None:
    """The message has the command that installs the library."""

    def raise_error() -> None:
        raise error

    monkeypatch.setattr(registry.load("fake"), "fingerprint", raise_error)
    fault = probe_backend(registry, tmp_path).error
    assert fault is not None
    assert fault.message.startswith(message_start)
    assert fault.hint.endswith(hint)


def test_a_projects_own_variables_enter_both_fingerprints_as_digests(registry: Registry, tmp_path: Path) -> None:
    """A kernel file may read any of them, and they may be secret."""
    report = probe_backend(registry, tmp_path, "TOKEN", TOKEN="secret", OTHER="1")
    (device,) = report.devices
    assert report.fingerprint["env:TOKEN"] == device.fingerprint["env:TOKEN"]
    assert "secret" not in str(report)
    assert "env:OTHER" not in report.fingerprint
