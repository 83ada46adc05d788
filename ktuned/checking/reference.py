"""The reference of a kernel, which says what its outputs must be: a function of the kernel file, or its default config.

The function is called with the inputs that its parameters name. It returns a dict of outputs, or the only output. The
default config (``reference="default"``) is launched as every config is.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ktuned.backends import Kernel, Launch, read_layout
from ktuned.checking.problem_inputs import TensorRoles
from ktuned.checking.tensor_library import TensorLibrary, is_unwritten
from ktuned.model import Device, KernelFileError, listed

if TYPE_CHECKING:
    from ktuned.declaration import Kernel as DeclaredKernel

DEFAULT_CONFIG = "reference='default': the default config"
"""Start of an error message about the default config, where its outputs are the expected ones."""

_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""Kinds of parameters that need no tensor of their name."""


class Reference(msgspec.Struct, eq=False):
    """Runs a kernel's reference on one problem.

    Args:
        kernel: the declared kernel.
        device: where the tensors are.
        library: the library of the tensors.
        roles: what launches do with each tensor.
    """

    kernel: DeclaredKernel
    device: Device
    library: TensorLibrary
    roles: TensorRoles
    _views: list[str] | None = None

    def compute_outputs(self, inputs: Mapping[str, Any], default: Kernel | None = None) -> dict[str, Any]:
        """Return the expected outputs by name, computed on copies of the inputs.

        Args:
            inputs: the problem's tensors, outputs included.
            default: the loaded default config, for a kernel that expects its outputs.

        Raises:
            KernelFileError: the reference fails, or returns something else than the outputs.
        """
        copies = self._clone_tensors(inputs)
        try:
            returned = self._call_function(copies) if default is None else self._run_default_config(copies, default)
        except KernelFileError:
            raise
        except BaseException as error:
            raise self.kernel.site.make_failure("reference", error) from error
        outputs = self._name_outputs(returned)
        return {name: self._adopt_output(name, value, inputs[name]) for name, value in outputs.items()}

    def make_launch(self, inputs: Mapping[str, Any]) -> Launch | None:
        """Return a call that runs the reference once, or ``None`` if there is no reference function.

        Every config writes its outputs. So the call also writes an output of which the reference returns only a view:
        ``x.T`` takes no time, and would look faster than any kernel.
        """
        if self.kernel.reference is None or self.kernel.expects_default_outputs:
            return None
        copies = self._clone_tensors(inputs)

        def launch() -> None:
            returned = self._call_function(copies)
            if self._views is None:
                self._views = self._find_views(self._name_outputs(returned), copies)
            if self._views:
                outputs = self._name_outputs(returned)
                for name in self._views:
                    self.library.copy_elements(self._adopt_output(name, outputs[name], inputs[name]), copies[name])

        return launch

    def _find_views(self, returned: Mapping[str, Any], copies: Mapping[str, Any]) -> list[str]:
        """Return the names of the outputs that lie in an input's memory, or in less memory than their elements need."""
        taken = [
            self.library.find_allocation(tensor)
            for name, tensor in copies.items()
            if name not in self.roles.outputs and read_layout(tensor)
        ]
        found = []
        for name, value in returned.items():
            output = self._adopt_output(name, value, copies[name])
            if read_layout(output) is None:
                continue
            start, size = self.library.find_allocation(output)
            is_shared = any(first < start + size and start < first + length for first, length in taken)
            if is_shared or size < self.library.count_element_bytes(output):
                found.append(name)
        return found

    def _clone_tensors(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return clones, because the reference may change its inputs."""
        return {name: self.library.clone_tensor(tensor) for name, tensor in tensors.items()}

    def _call_function(self, tensors: Mapping[str, Any]) -> Any:
        """Call the function with the tensors that its parameters name, or with all if it has ``**kwargs``."""
        function = self.kernel.reference
        assert callable(function)
        parameters = inspect.signature(function).parameters
        if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            return function(**tensors)
        for name, parameter in parameters.items():
            if name not in tensors and parameter.default is parameter.empty and parameter.kind not in _COLLECTING:
                raise self.kernel.site.make_error(
                    f"the reference takes {name!r}, which inputs(p) does not make {listed(tensors, near=name)}"
                )
        return function(**{name: tensor for name, tensor in tensors.items() if name in parameters})

    def _run_default_config(self, tensors: Mapping[str, Any], default: Kernel) -> dict[str, Any]:
        """Launch the default config, and return its outputs.

        Raises:
            KernelFileError: its launch raises, or it never writes one of the outputs.
        """
        if callable(self.kernel.setup):
            self.kernel.setup(tensors)
        try:
            default.bind(tensors)()
            if self.device.kind == "cuda":
                self.library.module.cuda.synchronize(self.device.name)
        except KernelFileError:
            raise
        except Exception as error:
            raise self.kernel.site.make_failure(DEFAULT_CONFIG, error) from error
        for name in self.roles.poisoned:
            if is_unwritten(tensors[name]):
                raise self.kernel.site.make_error(
                    f"reference='default', but the default config never writes {name}", hint="give a reference"
                )
        return {name: tensors[name] for name in self.roles.outputs}

    def _name_outputs(self, returned: Any) -> Mapping[str, Any]:
        """Return what the reference has returned by the outputs' names, all of which must be there."""
        outputs, site = self.roles.outputs, self.kernel.site
        if not isinstance(returned, Mapping):
            if len(outputs) != 1:
                raise site.make_error(f"the reference must return a dict with the outputs {', '.join(outputs)}")
            return {outputs[0]: returned}
        if set(returned) != set(outputs):
            names = ", ".join(sorted(returned)) or "nothing"
            raise site.make_error(f"the reference returned {names}; the outputs are {', '.join(outputs)}")
        return returned

    def _adopt_output(self, name: str, returned: Any, made: Any) -> Any:
        """Return an output as a tensor of the library; it must have the shape of the tensor ``made`` by ``inputs``."""
        site = self.kernel.site
        tensor = self.library.adopt_tensor(returned, self.device.name)
        if tensor is None:
            raise site.make_error(
                f"the reference returned a {type(returned).__name__} for {name}, not a {self.library.type_name}"
            )
        if tensor.shape != made.shape:
            raise site.make_error(
                f"the reference returned {name} of shape {tuple(tensor.shape)}, and inputs(p) makes it of shape "
                f"{tuple(made.shape)}"
            )
        return tensor
