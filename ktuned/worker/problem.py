"""The data of one problem: the same inputs for every config, and what they must become."""

from __future__ import annotations

import hashlib
import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ktuned.backends import Launch
from ktuned.ipc import Region
from ktuned.model import Device, KernelFileError, UsageError, canonical, listed
from ktuned.worker.batch_rows import BatchRows, narrow
from ktuned.worker.check import Verdict, compare, run_check
from ktuned.worker.damage import Damage
from ktuned.worker.guards import Guards
from ktuned.worker.other_inputs import OtherInputs
from ktuned.worker.quick_look import QuickLook
from ktuned.worker.tensor_library import TensorLibrary, library_for, library_of, never_written

if TYPE_CHECKING:
    from ktuned.spec import Kernel as DeclaredKernel
    from ktuned.spec import TensorSpec

CAPTURE_AGAIN = "capture them again, or take them back: `capture` with `remove=True`"

_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""Kinds of parameters that no tensor is missing for."""


class ProblemData:
    """The tensors of one problem: the same for every config, restored after each, and what they must become.

    Those that the file ``captured`` holds are taken from there; ``seed`` gives the others other random numbers. All
    tensors have guards around them. ``run_default`` runs the default config on tensors, for a kernel that expects its
    outputs. They are torch's, or where that is not installed NumPy's, unless a ``library`` is given.
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
        run_default: Callable[[Mapping[str, Any]], None] | None = None,
        library: TensorLibrary | None = None,
    ) -> None:
        from ktuned.spec import TensorSpec

        self._kernel = kernel
        self._library = tensors = library or library_for(device)
        self._run_default = run_default
        self._device = device
        group = kernel.find_batch_group(problem)
        self._rows = BatchRows(kernel, problem, group) if len(group) > 1 else None
        made_for = problem if self._rows is None else self._rows.largest
        seed_text = canonical({"kernel": kernel.name, **made_for}) + (f" {seed}" if seed else "")
        # A tensor that inputs(p) draws itself must be the same in the worker that takes over.
        # It brings the generators' digests, 1 ms, which a worker that makes no inputs does not need.
        import random

        random.seed(seed_text)
        if kernel.has_tensors:
            tensors.seed(random.getrandbits(63))
        self._declared = declared = kernel.evaluate_inputs(made_for)
        if self._rows is not None:
            self._rows.check_own(declared)
        self._seed_text = seed_text
        self._other_inputs = OtherInputs(self._made_of)
        self._captured: set[str] = set()
        self._pristine: dict[str, Any] = {}
        moved: dict[int, Any] = {}
        self._outputs: list[str] = []
        for name, entry in declared.items():
            if isinstance(entry, TensorSpec):
                try:
                    self._pristine[name] = self._make_tensor(name, entry.reseed(seed), seed_text)
                except UsageError as error:
                    raise kernel.site.make_error(f"inputs(p): {name}: {error.message}", hint=error.hint) from error
                except RuntimeError as error:
                    raise kernel.site.make_failure(f"inputs(p): {name}", error) from error
                if entry.output:
                    self._outputs.append(name)
            else:
                try:
                    own = tensors.own(entry, device.name, moved)
                except UsageError as error:
                    raise kernel.site.make_error(f"inputs(p): {name}: {error.message}", hint=error.hint) from error
                self._pristine[name] = entry if own is None else own
                if own is not None and self._rows is not None:
                    self._pristine[name] = self._rows.narrow_input(name, own)
        if captured and self._rows is not None:
            raise kernel.site.make_error(
                "batch_invariant compares rows on equal inputs, and this problem's were captured", hint=CAPTURE_AGAIN
            )
        if captured:
            self._take(captured, device)
        if not self._outputs and kernel.reference is not None:
            raise kernel.site.make_error("there is a reference, but inputs(p) makes no tensor with output=True")
        self._writes_in_place = tuple(kernel.setup) if isinstance(kernel.setup, tuple) else ()
        self._setup_call: Callable[..., object] | None = None if isinstance(kernel.setup, tuple) else kernel.setup
        self._poisoned = [name for name in self._outputs if name not in self._writes_in_place]
        workspaces = {name for name, entry in declared.items() if getattr(entry, "fill", "") == "empty"}
        # A callable `setup` may prepare any tensor.
        written = set(declared) if self._setup_call else {*self._outputs, *self._writes_in_place, *workspaces}
        self._read_only = [name for name in self._pristine if name not in written]
        self._expected: dict[str, Any] = {}
        self._guards = guards or Guards()
        self._seen: Damage | None = None
        self._quick_look: QuickLook | None = None
        self._is_intact = False
        self._is_well = False
        self.was_surely_right = False
        # Before ktuned's own copies are made, which share nothing.
        self._spans = self._guards.find_spans(self._pristine)
        try:
            for name, value in self._pristine.items():
                # A launch that is judged begins with the poison in these.
                if name not in self._poisoned:
                    self._pristine[name] = self._guards.keep(f"ktuned's copy of {name}", value)
            self._make()
        except RuntimeError as error:
            raise kernel.site.make_failure("inputs(p)", error) from error

    def _make(self) -> None:
        self.tensors = self._guards.place(self._pristine, self._spans)
        self._copies: list[Mapping[str, Any]] = []
        self._layouts = {name: self._library.layout(tensor) for name, tensor in self.tensors.items()}

    def renew(self) -> bool:
        """Recreate the tensors if a config has resized or replaced them; return whether it has.

        Launches that were bound to the old ones must be bound again.
        """
        if all(self._library.layout(tensor) == self._layouts[name] for name, tensor in self.tensors.items()):
            return False
        self._make()
        return True

    def _take(self, captured: Path, device: Device) -> None:
        """Put captured tensors in the place of made ones, which say what shape and dtype they must have."""
        given = self._library.load(captured, device.name if device.kind == "cuda" else "cpu")
        self._captured = set(given)
        for name, tensor in given.items():
            made = self._pristine.get(name)
            if made is None:
                known = ", ".join(self._pristine)
                raise self._kernel.site.make_error(
                    f"inputs were captured for {name!r}, and inputs(p) makes {known}", hint=CAPTURE_AGAIN
                )
            if (tensor.shape, tensor.dtype) != (made.shape, made.dtype):
                # A number travels as the widest of its kind.
                if tensor.shape or math.prod(made.shape) != 1:
                    raise self._kernel.site.make_error(
                        f"the captured {name} is {tensor.dtype} of {tuple(tensor.shape)}, "
                        f"and inputs(p) makes {made.dtype} of {tuple(made.shape)}",
                        hint=CAPTURE_AGAIN,
                    )
                tensor = self._library.like(tensor, made)
            self._pristine[name] = tensor

    @property
    def is_judged(self) -> bool:
        """True if something decides whether the outputs are right."""
        return self._kernel.is_judged

    @property
    def restores(self) -> bool:
        """True if something must be restored before each run."""
        return bool(self._writes_in_place) or self._setup_call is not None

    def restore(self) -> None:
        """Do what the kernel's ``setup`` asks for before each run."""
        for name in self._writes_in_place:
            self._library.copy(self._pristine[name], self.tensors[name])
        if self._setup_call is not None:
            self._setup_call(self.tensors)

    def begin_trial(self) -> None:
        """Give every tensor its first content again, and poison the outputs that are only written.

        The config before may have written where it should not.
        """
        self._guards.seal()
        # Between trials nothing is launched: what was found well after the last one is so still.
        known = self._read_only if self._is_well else ()
        self._is_intact = self._is_well = False
        for name, tensor in self.tensors.items():
            if name in self._poisoned:
                self._library.poison(tensor)
            elif name not in known:
                self._library.copy(self._pristine[name], tensor)

    def identify(self) -> str:
        """Return a digest of the bits that each config gets, and of those that it must leave.

        Outputs that begin with the poison count by their layout.
        """
        values = {**self._pristine, **{f"the expected {name}": value for name, value in self._expected.items()}}
        found = [repr(self._spans), repr(sorted(self._poisoned)), repr(self._writes_in_place)]
        for name, value in values.items():
            library = library_of(value)
            # Where its elements are is last, and another address each time.
            *layout, _ = library.layout(value)
            bits = "" if name in self._poisoned else library.read_digests([library.digest_tensors([value])])[0]
            found.append(f"{name} {layout} {bits}")
        return hashlib.sha256("\n".join(found).encode()).hexdigest()

    def digest_outputs(self) -> Any:
        """Return a digest of the outputs as they are; the library reads it, perhaps from the device."""
        return self._library.digest_tensors([self.tensors[name] for name in self._outputs])

    @property
    def has_smaller_batches(self) -> bool:
        """True if other problems' rows are among the outputs."""
        return self._rows is not None and bool(self._rows.smaller)

    def digest_rows(self) -> dict[str, Any]:
        """Return a digest of the rows that the outputs have under each smaller problem of the group, by problem."""
        assert self._rows is not None
        return {
            problem: self._library.digest_tensors([narrow(self.tensors[name], shapes[name]) for name in self._outputs])
            for problem, shapes in self._rows.smaller.items()
        }

    def read_digests(self, digests: Sequence[Any]) -> list[str]:
        """Return digests of outputs as texts."""
        return self._library.read_digests(digests)

    @property
    def has_outputs(self) -> bool:
        """True if there is something whose bits can be compared."""
        return bool(self._outputs)

    @contextmanager
    def holding_inputs(self, number: int) -> Iterator[bool]:
        """Have launches get inputs of another number for a while; yields false where these would be the same.

        Number 0 are the problem's own, then come the :data:`~ktuned.spec.HARD_FILLS`, then other random numbers.
        """
        others = self._other_inputs.find_tensors(number)
        own = {name: self._pristine[name] for name in others}
        # What was found well is launched again.
        self._is_intact = self._is_well = False
        try:
            self._put_inputs(others)
            yield bool(others)
        finally:
            self._put_inputs(own)

    def _put_inputs(self, inputs: Mapping[str, Any]) -> None:
        self._pristine |= inputs
        for name, value in inputs.items():
            self._library.copy(value, self.tensors[name])

    def _made_of(self, change: Callable[[int, TensorSpec], TensorSpec | None], seed: int) -> dict[str, Any]:
        """Return the declared tensors that ``change`` has another content for, by their place and how they stand."""
        specs = [
            (name, entry)
            for name, entry in self._declared.items()
            if hasattr(entry, "may_be_hard") and name not in self._poisoned and name not in self._captured
        ]
        changed = [(name, change(place, entry)) for place, (name, entry) in enumerate(specs)]
        text = self._seed_text + (f" inputs {seed}" if seed else "")
        return {name: self._make_tensor(name, entry, text) for name, entry in changed if entry is not None}

    def _make_tensor(self, name: str, entry: TensorSpec, text: str) -> Any:
        made = self._library.make(entry, name, text, self._device.name)
        return made if self._rows is None else self._rows.narrow_input(name, made)

    def rehearse(self) -> None:
        """Do once what is done around each config's launches, except for user code: a GPU's libraries load each of
        their kernels when it is first used, which takes as long as some configs.
        """
        # What fails here fails in every trial, where it has its outcome.
        with suppress(RuntimeError):
            self.begin_trial()
            for name, value in self._expected.items():
                self._library.copy(value, self.tensors[name])
            # The sums are those of what is kept by now.
            if not self.is_surely_right(is_last=True):
                self._compared(self.tensors)
                self.overwritten()
            self.damage()

    def copy_of_outputs(self, number: int) -> Mapping[str, Any]:
        """Return the tensors with other memory for the outputs that are poisoned; the copy of a number stays."""
        while len(self._copies) < number:
            # What was written outside so far is found before the guards are sealed again.
            self._seen = self._seen or self._guards.damage()
            tag = f" (copy {len(self._copies) + 1})"
            values = {name + tag: self._pristine[name] for name in self._poisoned}
            placed = self._guards.place(values, self._guards.find_spans(values))
            self._copies.append({name: placed[name + tag] for name in self._poisoned})
            self._guards.seal()
        return {**self.tensors, **self._copies[number - 1]}

    def most_copies(self, limit_bytes: int) -> int:
        """Return how many of the outputs that are poisoned, the first included, take no more than so many bytes."""
        size = sum(self._library.size(self.tensors[name]) for name in self._poisoned)
        return max(1, limit_bytes // max(1, size))

    def judged_outputs(
        self, *, is_judged: bool, arithmetic: Callable[[], AbstractContextManager[object]]
    ) -> JudgedOutputs:
        """Return the outputs that the last launch left, to compare those of others with if they were judged right.

        ``arithmetic`` is what comparisons are made in.
        """
        return JudgedOutputs(self, is_judged=is_judged, arithmetic=arithmetic)

    def begin_checked_launch(self) -> None:
        """Poison the outputs that are only written, and restore what ``setup`` asks for, as before each launch.

        The launch before may have left the right answer where this one must write.
        """
        for name in self._poisoned:
            self._library.poison(self.tensors[name])
        self.restore()

    def damage(self) -> Damage | None:
        """Return what was written outside the tensors since the last call; see :meth:`Guards.damage`."""
        seen, self._seen = self._seen, None
        is_intact, self._is_intact = self._is_intact, False
        return seen if seen or is_intact else self._guards.damage()

    def regions(self) -> Iterable[Region]:
        """Return the memory of all tensors whose guards stop the process at once."""
        return self._guards.regions()

    def expect(self, cached: Path) -> None:
        """Compute the reference's outputs, or read them from ``cached`` where an earlier worker has saved them."""
        if self._kernel.reference is None:
            return
        is_known = cached.is_file()
        self._keep_expected(self._library.load(cached, "cpu") if is_known else self._run_reference())

    def save_expected(self, cached: Path) -> None:
        """Leave the expected outputs to later workers, unless an earlier one has; other threads may go on meanwhile."""
        if not self._expected or cached.is_file():
            return
        cached.parent.mkdir(parents=True, exist_ok=True)
        staged = cached.with_name(f"{cached.name}.{os.getpid()}")
        self._library.save(self._expected, staged)
        staged.replace(cached)

    def _keep_expected(self, expected: Mapping[str, Any]) -> None:
        """Keep the expected outputs where the outputs are: no trial's check is to copy them there again."""
        self._expected = {
            name: self._guards.keep(f"the expected {name}", self._library.beside(value, self.tensors[name]))
            for name, value in expected.items()
        }
        kernel = self._kernel
        if kernel.check is None and self._device.kind == "cuda":
            self._quick_look = QuickLook.of(
                "cuda", self.tensors, self._expected, rtol=kernel.rtol, atol=kernel.atol, keep=self._guards.keep
            )

    def _run_reference(self) -> dict[str, Any]:
        # Clones, because the reference may change its inputs.
        inputs = {name: self._library.clone(value) for name, value in self._pristine.items()}
        site = self._kernel.site
        try:
            result: Any = self._call_reference(inputs)
        except KernelFileError:
            raise
        except BaseException as error:
            raise site.make_failure("reference", error) from error
        if not isinstance(result, Mapping):
            if len(self._outputs) != 1:
                raise site.make_error(f"the reference must return a dict with the outputs {', '.join(self._outputs)}")
            result = {self._outputs[0]: result}
        if set(result) != set(self._outputs):
            returned = ", ".join(sorted(result)) or "nothing"
            raise site.make_error(f"the reference returned {returned}; the outputs are {', '.join(self._outputs)}")
        expected = {}
        for name, returned in result.items():
            value = self._library.own(returned, self._device.name)
            if value is None:
                raise site.make_error(
                    f"the reference returned a {type(returned).__name__} for {name}, not a {self._library.word}"
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
        """Call the reference with the tensors that it names; with all of them, if it takes any."""
        reference = self._kernel.reference
        if self._run_default is not None:
            return self._default_outputs(inputs, self._run_default)
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

    def _default_outputs(
        self, tensors: Mapping[str, Any], run_default: Callable[[Mapping[str, Any]], None]
    ) -> dict[str, Any]:
        """Run the default config on tensors, as a config is run, and return its outputs.

        Raises:
            KernelFileError: it leaves an output as it was.
        """
        if self._setup_call is not None:
            self._setup_call(tensors)
        run_default(tensors)
        for name in self._poisoned:
            if never_written(tensors[name]):
                raise self._kernel.site.make_error(
                    f"reference='default', but the default config never writes {name}", hint="give a reference"
                )
        return {name: tensors[name] for name in self._outputs}

    def reference_launch(self) -> Launch | None:
        """Return a call that runs the reference once, or ``None`` when there is none besides the default config."""
        if self._kernel.reference is None or self._run_default is not None:
            return None
        inputs = {name: self._library.clone(value) for name, value in self._pristine.items()}

        def launch() -> None:
            self._call_reference(inputs)

        return launch

    def is_surely_right(self, *, is_last: bool) -> bool:
        """Return whether the last launch left the right outputs beyond doubt, by one look at the device; if not, they
        are to be judged.

        The look after the ``last`` launch is at the inputs and at all guards, too: then :meth:`damage` need not wait.
        """
        look = self._quick_look
        self.was_surely_right = False
        if look is None or any(self._library.layout(one) != self._layouts[name] for name, one in self.tensors.items()):
            return False
        if not is_last:
            self.was_surely_right = look.finds_right(self.tensors)
            return self.was_surely_right
        inputs = [(self.tensors[name], self._pristine[name]) for name in self._read_only]
        self._is_intact = self._is_well = look.finds_right(self.tensors, inputs, self._guards.intact())
        self.was_surely_right = self._is_well
        return self._is_well

    def check(self, tensors: Mapping[str, Any] | None = None) -> Verdict:
        """Judge what the last launch left in the tensors, or in some that have other outputs."""
        kernel = self._kernel
        tensors = self.tensors if tensors is None else tensors
        verdict = self._compared(tensors)
        if not verdict.ok:
            return replace(verdict, is_dissent=self._run_default is not None)
        if kernel.check is not None:
            outputs = {name: tensors[name] for name in self._outputs}
            # What user code is given to change is looked at before.
            self._seen = self._seen or self._guards.damage()
            with self._guards.unsealed():
                own = run_check(kernel.check, self._pristine, outputs)
            if own.ok:
                return verdict
            never = [name for name in self._poisoned if never_written(tensors[name])]
            return replace(own, message=f"{never[0]} was never written; {own.message}") if never else own
        return verdict

    def _compared(self, tensors: Mapping[str, Any]) -> Verdict:
        """Compare the outputs with the expected ones, if there are any."""
        kernel = self._kernel
        return compare(
            tensors,
            self._expected,
            rtol=kernel.rtol,
            atol=kernel.atol,
            max_mismatched_ratio=kernel.max_mismatched_ratio,
            poisoned=self._poisoned,
            has_exact_integers=kernel.has_exact_integers,
        )

    def overwritten(self) -> tuple[str, ...]:
        """Return the inputs that the last launch wrote to, though the file declares them neither as outputs nor in
        ``setup``, nor as a workspace (``fill="empty"``): the launches after it do not see the same data.
        """
        return tuple(
            name
            for name in self._read_only
            if self._library.layout(self.tensors[name]) == self._layouts[name]
            and not self._library.is_same(self.tensors[name], self._pristine[name])
        )


class JudgedOutputs:
    """Outputs of a launch that was judged right, and the poison that each timed launch begins with instead.

    ``is_comparable`` is false where nothing decides what is right. ``has_differed`` is true once another launch was
    right with other bits.
    """

    def __init__(
        self,
        data: ProblemData,
        *,
        is_judged: bool,
        arithmetic: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.is_comparable = is_judged
        self._data = data
        self._library = data._library
        self._arithmetic = arithmetic
        self._launches = 0
        self._fills: list[list[tuple[Callable[[int], object], tuple[int, int]]]] = []
        self._right = [
            self._library.clone(view)
            for name in (data._outputs if is_judged else ())
            for view, _ in self._library.bits(data.tensors[name])
        ]
        self._has_one_answer = True
        self.has_differed = False
        # Where one look was not enough for the first launch, it says nothing of others.
        self._look = data._quick_look if data.was_surely_right else None

    @property
    def poisons(self) -> bool:
        """True if there are outputs to poison."""
        return bool(self._data._poisoned)

    @property
    def copies(self) -> int:
        """Number of sets of outputs, the problem's own included."""
        return 1 + len(self._data._copies)

    @property
    def is_flag_certain(self) -> bool:
        """True if a flag that is not set says that the outputs are wrong."""
        return self._look is not None

    def poison(self, count: int) -> None:
        """Poison the outputs of the first ``count`` sets."""
        self._launches += 1
        turn = self._launches % 2
        while len(self._fills) < min(count, self.copies):
            tensors = self._tensors(len(self._fills))
            views = [one for name in self._data._poisoned for one in self._library.bits(tensors[name])]
            self._fills.append([(getattr(view, "fill_", None) or view.fill, poisons) for view, poisons in views])
        for fills in self._fills[:count]:
            for fill, poisons in fills:
                fill(poisons[turn])

    def compare(self, place: int) -> Verdict:
        """Judge what a launch left in the outputs of a set."""
        tensors = self._tensors(place)
        if self._has_one_answer and self._is_same(tensors):
            return Verdict(ok=True)
        verdict = Verdict(ok=True)
        if self._look is None or not self._look.finds_right(tensors):
            with self._arithmetic():
                verdict = self._data.check(tensors)
        self.has_differed |= verdict.ok
        return verdict

    def flag(self, place: int) -> Any:
        """Return a flag on the device that the outputs of a set are right; ``None`` where only judging them says so."""
        tensors = self._tensors(place)
        if self._look is not None:
            return self._look.flag(tensors)
        if not self._has_one_answer or not self._right:
            return None
        import torch

        return torch.stack([(view == right).all() for view, right in self._views(tensors)]).all()

    def read_flags(self, flags: Iterable[Any]) -> list[bool]:
        """Read flags from the device, all at once."""
        import torch

        found: list[bool] = torch.stack(list(flags)).tolist()
        return found

    def expect_other_bits(self) -> None:
        """Judge by the whole check from now on: right outputs of this config differ from launch to launch."""
        self._has_one_answer = False
        self.has_differed = True

    def _tensors(self, place: int) -> Mapping[str, Any]:
        return self._data.copy_of_outputs(place) if place else self._data.tensors

    def _views(self, tensors: Mapping[str, Any]) -> Iterable[tuple[Any, Any]]:
        views = [view for name in self._data._outputs for view, _ in self._library.bits(tensors[name])]
        return zip(views, self._right, strict=True)

    def _is_same(self, tensors: Mapping[str, Any]) -> bool:
        try:
            return all(self._library.are_equal_bits(view, right) for view, right in self._views(tensors))
        except (RuntimeError, ValueError):
            # The launch has resized an output.
            return False
