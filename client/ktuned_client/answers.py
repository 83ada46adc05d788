"""The outcomes of a client's requests: hits, the daemon's errors, and the absence of a daemon."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from ktuned_client.paths import UntrustedSocket
from ktuned_client.wire import MAX_ID, PROTOCOL_VERSION, Response

if TYPE_CHECKING:
    from ktuned_client.messages import Answer, RefusedLookup

Problem = Mapping[str, Any]
"""The sizes and other keys of a problem, by name: numbers, booleans and strings."""

Config = Mapping[str, Any]
"""A value for each knob, by name: numbers, booleans and strings."""

LOOKUP_DEADLINE_S: Final = 0.005
"""Deadline of a lookup: a hundred times as long as a lookup usually takes, but too short to be noticed."""

SETTLE_SHARE: Final = 0.5
"""Share of a lookup's deadline that the daemon may use to check the nearest winner against the kernel's constraints."""

SETTLE_DEADLINE_S: Final = 0.02
"""Shortest deadline of a lookup that allows this check. A running worker needs milliseconds for it; a worker that must
be started takes some tenths of a second."""

CALL_DEADLINE_S: Final = 10.0
"""Deadline of any other request."""

JUDGE_DEADLINE_S: Final = 86_400.0
"""Deadline of a judging: a request may have 200 configs, and each may hang on several problems."""

TUNE_DEADLINE_S: Final = 120.0
"""Deadline for accepting a tuning; it is long because the daemon imports the kernel file first, and torch with it."""

FIRST_RETRY_S: Final = 0.02
LAST_RETRY_S: Final = 1.0
"""Shortest and longest interval in which lookups do not ask the daemon after a failure. The first interval suits a
short stall; each further failure doubles it."""

CALLERS_CODES: Final = frozenset({"usage", "ambiguous"})
"""Codes of errors that the caller's question has caused."""

ENDED_STATES: Final = frozenset({"done", "cancelled", "failed"})
"""The final states of a job."""

LOADERS: Final = "ktuned.loaders"
"""Entry-point group of functions ``(artifact, kernel_file, device) -> callable``; ktuned provides ``winner``."""


class DaemonError(Exception):
    """The daemon refused a request: ``code`` for programs, ``message`` and ``hint`` for people."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.code = code
        self.message = message
        self.hint = hint

    @classmethod
    def from_wire(cls, error: Mapping[str, str]) -> DaemonError:
        """Read the protocol's error map."""
        return cls(error["code"], error["message"], error["hint"])


class DaemonUnavailable(Exception):
    """No daemon answered: none runs, its socket is not trusted, or the deadline passed.

    ``message`` and ``hint`` as in :class:`DaemonError`.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint


class LoadError(Exception):
    """A hit has no winner that may be loaded here; the message says why, and what to do."""


class DaemonSilent(DaemonUnavailable):
    """A daemon runs, but did not answer within the deadline, or accepts no more connections now."""


class AnswerMap(dict[str, Any]):
    """A read-only map of an answer. It is a ``dict`` for everything that reads one (``**``, JSON, MessagePack).

    It is read-only because all lookups of a problem return the same object. ``dict(config)`` is a copy to change.
    """

    __slots__ = ()

    def _reject_change(self, *_: object, **__: object) -> NoReturn:
        """Raise ``TypeError``, because all lookups of the same problem share the map."""
        raise TypeError("a hit's maps are read-only; dict(hit.config) is a copy that can be changed")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _reject_change

    def __reduce__(self) -> tuple[type[AnswerMap], tuple[dict[str, Any]]]:
        return AnswerMap, (dict(self),)


def freeze_config(config: Config | None) -> AnswerMap | None:
    """Return a config as a read-only map; ``None`` stays ``None``."""
    return config if config is None or type(config) is AnswerMap else AnswerMap(config)


NO_METRICS: Final[Mapping[str, float]] = AnswerMap()

LEFT_OUT: Final = AnswerMap(final=False, metrics={}, measured=None, objective="latency")
"""Usual values of fields. An answer leaves out a field that has its usual value, because names are the most expensive
part to decode."""


class Hit(NamedTuple):
    """A lookup's answer; :meth:`load` makes the winner callable.

    Attributes:
        kernel: the kernel's name.
        problem: the problem that was asked for.
        device: the device's model, or the device as the caller named it if its model is not known.
        status: the daemon's ``fresh``, ``stale``, ``near``, ``default`` or ``unknown``; ``invalid`` for a question that
            no daemon could answer (a wrong key, a value of a wrong type, an ambiguous name); else ``unavailable``.
        config: the best config known now, or the caller's default if the daemon has none.
        latency_us: the winner's latency; ``None`` if nothing was measured.
        artifact: path of the compiled winner.
        decided: when the winner was decided, in Unix seconds; ``None`` if nothing was measured.
        generation: changes whenever the answer may have changed.
        message: the reason for the status, or the failure of the tuning that would have made the answer ``fresh``.
        final: whether a final round has decided the winner; before that, a better one is likely to follow.
        metrics: the winner's metrics.
        file: the kernel file.
        measured: the problem that the winner was measured for, if it is not this problem.
        objective: the objective by which the winner is the best; ``None`` if no daemon answered.
    """

    kernel: str
    problem: Problem
    device: str | None
    status: str
    config: Config | None
    latency_us: float | None = None
    artifact: str | None = None
    decided: float | None = None
    generation: int | None = None
    message: str = ""
    final: bool = False
    metrics: Mapping[str, float] = NO_METRICS
    file: str | None = None
    measured: Problem | None = None
    objective: str | None = None

    def load(self, *, device: str | None = None, default: Callable[..., Any] | None = None, stale: bool = False) -> Any:
        """Return the compiled winner of a fresh answer as a callable, which takes the tensors of ``inputs`` by name.

        Loading takes milliseconds, so keep the result for as long as ``artifact`` stays the same.

        Args:
            device: the device that it runs on (``cuda:1``); by default the first one.
            default: the callable to return if there is no such winner for this problem.
            stale: whether the winner of a stale answer may be loaded, too; it may compute what an older source says.

        Raises:
            LoadError: there is no such winner and no ``default``, or the backend's plugin is not installed here.
            Exception: the plugin's own error: the artifact is damaged, the device cannot run it.
        """
        reason = _explain_refusal(self, stale)
        if not reason:
            return _load_winner(self, device)
        if default is not None:
            return default
        raise LoadError(f"{self.kernel} has no winner to load for {_describe_problem(self.problem)}: {reason}")

    @property
    def age_s(self) -> float | None:
        """The winner's age now; ``None`` if nothing was measured."""
        return None if self.decided is None else max(0.0, time.time() - self.decided)


