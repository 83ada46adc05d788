"""A backend of a dozen lines that keeps every promise: it "compiles" a text by copying it."""

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
        """Bind to a list."""
        target = tensors[self.args[0]]
        return lambda: target.append(self.text)


class Copying(backends.Backend):
    """Keeps every promise."""

    name = "copying"
    build = Build
    required_files: ClassVar[tuple[str, ...]] = ("text",)

    def fingerprint(self) -> Mapping[str, str]:
        """Return a version."""
        return {"version": "1"}

    def devices(self) -> Sequence[Device] | Absent:
        """Return one."""
        return (Device(DeviceName("cpu:0"), DeviceModel("any"), Target("any")),)

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Refuse the empty text, copy all others."""
        for unit in units:
            assert isinstance(unit.build, Build)
            if not unit.build.text:
                yield Compiled(unit.key, Outcome.COMPILE_ERROR, "the text is empty", 0.1)
                continue
            (into / unit.key / "text").write_text(unit.build.text)
            yield Compiled(unit.key, seconds=0.1, facts={"length": len(unit.build.text)})

    def load(self, artifact: Path, unit: Unit, device: Device) -> backends.Kernel:
        """Read the text."""
        assert isinstance(unit.build, Build)
        return CopyingKernel((artifact / "text").read_text(), unit.build.args)


def inputs(device: str) -> Mapping[str, Any]:
    """Return an empty list."""
    return {"out": []}


def verify(tensors: Mapping[str, Any]) -> None:
    """Check that the text has arrived, once."""
    assert tensors["out"] == ["hello"], f"out is {tensors['out']}"


EXAMPLE = BackendExample(
    good=Build("hello", ("out",)),
    bad=Build("", ("out",)),
    complaint="the text is empty",
    sources=(),
    kernel_file=Path(__file__),
    kernel="hello",
    inputs=inputs,
    verify=verify,
)


class WrongName(Copying):
    """States another name than its Build."""

    name = "other"


class NewerApi(Copying):
    """Was written for a contract that does not exist yet."""

    api_version = backends.API_VERSION + 1


class NothingRequired(Copying):
    """Requires no file."""

    required_files = ()


class ForgetfulFingerprint(Copying):
    """Gives each instance another fingerprint."""

    def fingerprint(self) -> Mapping[str, str]:
        """Return something that no one else has."""
        return {"id": str(id(self))}


class NoDevices(Copying):
    """Says neither what it runs on nor why not."""

    def devices(self) -> Sequence[Device]:
        """Return nothing."""
        return ()


class DropsUnits(Copying):
    """Yields nothing for what it refuses."""

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Leave the bad ones out."""
        return (result for result in super().compile(units, into) if result.outcome is None)


class StopsAtBad(Copying):
    """Gives a whole group up for one bad unit."""

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Refuse all."""
        for unit in units:
            yield Compiled(unit.key, Outcome.COMPILE_ERROR, "the text is empty")


class OwnWords(Copying):
    """Replaces the compiler's message by its own."""

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Say only that it failed."""
        for result in super().compile(units, into):
            yield Compiled(result.key, result.outcome, "failed" if result.outcome else "", 0.1, result.facts)


class LeavesNothing(Copying):
    """Says that it compiled, and leaves no file."""

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Remove what was made."""
        for result in super().compile(units, into):
            (into / result.key / "text").unlink(missing_ok=True)
            yield result


class Numbered(Copying):
    """Leaves other bytes each time."""

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Write the unit's key besides."""
        for result in super().compile(units, into):
            (into / result.key / "log").write_text(result.key)
            yield result


class RemembersPlace(Copying):
    """Loads only where it was compiled."""

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Keep the text beside the artifact."""
        for result in super().compile(units, into):
            (into / "kept").write_text("hello")
            yield result

    def load(self, artifact: Path, unit: Unit, device: Device) -> backends.Kernel:
        """Read what is beside the artifact."""
        return CopyingKernel((artifact.parent / "kept").read_text(), ("out",))


class WrongResult(Copying):
    """Computes something else."""

    def load(self, artifact: Path, unit: Unit, device: Device) -> backends.Kernel:
        """Load another text."""
        return CopyingKernel("goodbye", ("out",))


class Elsewhere(WrongResult):
    """Has no device here, and loads without one nevertheless."""

    def devices(self) -> Absent:
        """Return that there is none."""
        return Absent(Absence.NO_HARDWARE, "there is no such device here")


class NeedsDevice(Elsewhere):
    """Has no device here, and says so when it loads."""

    def load(self, artifact: Path, unit: Unit, device: Device) -> backends.Kernel:
        """Refuse."""
        raise BackendError(f"there is no {device.name}")


class StumblesElsewhere(Elsewhere):
    """Has no device here, and fails for another reason before it needs one."""

    def load(self, artifact: Path, unit: Unit, device: Device) -> backends.Kernel:
        """Look for a file that no artifact has."""
        return CopyingKernel((artifact / "description").read_text(), ("out",))


class PassesMissingTensors(Copying):
    """Binds to tensors that are not there."""

    def load(self, artifact: Path, unit: Unit, device: Device) -> backends.Kernel:
        """Load a kernel that makes up what it lacks."""

        class Lenient(CopyingKernel):
            def bind(self, tensors: Mapping[str, Any]) -> Launch:
                return super().bind(tensors or {"out": []})

        return Lenient("hello", ("out",))
