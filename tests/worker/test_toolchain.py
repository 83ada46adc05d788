"""What a probe notes of its environment, and what of that enters which fingerprint."""

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
    """A registry with the fake backend alone."""
    monkeypatch.syspath_prepend(str(FAKE_BACKEND))
    return Registry([EntryPoint("fake", "ktuned_fake:Fake", "ktuned.backends")])


def reported(registry: Registry, directory: Path, *own: str, **variables: str) -> BackendReport:
    """Return the fake backend's report in an environment of which a project sets its own part."""
    environ = directory / "environ"
    environ.write_bytes(b"".join(f"{name}={value}\0".encode() for name, value in variables.items()))
    return probe_interpreter(registry, requests.Probe(own), environ).backends["fake"]


def test_compilers_variables_key_artifacts_and_runtimes_variables_measurements(
    registry: Registry, tmp_path: Path
) -> None:
    """Each enters one fingerprint, by its name; what only says where files go, or what is not declared, enters none."""
    plain = reported(registry, tmp_path)
    deciding = {
        "CPATH": "/include",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OMP_NUM_THREADS": "4",
        "TORCH_X": "1",
        "TRITON_Y": "2",
        "CUDA_Z": "3",
    }
    found = reported(registry, tmp_path, **deciding, TRITON_CACHE_DIR="/c", CUDA_VISIBLE_DEVICES="0", HOME="/h")
    (device,), (before,) = found.devices, plain.devices
    assert dict(found.fingerprint) == {**plain.fingerprint, "env:CPATH": "/include"}
    assert dict(device.fingerprint) == {
        **before.fingerprint,
        "env:ATEN_CPU_CAPABILITY": "avx2",
        "env:ONEDNN_MAX_CPU_ISA": "AVX2",
        "env:CUDA_Z": "3",
        "env:OMP_NUM_THREADS": "4",
        "env:TORCH_X": "1",
        "env:TRITON_Y": "2",
    }


@pytest.mark.parametrize(
    ("error", "said", "hint"),
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
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str, hint: str
) -> None:
    """With the command that installs it, in place of an import's or the metadata's own words."""

    def fail() -> None:
        raise error

    monkeypatch.setattr(registry.load("fake"), "fingerprint", fail)
    fault = reported(registry, tmp_path).error
    assert fault is not None
    assert fault.message.startswith(said)
    assert fault.hint.endswith(hint)


def test_a_projects_own_variables_enter_both_fingerprints_as_digests(registry: Registry, tmp_path: Path) -> None:
    """A kernel file may read any of them, and they may hold secrets."""
    found = reported(registry, tmp_path, "TOKEN", TOKEN="secret", OTHER="1")
    (device,) = found.devices
    assert found.fingerprint["env:TOKEN"] == device.fingerprint["env:TOKEN"]
    assert "secret" not in str(found)
    assert "env:OTHER" not in found.fingerprint
