"""The registry of backend plugins, found by entry-point metadata and imported when first used.

``importlib.metadata`` imports ``email`` and ``zipfile`` (1 MiB), so it is only imported when plugins are looked for.
The daemon looks for none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ktuned.backends.contract import API_VERSION, Backend
from ktuned.model import BackendError

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

ENTRY_POINT_GROUP = "ktuned.backends"


def install_hint(backend: str, python: str = "") -> str:
    """Return the command that installs a backend's plugin for an interpreter.

    If ktuned has no extra for it (a backend of another distribution, or a misspelt name), return a remedy in words.
    """
    if extra := find_extra(backend):
        return f"{f'{python} -m ' if python else ''}pip install '{extra}'"
    place = f"for {python}" if python else "into this interpreter"
    return f"install the plugin that has it {place}, or correct `backend=` in the kernel file"


def find_extra(backend: str) -> str:
    """Return ktuned with the extra for a backend, such as ``ktuned[tvm-ffi]``; empty if there is none.

    A plugin's backend for GPUs (``tvm_ffi_cuda``) is in the same extra as its backend for CPUs.
    """
    from importlib.metadata import metadata

    extra = backend.replace("_", "-").removesuffix("-cuda")
    return f"ktuned[{extra}]" if extra in (metadata("ktuned").get_all("Provides-Extra") or ()) else ""


class Registry:
    """The plugins that are installed in this interpreter, by entry-point metadata; nothing is imported to list them."""

    def __init__(self, points: Sequence[EntryPoint] | None = None) -> None:
        self._given = points
        self._loaded: dict[str, Backend] = {}

    @cached_property
    def _points(self) -> Mapping[str, EntryPoint]:
        from importlib.metadata import entry_points

        points = entry_points(group=ENTRY_POINT_GROUP) if self._given is None else self._given
        return {point.name: point for point in points}

    def find_plugins(self) -> None:
        """Look for the plugins now, and not when the first is needed."""
        _ = self._points

    @property
    def names(self) -> list[str]:
        """The names of all installed backends, sorted."""
        return sorted(self._points)

    def read_version(self, name: str) -> str:
        """Return the version of the distribution that provides a backend; empty if that is unknown."""
        distribution = self._points[name].dist
        return distribution.version if distribution else ""

    def find_distribution(self, name: str) -> Distribution | None:
        """Return the distribution that provides a backend; ``None`` if that is unknown."""
        return self._points[name].dist

    def find_plugin_name(self, name: str) -> str:
        """Return pip's name of the distribution that provides a backend; empty if that is unknown."""
        distribution = self._points[name].dist if name in self._points else None
        return distribution.name if distribution else ""

    def load(self, name: str) -> Backend:
        """Import a plugin and return its backend.

        Raises:
            BackendError: there is no such plugin, it cannot be imported, or it needs a newer ktuned.
        """
        if name in self._loaded:
            return self._loaded[name]
        if name not in self._points:
            installed = ", ".join(self.names) or "none"
            raise BackendError(
                f"there is no backend {name!r} (installed: {installed})",
                hint=install_hint(name),
            )
        try:
            kind = self._points[name].load()
        except Exception as error:
            plugin = self.find_plugin_name(name)
            # If the plugin is installed but incomplete, pip can install the requirements that are missing.
            is_incomplete = bool(plugin) and isinstance(error, ModuleNotFoundError)
            raise BackendError(
                f"the backend {name!r} cannot be imported: {type(error).__name__}: {error}",
                hint=f"pip install {plugin}" if is_incomplete else "reinstall its distribution into this interpreter",
            ) from error
        if not (isinstance(kind, type) and issubclass(kind, Backend)):
            raise BackendError(f"the entry point of backend {name!r} is not a subclass of ktuned.backends.Backend")
        if kind.api_version > API_VERSION:
            raise BackendError(
                f"the backend {name!r} speaks API {kind.api_version}; this ktuned speaks {API_VERSION}",
                hint="upgrade ktuned, or install an older version of the plugin",
            )
        self._loaded[name] = kind()
        return self._loaded[name]
