"""What this process decides for Inductor: asks the daemon for winners, and leaves a record of what has none yet.

*Settled.* A decision is settled if its tuning has ended, with a winner or without one, or if no other process can tune
it. A graph with a decision that is not settled is not saved to Inductor's graph cache: the next start lowers it again,
takes the winners, and saves it then. So no untuned choice is ever in that cache, whenever the program is killed.

*Once for a program.* The processes of a ``ktuned run`` share the daemon's first answer about a key: ranks, and kernels
that are compiled again, cannot differ in choice.

*A library's kernel* is kept unless a template beats it by :data:`LEAST_GAIN`: what follows is then fused with the
template, and nobody has timed that.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from time import monotonic
from typing import Any, Final, NamedTuple

from ktuned import dropin
from ktuned.dropin import (
    RECORDED,
    TUNED,
    Answer,
    CallRecord,
    FunctionName,
    NotTunable,
    account,
    daemon_link,
    digest_content,
    find_user_directories,
    leave_record,
    leave_to_framework,
    spool_directory,
)
from ktuned.model import CallKey, Problem
from ktuned_inductor.seams import LeftAlone
from ktuned_triton.environment import find_deciding_variables

FRAMEWORK: Final = "Inductor"

FIRST_LOOK_DEADLINE_S: Final = 1.0
"""Deadline of a question to the daemon. Compiling takes longer, and an unanswered question costs a start more."""

LEAST_GAIN: Final = 1.03
"""Latency of a library's kernel as a multiple of the least that a template has; see above."""

PATIENCE_S: Final = 3.0
"""For how long a process waits in all for a daemon that is gone or hangs; then it asks each question once."""

RETRY_S: Final = 0.05
"""Pause before a question is asked again, and the deadline of a question when the patience has ended."""


class Origin(NamedTuple):
    """What the user wrote: a file, a line and a module's class; ``backward`` if it is the backward of that."""

    file: str = ""
    line: str = ""
    module: str = ""
    direction: str = ""

    def name_function(self, operation: str) -> FunctionName:
        """Return a name without characters that a file's name must not have: ``model.py.L48.Head.bmm``."""
        parts = (self.line and f"L{self.line}", self.module, operation, self.direction)
        function = ".".join(re.sub(r"[^A-Za-z0-9_]+", "_", part) for part in parts if part)
        return FunctionName(re.sub(r"[^A-Za-z0-9_.]+", "_", self.file).lstrip(".")[:80] or "graph", "", function[:160])

    def describe_operation(self, operation: str, problem: Problem) -> str:
        """Return a line for people: ``model.py:48 Head bmm 8x64x256x128 bf16``."""
        place = ":".join(filter(None, (self.file or "graph", self.line)))
        return " ".join(filter(None, (place, self.module, operation, *map(str, problem.values()), self.direction)))


@dataclass(frozen=True, kw_only=True)
class Declaration(dropin.Declaration):
    """A generated kernel or an operator: all that decides a measurement, except the call.

    Attributes:
        versions: torch's and Triton's.
        source: the generated source with all names replaced that say nothing about the kernel; for an operator, its
            name in ATen.
        tensors: the names of its tensors.
    """

    versions: tuple[str, ...]
    source: str
    tensors: tuple[str, ...] = ()

    @property
    def source_digest(self) -> str:
        """Digest of the source."""
        return digest_content(self.source)

    @property
    def identity(self) -> str:
        """Digest of all but the name, so that equal kernels of several layers and ranks are one."""
        plain = [sys.executable, self.versions, self.source, sorted(self.variables.items())]
        return digest_content(json.dumps(plain))


@dataclass
class Decision:
    """A decision of this process.

    Attributes:
        declaration: what is decided about.
        key: by which the daemon knows it.
        label: the key for people, as the summary prints it.
        winner: the winner's config; empty without a winner.
        is_settled: whether a graph with this decision may be saved.
        is_recorded: whether a record of it is on its way to the daemon.
    """

    declaration: Declaration
    key: CallKey
    label: str
    winner: Mapping[str, Any] = field(default_factory=dict)
    is_settled: bool = False
    is_recorded: bool = False


