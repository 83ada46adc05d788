"""The launch machine: decides what the calls of one tuning key launch. Events in, instructions out; no IO.

The states of a key, as an application's calls see it:

```
                          capture: the first config, this once
                           ┌──┐
                           ▼  │
              call      ┌───────┐  a final winner
          ────────────▶ │  NEW  │ ─────────────────────────────────────▶ WINNER
                        └───┬───┘                                          ▲  ▲
             another answer │ the call is recorded                         │  │ its tuning has ended,
          ┌─────────────────┼──────────────────────┐                       │  │ the winner is loaded
          ▼                 ▼                      ▼                       │  │
      FRAMEWORK           FIRST ◀── unfit ────── KNOWN ────────────────────┘  │
   (its own tuning)         └──────────────────────────────────────────────────┘
```

- **NEW**: no call has been answered yet. The machine asks what the daemon knows.
- **FIRST**: the daemon knows nothing usable, so calls launch the first config in the pruned list that the device can
  launch.
- **KNOWN**: calls launch a config that the daemon knows. It may come from an older state, from a near problem, or from
  a tuning that is still running. A key that only borrows winners of near keys stays here for good, once these are
  tuned.
- **WINNER**: calls launch the winner of a tuning that has ended. This is final, unless the policy's ``upgrade`` is
  ``always``.
- **FRAMEWORK**: the framework's own tuner decides, as if ktuned were not there.

With a *winners file* in the policy, a key's first call goes straight to WINNER, with the file's config, or to FIRST, if
the file lacks the key or the config cannot be launched here. Nothing is asked, recorded or followed, and the config
never changes. A captured graph gets the same config, because a graph keeps what it has captured.

Three rules hold in every state. A call never waits, except once in the mode ``wait``. A config that pruning has removed
is never launched, whatever the daemon says. While a graph is captured, nothing is asked, recorded, loaded or decided:
the next call outside of a capture begins anew.

The machine returns instructions instead of calling the framework, because frameworks load, launch and replace kernels
in different ways, and with one of them the decision is made in the middle of the framework's own method.
:class:`~ktuned.dropin.keyed_call.KeyedCall` carries them out; tests run every sequence of events without it.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Literal, Self, get_args

from ktuned.dropin.winners_file import WinnersFile, read_winners_once
from ktuned.model import EXACT, NUMERICS, TOLERANCE

Mode = Literal["background", "wait"]
Upgrade = Literal["once", "never", "always"]
Numerics = Literal["tolerance", "exact"]


@dataclass(frozen=True, slots=True)
class Policy:
    """Choices of a function's author.

    Attributes:
        mode: ``background``, or ``wait``: the first call of a key waits for its tuning.
        upgrade: how often a key's config may change in a process: ``once``, ``always``, or ``never``.
        takes_over: whether the first config is launched if no daemon runs; otherwise the framework tunes.
        numerics: ``tolerance``, or ``exact``: only configs with the output bits of a key's first config are launched.
            The framework's own tuner might choose a config with other bits, so ``exact`` sets ``takes_over``.
        winners: files that fix the config of each key; all other choices but the numerics then have no effect.
    """

    mode: str = "background"
    upgrade: str = "once"
    takes_over: bool = False
    numerics: str = TOLERANCE
    winners: WinnersFile | None = None

    def __post_init__(self) -> None:
        for name, known in (("mode", get_args(Mode)), ("upgrade", get_args(Upgrade)), ("numerics", NUMERICS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}: give one of {', '.join(map(repr, known))}")
        if self.is_exact:
            object.__setattr__(self, "takes_over", True)

    @classmethod
    def from_choices(
        cls,
        framework: str,
        *,
        mode: str,
        upgrade: str,
        without_daemon: str,
        numerics: str,
        winners: str | os.PathLike[str] | None,
    ) -> Self:
        """Return the policy for a decorator's arguments; ``without_daemon`` is the framework's name, or ``first``.

        Raises:
            ValueError: an argument has a value that it cannot take.
            WinnersError: a file of ``winners`` cannot be read.
        """
        if without_daemon not in (framework, "first"):
            raise ValueError(f"without_daemon={without_daemon!r}: give one of {framework!r}, 'first'")
        read = None if winners is None else read_winners_once(os.path.abspath(winners))
        return cls(mode, upgrade, without_daemon == "first", numerics, read)

    @property
    def is_exact(self) -> bool:
        """Whether a winner must produce the same output bits as the first config."""
        return self.numerics == EXACT


def choose_policy(own: Policy | None, of_process: Policy | None) -> Policy | None:
    """Return the policy of a function, from its own one and that of ``ktuned run``; ``None`` if it is not adopted.

    Its own policy has precedence, but the winners of ``ktuned run`` also fix a function whose policy names none.
    """
    if own is None or of_process is None:
        return own or of_process
    return own if own.winners is not None else replace(own, winners=of_process.winners)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the daemon knows of a key.

    Attributes:
        config: the best config's text; ``None`` if none is known.
        is_final: whether the config is the winner of a tuning that has ended and whose context is still current.
        is_open: whether a tuning of the key waits or runs.
        artifact: directory of the config's machine code.
        latency_us: the config's latency, if it was measured for exactly this problem.
        message: why there is no winner, if a tuning has ended without one.
    """

    config: str | None = None
    is_final: bool = False
    is_open: bool = False
    artifact: str | None = None
    latency_us: float | None = None
    message: str = ""


