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

With ``exact`` numerics no key reaches FRAMEWORK, because the framework's tuner may launch a config with other bits. The
key's first config is launched instead, and the reason is reported.

The machine returns instructions instead of calling the framework, because frameworks load, launch and replace kernels
in different ways, and with one of them the decision is made in the middle of the framework's own method.
:class:`~ktuned.dropin.keyed_call.KeyedCall` carries them out; tests run every sequence of events without it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Literal, Self, get_args

from ktuned.dropin.winners_file import WinnersFile, read_winners_once
from ktuned.model import EXACT, NUMERICS, TOLERANCE, FrozenStruct

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


class Answer(FrozenStruct):
    """What the daemon knows of a key.

    Attributes:
        config: the best config's text; ``None`` if none is known.
        is_final: whether the config is the winner of a tuning that has ended and whose context is still current.
        is_open: whether a tuning of the key waits or runs.
        artifact: directory of the config's machine code.
        latency_us: the config's latency, if it was measured for exactly this problem.
        message: why there is no winner, if a tuning has ended without one.
        given_up: the number of configs whose compiles were given up for time, and that are compiled later.
        default_us: the latency of the declared default in the winner's job, if a default is declared.
    """

    config: str | None = None
    is_final: bool = False
    is_open: bool = False
    artifact: str | None = None
    latency_us: float | None = None
    message: str = ""
    given_up: int = 0
    default_us: float | None = None


class Standing(Enum):
    """The state of a key; the module's docstring explains each."""

    NEW = auto()
    FIRST = auto()
    KNOWN = auto()
    WINNER = auto()
    FRAMEWORK = auto()


# Events


class Called(FrozenStruct):
    """A call needs a decision; ``is_capturing`` says whether a graph is being captured."""

    is_capturing: bool = False


class Answered(FrozenStruct):
    """The daemon's answer to :class:`Ask` or :class:`Wait`; ``None`` if none runs."""

    answer: Answer | None


class Recorded(FrozenStruct):
    """The call is in the spool; or it is not, and ``fault`` says why another process could not tune it."""

    fault: str = ""


class Followed(FrozenStruct):
    """A later answer about a key that is followed."""

    answer: Answer


class Loaded(FrozenStruct):
    """A config was loaded, and can be launched."""

    config: str


class Unfit(FrozenStruct):
    """A config cannot be compiled, loaded or launched on this device."""

    config: str


Event = Called | Answered | Recorded | Followed | Loaded | Unfit


# Instructions


class Ask(FrozenStruct):
    """Ask the daemon what it knows; reply with :class:`Answered`."""


class Record(FrozenStruct):
    """Write the call to the spool; reply with :class:`Recorded`."""


class Wait(FrozenStruct):
    """Wait until the key's tuning has ended; reply with :class:`Answered`."""


class Follow(FrozenStruct):
    """Report later answers as :class:`Followed`, until one is final or the tuning has ended."""


class Load(FrozenStruct):
    """Load a config; reply with :class:`Loaded` or :class:`Unfit`. If the daemon named it, ``answer`` is its answer."""

    config: str
    answer: Answer | None = None


class Launch(FrozenStruct):
    """Launch a config from now on; with ``once`` only in this call, so that the next call is decided anew."""

    config: str
    once: bool = False


class LeaveAlone(FrozenStruct):
    """Report why the key is not tuned. The framework's own tuner decides, unless a :class:`Launch` follows."""

    reason: str


