"""Client for threads. Generated from ``aio.py`` by ``client/unasync.py``: change that file."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from ktuned_client import paths
from ktuned_client.answers import (
    CALL_DEADLINE_S,
    JUDGE_DEADLINE_S,
    LOOKUP_DEADLINE_S,
    TUNE_DEADLINE_S,
    Config,
    DaemonError,
    DaemonUnavailable,
    Hit,
    Problem,
    Question,
    drop_missing,
    explain_failure,
)
from ktuned_client.batch import Asked, Batch
from ktuned_client.knowledge import Knowledge
from ktuned_client.progress import Progress
from ktuned_client.table_answers import pack
from ktuned_client.transport import Subscription, Transport
from ktuned_client.wire import LOOKUP, ProtocolError

if TYPE_CHECKING:
    from ktuned_client.messages import Event, FileError, Job, JudgeAnswer, TuneAnswer


class Client:
    """Lookups of winners, and all other requests to the daemon.

    An answer comes from the daemon's table of winners or, if it is not there, from a request; it is kept for as long as
    the table confirms it. Unpickling a client makes a new one with the same arguments.

    Threads may share a client; a forked child gets connections of its own. Lookups share one, made when it is first
    needed; every other request has its own.

    Args:
        socket: path of the daemon's socket (default: :func:`ktuned_client.paths.socket_path`).
        deadline_s: deadline of a lookup. For a size that was never looked up before, a worker may check whether the
            winner of the nearest size is valid; this takes up to half of the deadline, and is done only if the deadline
            is at least 20 ms.
        winners: an exported file, or a directory of such files, that answers lookups without a daemon.
        strict: whether a question that no daemon could answer (a misspelt key, a value of a wrong type) raises, which
            suits tests. Otherwise its hit has the status ``invalid``.

    Raises:
        WinnersError: ``winners`` cannot be read.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        deadline_s: float = LOOKUP_DEADLINE_S,
        winners: str | os.PathLike[str] | None = None,
        strict: bool = False,
    ) -> None:
        self._given = drop_missing(socket=socket, deadline_s=deadline_s, winners=winners, strict=strict)
        self.socket = paths.socket_path() if socket is None else os.fspath(socket)
        self.deadline_s = deadline_s
        self._knowledge = Knowledge(self.socket, winners, strict=strict, deadline_s=self.deadline_s)
        self._memo = self._knowledge.memo
        self._transport = Transport(self.socket)

    def lookup(
        self,
        kernel: str,
        problem: Problem,
        default: Config | None = None,
        device: str | None = None,
        objective: str | None = None,
    ) -> Hit:
        """Return the best config known now, or ``default``. If no daemon runs, it neither raises nor waits.

        After the deadline or without a daemon, the answer is the last known one, or else ``default`` with the status
        ``unavailable`` and the reason as ``message``.

        Args:
            kernel: the kernel's full name, or its short name within this project.
            problem: the sizes and other keys of the problem.
            default: the config to use as long as the daemon has none.
            device: a name (``cuda:1``) or a model; ``None`` is the kernel's first device.
            objective: the objective by which the config is the best: ``latency``, ``max:METRIC`` or ``min:METRIC``
                (as ``min:energy``); with the prefix ``exact:`` the config must also reproduce the anchor's bits.
                ``None`` is the kernel's own objective.
        """
        memo = self._memo
        name = kernel if device is None and objective is None else (kernel, device, objective)
        try:
            key = pack(problem)
            slot, generation, until, hit = memo.answers[name][key]
            if memo.words[slot] == generation and monotonic() < until:
                return hit
        except KeyError:
            pass
        except (TypeError, ValueError, OverflowError):
            key = None
        # Equal to Question(…), but without the cost of a call to its Python constructor.
        question = tuple.__new__(Question, (name, kernel, problem, default, device, objective))
        return self._look_up(question, key)

    def bind(
        self,
        kernel: str,
        default: Config | None = None,
        device: str | None = None,
        objective: str | None = None,
    ) -> Callable[[Problem], Hit]:
        """Return a function of the problem that does :meth:`lookup` for one kernel, for hot loops."""
        memo = self._memo
        name = kernel if device is None and objective is None else (kernel, device, objective)

        def look_up_problem(problem: Problem) -> Hit:
            try:
                key = pack(problem)
                slot, generation, until, hit = memo.answers[name][key]
                if memo.words[slot] == generation and monotonic() < until:
                    return hit
            except KeyError:
                pass
            except (TypeError, ValueError, OverflowError):
                key = None
            return self._look_up(Question(name, kernel, problem, default, device, objective), key)

        return look_up_problem

    def lookup_many(
        self,
        questions: Iterable[Asked],
        device: str | None = None,
        objective: str | None = None,
    ) -> list[Hit]:
        """Look up several (kernel, problem) or (kernel, problem, default) at once; return the hits in the same order.

        Answers that the client does not know are requested together, up to 250 in a request; each request has its own
        deadline.
        """
        batch = Batch(self._knowledge, questions, device, objective)
        for places, request in batch.encode_requests():
            try:
                result = self._transport.look_up(request, self.deadline_s)
            except DaemonUnavailable as error:
                batch.answer_unavailable(places, error)
            except DaemonError as error:
                batch.answer_refused(places, str(error))
            else:
                batch.learn_answers(places, result)
        return batch.hits

    def call(self, method: str, *, deadline_s: float = CALL_DEADLINE_S, **params: Any) -> Any:
        """Send one request and return its result. A short kernel name means the kernel of the current project.

        Raises:
            DaemonError: the daemon refused the request.
            DaemonUnavailable: no daemon answered within ``deadline_s``.
        """
        return self._transport.request(method, self._knowledge.add_directory(params), deadline_s)

    def events(
        self,
        *,
        since: tuple[int, int] | None = None,
        kernels: Iterable[str] | None = None,
        jobs: Iterable[int] | None = None,
        types: Iterable[str] | None = None,
        deadline_s: float = CALL_DEADLINE_S,
    ) -> EventStream:
        """Subscribe, and return an iterator of events that ends only with the daemon or with ``close``.

        ``since`` is the position (epoch, seq) to replay from; an event of the type ``gap`` stands for lost ones.

        Raises:
            DaemonError: the daemon refused the filter.
            DaemonUnavailable: no daemon answered within ``deadline_s``.
        """
        params = drop_missing(
            since=list(since) if since else None,
            kernels=list(kernels) if kernels is not None else None,
            jobs=list(jobs) if jobs is not None else None,
            types=list(types) if types is not None else None,
        )
        return EventStream(self.socket, self._transport.subscribe(params, deadline_s), deadline_s)

    def tune(
        self,
        kernel: str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        deadline_s: float = TUNE_DEADLINE_S,
        **options: Any,
    ) -> Tuning:
        """Request a tuning, and return an iterator of its events; the iterator ends with the last of its jobs.

        Give ``kernel`` or ``path`` (a kernel file or a directory). ``options``: ``problem``, ``device``, ``preset``,
        ``trials``, ``time_limit_s``, ``strategy``, ``until``, ``seed``, ``python``, ``priority``, ``objective``,
        ``numerics``, ``anchor``, ``beside`` (the process of an application that keeps using the device during the
        tuning). An option that is ``None`` is left out.

        Raises:
            DaemonError: the daemon refused the request.
            DaemonUnavailable: no daemon accepted it within ``deadline_s``.
        """
        file = None if path is None else os.path.abspath(path)
        accepted = self.call("tune", deadline_s=deadline_s, **drop_missing(kernel=kernel, path=file, **options))
        return Tuning(self, accepted)

    def judge(
        self,
        kernel: str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        against: str | os.PathLike[str] | Config | None = None,
        deadline_s: float = JUDGE_DEADLINE_S,
        **options: Any,
    ) -> JudgeAnswer:
        """Return verdicts on candidates that you do not trust, such as an agent's.

        Give ``kernel`` or ``path`` (a kernel file). ``against`` is what candidates are compared with: a config,
        ``"winner"``, or the path of another kernel file. ``options``: ``configs`` (the candidates; without it the
        default), ``problem`` (without it all that are declared), ``device``, ``quick`` (fewer launches), ``python``. An
        option that is ``None`` is left out.

        Raises:
            DaemonError: the daemon refused the request.
            DaemonUnavailable: no daemon answered within ``deadline_s``.
        """
        file = None if path is None else os.path.abspath(path)
        if against is not None and not isinstance(against, Mapping) and against != "winner":
            against = os.path.abspath(against)
        asked = drop_missing(kernel=kernel, path=file, against=against, **options)
        answer: JudgeAnswer = self.call("judge", deadline_s=deadline_s, **asked)
        return answer

    def close(self) -> None:
        """Close the shared connection and forget all answers; the next request opens another connection."""
        self._transport.close()
        self._memo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self._given

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _look_up(self, question: Question, packed: bytes | None) -> Hit:
        key = self._knowledge.find_hit(question, packed)
        if not isinstance(key, bytes):
            return key
        try:
            request = LOOKUP + self._knowledge.encode_opening(question) + key
            answer = self._transport.look_up(request, self.deadline_s)
        except DaemonUnavailable as error:
            self._knowledge.backoff.record_failure(str(error))
            return self._knowledge.answer_unavailable(question, key, str(error))
        except DaemonError as error:
            return self._knowledge.answer_refused(question, error)
        except ValueError as error:
            return question.answer_unavailable(str(error))
        return self._knowledge.learn_answer(question, key, answer)


