"""Which GPUs there are, reported by a driver that a C compiler makes here, and what runs on what."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ktuned.backends.contract import Absent
from ktuned.backends.cuda import compute_target, cuda_devices, has_gpu, runs_on

DRIVER = """
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { return INIT; }
#ifndef COUNT
#define COUNT 2
#define RETAINED 0
#endif
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return RETAINED; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
  strcpy(name, device ? "NVIDIA A100" : "NVIDIA H200");
  return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? (device ? 8 : 9) : attribute == 76 ? 0 : -1;
  return 0;
}
int cuDriverGetVersion(int *version) { *version = 13040; return 0; }
int cuGetErrorName(int error, const char **name) { *name = "CUDA_ERROR_OF_THE_TEST"; return 0; }
"""

MANAGEMENT = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned size) { strcpy(version, "580.159.04"); return 0; }
int nvmlShutdown(void) { return 0; }
"""

ASK = """
import sys
from ktuned.backends import Absent
from ktuned.backends.cuda import FUNCTION as ask
found = ask()
is_absent = isinstance(found, Absent)
print([found.reason, found.message] if is_absent else [(it.name, it.model, it.target, it.fingerprint) for it in found])
assert "torch" not in sys.modules
"""

Driver = Callable[..., str]


@pytest.fixture
def ask(tmp_path: Path) -> Driver:
    """Return a function that asks in a process whose driver answers ``cuInit`` with a code."""

    def ask(init: int, *, function: str = "cuda_devices", visible: str | None = None, nvml: bool = True) -> str:
        _compile(DRIVER, tmp_path / "libcuda.so.1", f"-DINIT={init}")
        if nvml:
            _compile(MANAGEMENT, tmp_path / "libnvidia-ml.so.1")
        environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        code = ASK.replace("FUNCTION", function)
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return ask


def _compile(source: str, library: Path, *flags: str) -> None:
    command = ["cc", "-shared", "-fPIC", *flags, "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)


def test_each_gpu_has_its_seat_model_target_and_driver(ask: Driver) -> None:
    """The driver's own order and names; the fingerprint is the driver's version alone: equal devices do not differ."""
    assert ast.literal_eval(ask(0)) == [
        ("cuda:0", "NVIDIA H200", "sm_90a", {"driver": "580.159.04"}),
        ("cuda:1", "NVIDIA A100", "sm_80", {"driver": "580.159.04"}),
    ]


def test_without_nvml_the_drivers_cuda_version_stands_in(ask: Driver, tmp_path: Path) -> None:
    """Containers may lack libnvidia-ml."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVML of its own")
    assert "'driver': 'CUDA 13.4'" in ask(0, nvml=False)


def test_hidden_gpus_are_told_from_missing_ones(ask: Driver) -> None:
    """No device is HIDDEN when CUDA_VISIBLE_DEVICES is set, even to nothing, else NO_HARDWARE."""
    assert "<Absence.HIDDEN" in ask(100, visible="")
    assert "CUDA_VISIBLE_DEVICES='7' hides every GPU" in ask(100, visible="7")
    assert "<Absence.NO_HARDWARE" in ask(100)


def test_a_driver_that_does_not_start_says_why(ask: Driver) -> None:
    """The driver's name for its failure is in the message."""
    said = ask(803)
    assert "<Absence.NO_DRIVER" in said
    assert "CUDA_ERROR_OF_THE_TEST" in said


def test_a_torch_without_cuda_is_an_absence(ask: Driver) -> None:
    """What plugins launch on are torch's tensors; torch is looked at without being imported."""
    import torch

    said = ask(0, function="torch_cuda_devices")
    assert ("<Absence.NO_LIBRARY" in said) == (torch.version.cuda is None)


def test_a_machine_without_a_gpu_says_so() -> None:
    """Whatever is here, the two answers agree."""
    assert has_gpu() == (not isinstance(cuda_devices(), Absent))


@pytest.mark.parametrize(
    ("capability", "target"),
    [((7, 5), "sm_75"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 3), "sm_103a"), ((12, 0), "sm_120a")],
)
def test_targets_have_the_suffix_where_the_architecture_has_one(capability: tuple[int, int], target: str) -> None:
    """From 9.0 on the fast instructions are architecture-specific."""
    assert compute_target(*capability) == target


@pytest.mark.parametrize(
    ("built_for", "target", "runs"),
    [
        ("sm_90a", "sm_90a", True),
        ("sm_90", "sm_90a", True),
        ("sm_90a", "sm_100a", False),
        ("sm_90", "sm_100a", False),
        ("sm_86", "sm_89", True),
        ("sm_89", "sm_86", False),
        ("sm_80", "sm_90a", False),
        ("sm_100f", "sm_103a", True),
        ("sm_103f", "sm_100a", False),
        ("sm_100a", "sm_103a", False),
        ("native", "sm_90a", False),
        ("", "sm_90a", False),
    ],
)
def test_machine_code_runs_on_later_minor_versions_unless_it_is_specific(
    built_for: str, target: str, runs: bool
) -> None:
    """Plain and family code runs on its major version from its minor one on; specific code on its own device."""
    assert runs_on(built_for, target) is runs


@pytest.mark.gpu
def test_the_gpus_here_are_those_that_torch_sees() -> None:
    """Names, order and capabilities agree with torch, in a process that has made no context."""
    code = """if True:
        from ktuned.backends.cuda import torch_cuda_devices
        devices = torch_cuda_devices()
        import torch
        assert [device.model for device in devices] == [
            torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())
        ], devices
        for i, device in enumerate(devices):
            assert device.name == f"cuda:{i}"
            assert device.target.startswith("sm_%d%d" % torch.cuda.get_device_capability(i)), device
            assert device.fingerprint["driver"].count(".") >= 1, device
    """
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.gpu
def test_hiding_the_gpus_here_is_noticed() -> None:
    """CUDA_VISIBLE_DEVICES is obeyed by the real driver."""
    code = "from ktuned.backends.cuda import cuda_devices; print(cuda_devices().reason)"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "hidden"


@pytest.mark.parametrize(("count", "retained", "holds"), [(1, 0, True), (2, 0, False), (0, 0, False), (1, 2, False)])
def test_the_context_of_the_only_gpu_is_held(tmp_path: Path, count: int, retained: int, holds: bool) -> None:
    """With several it is not known whose it will be; a GPU that has no memory for it is met again when it is opened."""
    _compile(DRIVER, tmp_path / "libcuda.so.1", "-DINIT=0", f"-DCOUNT={count}", f"-DRETAINED={retained}")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    code = "from ktuned.backends import hold_only_context; print(hold_only_context())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (str(holds), "")
