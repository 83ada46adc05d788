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
import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ktuned.backends import Kernel, Launch
from ktuned.checking.batch_rows import BatchRows, narrow_tensor
from ktuned.checking.damage import Damage
from ktuned.checking.guards import Guards
from ktuned.checking.other_inputs import OtherInputs
from ktuned.checking.quick_look import QuickLook
from ktuned.checking.tensor_library import TensorLibrary, choose_library, library_of, never_written
from ktuned.checking.verdict import Verdict, compare_outputs, run_check
from ktuned.ipc import Region
from ktuned.model import Device, KernelFileError, UsageError, canonical, listed

if TYPE_CHECKING:
    from ktuned.spec import Kernel as DeclaredKernel
    from ktuned.spec import TensorSpec

DEFAULT_CONFIG = "reference='default': the default config"
"""Start of an error message about the default config, where its outputs are the expected ones."""

CAPTURE_AGAIN = "capture them again, or remove them: `capture` with `remove=True`"

_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""Kinds of parameters that need no tensor of their name."""


class ProblemData:
    """The tensors of one problem, the same for every config, and the checks of the outputs that launches leave.

    Args:
        kernel: the declared kernel.
        problem: the problem.
        device: where the tensors are.
        captured: a file of captured tensors, which take the place of those that ``inputs`` makes.
        seed: any value other than 0 gives other random numbers.
        guards: allocates the tensors; active guards by default.
        library: makes the tensors; by default torch if it is installed, else NumPy.

    Attributes:
        library: the library that makes the tensors.
        tensors: the placed tensors, by name.
        outputs: the names of the outputs.
        poisoned: the names of the outputs that are only written, and so poisoned before each launch.
        quick_look: checks all outputs on a GPU at once; ``None`` where that is not possible.
        was_surely_right: the last answer of :meth:`is_surely_right`.

    Raises:
        KernelFileError: the kernel file's code fails, or makes inputs that cannot be used.
    """

    def __init__(
        self,
        kernel: DeclaredKernel,
        problem: Mapping[str, Any],
        device: Device,
        *,
        captured: Path | None = None,
        seed: int = 0,
        guards: Guards | None = None,
        library: TensorLibrary | None = None,
    ) -> None:
        from ktuned.spec import TensorSpec

        self._kernel = kernel
        self.library = tensors = library or choose_library(device)
        self._device = device
        group = kernel.find_batch_group(problem)
        self._rows = BatchRows(kernel, problem, group) if len(group) > 1 else None
        made_for = problem if self._rows is None else self._rows.largest
        seed_text = canonical({"kernel": kernel.name, **made_for}) + (f" {seed}" if seed else "")
        # Seed the generators: random numbers that inputs(p) itself draws must be the same in every worker.
        # The import takes 1 ms, which workers that make no inputs save.
        import random

        random.seed(seed_text)
        if kernel.has_tensors:
            tensors.seed_generator(random.getrandbits(63))
        self._declared = declared = kernel.evaluate_inputs(made_for)
        if self._rows is not None:
            self._rows.check_own(declared)
        self._seed_text = seed_text
        self._other_inputs = OtherInputs()
        self._captured: set[str] = set()
        self._pristine: dict[str, Any] = {}
        moved: dict[int, Any] = {}
        self.outputs: list[str] = []
        # Make the declared tensors, and adopt those that inputs(p) has made itself.
        for name, entry in declared.items():
            if isinstance(entry, TensorSpec):
                try:
                    self._pristine[name] = self._make_tensor(name, entry.reseed(seed), seed_text)
                except UsageError as error:
                    raise kernel.site.make_error(f"inputs(p): {name}: {error.message}", hint=error.hint) from error
                except RuntimeError as error:
                    raise kernel.site.make_failure(f"inputs(p): {name}", error) from error
                if entry.output:
                    self.outputs.append(name)
            else:
                try:
                    adopted = tensors.adopt_tensor(entry, device.name, moved)
                except UsageError as error:
                    raise kernel.site.make_error(f"inputs(p): {name}: {error.message}", hint=error.hint) from error
                self._pristine[name] = entry if adopted is None else adopted
                if adopted is not None and self._rows is not None:
                    self._pristine[name] = self._rows.narrow_input(name, adopted)
        if captured:
            if self._rows is not None:
                raise kernel.site.make_error(
                    "batch_invariant compares rows on equal inputs, and this problem's were captured",
                    hint=CAPTURE_AGAIN,
                )
            self._use_captured(captured, device)
        if not self.outputs and kernel.reference is not None:
            raise kernel.site.make_error("there is a reference, but inputs(p) makes no tensor with output=True")
        # Tell apart tensors that are written, poisoned before each launch, restored before it, or must not change.
        self._writes_in_place = tuple(kernel.setup) if isinstance(kernel.setup, tuple) else ()
        self._setup_call: Callable[..., object] | None = None if isinstance(kernel.setup, tuple) else kernel.setup
        self.poisoned = [name for name in self.outputs if name not in self._writes_in_place]
        workspaces = {name for name, entry in declared.items() if getattr(entry, "fill", "") == "empty"}
        # A callable `setup` may prepare any tensor.
        written = set(declared) if self._setup_call else {*self.outputs, *self._writes_in_place, *workspaces}
        self._read_only = [name for name in self._pristine if name not in written]
        self._expected: dict[str, Any] = {}
        self._guards = guards or Guards()
        self._damage_found: Damage | None = None
        self.quick_look: QuickLook | None = None
        self._guards_are_intact = False
        self._inputs_are_untouched = False
        self.was_surely_right = False
        # Place everything between guards. Find the spans first, because the kept copies no longer share memory.
        self._spans = self._guards.find_spans(self._pristine)
        try:
            for name, value in self._pristine.items():
                # Poisoned outputs have no content to protect.
                if name not in self.poisoned:
                    self._pristine[name] = self._guards.keep_copy(f"ktuned's copy of {name}", value)
            self._place_tensors()
        except RuntimeError as error:
            raise kernel.site.make_failure("inputs(p)", error) from error

    def _place_tensors(self) -> None:
        self.tensors = self._guards.place_tensors(self._pristine, self._spans)
        self._copies: list[Mapping[str, Any]] = []
        self._layouts = {name: self.library.read_layout(tensor) for name, tensor in self.tensors.items()}

    def recreate_changed_tensors(self) -> bool:
        """Place all tensors again if a config has resized one or replaced its memory; return whether it has.

        Launches that were bound to the old tensors must then be bound again.
        """
        if all(self.library.read_layout(tensor) == self._layouts[name] for name, tensor in self.tensors.items()):
            return False
        self._place_tensors()
        return True

    def _use_captured(self, captured: Path, device: Device) -> None:
        """Replace made tensors by captured ones, which must have the same shapes and dtypes."""
        given = self.library.load_tensors(captured, device.name if device.kind == "cuda" else "cpu")
        self._captured = set(given)
        for name, tensor in given.items():
            made = self._pristine.get(name)
            if made is None:
                names = ", ".join(self._pristine)
                raise self._kernel.site.make_error(
                    f"inputs were captured for {name!r}, and inputs(p) makes {names}", hint=CAPTURE_AGAIN
                )
            if (tensor.shape, tensor.dtype) != (made.shape, made.dtype):
                # A captured scalar has the widest dtype of its kind; it is converted.
                if tensor.shape or math.prod(made.shape) != 1:
                    raise self._kernel.site.make_error(
                        f"the captured {name} is {tensor.dtype} of {tuple(tensor.shape)}, "
                        f"and inputs(p) makes {made.dtype} of {tuple(made.shape)}",
                        hint=CAPTURE_AGAIN,
                    )
                tensor = self.library.convert_like(tensor, made)
            self._pristine[name] = tensor

    @property
    def is_judged(self) -> bool:
        """True if something decides whether the outputs are right."""
        return self._kernel.is_judged

    @property
    def restores(self) -> bool:
        """True if something must be restored before each launch."""
        return bool(self._writes_in_place) or self._setup_call is not None

    def restore_inputs(self) -> None:
        """Restore what the kernel's ``setup`` asks for before each launch."""
        for name in self._writes_in_place:
            self.library.copy_elements(self._pristine[name], self.tensors[name])
        if self._setup_call is not None:
            self._setup_call(self.tensors)

    def begin_trial(self) -> None:
        """Give every tensor its pristine content again, and poison the outputs that are only written."""
        self._guards.seal_copies()
        # Nothing is launched between trials, so inputs that were untouched after the last launch still are.
        untouched = self._read_only if self._inputs_are_untouched else ()
        self._guards_are_intact = self._inputs_are_untouched = False
        for name, tensor in self.tensors.items():
            if name in self.poisoned:
                self.library.poison_tensor(tensor)
            elif name not in untouched:
                self.library.copy_elements(self._pristine[name], tensor)

    def digest_problem(self) -> str:
        """Return a digest of the content that every config begins with, and of the expected outputs.

        Poisoned outputs count by their layout alone.
        """
        values = {**self._pristine, **{f"the expected {name}": value for name, value in self._expected.items()}}
        parts = [repr(self._spans), repr(sorted(self.poisoned)), repr(self._writes_in_place)]
        for name, value in values.items():
            library = library_of(value)
            # The layout ends with the address, which differs each time.
            *layout, _ = library.read_layout(value)
            bits = "" if name in self.poisoned else library.read_digests([library.digest_tensors([value])])[0]
            parts.append(f"{name} {layout} {bits}")
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def digest_outputs(self) -> Any:
        """Start a digest of the outputs as they are now, for :meth:`read_digests`."""
        return self.library.digest_tensors([self.tensors[name] for name in self.outputs])

    @property
    def has_smaller_batches(self) -> bool:
        """True if the outputs contain the rows of smaller problems of a batch-invariant group."""
        return self._rows is not None and bool(self._rows.smaller)

    def digest_rows(self) -> dict[str, Any]:
        """Start digests of those rows of the outputs that each smaller problem of the group has, by problem."""
        assert self._rows is not None
        return {
            problem: self.library.digest_tensors(
                [narrow_tensor(self.tensors[name], shapes[name]) for name in self.outputs]
            )
            for problem, shapes in self._rows.smaller.items()
        }

    def read_digests(self, digests: Sequence[Any]) -> list[str]:
        """Read digests, waiting once for the device."""
        return self.library.read_digests(digests)

    @property
    def has_outputs(self) -> bool:
        """True if there are outputs whose bits can be compared."""
        return bool(self.outputs)

    @contextmanager
    def holding_inputs(self, number: int) -> Iterator[bool]:
        """Let launches run on the inputs with this number (:mod:`ktuned.checking.other_inputs`) within the context.

        Yields:
            Whether they differ from the problem's own.
        """
        others = self._other_inputs.find_tensors(number, self._make_changed_tensors)
        own = {name: self._pristine[name] for name in others}
        # More launches follow, so the findings of the last look no longer hold.
        self._guards_are_intact = self._inputs_are_untouched = False
        try:
            self._put_inputs(others)
            yield bool(others)
        finally:
            self._put_inputs(own)

    def _put_inputs(self, inputs: Mapping[str, Any]) -> None:
        self._pristine |= inputs
        for name, value in inputs.items():
            self.library.copy_elements(value, self.tensors[name])

    def _make_changed_tensors(
        self, change: Callable[[int, TensorSpec], TensorSpec | None], seed: int
    ) -> dict[str, Any]:
        """Make the tensors whose content ``change`` replaces; poisoned and captured tensors keep theirs."""
        specs = [
            (name, entry)
            for name, entry in self._declared.items()
            if hasattr(entry, "may_be_hard") and name not in self.poisoned and name not in self._captured
        ]
        changed = [(name, change(place, entry)) for place, (name, entry) in enumerate(specs)]
        text = self._seed_text + (f" inputs {seed}" if seed else "")
        return {name: self._make_tensor(name, entry, text) for name, entry in changed if entry is not None}

    def _make_tensor(self, name: str, entry: TensorSpec, text: str) -> Any:
        made = self.library.make_tensor(entry, name, text, self._device.name)
        return made if self._rows is None else self._rows.narrow_input(name, made)

    def rehearse_judging(self) -> None:
        """Do everything once that is done around each config's launches, without user code.

        A GPU's libraries load each of their kernels on its first use, which takes as long as measuring some configs.
        """
        # A failure here repeats in every trial, which reports it.
        with suppress(RuntimeError):
            self.begin_trial()
            for name, value in self._expected.items():
                self.library.copy_elements(value, self.tensors[name])
            # Judge in both ways: by the quick look, and if that is not enough, in full.
            if not self.is_surely_right(is_last=True):
                self._compare_with_expected(self.tensors)
                self.find_overwritten_inputs()
            self.find_damage()

    def provide_output_copy(self, number: int) -> Mapping[str, Any]:
        """Return the tensors with a copy of the poisoned outputs in place of the originals.

        ``number`` is the copy's number, from 1 on. Copies that are missing are made, and kept.
        """
        while len(self._copies) < number:
            # Sealing again would hide the damage that was done so far.
            self._damage_found = self._damage_found or self._guards.find_damage()
            tag = f" (copy {len(self._copies) + 1})"
            values = {name + tag: self._pristine[name] for name in self.poisoned}
            placed = self._guards.place_tensors(values, self._guards.find_spans(values))
            self._copies.append({name: placed[name + tag] for name in self.poisoned})
            self._guards.seal_copies()
        return {**self.tensors, **self._copies[number - 1]}

    def count_affordable_copies(self, limit_bytes: int) -> int:
        """Return how many sets of poisoned outputs fit into ``limit_bytes``, at least 1: the problem's own."""
        size = sum(self.library.count_element_bytes(self.tensors[name]) for name in self.poisoned)
        return max(1, limit_bytes // max(1, size))

    @property
    def copies(self) -> int:
        """How many copies of the poisoned outputs there are, besides the problem's own."""
        return len(self._copies)

    def begin_checked_launch(self) -> None:
        """Prepare a launch that is judged: poison the outputs that are only written, and do what ``setup`` asks for."""
        for name in self.poisoned:
            self.library.poison_tensor(self.tensors[name])
        self.restore_inputs()

    def find_damage(self) -> Damage | None:
        """Return what was damaged outside the tensors since the last call; see :meth:`Guards.find_damage`."""
        seen, self._damage_found = self._damage_found, None
        is_intact, self._guards_are_intact = self._guards_are_intact, False
        return seen if seen or is_intact else self._guards.find_damage()

    def list_regions(self) -> Iterable[Region]:
        """Return the allocations whose guards stop the process, for naming the address of a fault."""
        return self._guards.list_regions()

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
        is_known = cached.is_file()
        self._keep_expected(self.library.load_tensors(cached, "cpu") if is_known else self._run_reference(default))

    def save_expected(self, cached: Path) -> None:
        """Save the expected outputs for later workers, unless they were saved before. May run in another thread."""
        if not self._expected or cached.is_file():
            return
        cached.parent.mkdir(parents=True, exist_ok=True)
        staged = cached.with_name(f"{cached.name}.{os.getpid()}")
        self.library.save_tensors(self._expected, staged)
        staged.replace(cached)

    def _keep_expected(self, expected: Mapping[str, Any]) -> None:
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

    def _run_reference(self, default: Kernel | None) -> dict[str, Any]:
        # The reference gets clones, because it may change its inputs.
        inputs = {name: self.library.clone_tensor(value) for name, value in self._pristine.items()}
        site = self._kernel.site
        try:
            result: Any = self._call_reference(inputs) if default is None else self._run_default_config(inputs, default)
        except KernelFileError:
            raise
        except BaseException as error:
            raise site.make_failure("reference", error) from error
        if not isinstance(result, Mapping):
            if len(self.outputs) != 1:
                raise site.make_error(f"the reference must return a dict with the outputs {', '.join(self.outputs)}")
            result = {self.outputs[0]: result}
        if set(result) != set(self.outputs):
            returned = ", ".join(sorted(result)) or "nothing"
            raise site.make_error(f"the reference returned {returned}; the outputs are {', '.join(self.outputs)}")
        expected = {}
        for name, returned in result.items():
            value = self.library.adopt_tensor(returned, self._device.name)
            if value is None:
                raise site.make_error(
                    f"the reference returned a {type(returned).__name__} for {name}, not a {self.library.word}"
                )
            expected[name] = value
            made = self._pristine[name]
            if value.shape != made.shape:
                raise site.make_error(
                    f"the reference returned {name} of shape {tuple(value.shape)}, and inputs(p) makes it of shape "
                    f"{tuple(made.shape)}"
                )
        return expected

    def _call_reference(self, inputs: Mapping[str, Any]) -> Any:
        """Call the reference with the tensors that its parameters name, or with all if it has ``**kwargs``."""
        reference = self._kernel.reference
        assert callable(reference)
        parameters = inspect.signature(reference).parameters
        if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            return reference(**inputs)
        for name, parameter in parameters.items():
            if name not in inputs and parameter.default is parameter.empty and parameter.kind not in _COLLECTING:
                known = listed(inputs, near=name)
                raise self._kernel.site.make_error(
                    f"the reference takes {name!r}, which inputs(p) does not make {known}"
                )
        return reference(**{name: value for name, value in inputs.items() if name in parameters})

    def _run_default_config(self, tensors: Mapping[str, Any], default: Kernel) -> dict[str, Any]:
        """Run the default config on tensors as every config is run, and return its outputs.

        Raises:
            KernelFileError: its launch raises, or it never writes one of the outputs.
        """
        if self._setup_call is not None:
            self._setup_call(tensors)
        try:
            default.bind(tensors)()
            if self._device.kind == "cuda":
                self.library.arithmetic.cuda.synchronize(self._device.name)
        except KernelFileError:
            raise
        except Exception as error:
            raise self._kernel.site.make_failure(DEFAULT_CONFIG, error) from error
        for name in self.poisoned:
            if never_written(tensors[name]):
                raise self._kernel.site.make_error(
                    f"reference='default', but the default config never writes {name}", hint="give a reference"
                )
        return {name: tensors[name] for name in self.outputs}

    def make_reference_launch(self) -> Launch | None:
        """Return a call that runs the reference once, or ``None`` if there is no reference function."""
        if self._kernel.reference is None or self._kernel.expects_default_outputs:
            return None
        inputs = {name: self.library.clone_tensor(value) for name, value in self._pristine.items()}

        def launch() -> None:
            self._call_reference(inputs)

        return launch

    def is_surely_right(self, *, is_last: bool) -> bool:
        """Return whether the last launch surely left the right outputs, by one look at the device.

        If not, they may still be right: :meth:`check_outputs` decides. With ``is_last``, for the last launch of a
        config, inputs and guards are looked at, too, so that :meth:`find_damage` need not wait for the device again.
        """
        look = self.quick_look
        self.was_surely_right = False
        if look is None or any(
            self.library.read_layout(tensor) != self._layouts[name] for name, tensor in self.tensors.items()
        ):
            return False
        if not is_last:
            self.was_surely_right = look.finds_right(self.tensors)
        else:
            inputs = [(self.tensors[name], self._pristine[name]) for name in self._read_only]
            self.was_surely_right = look.finds_right(self.tensors, inputs, self._guards.make_intact_flag())
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
            outputs = {name: tensors[name] for name in self.outputs}
            # User code may write to the kept copies, so look first for damage that a launch has done to them.
            self._damage_found = self._damage_found or self._guards.find_damage()
            with self._guards.unseal_temporarily():
                own = run_check(kernel.check, self._pristine, outputs)
            if own.ok:
                return verdict
            never = [name for name in self.poisoned if never_written(tensors[name])]
            return replace(own, message=f"{never[0]} was never written; {own.message}") if never else own
        return verdict

    def _compare_with_expected(self, tensors: Mapping[str, Any]) -> Verdict:
        """Compare outputs with the expected ones. If none are expected, the verdict is good."""
        kernel = self._kernel
        return compare_outputs(
            tensors,
            self._expected,
            rtol=kernel.rtol,
            atol=kernel.atol,
            max_mismatched_ratio=kernel.max_mismatched_ratio,
            poisoned=self.poisoned,
            has_exact_integers=kernel.has_exact_integers,
        )

    def find_overwritten_inputs(self) -> tuple[str, ...]:
        """Return the read-only inputs that launches have changed. Later launches do not see the same data."""
        return tuple(
            name
            for name in self._read_only
            if self.library.read_layout(self.tensors[name]) == self._layouts[name]
            and not self.library.are_same_tensors(self.tensors[name], self._pristine[name])
        )