class EventStream(Iterator["Event"]):
    """The events of one subscription, over its own connection; it supports one reader at a time.

    ``epoch`` and ``seq`` are the stream's position, which a later subscription may give as ``since``.
    """

    def __init__(self, path: str, subscription: Subscription, deadline_s: float) -> None:
        self.epoch: int = subscription.start["epoch"]
        self.seq: int = subscription.start["seq"]
        self._path = path
        self._deadline_s = deadline_s
        self._subscription = subscription

    def __next__(self) -> Event:
        try:
            event = self._subscription.next_event()
        except (OSError, ProtocolError) as error:
            self.close()
            raise explain_failure(error, self._path, self._deadline_s) from error
        if event is None:
            raise StopIteration
        self.epoch, self.seq = event["epoch"], event["seq"]
        return event

    def close(self) -> None:
        """End the subscription."""
        self._subscription.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Tuning(Iterator["Event"]):
    """The events of one tuning's jobs. ``errors`` lists the kernel files that could not be read, ``notices`` warnings.

    The jobs continue even if this object is closed or never iterated.
    """

    def __init__(self, client: Client, accepted: TuneAnswer) -> None:
        self.errors: list[FileError] = accepted.get("errors", [])
        self.notices: list[str] = accepted.get("notices", [])
        self._client = client
        self._progress = Progress(accepted)
        self._ready = deque(self._progress.apply_jobs(accepted["jobs"]))
        self._stream: EventStream | None = None

    @property
    def jobs(self) -> list[Job]:
        """The jobs' maps as last received; they are final when the iterator has ended."""
        return self._progress.jobs

    def __next__(self) -> Event:
        while not self._ready:
            if self._progress.is_over:
                self.close()
                raise StopIteration
            event = next(self._open_subscription())
            if self._progress.apply_event(event):
                self._ready.append(event)
            if event["type"] == "gap":
                answer = self._client.call("jobs", ids=self._progress.open_jobs)
                self._ready += self._progress.apply_jobs(answer["jobs"])
        return self._ready.popleft()

    def close(self) -> None:
        """End the subscription; the jobs continue."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_subscription(self) -> EventStream:
        if self._stream is None:
            since = (self._progress.epoch, self._progress.seq)
            self._stream = self._client.events(since=since, jobs=[job["id"] for job in self.jobs])
        return self._stream