class _Graph(threading.local):
    """The graph that this thread compiles; ``unsettled`` are the labels of its decisions that are not settled."""

    def __init__(self) -> None:
        self.unsettled: set[str] = set()


class Decisions:
    """All decisions of this process.

    Attributes:
        find_link: returns the link to the daemon.
        find_failure: returns why nothing can be decided in this process, or an empty string; called once.
        can_be_tuned: whether a daemon may tune what is recorded; else no graph waits for it.
    """

    def __init__(self, find_link: Callable[[], Any] = daemon_link) -> None:
        self.find_link = find_link
        self.find_failure: Callable[[], str] = str
        self.can_be_tuned = True
        self._known: dict[str, Decision] = {}
        self.replace_lock()
        self._graph = _Graph()
        self._pause = threading.Event()
        self._patience_s = PATIENCE_S

    def replace_lock(self) -> None:
        """Begin with a free lock: a thread that held it is not there in a forked process."""
        self._lock = threading.Lock()

    def make_decision(
        self, origin: Origin, operation: str, problem: Problem, model: str | None, **declared: Any
    ) -> Decision:
        """Return the decision about a kernel or an operator of the graph that this thread compiles.

        Args:
            origin: what the user wrote.
            operation: the operator's name in ATen, or the names of those that a kernel computes.
            problem: the sizes and the dtype.
            model: the GPU's model.
            declared: further fields of the declaration.

        Raises:
            LeftAlone: nothing can be decided in this process.
        """
        import torch
        import triton

        declaration = Declaration(
            name=origin.name_function(operation),
            specialize=tuple(problem),
            variables=read_variables(),
            versions=(str(torch.__version__), str(triton.__version__)),
            **declared,
        )
        key = CallKey(declaration.identity, problem, model)
        with self._lock:
            decision = self._known.get(key.text)
            if decision is None:
                find_failure, self.find_failure = self.find_failure, str
                if reason := find_failure():
                    raise LeftAlone(reason)
                origin = _recall_origin(declaration.identity, origin)
                declaration = replace(declaration, name=origin.name_function(operation))
                decision = Decision(declaration, key, origin.describe_operation(operation, problem))
                self._ask_daemon(decision)
                self._known[key.text] = decision
        if not decision.is_settled and self.can_be_tuned:
            self._graph.unsettled.add(decision.label)
        return decision

    def find_decision(self, key: str) -> Decision | None:
        """Return the decision that was made about a key."""
        return self._known.get(key)

    def take_unsettled(self) -> set[str]:
        """Return the decisions that keep this thread's graph from being saved; the next graph begins without any."""
        unsettled, self._graph.unsettled = self._graph.unsettled, set()
        return unsettled

    def forget_decisions(self) -> None:
        """Forget all decisions, as a new process does."""
        self._known.clear()
        self.take_unsettled()

    def _ask_daemon(self, decision: Decision) -> None:
        from msgspec import structs

        key, label = decision.key, decision.label
        if reason := _find_refusal(key).read_text():
            decision.is_settled = decision.is_recorded = True
            leave_to_framework(FRAMEWORK, label, reason)
            return
        account.record_adopted(decision.declaration.name.full)
        plain = account.share_finding(key.text, lambda: (answer := self._await_answer(key)) and structs.asdict(answer))
        if plain is None:
            return
        answer = Answer(**plain)
        gain = answer.default_us / answer.latency_us if answer.default_us and answer.latency_us else LEAST_GAIN
        if answer.is_final and answer.config is not None and gain >= LEAST_GAIN:
            decision.winner = json.loads(answer.config)
        # While a better config is looked for, the graph is lowered again at the next start.
        decision.is_settled = not answer.is_open and bool(answer.is_final or answer.message)
        decision.is_recorded = answer.is_open or decision.is_settled
        if decision.is_settled:
            account.record_key(label, TUNED if answer.is_final else f"not tuned: {answer.message}")
        elif answer.is_open:
            account.record_key(label, RECORDED)

    def _await_answer(self, key: CallKey) -> Answer | None:
        """Ask the daemon; again, if the connection fails."""
        until = monotonic() + (min(self._patience_s, FIRST_LOOK_DEADLINE_S) if self.can_be_tuned else 0.0)
        while True:
            began = monotonic()
            answer: Answer | None = self.find_link().ask_about(key, max(RETRY_S, until - began))
            if answer is None and began < until:
                self._pause.wait(RETRY_S)
            waited_s = monotonic() - began
            self._patience_s -= waited_s if waited_s >= RETRY_S else 0.0
            if answer is not None or monotonic() >= until:
                return answer

    def record_decision(
        self, decision: Decision, pack_call: Callable[[], tuple[Any, Mapping[str, Any], Mapping[str, bytes]]]
    ) -> None:
        """Leave a record of a decision, unless there is one; ``pack_call`` returns the call, its tensors, its files.

        A call that no other process can repeat settles the decision, also for later starts.
        """
        with self._lock:
            if decision.is_recorded:
                return
            decision.is_recorded = True
        declaration = decision.declaration
        try:
            call, captured, files = pack_call()
            declaration = replace(declaration, tensors=tuple(call.tensors))
            call, content = call.pack_captured(captured)
            record = CallRecord(
                tool=FRAMEWORK.lower(),
                package=declaration.name.package,
                release=declaration.name.release,
                function=declaration.name.function,
                identity=declaration.identity,
                declaration=declaration.to_plain(),
                problem=dict(decision.key.problem),
                call=call.to_json(),
                python=sys.executable,
                configs=tuple(call.list_configs()),
                files={**files, **content},
                variables=dict(declaration.variables),
                device=decision.key.device or "",
            )
            leave_record(spool_directory(), record)
        except OSError as error:
            leave_to_framework(FRAMEWORK, decision.label, f"its record cannot be written: {error}")
        except Exception as error:
            reason = str(error) if isinstance(error, NotTunable) else f"{type(error).__name__}: {error}"
            _find_refusal(decision.key).write_text(reason)
            leave_to_framework(FRAMEWORK, decision.label, reason)
        else:
            account.record_key(decision.label, RECORDED)


