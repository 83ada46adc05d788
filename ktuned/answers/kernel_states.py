"""The states of all kernels: a view of what the daemon knows, from which every lookup is answered.

A state is made when it is first needed, and kept until something touches its kernel. Nothing else ends it, so a part
that changes a fact of a state publishes an event after the change. A change that touches everything (a toolchain, a
device, a setting) ends all states, and each state is made again when it is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from ktuned.answers.kernel_state import KernelState, Knowledge, make_kernel_state
from ktuned.answers.ladder import Admits, Lookup, Question, find_answer
from ktuned.answers.start_doubts import StartDoubts
from ktuned.model import KernelInfo, Objective, Problem
from ktuned.protocol import AnswersChanged, Event, JobDone, KernelsReloaded, KernelStale, NamesLearned, WinnerChanged


class KernelStates:
    """Makes states, and ends them when their kernels are touched.

    Attributes:
        start_doubts: Doubts about files that the watcher has not looked at yet.
        version: Grows whenever any answer may have changed.
        when_touched: Called after that with the kernels that were touched, or None for all kernels.
    """

    def __init__(self, known: Knowledge) -> None:
        self.start_doubts = StartDoubts(known.machine.environments)
        self.version = 0
        self.when_touched: Callable[[Collection[str] | None], None] = lambda kernels: None
        self._known = known
        self._states: dict[str, KernelState] = {}
        self._namesakes: defaultdict[str, set[str]] = defaultdict(set)
        """All kernels that had a state, by their short names: a kernel may share winners with its namesakes."""
        known.catalog.when_doubts_change(self.touch_kernels)
        known.catalog.when_roots_change(self.touch_all_kernels)

    def find_state(self, kernel: KernelInfo) -> KernelState:
        """Return the present state of a kernel.

        Raises:
            NotFound: The kernel's file is below no watched root.
        """
        state = self._states.get(kernel.name)
        if state is None:
            state = self._states[kernel.name] = make_kernel_state(kernel, self._known)
            self._namesakes[kernel.kernel].add(kernel.name)
        return state

    def find_answer(
        self,
        kernel: KernelInfo,
        problem: Problem,
        device: str | None,
        objective: Objective,
        *,
        tune: bool = False,
        admits: Admits | None = None,
        compares: bool = True,
    ) -> Lookup:
        """Return the best answer for one problem of a kernel; its ``generation`` is left to the caller.

        Args:
            kernel: The kernel.
            problem: The problem.
            device: The name or the model of a device; None for the first one.
            objective: The objective.
            tune: Whether the caller starts the tunings that would improve the answer; then the message says so.
            admits: Replaces the check against the kernel's space.
            compares: Whether the kernel's files are compared if the watcher has not looked at them yet.
        """
        state = self.find_state(kernel)
        doubt = self.start_doubts.find_doubt(state, compares=compares)
        return find_answer(state, Question(problem, device, objective, doubt, admits), tune=tune)

    def release_state(self, kernel: str) -> None:
        """Do not keep a kernel's state in memory; it is made again when it is needed."""
        self._states.pop(kernel, None)

    def handle_event(self, event: Event) -> None:
        """End the states that an event touches."""
        match event:
            case AnswersChanged(kernel=None) | KernelsReloaded(added=(_, *_)) | KernelsReloaded(removed=(_, *_)):
                # A new kernel may make a short name ambiguous, or an unknown name known.
                self.touch_all_kernels()
            case KernelsReloaded():
                files = {*event.mended, *(error.path for error in event.errors)}
                declared = [kernel.name for kernel in self._known.catalog.kernels if kernel.file in files]
                self.touch_kernels((*event.changed, *event.replanned, *declared))
            case AnswersChanged() | JobDone() | KernelStale() | NamesLearned() | WinnerChanged():
                assert event.kernel is not None
                self.touch_kernels((event.kernel,))

    def touch_kernels(self, kernels: Collection[str]) -> None:
        """End the states of some kernels and of their namesakes, because facts in them may have changed."""
        namesakes = [self._namesakes.get(kernel.rpartition(":")[2], ()) for kernel in kernels]
        touched = {*kernels}.union(*namesakes)
        for kernel in touched:
            self._states.pop(kernel, None)
        self.version += 1
        self.when_touched(touched)

    def touch_all_kernels(self) -> None:
        """End all states."""
        self._states.clear()
        self.version += 1
        self.when_touched(None)