class Standing(Enum):
    """The state of a key; the module's docstring explains each."""

    NEW = auto()
    FIRST = auto()
    KNOWN = auto()
    WINNER = auto()
    FRAMEWORK = auto()


# Events


@dataclass(frozen=True, slots=True)
class Called:
    """A call needs a decision; ``is_capturing`` says whether a graph is being captured."""

    is_capturing: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """The daemon's answer to :class:`Ask` or :class:`Wait`; ``None`` if none runs."""

    answer: Answer | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """The call is in the spool; or it is not, and ``fault`` says why another process could not tune it."""

    fault: str = ""


@dataclass(frozen=True, slots=True)
class Followed:
    """A later answer about a key that is followed."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Loaded:
    """A config was loaded, and can be launched."""

    config: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """A config cannot be compiled, loaded or launched on this device."""

    config: str


Event = Called | Answered | Recorded | Followed | Loaded | Unfit


# Instructions


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the daemon what it knows; reply with :class:`Answered`."""


@dataclass(frozen=True, slots=True)
class Record:
    """Write the call to the spool; reply with :class:`Recorded`."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the key's tuning has ended; reply with :class:`Answered`."""


@dataclass(frozen=True, slots=True)
class Follow:
    """Report later answers as :class:`Followed`, until one is final or the tuning has ended."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load a config; reply with :class:`Loaded` or :class:`Unfit`. If the daemon named it, ``answer`` is its answer."""

    config: str
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch a config from now on; with ``once`` only in this call, so that the next call is decided anew."""

    config: str
    once: bool = False


@dataclass(frozen=True, slots=True)
class LetFrameworkTune:
    """Leave the key to the framework's own tuner."""

    reason: str = ""


Instruction = Ask | Record | Wait | Follow | Load | Launch | LetFrameworkTune


