"""The GPUs, as reported by a driver that a C compiler makes here, and which machine code runs on which target."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ktuned.backends.contract import Absent
from ktuned.backends.cuda import compute_target, cuda_devices, has_gpu, runs_on

FAKE_DRIVER = """
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

FAKE_NVML = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned size) { strcpy(version, "580.159.04"); return 0; }
int nvmlShutdown(void) { return 0; }
"""

LIST_DEVICES_PROGRAM = """
import sys
from ktuned.backends import Absent
from ktuned.backends.cuda import FUNCTION as ask
found = ask()
is_absent = isinstance(found, Absent)
print([found.reason, found.message] if is_absent else [(it.name, it.model, it.target, it.fingerprint) for it in found])
assert "torch" not in sys.modules
"""

QueryDriver = Callable[..., str]


@pytest.fixture
def query_driver(tmp_path: Path) -> QueryDriver:
    """Return a function that asks in a process whose driver answers ``cuInit`` with a code."""

    def query_driver(
        init: int, *, function: str = "cuda_devices", visible: str | None = None, nvml: bool = True
    ) -> str:
        compile_library(FAKE_DRIVER, tmp_path / "libcuda.so.1", f"-DINIT={init}")
        if nvml:
            compile_library(FAKE_NVML, tmp_path / "libnvidia-ml.so.1")
        environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        code = LIST_DEVICES_PROGRAM.replace("FUNCTION", function)
        process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
        return process.stdout

    return query_driver


def compile_library(source: str, library: Path, *flags: str) -> None:
    command = ["cc", "-shared", "-fPIC", *flags, "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)


def test_each_gpu_has_its_name_model_target_and_driver(query_driver: QueryDriver) -> None:
    """The order is the driver's; the fingerprint is the driver's version only, so equal devices do not differ."""
    assert ast.literal_eval(query_driver(0)) == [
        ("cuda:0", "NVIDIA H200", "sm_90a", {"driver": "580.159.04"}),
        ("cuda:1", "NVIDIA A100", "sm_80", {"driver": "580.159.04"}),
    ]


def test_without_nvml_the_drivers_cuda_version_stands_in(query_driver: QueryDriver, tmp_path: Path) -> None:
    """Containers may lack libnvidia-ml."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVML of its own")
    assert "'driver': 'CUDA 13.4'" in query_driver(0, nvml=False)


def test_hidden_gpus_are_told_from_missing_ones(query_driver: QueryDriver) -> None:
    """Without devices, the absence is HIDDEN if CUDA_VISIBLE_DEVICES is set, even to nothing; otherwise NO_HARDWARE."""
    assert "<Absence.HIDDEN" in query_driver(100, visible="")
    assert "CUDA_VISIBLE_DEVICES='7' hides every GPU" in query_driver(100, visible="7")
    assert "<Absence.NO_HARDWARE" in query_driver(100)


def test_a_driver_that_does_not_start_says_why(query_driver: QueryDriver) -> None:
    """The message has the driver's name of the error."""
    output = query_driver(803)
    assert "<Absence.NO_DRIVER" in output
    assert "CUDA_ERROR_OF_THE_TEST" in output


def test_a_torch_without_cuda_is_an_absence(query_driver: QueryDriver) -> None:
    """Plugins launch on torch tensors; torch is examined without being imported."""
    import torch

    output = query_driver(0, function="torch_cuda_devices")
    assert ("<Absence.NO_LIBRARY" in output) == (torch.version.cuda is None)


def test_has_gpu_agrees_with_the_list_of_devices() -> None:
    """Both functions agree, whatever this machine has."""
    assert has_gpu() == (not isinstance(cuda_devices(), Absent))


@pytest.mark.parametrize(
    ("capability", "target"),
    [((7, 5), "sm_75"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 3), "sm_103a"), ((12, 0), "sm_120a")],
)
def test_targets_have_the_suffix_where_the_architecture_has_one(capability: tuple[int, int], target: str) -> None:
    """From 9.0 on, the fast instructions are architecture-specific."""
    assert compute_target(*capability) == target


@pytest.mark.parametrize(
    ("built_for", "target", "is_runnable"),
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
    built_for: str, target: str, is_runnable: bool
) -> None:
    """Plain and family code runs on its major version from its minor version on; specific code only on its own
    architecture.
    """
    assert runs_on(built_for, target) is is_runnable


@pytest.mark.gpu
def test_the_gpus_here_are_those_that_torch_sees() -> None:
    """Names, order and capabilities agree, in a process without a context."""
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
    """The real driver obeys CUDA_VISIBLE_DEVICES."""
    code = "from ktuned.backends.cuda import cuda_devices; print(cuda_devices().reason)"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "hidden"


@pytest.mark.parametrize(("count", "retained", "is_held"), [(1, 0, True), (2, 0, False), (0, 0, False), (1, 2, False)])
def test_the_context_of_the_only_gpu_is_held(tmp_path: Path, count: int, retained: int, is_held: bool) -> None:
    """With several GPUs, nobody knows which one will be used. A GPU without free memory reports it when it is
    opened.
    """
    compile_library(FAKE_DRIVER, tmp_path / "libcuda.so.1", "-DINIT=0", f"-DCOUNT={count}", f"-DRETAINED={retained}")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    code = "from ktuned.backends import hold_only_context; print(hold_only_context())"
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (process.stdout.strip(), process.stderr) == (str(is_held), "")
