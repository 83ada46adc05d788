"""The default config, run in the lane for its outputs, where a kernel file expects those."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ktuned.backends import Kernel
from ktuned.model import Device, KernelFileError

if TYPE_CHECKING:
    from ktuned.spec import Kernel as DeclaredKernel


class DefaultRun:
    """A kernel's default config on one device, loaded from its artifact once its outputs are needed.

    They may be known already: an earlier worker leaves them to later ones.
    """

    def __init__(self, kernel: DeclaredKernel, load: Callable[[], Kernel], device: Device) -> None:
        self._kernel = kernel
        self._load = load
        self._device = device
        self._loaded: Kernel | None = None

    def load(self) -> None:
        """Load it, before anything is made that the launch needs.

        Raises:
            Unsupported: this device cannot run it.
            DamagedArtifact: its artifact is to be compiled again.
        """
        self._loaded = self._load()

    def __call__(self, tensors: Mapping[str, Any]) -> None:
        """Launch the default config once on tensors of the device, and wait for its end.

        Raises:
            KernelFileError: it raises.
        """
        try:
            loaded = self._loaded or self._load()
            loaded.bind(tensors)()
            if self._device.kind == "cuda":
                import torch

                torch.cuda.synchronize(self._device.name)
        except KernelFileError:
            raise
        except Exception as error:
            raise self._kernel.site.make_failure("reference='default': the default config", error) from error