@dataclass
class LaunchMachine:
    """One key's decisions.

    Attributes:
        policy: the choices of the function's author.
        configs: texts of the configs that are left after pruning, in their order.
        fixed: the winner in the policy's file, which need not be among ``configs``; ``None`` if the file has none.
        standing: the key's state.
        config: the config that calls launch now; empty before the first decision.
        is_followed: whether the machine takes later answers.
    """

    policy: Policy
    configs: tuple[str, ...]
    fixed: Answer | None = None
    standing: Standing = Standing.NEW
    config: str = ""
    is_followed: bool = False
    _candidates: deque[str] = field(default_factory=deque)
    _known: Answer | None = None
    _target: Standing = Standing.FIRST
    _has_waited: bool = False
    _is_recorded: bool = False
    _first_answer: Answer | None = None

    def handle_event(self, event: Event) -> list[Instruction]:
        """Take in an event; return the instructions to carry out, in order."""
        match event:
            case Called():
                return self._decide_call(event)
            case Answered():
                return self._take_in_answer(event.answer)
            case Recorded():
                return self._take_in_record(event.fault)
            case Followed():
                return self._take_in_later_answer(event.answer)
            case Loaded():
                return self._take_in_loaded(event.config)
            case Unfit():
                return self._take_in_unfit(event.config)

    @property
    def is_settled(self) -> bool:
        """Whether the decision is final: the config never changes again in this process, or the framework decides."""
        return self.standing is Standing.FRAMEWORK or (self.standing is not Standing.NEW and not self.is_followed)

    def _decide_call(self, call: Called) -> list[Instruction]:
        if self.standing is not Standing.NEW:
            return []
        first = self.configs[0] if self.fixed is None or self.fixed.config is None else self.fixed.config
        if call.is_capturing:
            return [Launch(first, once=True)]
        return [Ask()] if self.policy.winners is None else self._try_configs(self.fixed, Standing.WINNER)

    def _take_in_answer(self, answer: Answer | None) -> list[Instruction]:
        if self.standing is not Standing.NEW:
            return []
        is_known = answer is not None and answer.config in self.configs
        if answer is not None and is_known and answer.is_final and not answer.is_open:
            self.is_followed = self.policy.upgrade == "always"
            return [*self._try_configs(answer, Standing.WINNER), *([Follow()] if self.is_followed else [])]
        if self._has_waited:
            # The one wait is over: it brought no winner, or the daemon is gone (no answer).
            return self._go_without_daemon() if answer is None else self._try_configs(answer, Standing.KNOWN)
        if not self._is_recorded:
            self._first_answer = answer
            return [Record()]
        return self._try_configs(answer, Standing.KNOWN)

    def _take_in_record(self, fault: str) -> list[Instruction]:
        if self.standing is not Standing.NEW or self._is_recorded:
            return []
        self._is_recorded = True
        answer = self._first_answer
        if fault:
            return self._leave_to_framework(fault)
        if answer is None:
            return self._go_without_daemon()
        if self.policy.mode == "wait":
            self._has_waited = True
            return [Wait()]
        self.is_followed = self.policy.upgrade != "never"
        return [*self._try_configs(answer, Standing.KNOWN), *([Follow()] if self.is_followed else [])]

    def _go_without_daemon(self) -> list[Instruction]:
        # The record stays in the spool for a daemon that starts later. This process has no daemon to follow.
        if self.policy.takes_over:
            return self._try_configs(None, Standing.FIRST)
        return self._leave_to_framework("no daemon runs")

    def _try_configs(self, answer: Answer | None, target: Standing) -> list[Instruction]:
        """Load the answer's config; if it is unfit, try the other configs in their order."""
        self._candidates = deque(self.configs)
        self._target, self._known = Standing.FIRST, None
        if answer is not None and (answer is self.fixed or answer.config in self.configs) and answer.config is not None:
            self._candidates = deque(dict.fromkeys([answer.config, *self.configs]))
            self._target, self._known = target, answer
        return self._load_next()

    def _load_next(self) -> list[Instruction]:
        if not self._candidates:
            # The framework's own tuner will raise its own error for this.
            return self._leave_to_framework("no config can be launched here")
        return [Load(self._candidates[0], self._known)]

    def _take_in_loaded(self, config: str) -> list[Instruction]:
        if self.standing is Standing.FRAMEWORK:
            return []
        if self.standing is Standing.NEW:
            if not self._candidates or self._candidates[0] != config:
                return []
            self.standing, self.config = self._target, config
            return [Launch(config)]
        if self.is_followed and config in self.configs:
            # The config of a later answer, loaded while the application ran.
            self.standing, self.config = self._target, config
            self.is_followed = self.policy.upgrade == "always"
            return [Launch(config)]
        return []

    def _take_in_unfit(self, config: str) -> list[Instruction]:
        if self.standing is Standing.NEW and self._candidates and self._candidates[0] == config:
            self._candidates.popleft()
            self._target, self._known = Standing.FIRST, None
            return self._load_next()
        if self.is_followed and self.standing in (Standing.FIRST, Standing.KNOWN):
            # The later answer's config is unfit for this device: calls keep the current one.
            self.is_followed = self.policy.upgrade == "always"
        return []

    def _take_in_later_answer(self, answer: Answer) -> list[Instruction]:
        if not self.is_followed or self.standing in (Standing.NEW, Standing.FRAMEWORK) or answer.is_open:
            return []
        if answer.config not in self.configs:
            # The tuning ended without a config that may be launched.
            self.is_followed = self.policy.upgrade == "always"
            return []
        # If the tuning found no winner, the key gets the config that a first call would get now, such as a near key's
        # winner.
        self._target = Standing.WINNER if answer.is_final else Standing.KNOWN
        if answer.config == self.config:
            self.standing = self._target
            self.is_followed = self.policy.upgrade == "always"
            return []
        return [Load(answer.config, answer)]

    def _leave_to_framework(self, reason: str) -> list[Instruction]:
        self.standing, self.is_followed = Standing.FRAMEWORK, False
        return [LetFrameworkTune(reason)]