def _load_winner(hit: Hit, device: str | None) -> Any:
    """Return a hit's winner as a callable; see :meth:`Hit.load`.

    Raises:
        LoadError: ktuned is not installed here.
    """
    from importlib.metadata import entry_points

    artifact = str(hit.artifact)
    for point in entry_points(group=LOADERS, name="winner"):
        return point.load()(artifact, hit.file, device, hit.problem)
    plugin = _find_plugin(artifact)
    remedy = f"{sys.executable} -m pip install {plugin}" if plugin else "install its plugin"
    raise LoadError(f"{hit.kernel} cannot be loaded: its backend is not installed for this Python; {remedy}")


_CAUSES: Final = {
    "stale": "something has changed since the winner was measured; `ktuned lookup KERNEL --why` names it",
    "near": "the winner is another problem's; `ktuned tune` tunes this one",
    "default": "not tuned yet for this problem",
    "unknown": "the daemon does not know the kernel; `ktuned tune PATH` or `ktuned add PATH` makes it known",
}
"""Why an answer has its status, if its message does not say so."""


def _explain_refusal(hit: Hit, stale: bool) -> str:
    """Return why a hit's winner may not be loaded; empty if it may."""
    if hit.status != "fresh" and not (stale and hit.status == "stale"):
        remedy = "; load(stale=True) loads it all the same" if hit.status == "stale" and hit.artifact else ""
        return f"the answer is {hit.status!r}: {hit.message or _CAUSES.get(hit.status, 'no reason is known')}{remedy}"
    if hit.artifact is None:
        return f"the {hit.status} winner has no compiled artifact here"
    if hit.measured is not None:
        # The artifact's launch sizes and scalars are those of the other problem.
        return (
            f"the winner was compiled and measured for {_describe_problem(hit.measured)}; "
            "launch it from hit.artifact with your own sizes, or tune this very problem"
        )
    return ""


