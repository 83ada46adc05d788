"""The conformance suite for backends passes a correct backend, and names each broken promise."""

from dataclasses import replace
from pathlib import Path

import pytest

from ktuned.backends.contract import Backend
from ktuned.testing.backends import check_backend, check_build
from tests.testing import copying


def test_a_faithful_backend_passes(tmp_path: Path) -> None:
    check_backend(copying.CopyingBackend(), copying.EXAMPLE, tmp_path)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (copying.WrongName, "build.backend is 'copying', the backend is 'other'"),
        (copying.NewerApi, "api_version 2 is not within 1 to 1"),
        (copying.NothingRequired, "required_files is empty"),
        (copying.ForgetfulFingerprint, "differs between two instances"),
        (copying.NoDevices, "return Absent"),
        (copying.DropsUnits, "each unit must yield one result"),
        (copying.StopsAtBad, "the good unit 'good' ended as compile_error"),
        (copying.ReplacesMessage, "'the text is empty' is not in: 'failed'"),
        (copying.LeavesNothing, "the required file text is missing"),
        (copying.WritesKeyIntoArtifact, "different bytes in log"),
        (copying.LoadsFromScratchDirectory, "kept"),
        (copying.WrongResult, r"out is \['goodbye'\]"),
        (copying.PassesMissingTensors, "must raise KeyError"),
    ],
)
def test_each_broken_promise_is_named(kind: type[Backend], message: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        check_backend(kind(), copying.EXAMPLE, tmp_path)


def test_a_build_that_does_not_survive_the_wire_is_found() -> None:
    """The list in the Build comes back as a tuple, so the rebuilt Build differs."""
    with pytest.raises(AssertionError, match="does not survive MessagePack"):
        check_build(replace(copying.EXAMPLE, good=copying.Build("hello", ["out"])))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [copying.LoadsWithoutDevice, copying.NeedsDevice])
def test_a_backend_without_devices_is_checked_up_to_the_launch(kind: type[Backend], tmp_path: Path) -> None:
    """The suite compiles for the example's target, and accepts a BackendError for the missing device."""
    check_backend(kind(), replace(copying.EXAMPLE, target="sm_90"), tmp_path)


def test_failing_to_load_for_another_reason_than_the_device_is_found(tmp_path: Path) -> None:
    """Without a device, loading may fail only because the device is missing."""
    with pytest.raises(AssertionError, match="description"):
        check_backend(copying.FailsBeforeDevice(), copying.EXAMPLE, tmp_path)


def test_an_example_that_a_new_process_cannot_find_is_refused(tmp_path: Path) -> None:
    """A new process cannot import a nested function."""
    example = replace(copying.EXAMPLE, verify=lambda tensors: None)
    with pytest.raises(AssertionError, match="top level of a file"):
        check_backend(copying.CopyingBackend(), example, tmp_path)
