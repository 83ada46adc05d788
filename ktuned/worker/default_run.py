"""The default config, run for its outputs where a kernel file expects those instead of a reference's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ktuned.backends import Kernel
from ktuned.model import Device, KernelFileError

if TYPE_CHECKING:
    from ktuned.spec import Kernel as DeclaredKernel


class DefaultRun:
    """A kernel's default config on one device.

    It is loaded only when its outputs are needed: an earlier worker may have saved them.
    """

    def __init__(self, kernel: DeclaredKernel, load: Callable[[], Kernel], device: Device) -> None:
        self._kernel = kernel
        self._load = load
        self._device = device
        self._loaded: Kernel | None = None

    def load_kernel(self) -> None:
        """Load the artifact ahead of the launch, to learn early whether that works.

        Raises:
            Unsupported: this device cannot run it.
            DamagedArtifact: it must be compiled again.
        """
        self._loaded = self._load()

    def __call__(self, tensors: Mapping[str, Any]) -> None:
        """Launch the default config once on tensors of the device, and wait for its end.

        Raises:
            KernelFileError: the launch raises.
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
