"""The default config, compiled and run in the lane for its outputs, where a kernel file expects those."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ktuned.backends import Backend, Kernel, Unit
from ktuned.ipc import Places, requests
from ktuned.model import Config, Device, KernelFileError, Outcome, Unsupported

if TYPE_CHECKING:
    from ktuned.spec import Kernel as DeclaredKernel

_KEY = "default"

MAX_TRIED = 8
"""Configs of the space that are tried where no default is declared: each costs a compile in the lane."""


class _CannotRun(Exception):
    """A config cannot be compiled or loaded for this device; the message says which outcome that is."""


class DefaultRun:
    """A kernel's default config on one device; it is compiled when it is first run, and stays loaded for other seeds.

    Not the trial's artifact: opening a problem begins while the first configs still compile.
    """

    def __init__(
        self, kernel: DeclaredKernel, backend: Backend, request: requests.Open, sources: tuple[Path, ...]
    ) -> None:
        self._kernel = kernel
        self._backend = backend
        self._request = request
        self._sources = sources
        self._loaded: Kernel | None = None

    @classmethod
    def of(
        cls,
        kernel: DeclaredKernel,
        backend: Backend,
        request: requests.Open,
        places: Places,
        before: DefaultRun | None,
    ) -> DefaultRun | None:
        """Return the default's run for a problem, the one ``before`` if it is the same; ``None`` if none is wanted."""
        if not kernel.expects_default_outputs:
            return None
        if before is not None and before._serves(request):
            return before
        reference = request.kernel
        return cls(kernel, backend, request, tuple(places.file(reference.project, name) for name in reference.sources))

    def _serves(self, request: requests.Open) -> bool:
        own = self._request
        return (own.kernel, own.problem, own.target, own.device) == (
            request.kernel,
            request.problem,
            request.target,
            request.device,
        )

    def __call__(self, tensors: Mapping[str, Any]) -> None:
        """Launch the default config once on tensors of the device, and wait for its end.

        Raises:
            KernelFileError: it cannot be compiled or loaded, or raises.
        """
        kernel = self._kernel
        try:
            if self._loaded is None:
                self._loaded = self._load(self._request.device)
            self._loaded.bind(tensors)()
            if self._request.device.kind == "cuda":
                import torch

                torch.cuda.synchronize(self._request.device.name)
        except KernelFileError:
            raise
        except Exception as error:
            raise kernel.site.failure("reference='default': the default config", error) from error

    def _load(self, device: Device) -> Kernel:
        """Return the default config; where none is declared, the first of the space that runs here."""
        reasons = []
        for config in islice(self._kernel.default_configs(self._request.problem), MAX_TRIED):
            try:
                return self._load_config(config, device)
            except _CannotRun as error:
                reasons.append(str(error))
        more = f" (and {len(reasons) - 1} more cannot run)" if len(reasons) > 1 else ""
        raise self._kernel.site.error(
            f"reference='default', but the default config is {reasons[0]}{more}",
            hint="give another default, or a reference",
        )

    def _load_config(self, config: Config, device: Device) -> Kernel:
        kernel, request = self._kernel, self._request
        try:
            build = kernel.build(request.problem, config)
        except Unsupported as error:
            raise _CannotRun(f"{Outcome.UNSUPPORTED}: {error.message}") from error
        # What travels is plain data, as for every other config.
        plain = self._backend.build.from_plain(build.to_plain())
        unit = Unit(_KEY, plain, self._sources, kernel.file, request.kernel.kernel, request.target)
        # It brings the generators of random numbers.
        import tempfile

        with tempfile.TemporaryDirectory(prefix="ktuned-default-") as directory:
            artifact = Path(directory, _KEY)
            artifact.mkdir()
            (compiled,) = self._backend.compile([unit], Path(directory))
            if compiled.outcome is not None:
                raise _CannotRun(f"{compiled.outcome}: {compiled.message}")
            try:
                return self._backend.load(artifact, unit, device)
            except Unsupported as error:
                raise _CannotRun(f"{Outcome.UNSUPPORTED}: {error.message}") from error
