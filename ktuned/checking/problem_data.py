"""The data of one problem: the same inputs for every config, and the expected outputs.

There are up to three tensors for each name:

=============  ====================================================================================================
pristine       the content that every config begins with; made once, kept where no launch may change it
placed         what launches work on (:attr:`ProblemData.tensors`), between guards, laid out like the pristine ones
expected       an output as the reference, or the default config, has computed it from the pristine inputs
=============  ====================================================================================================

A launch must not profit from the one before it. So before each launch, outputs that are only written are filled with
*poison*, and the tensors that ``setup`` names are restored. A tensor that the file declares neither as an output, nor
in ``setup``, nor as a workspace, is *read-only*: a config that changes it is reported (``overwritten``), because later
launches see other data.

Before each config, every placed tensor gets its pristine content again, whatever the config before has written. Only
read-only tensors that the last look found untouched are skipped.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ktuned.backends import Kernel, Launch
from ktuned.checking.guards import Guards
from ktuned.checking.placement import Damage, Region, Span
from ktuned.checking.problem_inputs import ProblemInputs
from ktuned.checking.quick_look import QuickLook
from ktuned.checking.reference import Reference
from ktuned.checking.tensor_library import TensorLibrary, choose_library, find_library, is_unwritten
from ktuned.checking.verdict import Verdict, compare_outputs, run_check
from ktuned.model import Device, Problem

if TYPE_CHECKING:
    from ktuned.declaration import Kernel as DeclaredKernel


class ProblemData:
    """The tensors of one problem, the same for every config, and the checks of the outputs that launches leave.

    Args:
        kernel: the declared kernel.
        problem: the problem.
        device: where the tensors are.
        seed: any value other than 0 gives other random numbers.
        guards: allocates the tensors; active guards by default.
        library: makes the tensors; by default torch if it is installed, else NumPy.

    Attributes:
        library: the library that makes the tensors.
        roles: what launches do with each tensor.
        tensors: the placed tensors, by name.
        quick_look: checks all outputs on a GPU at once; ``None`` where that is not possible.
        was_surely_right: the last answer of :meth:`look_at_outputs`.

    Raises:
        KernelFileError: the kernel file's code fails, or makes inputs that cannot be used.
    """

    def __init__(
        self,
        kernel: DeclaredKernel,
        problem: Problem,
        device: Device,
        *,
        seed: int = 0,
        guards: Guards | None = None,
        library: TensorLibrary | None = None,
    ) -> None:
        self.library = library or choose_library(device)
        self._kernel = kernel
        self._device = device
        self._inputs = ProblemInputs(kernel, problem, device, self.library, seed=seed)
        self.roles = self._inputs.roles
        self._reference = Reference(kernel, device, self.library, self.roles)
        self._expected: dict[str, Any] = {}
        self.quick_look: QuickLook | None = None
        # What the last look at the device found (look_at_outputs); the next launch makes it void.
        self.was_surely_right = False
        self._guards_are_intact = False
        self._inputs_are_untouched = False
        self._damage_found: Damage | None = None
        self._guards = guards or Guards()
        self.tensors: dict[str, Any] = {}
        self._output_copies: list[Mapping[str, Any]] = []
        self._layouts: dict[str, Any] = {}
        self._pristine = self._inputs.make_tensors()
        # Find the spans before copies are kept, because the copies no longer share memory.
        self._spans = self._guards.find_spans(self._pristine)
        try:
            for name, value in self._pristine.items():
                # Poisoned outputs have no content to protect.
                if name not in self.roles.poisoned:
                    self._pristine[name] = self._guards.keep_copy(f"ktuned's copy of {name}", value)
            self._place_tensors()
        except RuntimeError as error:
            raise kernel.site.make_failure("inputs(p)", error) from error

    def _place_tensors(self) -> None:
        """Place all tensors anew; layouts are read again, and copies of earlier outputs are void."""
        self.tensors = self._guards.place_tensors(self._pristine, self._spans)
        self._output_copies = []
        self._layouts = {name: self.library.read_layout(tensor) for name, tensor in self.tensors.items()}

    def replace_changed_tensors(self) -> bool:
        """Place all tensors again if a config has resized one or replaced its memory; return whether it has.

        Launches that were bound to the old tensors must then be bound again.
        """
        if all(self.library.read_layout(tensor) == self._layouts[name] for name, tensor in self.tensors.items()):
            return False
        self._place_tensors()
        return True

    @property
    def is_judged(self) -> bool:
        """True if something decides whether the outputs are right."""
        return self._kernel.is_judged

    @property
    def expects_default_outputs(self) -> bool:
        """True if the default config's outputs are the expected ones."""
        return self._kernel.expects_default_outputs

    @property
    def has_setup(self) -> bool:
        """True if the kernel file's own code prepares each launch."""
        return callable(self._kernel.setup)

    def set_up(self, tensors: Mapping[str, Any]) -> None:
        """Have the kernel file's own code prepare a launch on tensors."""
        assert callable(self._kernel.setup)
        self._kernel.setup(tensors)

    @property
    def restores(self) -> bool:
        """True if something must be restored before each launch."""
        return bool(self.roles.restored) or self.has_setup

    def restore_inputs(self) -> None:
        """Restore what the kernel's ``setup`` asks for before each launch."""
        for name in self.roles.restored:
            self.library.copy_elements(self._pristine[name], self.tensors[name])
        if callable(self._kernel.setup):
            self._kernel.setup(self.tensors)

    def reset_tensors(self) -> None:
        """Give every tensor its pristine content again, and poison the outputs that are only written."""
        self._guards.seal_copies()
        # Nothing is launched between trials, so inputs that were untouched after the last launch still are.
        untouched = self.roles.read_only if self._inputs_are_untouched else ()
        self._guards_are_intact = self._inputs_are_untouched = False
        for name, tensor in self.tensors.items():
            if name in self.roles.poisoned:
                self.library.poison_tensor(tensor)
            elif name not in untouched:
                self.library.copy_elements(self._pristine[name], tensor)

    def digest_problem(self) -> str:
        """Return a digest of the content that every config begins with, and of the expected outputs.

        Poisoned outputs count by their layout alone.
        """
        values = {**self._pristine, **{f"the expected {name}": value for name, value in self._expected.items()}}
        parts = [repr(self._spans), repr(sorted(self.roles.poisoned)), repr(self.roles.restored)]
        for name, value in values.items():
            library = find_library(value)
            # The layout ends with the address, which differs each time.
            *layout, _ = library.read_layout(value)
            bits = "" if name in self.roles.poisoned else library.read_digests([library.digest_tensors([value])])[0]
            parts.append(f"{name} {layout} {bits}")
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def digest_specs(self) -> str:
        """Return a digest of the declared inputs; empty if the kernel file has made a tensor itself."""
        return self._inputs.digest_specs()

    def digest_outputs(self) -> Any:
        """Start a digest of the outputs as they are now, for the library's ``read_digests``."""
        return self.library.digest_tensors([self.tensors[name] for name in self.roles.outputs])

    @contextmanager
    def use_numbered_inputs(self, number: int) -> Iterator[bool]:
        """Let launches run on the inputs with this number (:mod:`ktuned.checking.problem_inputs`) within the context.

        Yields:
            Whether they differ from the problem's own.
        """
        further = self._inputs.provide_further_inputs(number)
        usual = {name: self._pristine[name] for name in further}
        # More launches follow, so the findings of the last look no longer hold.
        self._guards_are_intact = self._inputs_are_untouched = False
        try:
            self._replace_inputs(further)
            yield bool(further)
        finally:
            self._replace_inputs(usual)

    def _replace_inputs(self, inputs: Mapping[str, Any]) -> None:
        self._pristine |= inputs
        for name, value in inputs.items():
            self.library.copy_elements(value, self.tensors[name])

    def rehearse_judging(self) -> None:
        """Do everything once that is done around each config's launches, without user code.

        A GPU's libraries load each of their kernels on its first use, which takes as long as measuring some configs.
        """
        # A failure here repeats in every trial, which reports it.
        with suppress(RuntimeError):
            self.reset_tensors()
            for name, value in self._expected.items():
                self.library.copy_elements(value, self.tensors[name])
            # Judge in both ways: by the quick look, and if that is not enough, in full.
            if not self.look_at_outputs(is_last=True):
                self._compare_with_expected(self.tensors)
                self.find_overwritten_inputs()
            self.take_damage()

    def provide_output_copy(self, number: int) -> Mapping[str, Any]:
        """Return the tensors with a copy of the poisoned outputs in place of the originals.

        ``number`` is the copy's number, from 1 on. Copies that are missing are made, and kept.
        """
        while len(self._output_copies) < number:
            # Sealing again would hide the damage that was done so far.
            self._damage_found = self._damage_found or self._guards.find_damage()
            tag = f" (copy {len(self._output_copies) + 1})"
            values = {name + tag: self._pristine[name] for name in self.roles.poisoned}
            placed = self._guards.place_tensors(values, self._guards.find_spans(values))
            self._output_copies.append({name: placed[name + tag] for name in self.roles.poisoned})
            self._guards.seal_copies()
        return {**self.tensors, **self._output_copies[number - 1]}

    def count_affordable_copies(self, limit_bytes: int) -> int:
        """Return how many sets of poisoned outputs fit into ``limit_bytes``, at least 1: the problem's own."""
        size = sum(self.library.count_element_bytes(self.tensors[name]) for name in self.roles.poisoned)
        return max(1, limit_bytes // max(1, size))

    @property
    def copies(self) -> int:
        """How many copies of the poisoned outputs there are, besides the problem's own."""
        return len(self._output_copies)

    def prepare_checked_launch(self) -> None:
        """Prepare a launch that is judged: poison the outputs that are only written, and do what ``setup`` asks for."""
        for name in self.roles.poisoned:
            self.library.poison_tensor(self.tensors[name])
        self.restore_inputs()

    def take_damage(self) -> Damage | None:
        """Return what was damaged outside the tensors since the last call, and forget it (`Guards.find_damage`)."""
        seen, self._damage_found = self._damage_found, None
        is_intact, self._guards_are_intact = self._guards_are_intact, False
        return seen if seen or is_intact else self._guards.find_damage()

    def list_guarded_regions(self) -> Iterable[Region]:
        """Return the allocations whose guards stop the process, for naming the address of a fault."""
        return self._guards.list_guarded_regions()

    def provide_expected_outputs(self, cached: Path, default: Kernel | None = None) -> None:
        """Read the expected outputs from ``cached`` if an earlier worker has saved them, else run the reference.

        Args:
            cached: the file.
            default: the loaded default config, for a kernel that expects its outputs.

        Raises:
            KernelFileError: the reference fails, or returns something else than the outputs.
        """
        if self._kernel.reference is None:
            return
        if cached.is_file():
            expected = self.library.load_tensors(cached)
        else:
            expected = self._reference.compute_outputs(self._pristine, default)
        self._keep_expected_outputs(expected)

    def save_expected_outputs(self, cached: Path) -> None:
        """Save the expected outputs for later workers, unless they were saved before. May run in another thread."""
        if not self._expected or cached.is_file():
            return
        cached.parent.mkdir(parents=True, exist_ok=True)
        staged = cached.with_name(f"{cached.name}.{os.getpid()}")
        self.library.save_tensors(self._expected, staged)
        staged.replace(cached)

    def _keep_expected_outputs(self, expected: Mapping[str, Any]) -> None:
        """Keep the expected outputs on the outputs' device, so that no check has to copy them there."""
        self._expected = {
            name: self._guards.keep_copy(
                f"the expected {name}", self.library.move_to_device_of(value, self.tensors[name])
            )
            for name, value in expected.items()
        }
        kernel = self._kernel
        if kernel.check is None and self._device.kind == "cuda":
            self.quick_look = QuickLook.from_expected(
                "cuda", self.tensors, self._expected, rtol=kernel.rtol, atol=kernel.atol, keep=self._guards.keep_copy
            )

    def make_reference_launch(self) -> Launch | None:
        """Return a call that runs the reference once, or ``None`` if there is no reference function."""
        return self._reference.make_launch(self._pristine)

    def look_at_outputs(self, *, is_last: bool) -> bool:
        """Look once at the device, and keep what was found; return whether the last launch surely left right outputs.

        If not, they may still be right: :meth:`check_outputs` decides. With ``is_last``, for the last launch of a
        config, inputs and guards are looked at, too, so that :meth:`take_damage` need not wait for the device again.
        """
        look = self.quick_look
        self.was_surely_right = False
        if look is None or any(
            self.library.read_layout(tensor) != self._layouts[name] for name, tensor in self.tensors.items()
        ):
            return False
        if not is_last:
            self.was_surely_right = look.are_outputs_right(self.tensors)
        else:
            inputs = [(self.tensors[name], self._pristine[name]) for name in self.roles.read_only]
            self.was_surely_right = look.are_outputs_right(self.tensors, inputs, self._guards.make_intact_flag())
            self._guards_are_intact = self._inputs_are_untouched = self.was_surely_right
        return self.was_surely_right

    def check_outputs(self, tensors: Mapping[str, Any] | None = None) -> Verdict:
        """Judge the outputs in the problem's tensors, or in ``tensors``: by tolerance, then by the file's own check."""
        kernel = self._kernel
        tensors = self.tensors if tensors is None else tensors
        verdict = self._compare_with_expected(tensors)
        if not verdict.ok:
            return replace(verdict, is_dissent=self._kernel.expects_default_outputs)
        if kernel.check is not None:
            outputs = {name: tensors[name] for name in self.roles.outputs}
            # User code may write to the kept copies, so look first for damage that a launch has done to them.
            self._damage_found = self._damage_found or self._guards.find_damage()
            with self._guards.unseal_temporarily():
                file_verdict = run_check(kernel.check, self._pristine, outputs)
            if file_verdict.ok:
                return verdict
            unwritten = [name for name in self.roles.poisoned if is_unwritten(tensors[name])]
            if not unwritten:
                return file_verdict
            return replace(file_verdict, message=f"{unwritten[0]} was never written; {file_verdict.message}")
        return verdict

    def _compare_with_expected(self, tensors: Mapping[str, Any], expected: Mapping[str, Any] | None = None) -> Verdict:
        """Compare outputs with the expected ones. If none are expected, the verdict is good."""
        kernel = self._kernel
        return compare_outputs(
            tensors,
            self._expected if expected is None else expected,
            rtol=kernel.rtol,
            atol=kernel.atol,
            max_mismatched_ratio=kernel.max_mismatched_ratio,
            poisoned=self.roles.poisoned,
            has_exact_integers=kernel.has_exact_integers,
        )

    def find_spans(self) -> list[Span]:
        """Return how the tensors lie relative to each other in memory; one that is not plain numbers is in no span."""
        return self._spans

    def write_fresh_inputs(self, sets: Mapping[str, Any], secret: str, within_s: float, *, are_alike: bool) -> bool:
        """Write inputs that no launch has seen (:meth:`ProblemInputs.write_fresh_inputs`)."""
        return self._inputs.write_fresh_inputs(sets, self._pristine, secret, within_s, are_alike=are_alike)

    def judge_launch(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Verdict:
        """Judge the outputs that a launch on other inputs than the problem's has left.

        Args:
            inputs: the content that the launch began with, by the names of all tensors that are not poisoned.
            outputs: the outputs.

        Raises:
            KernelFileError: the reference fails.
        """
        kernel = self._kernel
        begun = {**self._pristine, **inputs}
        expected = {} if kernel.reference is None else self._reference.compute_outputs(begun)
        verdict = self._compare_with_expected(outputs, expected)
        return verdict if not verdict.ok or kernel.check is None else run_check(kernel.check, begun, outputs)

    def find_overwritten_inputs(self) -> tuple[str, ...]:
        """Return the read-only inputs that launches have changed. Later launches do not see the same data."""
        return tuple(
            name
            for name in self.roles.read_only
            if self.library.read_layout(self.tensors[name]) == self._layouts[name]
            and not self.library.hold_equal_bits(self.tensors[name], self._pristine[name])
        )