Instruction = Ask | Record | Wait | Follow | Load | Launch | LeaveAlone


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
    _candidates: tuple[str, ...] = ()
    _known: Answer | None = None
    _target: Standing = Standing.FIRST
    _is_recorded: bool = False
    _first_answer: Answer | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the decision is final: the config never changes again in this process, or the framework decides."""
        return self.standing is not Standing.NEW and not self.is_followed

    @property
    def winner_latency_us(self) -> float | None:
        """The measured latency of a winner that never changes again; otherwise ``None``."""
        if self.standing is Standing.WINNER and self.is_settled and self._known is not None:
            return self._known.latency_us
        return None

    def handle(self, event: Event) -> list[Instruction]:
        """Take in an event; return the instructions to carry out, in order. An event that comes too late has none."""
        if self.standing is not Standing.NEW:
            return self._handle_later(event)
        always = self.policy.upgrade == "always"
        match event:
            case Called(is_capturing=True):
                fixed = None if self.fixed is None else self.fixed.config
                return [Launch(fixed or self.configs[0], once=True)]
            case Called():
                return [Ask()] if self.policy.winners is None else self._try_configs(self.fixed, Standing.WINNER)
            case Answered(Answer(config=config, is_final=True, is_open=False) as answer) if config in self.configs:
                return self._try_configs(answer, Standing.WINNER, follows=always)
            case Answered(answer) if not self._is_recorded:
                self._first_answer = answer
                return [Record()]
            case Answered(None):
                # The daemon is gone, which ends the one wait.
                return self._go_without_daemon()
            case Answered(answer):
                return self._try_configs(answer, Standing.KNOWN)
            case Recorded(fault) if not self._is_recorded:
                self._is_recorded = True
                if fault:
                    return self._leave_alone(fault)
                if self._first_answer is None:
                    return self._go_without_daemon()
                if self.policy.mode == "wait":
                    return [Wait()]
                return self._try_configs(self._first_answer, Standing.KNOWN, follows=self.policy.upgrade != "never")
            case Loaded(config) if self._candidates[:1] == (config,):
                self.standing, self.config = self._target, config
                return [Launch(config)]
            case Unfit(config) if self._candidates[:1] == (config,):
                self._candidates = self._candidates[1:]
                self._target, self._known = Standing.FIRST, None
                return self._load_next()
        return []

    def _handle_later(self, event: Event) -> list[Instruction]:
        """Handle an event of a key that is decided already: only a later answer may change its config."""
        if not self.is_followed:
            return []
        always = self.policy.upgrade == "always"
        match event:
            case Followed(Answer(is_open=False) as answer):
                if answer.config not in self.configs:
                    # The tuning ended without a config that may be launched.
                    self.is_followed = always
                    return []
                # If the tuning found no winner, the key gets the config that a first call would get now, such as a
                # near key's winner.
                self._target, self._known = Standing.WINNER if answer.is_final else Standing.KNOWN, answer
                if answer.config != self.config:
                    return [Load(answer.config, answer)]
                self.standing, self.is_followed = self._target, always
            case Loaded(config) if config in self.configs:
                # The config of a later answer, loaded while the application ran.
                self.standing, self.config, self.is_followed = self._target, config, always
                return [Launch(config)]
            case Unfit() if self.standing is not Standing.WINNER:
                # The later answer's config is unfit for this device: calls keep the current one.
                self.is_followed = always
        return []

    def _go_without_daemon(self) -> list[Instruction]:
        # The record stays in the spool for a daemon that starts later. This process has no daemon to follow.
        if self.policy.takes_over:
            return self._try_configs(None, Standing.FIRST)
        return self._leave_alone("no daemon runs")

    def _try_configs(self, answer: Answer | None, target: Standing, *, follows: bool = False) -> list[Instruction]:
        """Load the answer's config; if it is unfit, try the other configs in their order."""
        self._candidates, self._target, self._known = self.configs, Standing.FIRST, None
        if answer is not None and (answer is self.fixed or answer.config in self.configs) and answer.config is not None:
            self._candidates = tuple(dict.fromkeys([answer.config, *self.configs]))
            self._target, self._known = target, answer
        self.is_followed = follows
        return [*self._load_next(), *([Follow()] if follows else [])]

    def _load_next(self) -> list[Instruction]:
        if not self._candidates:
            # The framework will raise its own error for this.
            return self._leave_alone("no config can be launched here")
        return [Load(self._candidates[0], self._known)]

    def _leave_alone(self, reason: str) -> list[Instruction]:
        self.is_followed = False
        if not self.policy.is_exact:
            self.standing = Standing.FRAMEWORK
            return [LeaveAlone(reason)]
        self.standing, self.config = Standing.FIRST, self.configs[0]
        return [LeaveAlone(reason), Launch(self.config)]
