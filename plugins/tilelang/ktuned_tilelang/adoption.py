"""Kernels of applications, as kernel files: written by the application, read by ktuned's workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ktuned import dropin
from ktuned.dropin import (
    CALL_KEY,
    RECORDS,
    AdoptedRequest,
    Calls,
    device_model,
    tensors_file,
    write_once,
    write_record,
    write_tensors,
)
from ktuned.model import canonical
from ktuned_tilelang.build import Build
from ktuned_tilelang.call import CAPTURED, Call, EvaluatedCall


@dataclass(frozen=True, kw_only=True)
class Adopted(dropin.Adopted):
    """An application's function: all that its kernel file says. It may be a closure, because nothing is imported.

    Attributes:
        restored: the tensors that each run finds as they were; all, where it is not known what the kernel writes.
        rtol: relative tolerance of the comparison with the first config's results.
        atol: absolute tolerance.
        max_mismatched_ratio: share of elements that may differ.
        skips_check: whether nothing is compared.
        timeout_s: deadline of each phase of a config.
        early_stop: how many times the best a config may take, or 0 for ktuned's own.
    """

    tool: ClassVar[str] = "tilelang"

    restored: tuple[str, ...]
    rtol: float
    atol: float
    max_mismatched_ratio: float
    skips_check: bool
    timeout_s: float
    early_stop: float

    def text(self) -> str:
        """Return the text of the kernel file."""
        return (
            f'"""{self.function} as an application calls it; written by ktuned-tilelang."""\n\n'
            f"from ktuned_tilelang.adoption import Adopted, adopt\n\n"
            f"adopt(__file__, Adopted(\n    {self.arguments()},\n))\n"
        )


@dataclass(frozen=True)
class Request(AdoptedRequest):
    """A tuning key of an adopted function, with one call that has it."""

    adopted: Adopted
    evaluated: EvaluatedCall

    @property
    def problem(self) -> Mapping[str, Any]:  # type: ignore[override]
        """The tuning key: the programs and the tensors of the call."""
        return {"programs": self.evaluated.digest}

    @property
    def device(self) -> str | None:
        """The model of torch's current GPU, on which TileLang's kernels run."""
        return device_model()

    def write_call(self, kernel_file: Path) -> str:
        """Write the programs, the tensors and the call beside the kernel file, and return the call's name."""
        for name, text in self.evaluated.programs.items():
            write_once(kernel_file.parent / RECORDS / name, text)
        call = self.evaluated.call
        if self.evaluated.captured:
            call = replace(call, content=write_tensors(kernel_file, self.evaluated.captured))
        return write_record(kernel_file, call.to_json())

    def without_content(self) -> Request:
        """Return this without programs and copies of tensors."""
        return replace(self, evaluated=replace(self.evaluated, captured={}))


def adopt(file: str, adopted: Adopted) -> None:
    """Declare the kernel of an application's function; for kernel files."""
    from ktuned.spec import kernel, space

    worker = _Worker(Path(file))
    # Nothing is known of the results but those of the first config.
    judged: dict[str, Any] = {"check": None} if adopted.skips_check else {"reference": "default"}
    phases = ("first_launch", "check", "timing")
    kernel(
        backend="tilelang",
        name=adopted.name,
        space=space([dict(config) for config in adopted.configs], where=worker.admits),
        specialize=("programs",),
        inputs=worker.inputs,
        rtol=adopted.rtol,
        atol=adopted.atol,
        max_mismatched_ratio=adopted.max_mismatched_ratio,
        setup=adopted.restored,
        timing=adopted.timing,
        deadlines=dict.fromkeys(phases, adopted.timeout_s) if adopted.timeout_s > 0 else None,
        early_stop=adopted.early_stop or 3.0,
        strategy="exhaustive",
        preset="fast",
        **judged,
    )(worker.build)


class _Worker:
    """A kernel file's functions: they read the record that a problem names."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._calls = Calls(file, Call.from_json)

    def admits(self, p: Any, c: Any) -> bool:
        """Return whether a config makes a program; without a call that is not known, and not asked."""
        return CALL_KEY not in p or canonical(dict(c)) in self._calls.of(p).programs

    def inputs(self, p: Any) -> Mapping[str, Any]:
        """Declare the tensors of a call."""
        from ktuned.spec import tensor

        call = self._calls.of(p)
        found = {}
        for name, entry in call.tensors.items():
            is_captured = entry.fill == CAPTURED
            fill = "zeros" if is_captured else entry.fill
            limits = {} if entry.low is None else {"low": entry.low, "high": entry.high}
            spec = tensor(entry.shape, entry.dtype, fill, output=name in call.outputs, **limits)
            found[name] = replace(spec, file=str(tensors_file(self._file, call.content))) if is_captured else spec
        return found

    def build(self, p: Any, c: Any) -> Build:
        """Return a config's Build."""
        return self._calls.of(p).build(canonical(dict(c)), RECORDS)