def _find_plugin(artifact: str) -> str:
    """Return the distribution that made an artifact, from its manifest; empty if that is unknown."""
    import json

    try:
        with open(os.path.join(artifact, "manifest.json"), "rb") as stream:
            plugin = json.load(stream)["recipe"]["plugin"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return plugin if isinstance(plugin, str) else ""


def _describe_problem(problem: Problem) -> str:
    values = {key: str(value).lower() if isinstance(value, bool) else value for key, value in problem.items()}
    return " ".join(f"{key}={value}" for key, value in values.items()) or "its only problem"


def make_hit(answer: Answer | RefusedLookup) -> Hit:
    """Return a daemon's answer as a hit; unknown fields are ignored.

    Raises:
        DaemonError: it is an error map, which a ``lookup_many`` may contain in place of an answer.
        ValueError: it is not an answer.
    """
    try:
        if "error" in answer:
            raise DaemonError.from_wire(answer["error"])
        get, config, metrics = answer.get, answer["config"], answer.get("metrics")
        # Equal to Hit(…), but without the cost of a call to its Python constructor: every lookup makes a hit.
        fields = (
            answer["kernel"],
            AnswerMap(answer["problem"]),
            answer["device"],
            answer["status"],
            None if config is None else AnswerMap(config),
            get("latency_us"),
            get("artifact"),
            get("decided"),
            get("generation"),
            get("message") or "",
            get("final") is True,
            AnswerMap(metrics) if metrics else NO_METRICS,
            get("file"),
            get("measured"),
            get("objective", "latency"),
        )
        return tuple.__new__(Hit, fields)
    except (KeyError, TypeError, AttributeError):
        raise ValueError("the daemon's reply is not the answer to a lookup") from None


QuestionName = str | tuple[str, str | None, str | None]
"""The name under which answers are kept: the kernel's, or (kernel, device, objective) if one of the two is given."""


class Question(NamedTuple):
    """One lookup, as :meth:`ktuned_client.Client.lookup` describes it."""

    name: QuestionName
    kernel: str
    problem: Problem
    default: Config | None
    device: str | None
    objective: str | None

    def complete_hit(self, hit: Hit) -> Hit:
        """Return a hit, with the caller's default if it has no config."""
        return hit if hit.config is not None else hit._replace(config=freeze_config(self.default))

    def answer_unavailable(self, message: str) -> Hit:
        """Return the hit of a lookup that no daemon answered."""
        return self._answer_default("unavailable", message)

    def answer_refused(self, error: DaemonError, *, strict: bool) -> Hit:
        """Return the hit of a lookup that was refused: ``invalid`` if the question is at fault, else ``unavailable``.

        Raises:
            DaemonError: the question is at fault, and ``strict`` is set.
        """
        is_at_fault = error.code in CALLERS_CODES
        if is_at_fault and strict:
            raise error
        return self._answer_default("invalid" if is_at_fault else "unavailable", str(error))

    def _answer_default(self, status: str, message: str) -> Hit:
        return Hit(self.kernel, self.problem, self.device, status, freeze_config(self.default), message=message)


def read_result(response: Response) -> Any:
    """Return a response's result.

    Raises:
        DaemonError: the response is an error.
    """
    if response.error is not None:
        raise DaemonError.from_wire(response.error)
    return response.result


def check_hello(response: Response) -> None:
    """Check that the daemon speaks this client's protocol.

    Raises:
        DaemonUnavailable: it speaks another protocol version.
    """
    greeting = read_result(response)
    spoken = greeting["protocol"]
    if spoken != PROTOCOL_VERSION:
        raise DaemonUnavailable(
            f"the daemon ({greeting['build']}) speaks protocol {spoken}, this client protocol {PROTOCOL_VERSION}",
            "upgrade the older of the two",
        )


def drop_missing(**params: Any) -> dict[str, Any]:
    """Return the params whose value is not ``None``."""
    return {name: value for name, value in params.items() if value is not None}


def explain_failure(error: Exception, path: str, deadline_s: float) -> DaemonUnavailable:
    """Return the error for a failed connection or request, with a hint."""
    if isinstance(error, UntrustedSocket):
        return DaemonUnavailable(error.message, error.hint)
    if isinstance(error, FileNotFoundError | NotADirectoryError | ConnectionRefusedError):
        return DaemonUnavailable(f"no daemon serves {path}", "`ktuned start` starts one")
    if isinstance(error, BlockingIOError):
        return DaemonSilent(f"the daemon at {path} has no free connection now")
    if isinstance(error, TimeoutError):
        return DaemonSilent(
            f"the daemon at {path} did not answer within {deadline_s:g} s", "it is stopped, or the machine is very busy"
        )
    return DaemonUnavailable(f"the daemon at {path} was lost: {error}")


def next_id(request_id: int) -> int:
    """Return the id that follows ``request_id``; ids wrap at 32 bits."""
    return 0 if request_id == MAX_ID else request_id + 1


class Backoff:
    """The pause before a silent daemon is asked again: ``first_s``, doubled by each failure up to ``last_s``."""

    __slots__ = ("_first_s", "_interval_s", "_last_s", "_retry_at", "message")

    def __init__(self, first_s: float = FIRST_RETRY_S, last_s: float = LAST_RETRY_S) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self._interval_s = 0.0
        self._retry_at = 0.0
        self.message = ""

    @property
    def is_waiting(self) -> bool:
        """True during a pause."""
        return self._interval_s > 0 and time.monotonic() < self._retry_at

    def record_failure(self, message: str) -> None:
        """Start the next pause, twice as long as the last."""
        self._interval_s = min(self._interval_s * 2 or self._first_s, self._last_s)
        self._retry_at = time.monotonic() + self._interval_s
        self.message = message

    def record_success(self) -> None:
        """Forget all failures."""
        self._interval_s = 0.0
