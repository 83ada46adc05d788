"""Answers of the daemon: hits, errors, and the absence of a daemon."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from ktuned_client.paths import UntrustedSocket
from ktuned_client.wire import MAX_ID, PROTOCOL_VERSION, Response

LOOKUP_DEADLINE_S: Final = 0.005
"""Deadline of a lookup: a hundred times the usual time, and too short to be noticed."""

PIN_DEADLINE_S: Final = 10.0
"""Deadline of a lookup under a pin: the first one waits for the disk, and processes that see different winners cost
more than a wait."""

SETTLE_SHARE: Final = 0.5
"""Share of a lookup's deadline that the daemon may take to ask a kernel file's constraints about the nearest winner."""

SETTLE_DEADLINE_S: Final = 0.02
"""Least deadline of a lookup that may take that time: a worker needs milliseconds, and some tenths of a second to
start."""

CALL_DEADLINE_S: Final = 10.0
"""Deadline of any other request."""

TUNE_DEADLINE_S: Final = 120.0
"""Deadline for accepting a tuning: the daemon first imports the kernel file, and torch with it."""

FIRST_RETRY_S: Final = 0.02
LAST_RETRY_S: Final = 1.0
"""After a failure, lookups do not ask the daemon for this long: the first interval is that of a short stall, and it
doubles up to the last one."""

CALLERS_CODES: Final = frozenset({"usage", "ambiguous"})
"""Codes of errors that another question would not have met."""

ENDED_STATES: Final = frozenset({"done", "cancelled", "failed"})
"""The final states of a job."""


class DaemonError(Exception):
    """The daemon refused a request: ``code`` for programs, ``message`` and ``hint`` for people."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.code = code
        self.message = message
        self.hint = hint

    @classmethod
    def from_wire(cls, error: Mapping[str, Any]) -> DaemonError:
        """Rebuild from the protocol's error map; a daemon of another version may leave fields out."""
        return cls(str(error.get("code", "error")), str(error.get("message", "")), str(error.get("hint", "")))


class DaemonUnavailable(Exception):
    """No daemon answered: none runs, its socket is not trusted, or the deadline passed.

    ``message`` and ``hint`` as in :class:`DaemonError`.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint


class LoadError(Exception):
    """A hit has nothing that can be loaded here; the message says why, and how to mend that."""


class DaemonSilent(DaemonUnavailable):
    """A daemon runs, and did not answer within the deadline."""


class AnswerMap(dict[str, Any]):
    """A read-only map of an answer: a ``dict`` to everything that reads one (``**``, JSON, MessagePack).

    All who look up the same problem get the same object. ``dict(config)`` is a copy that can be changed.
    """

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        """Refuse a change: all who look up the same problem get the same map."""
        raise TypeError("a hit's maps are read-only; dict(hit.config) is a copy that can be changed")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[AnswerMap], tuple[dict[str, Any]]]:
        return AnswerMap, (dict(self),)


def frozen(config: Mapping[str, Any] | None) -> AnswerMap | None:
    """Return a config that cannot be changed; ``None`` stays."""
    return config if config is None or type(config) is AnswerMap else AnswerMap(config)


NO_METRICS: Final[Mapping[str, float]] = AnswerMap()

LEFT_OUT: Final = AnswerMap(final=False, metrics={}, measured=None, objective="latency", expected_loss=None)
"""Fields that an answer leaves out where they have these values, as most do: names are the dearest part to decode."""


class Hit(NamedTuple):
    """A lookup's answer.

    ``status`` is the daemon's, ``fresh``, ``stale``, ``near``, ``default`` or ``unknown``; ``invalid`` for a question
    that no daemon could answer (a wrong key, a value of a wrong type, an ambiguous name); or else ``unavailable``.
    ``message`` is the reason, or the failure of the tuning that would have made the answer ``fresh``.
    ``config`` is the best config known now, or the caller's default if the daemon has none. ``latency_us`` and
    ``decided`` (a time in Unix seconds) are ``None`` if nothing was measured; ``artifact`` is the path of the
    compiled winner; ``generation`` changes when the answer may have changed. ``final`` is true when a final round has
    decided the winner: before, a better one is likely to follow.
    ``metrics`` are the kernel file's own figures of the winner, and its energy (J) where that was measured; ``file`` is
    the kernel file. ``measured`` is the problem that the winner was measured for, where that is another one.
    ``objective`` is what it is the best by, ``None`` if no daemon answered. ``expected_loss`` is how much slower than
    the best config one of a portfolio is expected to be (0.01: by 1 %). :meth:`load` makes the winner callable.
    """

    kernel: str
    problem: Mapping[str, Any]
    device: str | None
    status: str
    config: Mapping[str, Any] | None
    latency_us: float | None = None
    artifact: str | None = None
    decided: float | None = None
    generation: int | None = None
    message: str = ""
    final: bool = False
    metrics: Mapping[str, float] = NO_METRICS
    file: str | None = None
    measured: Mapping[str, Any] | None = None
    objective: str | None = None
    expected_loss: float | None = None

    def load(self, *, device: str | None = None, default: Callable[..., Any] | None = None) -> Any:
        """Return the compiled winner as a callable, which takes the tensors of ``inputs`` by their names.

        ``device`` (``cuda:1``) is where it runs, the first one by default. ``default`` is returned where there is no
        compiled winner for this problem. The backend's plugin does the loading; it takes milliseconds, so keep the
        result for as long as ``artifact`` stays the same.

        Raises:
            LoadError: there is no compiled winner and no ``default``; or the plugin is not installed here.
            Exception: the plugin's own error: the artifact is damaged, the device cannot run it.
        """
        # Most programs look up configs alone.
        from ktuned_client.winner_loader import load

        return load(self, device, default)

    @property
    def age_s(self) -> float | None:
        """The winner's age now; ``None`` if nothing was measured."""
        return None if self.decided is None else max(0.0, time.time() - self.decided)


