"""One tuning key of an application's function, for all drop-ins. It carries out what its launch machine decides.

The machine decides (:mod:`~ktuned.dropin.launch_machine`), the link asks the daemon, and the record goes to the spool.
A subclass adds what differs between frameworks: how a call becomes data, how a config is loaded, and how calls are made
to launch it.

A call is decided in the application's thread, and the machine's instructions are carried out before the call continues.
A later answer arrives in the link's thread while the application runs. Its config must be loaded on the GPU of the
key's calls, and loading must not end another thread's graph capture.

No error of ours may reach the application. A call that no other process could tune is left to the framework; the reason
is in the drop-in's log (``ktuned.triton``) and in the account that ``ktuned run`` prints.
"""

from __future__ import annotations

import json
import logging
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import ClassVar

from ktuned.dropin.account import FIXED, RECORDED, account
from ktuned.dropin.captures import allow_captures, is_capturing, use_device
from ktuned.dropin.daemon_link import daemon_link
from ktuned.dropin.launch_counts import LaunchCounter, count_launches, leave_launch_counts
from ktuned.dropin.launch_machine import (
    Answer,
    Answered,
    Ask,
    Called,
    Event,
    Follow,
    Followed,
    Launch,
    LaunchMachine,
    LeaveAlone,
    Load,
    Loaded,
    Policy,
    Record,
    Recorded,
    Standing,
    Unfit,
    Wait,
)
from ktuned.dropin.recorded_call import Declaration, NotTunable, RecordedCall
from ktuned.dropin.winners_file import FileWinner
from ktuned.model import LATENCY, CallKey, Problem, canonical, spell_values, with_numerics
from ktuned.spool import CallRecord, leave_record, spool_directory

COUNTS_EVERY_S = 10.0
"""Launch counts are written at most this often, and only when a call is decided."""

NOT_ACCEPTED = "the daemon did not accept its call; `ktuned status` may say why"


