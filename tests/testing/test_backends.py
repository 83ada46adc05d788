"""The conformance suite: a faithful backend passes, and each broken promise is found and named."""

from dataclasses import replace
from pathlib import Path

import pytest

from ktuned.backends.contract import Backend
from ktuned.testing.backends import check_backend, check_build
from tests.testing import copying


def test_a_faithful_backend_passes(tmp_path: Path) -> None:
    """The smallest backend that keeps every promise is enough."""
    check_backend(copying.Copying(), copying.EXAMPLE, tmp_path)


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
        (copying.OwnWords, "'the text is empty' is not in: 'failed'"),
        (copying.LeavesNothing, "the required file text is missing"),
        (copying.Numbered, "different bytes in log"),
        (copying.RemembersPlace, "kept"),
        (copying.WrongResult, r"out is \['goodbye'\]"),
        (copying.PassesMissingTensors, "must raise KeyError"),
    ],
)
def test_each_broken_promise_is_named(kind: type[Backend], message: str, tmp_path: Path) -> None:
    """A backend that breaks one promise fails with the line that says which."""
    with pytest.raises(AssertionError, match=message):
        check_backend(kind(), copying.EXAMPLE, tmp_path)


def test_a_build_that_does_not_survive_the_wire_is_found() -> None:
    """A list becomes a tuple on its way, so the rebuilt value differs from the first."""
    with pytest.raises(AssertionError, match="does not survive MessagePack"):
        check_build(replace(copying.EXAMPLE, good=copying.Build("hello", ["out"])))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [copying.Elsewhere, copying.NeedsDevice])
def test_a_backend_without_devices_is_checked_up_to_the_launch(kind: type[Backend], tmp_path: Path) -> None:
    """With no hardware here it compiles for the example's target, and loads as far as that goes without a device."""
    check_backend(kind(), replace(copying.EXAMPLE, target="sm_90"), tmp_path)


def test_failing_to_load_for_another_reason_than_the_device_is_found(tmp_path: Path) -> None:
    """What is missing without a device may be the device alone."""
    with pytest.raises(AssertionError, match="description"):
        check_backend(copying.StumblesElsewhere(), copying.EXAMPLE, tmp_path)


def test_an_example_that_a_new_process_cannot_find_is_refused(tmp_path: Path) -> None:
    """A function inside a function has no place to be loaded from."""
    example = replace(copying.EXAMPLE, verify=lambda tensors: None)
    with pytest.raises(AssertionError, match="top level of a file"):
        check_backend(copying.Copying(), example, tmp_path)