def hit_from(answer: Mapping[str, Any]) -> Hit:
    """Return a daemon's answer as a hit; unknown fields are ignored.

    Raises:
        DaemonError: it is an ``error`` in place of one answer of several.
        ValueError: it is not an answer.
    """
    try:
        get, config, metrics = answer.get, answer["config"], answer.get("metrics")
        # As Hit(…) does, without its Python function: a lookup makes one.
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
            get("expected_loss"),
        )
        return tuple.__new__(Hit, fields)
    except (KeyError, TypeError, AttributeError):
        if type(answer) is dict and type(answer.get("error")) is dict:
            raise DaemonError.from_wire(answer["error"]) from None
        raise ValueError("the daemon's answer is not a lookup's") from None


def completed(hit: Hit, default: Mapping[str, Any] | None) -> Hit:
    """Return the hit, with the caller's default if it has no config."""
    return hit if hit.config is not None else hit._replace(config=frozen(default))


def unavailable(
    kernel: str, problem: Mapping[str, Any], device: str | None, default: Mapping[str, Any] | None, message: str
) -> Hit:
    """Return the hit of a lookup that no daemon answered."""
    return Hit(kernel, problem, device, "unavailable", frozen(default), message=message)


def refused(
    kernel: str,
    problem: Mapping[str, Any],
    device: str | None,
    default: Mapping[str, Any] | None,
    error: DaemonError,
    *,
    strict: bool,
) -> Hit:
    """Return the hit of a lookup that was refused: ``invalid`` where the question is at fault, else ``unavailable``.

    Raises:
        DaemonError: ``strict``, and the question is at fault.
    """
    if error.code not in CALLERS_CODES:
        return unavailable(kernel, problem, device, default, str(error))
    if strict:
        raise error
    return Hit(kernel, problem, device, "invalid", frozen(default), message=str(error))


def result_of(response: Response) -> Any:
    """Return a response's result.

    Raises:
        DaemonError: the response is an error.
    """
    if response.error is not None:
        raise DaemonError.from_wire(response.error)
    return response.result


def check_hello(response: Response) -> None:
    """Check that the daemon speaks this client's protocol, as far as it says which one it speaks.

    Raises:
        DaemonUnavailable: it speaks another protocol version.
    """
    said: dict[str, Any] = {}
    if response.error is None and type(response.result) is dict:
        said = response.result
    spoken = said.get("protocol", PROTOCOL_VERSION)
    if spoken != PROTOCOL_VERSION:
        raise DaemonUnavailable(
            f"the daemon ({said.get('build', 'of an unknown version')}) speaks protocol {spoken}, "
            f"this client protocol {PROTOCOL_VERSION}",
            "upgrade the older of the two",
        )


def given(**params: Any) -> dict[str, Any]:
    """Return the params that are not ``None``."""
    return {name: value for name, value in params.items() if value is not None}


def explained(error: Exception, path: str, deadline_s: float) -> DaemonUnavailable:
    """Return the error of a failed connection or request, with a hint."""
    if isinstance(error, UntrustedSocket):
        return DaemonUnavailable(error.message, error.hint)
    if isinstance(error, FileNotFoundError | NotADirectoryError | ConnectionRefusedError):
        return DaemonUnavailable(f"no daemon serves {path}", "`ktuned start` starts one")
    if isinstance(error, BlockingIOError):
        return DaemonUnavailable(f"the daemon at {path} takes no more connections now")
    if isinstance(error, TimeoutError):
        return DaemonSilent(
            f"the daemon at {path} did not answer within {deadline_s:g} s", "it is stopped, or the machine is very busy"
        )
    return DaemonUnavailable(f"the daemon at {path} was lost: {error}")


def next_id(request_id: int) -> int:
    """Return the id after this one; ids wrap at 32 bits."""
    return 0 if request_id == MAX_ID else request_id + 1


class Backoff:
    """Interval during which a daemon that did not answer is not asked again: ``first_s``, doubling up to ``last_s``."""

    __slots__ = ("_first_s", "_interval_s", "_last_s", "_retry_at", "message")

    def __init__(self, first_s: float = FIRST_RETRY_S, last_s: float = LAST_RETRY_S) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self._interval_s = 0.0
        self._retry_at = 0.0
        self.message = ""

    @property
    def is_waiting(self) -> bool:
        """True until the interval is over."""
        return self._interval_s > 0 and time.monotonic() < self._retry_at

    def failed(self, message: str) -> None:
        """Start the next interval: twice the last one."""
        self._interval_s = min(self._interval_s * 2 or self._first_s, self._last_s)
        self._retry_at = time.monotonic() + self._interval_s
        self.message = message

    def succeeded(self) -> None:
        """Forget all failures."""
        self._interval_s = 0.0