class KeyedCall(ABC):
    """One tuning key, which carries out the instructions of its machine.

    Attributes:
        framework: the framework's name as its users spell it, such as ``TileLang``.
        machine: decides what the key's calls launch.
        counter: counts the key's launches.
        device: the number of the GPU that the key's calls use; ``None`` if they use none.
    """

    framework: ClassVar[str]

    def __init__(
        self,
        function: str,
        problem: Problem,
        model: str | None,
        declaration: Declaration,
        configs: tuple[str, ...],
        policy: Policy,
    ) -> None:
        """Begin a key.

        Args:
            function: the function's module and name.
            problem: the tuning key's values.
            model: the model of the GPU that the calls use; ``None`` lets the daemon choose.
            declaration: the function's declaration for keys of this shape.
            configs: texts of the configs that are left after pruning.
            policy: the choices of the function's author.
        """
        self.machine = LaunchMachine(policy, configs)
        self.device: int | None = None
        self._fixed_state = ""
        self._function = function
        self._declaration = declaration
        self._key = CallKey(declaration.identity, problem, model, with_numerics(LATENCY, policy.numerics))
        self._name = f"{function} {canonical(dict(problem))}"
        self._log = find_log(self.framework)
        # With winners from a file, nothing is recorded.
        self.counter = LaunchCounter(self._key) if policy.winners is not None else count_launches(self._key)
        if policy.winners is not None:
            self._fix_config(policy.winners.find_winner(declaration.name.full, declaration.source_digest, self._key))

    @abstractmethod
    def pack_call(self) -> tuple[RecordedCall, Mapping[str, bytes]]:
        """Return the current call as data, and the files that it names.

        Raises:
            NotTunable: no other process can repeat the call.
        """

    @abstractmethod
    def load_config(self, config: str, answer: Answer | None) -> bool:
        """Load a config, from its answer's artifact if it has one; return whether this device can launch it."""

    @abstractmethod
    def launch_config(self, config: str, *, once: bool) -> None:
        """Make calls launch a config; with ``once`` only the current call."""

    def decide_launch(self) -> bool:
        """Decide what the current call launches; return ``False`` if the framework's own tuner has to.

        Raises:
            Exception: what the subclass's methods raise.
        """
        is_captured, is_new = is_capturing(), self.machine.standing is Standing.NEW
        self.handle(Called(is_captured))
        if self.machine.policy.winners is not None:
            if is_new:
                self._report_fixed_config()
            return self.machine.standing is not Standing.FRAMEWORK
        if self.machine.standing is Standing.FRAMEWORK:
            return False
        if not is_captured:
            leave_launch_counts(at_most_every_s=COUNTS_EVERY_S)
        return True

    # Winners from a file

    def _fix_config(self, found: FileWinner | str) -> None:
        """Have calls launch the config of a file's winner; or the first one, for the reason that the file has none."""
        if isinstance(found, str):
            # Where there is a single config, nothing has to be fixed.
            self._fixed_state = FIXED if len(self.machine.configs) == 1 else f"{found}: the first config is launched"
            return
        self.machine.fixed = Answer(found.config, is_final=True, latency_us=found.latency_us)
        self._fixed_state = (
            FIXED
            if found.is_of_this_source
            else f"its winner in {found.path} was made from different source or configs"
        )
        account.record_winners_file(found.path)

    def refuse_fixed_config(self, reason: str) -> None:
        """Have calls launch the first config instead of the file's winner, because the function cannot take it."""
        assert self.machine.fixed is not None
        winner = spell_values(json.loads(self.machine.fixed.config or "{}"))
        self._fixed_state = f"its winner {winner} {reason}: the first config is launched"
        self.machine.fixed = None

    def _report_fixed_config(self) -> None:
        """Record in the account what calls launch; without ``ktuned run``, which lists the exceptions, log them."""
        fixed = self.machine.fixed
        if fixed is not None and self.machine.standing is Standing.FIRST:
            self.refuse_fixed_config("cannot be launched here")
        if (
            self._fixed_state != FIXED
            and account.keys.get(self._name) != self._fixed_state
            and account.directory is None
        ):
            self._log.warning("%s: %s", self._name, self._fixed_state)
        account.record_key(self._name, self._fixed_state)

    # The machine's instructions

    def handle(self, event: Event) -> None:
        """Give the machine an event, and carry out its instructions until none is left."""
        events: deque[Event] = deque([event])
        while events:
            for instruction in self.machine.handle(events.popleft()):
                match instruction:
                    case Ask():
                        events.append(Answered(self.ask_daemon()))
                    case Record():
                        events.append(Recorded(self.record_call()))
                    case Wait():
                        events.append(Answered(self.await_tuning()))
                    case Follow():
                        self.follow_key()
                    case Load():
                        is_fit = self.load_config(instruction.config, instruction.answer)
                        events.append(Loaded(instruction.config) if is_fit else Unfit(instruction.config))
                    case Launch():
                        self.launch_config(instruction.config, once=instruction.once)
                    case LeaveAlone():
                        leave_to_framework(self.framework, self._name, instruction.reason)

    def ask_daemon(self) -> Answer | None:
        """Return what the daemon knows about the key."""
        answer = daemon_link().ask_about(self._key)
        if answer is not None and answer.is_final and not answer.is_open:
            account.record_tuned(self._name, len(self.machine.configs), answer.given_up)
        return answer

    def record_call(self) -> str:
        """Write the call to the spool; return why that failed, or an empty string."""
        try:
            self.leave_call(*self.pack_call())
        except (NotTunable, OSError) as error:
            return str(error)
        return ""

    def leave_call(self, call: RecordedCall, files: Mapping[str, bytes]) -> None:
        """Write a packed call to the spool, with the files that it names.

        Raises:
            OSError: it cannot be written.
        """
        leave_record(spool_directory(), self._make_record(call, files))
        account.record_key(self._name, RECORDED)

    def await_tuning(self) -> Answer | None:
        """Wait until the key's tuning has ended; return the daemon's answer."""
        answer = daemon_link().await_tuning(self._key)
        if answer is not None:
            self._record_ending(answer)
        return answer

    def follow_key(self) -> None:
        """Take later answers from the daemon, too."""
        daemon_link().follow_key(self._key, self._take_in_answer)

    def _take_in_answer(self, answer: Answer) -> bool:
        self._record_ending(answer)
        allow_captures()
        with use_device(self.device):
            self.handle(Followed(answer))
        return self.machine.is_followed

    def _record_ending(self, answer: Answer) -> None:
        """Record in the account how a tuning ended: with a winner, or the reason why there is none."""
        if answer.is_final:
            account.record_tuned(self._name, len(self.machine.configs), answer.given_up)
            return
        reason = (answer.message or NOT_ACCEPTED).partition("\n")[0]
        self._log.warning("%s is not tuned: %s", self._function, reason)
        account.record_key(self._name, f"not tuned: {reason}")

    def _make_record(self, call: RecordedCall, files: Mapping[str, bytes]) -> CallRecord:
        declaration = self._declaration
        return CallRecord(
            tool=self.framework.lower(),
            package=declaration.name.package,
            release=declaration.name.release,
            function=declaration.name.function,
            identity=self._key.identity,
            declaration=declaration.to_plain(),
            problem=dict(self._key.problem),
            call=call.to_json(),
            python=sys.executable,
            configs=tuple(map(json.loads, self.machine.configs)),
            files=files,
            variables=dict(declaration.variables),
            device=self._key.device or "",
            objective=self._key.objective,
        )


def leave_to_framework(framework: str, name: str, reason: str) -> None:
    """Report that a function, or one of its keys, is left to its framework's own tuner."""
    account.record_left_alone(name, reason)
    find_log(framework).info("%s is left to %s: %s", name, framework, reason)


def find_log(framework: str) -> logging.Logger:
    """Return the log of a framework's drop-in."""
    return logging.getLogger(f"ktuned.{framework.lower()}")
