"""The inputs of a problem, the same for every config, made as a kernel file declares them.

``inputs(p)`` returns specifications of tensors, which are made here, or tensors of the file's own making, which are
adopted.

A problem has further inputs, for finding configs whose bits differ from the anchor's only on some inputs. Inputs have
numbers:

==========================  ==========================================================================================
0                           the problem's own inputs
1 to ``len(HARD_FILLS)``    random numbers give way to hard ones: denormals, infinities, NaN and others
above                       other random numbers
==========================  ==========================================================================================
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from ktuned.checking.tensor_library import TensorLibrary, find_library
from ktuned.model import Device, FrozenStruct, Problem, UsageError, canonical

if TYPE_CHECKING:
    from ktuned.declaration import Kernel as DeclaredKernel
    from ktuned.declaration import TensorSpec

MAX_KEPT_BYTES = 1 << 28
"""Most memory for further inputs that are kept for the next config. Others are made again, which takes about as long as
copying them."""


class TensorRoles(FrozenStruct):
    """What launches do with each of a problem's tensors, by the tensors' names.

    Attributes:
        outputs: those that a launch leaves its results in.
        poisoned: the outputs that are only written, and so poisoned before each launch.
        restored: those that ``setup`` names, and that are restored before each launch.
        read_only: those that no launch may change.
    """

    outputs: tuple[str, ...]
    poisoned: tuple[str, ...]
    restored: tuple[str, ...]
    read_only: tuple[str, ...]

    @classmethod
    def from_declaration(cls, kernel: DeclaredKernel, declared: Mapping[str, Any]) -> TensorRoles:
        """Tell the roles by what ``inputs(p)`` has returned, and by the kernel's ``setup``."""
        outputs = tuple(name for name, entry in declared.items() if getattr(entry, "output", False))
        restored = kernel.setup if isinstance(kernel.setup, tuple) else ()
        workspaces = {name for name, entry in declared.items() if getattr(entry, "fill", "") == "empty"}
        # A callable `setup` may prepare any tensor.
        written = set(declared) if callable(kernel.setup) else {*outputs, *restored, *workspaces}
        return cls(
            outputs=outputs,
            poisoned=tuple(name for name in outputs if name not in restored),
            restored=restored,
            read_only=tuple(name for name in declared if name not in written),
        )


