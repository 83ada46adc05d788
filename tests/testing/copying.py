"""A minimal backend that keeps every promise (its compiler copies a text), and variants that each break one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ktuned import backends
from ktuned.backends.contract import Absence, Absent, Compiled, Launch, Unit
from ktuned.model.device import Device
from ktuned.model.errors import BackendError
from ktuned.model.keys import DeviceModel, DeviceName, Target
from ktuned.model.values import Outcome
from ktuned.testing.backends import BackendExample


@dataclass(frozen=True)
class Build(backends.Build):
    """A text to copy."""

    backend: ClassVar[str] = "copying"

    text: str
    args: tuple[str, ...]


class CopyingKernel(backends.Kernel):
    """Writes the artifact's text into its argument."""

    def __init__(self, text: str, args: tuple[str, ...]) -> None:
        self.text = text
        self.args = args

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        target = tensors[self.args[0]]
        return lambda: target.append(self.text)


class CopyingBackend(backends.Backend):
    """A backend that keeps every promise."""

    name = "copying"
    build = Build
    required_files: ClassVar[tuple[str, ...]] = ("text",)

    def fingerprint(self) -> Mapping[str, str]:
        return {"version": "1"}

    def devices(self) -> Sequence[Device] | Absent:
        return (Device(DeviceName("cpu:0"), DeviceModel("any"), Target("any")),)

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Report an error for the empty text, and copy all others."""
        for unit in units:
            assert isinstance(unit.build, Build)
            if not unit.build.text:
                yield Compiled(unit.key, Outcome.COMPILE_ERROR, "the text is empty", 0.1)
                continue
            (into / unit.key / "text").write_text(unit.build.text)
            yield Compiled(unit.key, seconds=0.1, facts={"length": len(unit.build.text)})

    def load(self, artifact: Path, unit: Unit, device: Device) -> backends.Kernel:
        assert isinstance(unit.build, Build)
        return CopyingKernel((artifact / "text").read_text(), unit.build.args)


def make_tensors(device: str) -> Mapping[str, Any]:
    return {"out": []}


def check_tensors(tensors: Mapping[str, Any]) -> None:
    """Check that the text was written once."""
    assert tensors["out"] == ["hello"], f"out is {tensors['out']}"


EXAMPLE = BackendExample(
    good=Build("hello", ("out",)),
    bad=Build("", ("out",)),
    complaint="the text is empty",
    sources=(),
    kernel_file=Path(__file__),
    kernel="hello",
    inputs=make_tensors,
    verify=check_tensors,
)


class WrongName(CopyingBackend):
    """Has another name than its Build."""

    name = "other"


class NewerApi(CopyingBackend):
    """Is written for a version of the contract that does not exist yet."""

    api_version = backends.API_VERSION + 1


class NothingRequired(CopyingBackend):
    """Requires no file."""

    required_files = ()


class ForgetfulFingerprint(CopyingBackend):
    """Gives each instance another fingerprint."""

    def fingerprint(self) -> Mapping[str, str]:
        return {"id": str(id(self))}


class NoDevices(CopyingBackend):
    """Reports neither a device nor a reason for having none."""

    def devices(self) -> Sequence[Device]:
        return ()


class DropsUnits(CopyingBackend):
    """Yields no result for a unit that does not compile."""

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        return (result for result in super().compile(units, into) if result.outcome is None)


class StopsAtBad(CopyingBackend):
    """Fails all units of a group if one does not compile."""

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        for unit in units:
            yield Compiled(unit.key, Outcome.COMPILE_ERROR, "the text is empty")


class ReplacesMessage(CopyingBackend):
    """Replaces the compiler's message by its own."""

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        for result in super().compile(units, into):
            yield Compiled(result.key, result.outcome, "failed" if result.outcome else "", 0.1, result.facts)


class LeavesNothing(CopyingBackend):
    """Reports success without leaving a file."""

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        for result in super().compile(units, into):
            (into / result.key / "text").unlink(missing_ok=True)
            yield result


class WritesKeyIntoArtifact(CopyingBackend):
    """Writes different bytes for equal Builds."""

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        for result in super().compile(units, into):
            (into / result.key / "log").write_text(result.key)
            yield result


class LoadsFromScratchDirectory(CopyingBackend):
    """Loads an artifact only in the directory where it was compiled."""

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Write the text beside the artifact."""
        for result in super().compile(units, into):
            (into / "kept").write_text("hello")
            yield result

    def load(self, artifact: Path, unit: Unit, device: Device) -> backends.Kernel:
        """Read the text beside the artifact."""
        return CopyingKernel((artifact.parent / "kept").read_text(), ("out",))


class WrongResult(CopyingBackend):
    """Loads a kernel that computes a wrong result."""

    def load(self, artifact: Path, unit: Unit, device: Device) -> backends.Kernel:
        return CopyingKernel("goodbye", ("out",))


class LoadsWithoutDevice(WrongResult):
    """Has no device here, but loads without an error."""

    def devices(self) -> Absent:
        return Absent(Absence.NO_HARDWARE, "there is no such device here")


class NeedsDevice(LoadsWithoutDevice):
    """Has no device here, and raises BackendError when it loads."""

    def load(self, artifact: Path, unit: Unit, device: Device) -> backends.Kernel:
        raise BackendError(f"there is no {device.name}")


class FailsBeforeDevice(LoadsWithoutDevice):
    """Has no device here, and fails for another reason before it needs one."""

    def load(self, artifact: Path, unit: Unit, device: Device) -> backends.Kernel:
        """Read a file that no artifact has."""
        return CopyingKernel((artifact / "description").read_text(), ("out",))


class PassesMissingTensors(CopyingBackend):
    """Binds to missing tensors instead of raising KeyError."""

    def load(self, artifact: Path, unit: Unit, device: Device) -> backends.Kernel:
        class Lenient(CopyingKernel):
            def bind(self, tensors: Mapping[str, Any]) -> Launch:
                return super().bind(tensors or {"out": []})

        return Lenient("hello", ("out",))
