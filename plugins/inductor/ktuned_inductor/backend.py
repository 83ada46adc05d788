"""The backend: generated kernels and rendered templates are Triton functions; the rest are calls of torch.

A choice of an operator has to be rendered before it is a Triton function. The front end does that, and Triton's own
front end then lowers it; compile workers and lanes get the result. The library's own choice is a call of torch in the
lane. Both are timed alike, on the same tensors, and each must give what the library's choice gives.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, cast

import ktuned_triton.build
from ktuned.backends import Compiled, Kernel, Launch, Unit, compile_singly, refuse_unit
from ktuned.dropin import digest_content
from ktuned.model import Device
from ktuned_inductor.operators import CONVOLUTION, LIBRARY, OUTPUT, apply_settings
from ktuned_triton.artifact import LAUNCH_FILE
from ktuned_triton.backend import Triton
from ktuned_triton.build import Library
from ktuned_triton.compiler import CompileError, compile_unit


@dataclass(frozen=True)
class Build(ktuned_triton.build.Build):
    """Recipe for one config of a generated kernel, or for one choice of an operator.

    Attributes:
        operator: the operator, as plain data; empty for a generated kernel.
        choice: the choice's name.
    """

    backend: ClassVar[str] = "inductor"

    operator: Mapping[str, Any] = field(default_factory=dict)
    choice: str = ""

    @property
    def is_library(self) -> bool:
        """Whether the library's own kernel is called."""
        return self.choice.startswith(LIBRARY)


class Inductor(Triton):
    """What Inductor chooses among; compiles on machines without a GPU, runs on torch's CUDA tensors."""

    name = "inductor"
    build = Build
    required_files = (LAUNCH_FILE,)
    # Torch's own code runs as well.
    decisive_files = ()

    def fingerprint(self) -> Mapping[str, str]:
        """Return what Triton's fingerprint has, and torch's version, whose helpers generated kernels call."""
        return {**super().fingerprint(), "torch": version("torch"), "ktuned-inductor": version("ktuned-inductor")}

    def lower(self, unit: Unit) -> bytes | Compiled:
        """Render an operator's choice, and lower the Triton function.

        Raises:
            BackendError: Triton cannot be imported; the disk is full.
        """
        build = cast(Build, unit.build)
        if not build.operator:
            return super().lower(unit)
        if build.is_library:
            return b""
        started = time.perf_counter()
        try:
            rendered = _render_unit(unit)
        except CompileError as error:
            return refuse_unit(unit, error, started)
        lowered = super().lower(rendered)
        if isinstance(lowered, Compiled) or not lowered:
            return lowered
        return json.dumps([rendered.build.to_plain(), lowered.decode()]).encode()

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Compile each unit in this process.

        Raises:
            BackendError: Triton cannot be imported; the disk is full.
        """
        self.prepare()
        yield from compile_singly(units, into, _compile_unit, CompileError)

    def load(self, artifact: Path, unit: Unit, device: Device) -> Kernel:
        """Load machine code, or prepare a call of torch.

        Raises:
            Unsupported: it is for another architecture, or needs more than the device has.
            BackendError: the device cannot be reached.
        """
        build = cast(Build, unit.build)
        return LibraryKernel(build.operator) if build.is_library else super().load(artifact, unit, device)


def _compile_unit(unit: Unit, artifact: Path) -> dict[str, Any]:
    build = cast(Build, unit.build)
    if build.is_library:
        (artifact / LAUNCH_FILE).write_text(json.dumps({"operator": build.operator["operator"]}) + "\n")
        return {}
    if not build.operator:
        return compile_unit(unit, artifact)
    if not unit.lowered:
        return compile_unit(_render_unit(unit), artifact)
    from msgspec import structs

    plain, lowered = json.loads(unit.lowered)
    return compile_unit(structs.replace(unit, build=Build.from_plain(plain), lowered=lowered.encode()), artifact)


@cache
def _find_scratch_directory() -> Path:
    """Return a directory of this process for rendered files; Inductor's own cache stays clean."""
    scratch = tempfile.mkdtemp(prefix="ktuned-inductor-")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(scratch, "inductor")
    sys.path.append(scratch)
    return Path(scratch)


def _render_unit(unit: Unit) -> Unit:
    """Return a unit of the Triton function that a choice is rendered to.

    Raises:
        CompileError: Inductor does not offer the choice here, or cannot render it.
    """
    from msgspec import structs

    from ktuned_inductor.generated import KERNEL
    from ktuned_inductor.rendering import render_choice

    build, scratch = cast(Build, unit.build), _find_scratch_directory()
    try:
        rendered = render_choice(build.operator, build.choice)
    except Exception as error:
        raise CompileError(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
    module = f"inductor_{digest_content(rendered.source)}"
    file = scratch / f"{module}.py"
    if not file.exists():
        # Choices that differ only in warps or stages have one source. A front end starts again, for seconds, if a file
        # that it has imported changes.
        file.write_text(rendered.source)
    function = Build(
        function=f"{module}:{KERNEL}",
        args=rendered.args,
        grid=rendered.grid,
        num_warps=rendered.num_warps,
        num_stages=rendered.num_stages,
        options={"sanitize_overflow": False},
        dtypes=build.dtypes,
        library=Library(module, (str(scratch),)),
    )
    return structs.replace(unit, build=function, lowered=b"")


class LibraryKernel(Kernel):
    """A call of torch's operator, with the output given."""

    def __init__(self, operator: Mapping[str, Any]) -> None:
        self._operator = operator

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a call on views of ``tensors`` with the recorded shapes and strides.

        Raises:
            KeyError: a tensor is missing.
        """
        import torch

        operator, scalars = self._operator, dict(self._operator["scalars"])
        apply_settings(operator["settings"])
        inputs = [_view_tensor(tensors[f"in{place}"], layout) for place, layout in enumerate(operator["inputs"])]
        output = _view_tensor(tensors[OUTPUT], operator["output"])
        function: Callable[..., Any] = (
            _call_convolution if operator["operator"] == CONVOLUTION else getattr(torch, operator["operator"])
        )
        if operator["operator"] == "addmm" and len(inputs[0].shape) == 2 and inputs[0].stride(0) == 0:
            # Inductor calls it with the row, too, which cuBLAS adds by itself.
            inputs[0] = inputs[0][0]

        def launch() -> None:
            function(*inputs, **scalars, out=output)

        return launch


def _call_convolution(
    given: Any, weight: Any, *, out: Any, stride: Any, padding: Any, dilation: Any, groups: int, **_: Any
) -> None:
    """Call cuDNN's convolution as torch does, with the output given."""
    import torch

    cudnn = torch.backends.cudnn
    choice = bool(cudnn.benchmark), bool(cudnn.deterministic), bool(cudnn.allow_tf32)
    torch.ops.aten.cudnn_convolution.out(given, weight, padding, stride, dilation, groups, *choice, out=out)


def _view_tensor(row: Any, layout: Mapping[str, Any]) -> Any:
    return row.as_strided(tuple(layout["shape"]), tuple(layout["strides"]))
