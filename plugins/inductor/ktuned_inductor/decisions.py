"""What this process decides for Inductor: asks the daemon for winners, and leaves a record of what has none yet.

*Settled.* A decision is settled if its tuning has ended, with a winner or without one, or if no other process can tune
it. A graph with a decision that is not settled is not saved to Inductor's graph cache: the next start lowers it again,
takes the winners, and saves it then. So no untuned choice is ever in that cache, whenever the program is killed.

*Once for a process.* A decision is made once, so that a kernel that is compiled again is the same.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any, Final

from ktuned import dropin
from ktuned.dropin import (
    RECORDED,
    TUNED,
    Answer,
    CallRecord,
    FunctionName,
    NotTunable,
    RecordedCall,
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

RETRY_S: Final = 0.05
"""Pause before a question is asked again."""


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
        winner: the winner's config; ``None`` without a winner.
        is_settled: whether a graph with this decision may be saved.
        is_recorded: whether a record of it is on its way to the daemon.
    """

    declaration: Declaration
    key: CallKey
    label: str
    winner: Mapping[str, Any] | None = None
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
    """

    def __init__(self, find_link: Callable[[], Any] = daemon_link) -> None:
        self.find_link = find_link
        self.find_failure: Callable[[], str] = str
        self._known: dict[str, Decision] = {}
        self._lock = threading.Lock()
        self._graph = _Graph()
        self._pause = threading.Event()
        self._has_daemon = True

    def decide(self, declaration: Declaration, problem: Problem, model: str | None) -> Decision:
        """Return the decision about a kernel or an operator of the graph that this thread compiles.

        Raises:
            LeftAlone: nothing can be decided in this process.
        """
        key = CallKey(declaration.identity, problem, model)
        with self._lock:
            decision = self._known.get(key.text)
            if decision is None:
                find_failure, self.find_failure = self.find_failure, str
                if reason := find_failure():
                    raise LeftAlone(reason)
                decision = self._known[key.text] = self._ask_daemon(declaration, key)
        if not decision.is_settled:
            self._graph.unsettled.add(decision.label)
        return decision

    def take_unsettled(self) -> set[str]:
        """Return the decisions that keep this thread's graph from being saved; the next graph begins without any."""
        unsettled, self._graph.unsettled = self._graph.unsettled, set()
        return unsettled

    def forget(self) -> None:
        """Forget all decisions, as a new process does."""
        self._known.clear()
        self.take_unsettled()

    def _ask_daemon(self, declaration: Declaration, key: CallKey) -> Decision:
        label = f"{declaration.name.full} {' '.join(map(str, key.problem.values()))}"
        decision = Decision(declaration, key, label)
        if reason := _read_refusal(key):
            decision.is_settled = True
            leave_to_framework(FRAMEWORK, label, reason)
            return decision
        account.record_adopted(declaration.name.full)
        answer = self._await_answer(key)
        if answer is None:
            return decision
        if answer.is_final and answer.config is not None:
            decision.winner = json.loads(answer.config)
        # While a better config is looked for, the graph is lowered again at the next start.
        decision.is_settled = not answer.is_open and bool(answer.is_final or answer.message)
        decision.is_recorded = answer.is_open or decision.is_settled
        if decision.is_settled:
            state = TUNED if decision.winner is not None else f"not tuned: {answer.message}"
            account.record_key(label, state)
        elif answer.is_open:
            account.record_key(label, RECORDED)
        return decision

    def _await_answer(self, key: CallKey) -> Answer | None:
        """Ask the daemon; again, if the connection fails. A process that got no answer waits for none again."""
        until = monotonic() + (FIRST_LOOK_DEADLINE_S if self._has_daemon else 0.0)
        while (answer := self._ask_link(key)) is None and monotonic() < until:
            self._pause.wait(RETRY_S)
        self._has_daemon = answer is not None
        return answer

    def _ask_link(self, key: CallKey) -> Answer | None:
        found: Answer | None = self.find_link().ask_about(key, FIRST_LOOK_DEADLINE_S)
        return found

    def record(
        self,
        decision: Decision,
        configs: Sequence[Mapping[str, Any]],
        pack_call: Callable[[], tuple[RecordedCall, Mapping[str, Any], Mapping[str, bytes]]],
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
            declaration = replace(declaration, tensors=tuple(getattr(call, "tensors", ())))
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
                configs=tuple(dict(config) for config in configs),
                files={**files, **content},
                variables=dict(declaration.variables),
                device=decision.key.device or "",
            )
            leave_record(spool_directory(), record)
        except OSError as error:
            leave_to_framework(FRAMEWORK, decision.label, f"its record cannot be written: {error}")
        except Exception as error:
            reason = str(error) if isinstance(error, NotTunable) else f"{type(error).__name__}: {error}"
            _write_refusal(decision.key, reason)
            leave_to_framework(FRAMEWORK, decision.label, reason)
        else:
            account.record_key(decision.label, RECORDED)


@cache
def read_variables() -> dict[str, str]:
    """Return the variables that decide what Triton compiles, as they were before Inductor set some of them itself."""
    return find_deciding_variables()


def name_function(package: str, *parts: str) -> FunctionName:
    """Return a name for people from its parts; characters that a file's name must not have are replaced."""
    keep = str.maketrans(dict.fromkeys(" :/\\<>()[]{},;'\"*?|&$#!~`^=+%@", "_"))
    function = ".".join(part.translate(keep).strip(".") for part in parts if part)
    return FunctionName(package.translate(keep).lstrip(".-")[:80] or "graph", "", function[:160] or "kernel")


def _find_refusal(key: CallKey) -> Path:
    return find_user_directories().cache / "inductor" / f"{digest_content(key.text)}.refused"


def _read_refusal(key: CallKey) -> str:
    """Return why a decision was given up for good at an earlier start; empty if it was not."""
    try:
        return _find_refusal(key).read_text()
    except OSError:
        return ""


def _write_refusal(key: CallKey, reason: str) -> None:
    path = _find_refusal(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(reason)
    except OSError:
        # The next start gives it up again.
        return


decisions: Final = Decisions()
"""The decisions of this process."""