class ProblemInputs:
    """Makes a problem's tensors.

    Args:
        kernel: the declared kernel.
        problem: the problem.
        device: where the tensors are.
        library: makes the tensors.
        seed: any value other than 0 gives other random numbers.

    Attributes:
        roles: what launches do with each tensor.

    Raises:
        KernelFileError: the kernel file's code fails, or declares inputs that cannot be used.
    """

    def __init__(
        self,
        kernel: DeclaredKernel,
        problem: Problem,
        device: Device,
        library: TensorLibrary,
        *,
        seed: int = 0,
    ) -> None:
        self._kernel = kernel
        self._problem = problem
        self._device = device
        self._library = library
        self._seed = seed
        self._seed_text = canonical({"kernel": kernel.name, **problem}) + (f" {seed}" if seed else "")
        self._seed_generators()
        from ktuned.declaration import load_tensors_to

        with load_tensors_to(device.name if device.kind == "cuda" else "cpu"):
            self._declared = kernel.evaluate_inputs(problem)
        self.roles = TensorRoles.from_declaration(kernel, self._declared)
        self._check_declaration()
        self._kept: dict[int, Mapping[str, Any]] = {}
        self._room_bytes = MAX_KEPT_BYTES

    def _seed_generators(self) -> None:
        """Seed the generators: random numbers that ``inputs(p)`` itself draws must be the same in every worker."""
        random.seed(self._seed_text)
        if self._kernel.has_tensors:
            self._library.seed_generator(random.getrandbits(63))

    def digest_specs(self) -> str:
        """Return a digest of the declared inputs; empty if the kernel file has made a tensor itself."""
        from ktuned.declaration import TensorSpec, digest_inputs

        is_made = any(not isinstance(one, TensorSpec) for one in self._declared.values())
        return "" if is_made else digest_inputs(self._declared)

    def _check_declaration(self) -> None:
        if self._kernel.reference is not None and not self.roles.outputs:
            raise self._kernel.site.make_error("there is a reference, but inputs(p) makes no tensor with output=True")

    def make_tensors(self) -> dict[str, Any]:
        """Make the problem's own tensors, outputs included, by name. They are not kept here.

        Raises:
            KernelFileError: the library cannot represent a tensor, or has no memory for it.
        """
        from ktuned.declaration import TensorSpec

        moved: dict[int, Any] = {}
        made: dict[str, Any] = {}
        for name, entry in self._declared.items():
            made[name] = self._make_or_adopt_tensor(name, entry, moved)
            if isinstance(entry, TensorSpec) and (entry.memory or entry.remainder):
                from ktuned.checking.torch_tensors import lay_out_tensor

                made[name] = lay_out_tensor(made[name], entry, made.get(entry.memory) if entry.memory != name else None)
        self._check_elements(made)
        return made

    def _check_elements(self, made: Mapping[str, Any]) -> None:
        """Refuse a problem without work, such as one of size 0: every config would be right, and as fast as another."""
        sizes = {name: find_library(tensor).count_element_bytes(tensor) for name, tensor in made.items()}
        for kind, names in (("output", self.roles.outputs), ("input", sizes.keys() - set(self.roles.outputs))):
            if names and not any(sizes[name] for name in names):
                raise self._kernel.site.make_error(f"inputs(p): no {kind} has an element: there is nothing to measure")

    def _make_or_adopt_tensor(self, name: str, entry: Any, moved: dict[int, Any]) -> Any:
        from ktuned.declaration import TensorSpec

        site = self._kernel.site
        try:
            if isinstance(entry, TensorSpec):
                return self._make_tensor(name, entry.reseed(self._seed), self._seed_text)
            adopted = self._library.adopt_tensor(entry, self._device.name, moved)
        except UsageError as error:
            raise site.make_error(f"inputs(p): {name}: {error.message}", hint=error.hint) from error
        except RuntimeError as error:
            raise site.make_failure(f"inputs(p): {name}", error) from error
        return entry if adopted is None else adopted

    def _make_tensor(self, name: str, spec: TensorSpec, seed_text: str) -> Any:
        return self._library.make_tensor(spec, name, seed_text, self._device.name)

    def provide_further_inputs(self, number: int) -> Mapping[str, Any]:
        """Return those tensors of the inputs with a number that differ from the problem's own; possibly none."""
        if number not in self._kept:
            tensors = self._make_further_inputs(number) if number else {}
            size = sum(find_library(tensor).count_element_bytes(tensor) for tensor in tensors.values())
            if size > self._room_bytes:
                return tensors
            self._room_bytes -= size
            self._kept[number] = tensors
        return self._kept[number]

    def _make_further_inputs(self, number: int) -> dict[str, Any]:
        """Make the tensors that differ; poisoned tensors keep their content."""
        from ktuned.declaration import HARD_FILLS, TensorSpec

        specs = [
            (name, entry)
            for name, entry in self._declared.items()
            if isinstance(entry, TensorSpec) and name not in self.roles.poisoned
        ]
        changed = [(name, _change_spec(spec, place, number)) for place, (name, spec) in enumerate(specs)]
        seed = max(0, number - len(HARD_FILLS))
        seed_text = self._seed_text + (f" inputs {seed}" if seed else "")
        return {name: self._make_tensor(name, spec, seed_text) for name, spec in changed if spec is not None}

    def write_fresh_inputs(
        self, sets: Mapping[str, Any], own: Mapping[str, Any], secret: str, within_s: float, *, are_alike: bool
    ) -> bool:
        """Write inputs with other random numbers, drawn by a secret; return whether any were.

        What the kernel file makes itself is made again, as often as ``within_s`` seconds allow.

        Args:
            sets: tensors with a further first axis, the number of the set of inputs; all have the same number of sets.
            own: the problem's own tensors. What is not random is copied from them.
            secret: what the numbers depend on.
            within_s: how long, in seconds, the kernel file's code may take beyond its first call.
            are_alike: every other set of random numbers equals the one before it, except in some rows.
        """
        from ktuned.declaration import TensorSpec

        draw = random.Random(secret)
        has_fresh = False
        made: list[str] = []
        for name, tensors in sets.items():
            entry = self._declared[name]
            if not isinstance(entry, TensorSpec):
                made.append(name)
            elif not entry.file and not entry.memory and entry.resolved_fill in ("uniform", "normal", "integer"):
                has_fresh = True
                drawn = self._make_tensor(name, replace(entry, shape=tuple(tensors.shape), seed=None), secret)
                if are_alike and len(entry.shape) and len(drawn) > 1:
                    first = draw.randrange(max(1, entry.shape[0]))
                    end = first + max(1, entry.shape[0] // 8)
                    others, pattern = drawn[1::2], drawn[: len(drawn) // 2 * 2 : 2]
                    others[:, :first], others[:, end:] = pattern[:, :first], pattern[:, end:]
                self._library.copy_elements(drawn, tensors)
            else:
                self._library.repeat_tensor(own[name], tensors)
        if made:
            has_fresh |= self._make_again({name: sets[name] for name in made}, own, secret, within_s)
        return has_fresh

    def _make_again(self, sets: Mapping[str, Any], own: Mapping[str, Any], secret: str, within_s: float) -> bool:
        """Call ``inputs(p)`` with other seeds for as many sets as there is time for; later sets repeat these."""
        from ktuned.declaration import load_tensors_to

        count = len(next(iter(sets.values())))
        has_fresh, known, end = False, 0, monotonic() + within_s
        for place in range(count):
            if not known or (place == known and monotonic() < end):
                random.seed(f"{secret} {place}")
                self._library.seed_generator(random.getrandbits(63))
                with load_tensors_to("cpu"):
                    declared = self._kernel.evaluate_inputs(self._problem)
                known += 1
                moved: dict[int, Any] = {}
                for name, tensors in sets.items():
                    tensor = self._make_or_adopt_tensor(name, declared[name], moved)
                    self._library.copy_elements(tensor, tensors[place])
                    has_fresh |= not self._library.hold_equal_bits(tensor, own[name])
            else:
                for tensors in sets.values():
                    self._library.copy_elements(tensors[place % known], tensors[place])
        return has_fresh


def _change_spec(spec: TensorSpec, place: int, number: int) -> TensorSpec | None:
    """Return an input's specification in the inputs with a number; ``None`` if it does not change.

    ``place`` is the input's place among the inputs. Tensors that share memory do not change: one may hold another's
    indices.
    """
    from ktuned.declaration import EVERYWHERE, HARD_FILLS

    if spec.memory:
        return None
    if number > len(HARD_FILLS):
        is_random = spec.resolved_fill in ("uniform", "normal", "integer") and not spec.file
        return spec.reseed(number - len(HARD_FILLS)) if is_random else None
    fill = HARD_FILLS[number - 1]
    step = 1 if fill in EVERYWHERE else 2
    return replace(spec, fill=fill) if spec.may_be_hard and not place % step else None