@cache
def read_variables() -> dict[str, str]:
    """Return the variables that decide what Triton compiles, as they were before Inductor set some of them itself."""
    return find_deciding_variables()


class Note:
    """A line in the user's cache that later starts read, whole or not at all; without it they find it out again."""

    def __init__(self, name: str) -> None:
        self.path = find_user_directories().cache / "inductor" / name

    def read_text(self) -> str:
        """Return the line; empty if there is none."""
        try:
            return self.path.read_text()
        except OSError:
            return ""

    def write_text(self, text: str) -> None:
        """Write the line, if the disk takes it."""
        draft = self.path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                draft.write_text(text)
                draft.replace(self.path)
            finally:
                draft.unlink(missing_ok=True)


def _find_refusal(key: CallKey) -> Note:
    """Return the note with the reason for which a decision was given up for good."""
    return Note(f"{digest_content(key.text)}.refused")


def _recall_origin(identity: str, origin: Origin) -> Origin:
    """Return what the user wrote, as an earlier start has noted it: a graph from Inductor's cache does not tell."""
    note = Note(f"{identity}.origin")
    known = note.read_text()
    if origin.file and not known:
        note.write_text(json.dumps(origin))
    return origin if origin.file or not known else Origin(*json.loads(known))


decisions: Final = Decisions()
"""The decisions of this process."""

os.register_at_fork(after_in_child=decisions.replace_lock)
