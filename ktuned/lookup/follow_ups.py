"""Follow-ups of lookups: tunings to queue, and checks whether a kernel's space holds configs.

Each is carried out once, however many lookups need it. A check runs user code, which may hang until its deadline, so
checks delay neither tunings nor the checks of other kernels.
"""

from __future__ import annotations

from collections import deque

import anyio
import anyio.abc
import structlog

from ktuned.answers import WantedTuning
from ktuned.catalog import Admission
from ktuned.fleet import COURTESY_S, QuietGate
from ktuned.model import Config, FrozenStruct, KernelInfo, KtunedError, Problem, WinnerKey, canonical
from ktuned.protocol import AnswersChanged, ChannelInfo, Priority, PublishEvent
from ktuned.scheduling import Jobs
from ktuned.store import Context

_log = structlog.get_logger()

MAX_FOLLOW_UPS = 1_000
"""Tunings and checks that may wait. Further ones are dropped, and requested again by the next lookup."""

MAX_CHECKED_KERNELS = 4
"""Kernels whose checks run at once: each needs a worker, which may use a core until its deadline."""

MAX_REMEMBERED = 50_000
"""Tunings that are remembered as queued, some 500 bytes each; when there are more, all are forgotten."""


class _ConfigQuestion(FrozenStruct):
    """The question whether configs are in a kernel's space, for a problem."""

    kernel: KernelInfo
    problem: Problem
    configs: tuple[Config, ...]

    @property
    def key(self) -> tuple[str, ...]:
        kernel = self.kernel
        states = kernel.name, kernel.digest, kernel.plan_digest, canonical(self.problem)
        return *states, *map(canonical, self.configs)


class FollowUps:
    """Queues the work that follows a lookup, so that no lookup waits for it.

    :meth:`queue_tuning` and :meth:`queue_check` return at once; :meth:`run_until_cancelled` carries out the work.
    """

    def __init__(self, admission: Admission, jobs: Jobs, gate: QuietGate, publish: PublishEvent) -> None:
        self._gate = gate
        self._admission = admission
        self._jobs = jobs
        self._publish = publish
        self._requested_tunings: dict[WinnerKey, tuple[Context, str]] = {}
        self._open_questions: dict[tuple[str, ...], anyio.Event] = {}
        """The checks under way, by their keys, each with the event that is set when it ends."""
        self._questions_by_kernel: dict[str, deque[_ConfigQuestion]] = {}
        self._is_free = anyio.CapacityLimiter(MAX_CHECKED_KERNELS)
        self._queue, self._arriving = anyio.create_memory_object_stream[WantedTuning | _ConfigQuestion](MAX_FOLLOW_UPS)

    def describe_queue(self) -> ChannelInfo:
        """Return how many follow-ups wait, and how many may."""
        waiting = self._queue.statistics().current_buffer_used + sum(map(len, self._questions_by_kernel.values()))
        return ChannelInfo(waiting, MAX_FOLLOW_UPS)

    def queue_tuning(self, tuning: WantedTuning) -> None:
        """Queue a tuning, once for each state of the kernel, and again if it could not be submitted."""
        if self._requested_tunings.get(tuning.key) == tuning.kernel_state:
            return
        try:
            self._queue.send_nowait(tuning)
        except anyio.WouldBlock:
            return
        if len(self._requested_tunings) >= MAX_REMEMBERED:
            self._requested_tunings.clear()
        self._requested_tunings[tuning.key] = tuning.kernel_state

    def queue_check(self, kernel: KernelInfo, problem: Problem, configs: tuple[Config, ...]) -> None:
        """Have a worker check whether configs are valid for a problem, unless that is under way."""
        question = _ConfigQuestion(kernel, problem, configs)
        if question.key in self._open_questions or len(self._open_questions) >= MAX_FOLLOW_UPS:
            return
        try:
            self._queue.send_nowait(question)
        except anyio.WouldBlock:
            return
        self._open_questions[question.key] = anyio.Event()

    async def await_check(self, kernel: KernelInfo, problem: Problem, configs: tuple[Config, ...]) -> None:
        """Wait until the check that :meth:`queue_check` has queued has ended, or failed."""
        ended = self._open_questions.get(_ConfigQuestion(kernel, problem, configs).key)
        if ended is not None:
            await ended.wait()

    def forget_tunings(self, kernel: str) -> None:
        """Let a kernel's tunings be queued again, because their results are gone, or hold for other inputs."""
        for key in [key for key in self._requested_tunings if key.kernel == kernel]:
            del self._requested_tunings[key]

    async def run_until_cancelled(self) -> None:
        """Carry out the follow-ups until cancelled; the checks of one kernel run one after another."""
        async with anyio.create_task_group() as tasks:
            with self._queue, self._arriving:
                async for follow_up in self._arriving:
                    if isinstance(follow_up, WantedTuning):
                        await self._submit_tuning(follow_up)
                        continue
                    name = follow_up.kernel.name
                    if name not in self._questions_by_kernel:
                        self._questions_by_kernel[name] = deque()
                        tasks.start_soon(self._check_configs, name)
                    self._questions_by_kernel[name].append(follow_up)

    async def _submit_tuning(self, tuning: WantedTuning) -> None:
        try:
            await self._jobs.submit_job(
                tuning.key,
                tuning.problem,
                priority=Priority.ASKED,
                reason="looked up",
                plan=tuning.kernel.plan,
                any_plan=True,
            )
        except KtunedError as error:
            self._requested_tunings.pop(tuning.key, None)
            _log.warning("queue_tuning_failed", kernel=tuning.kernel.name, reason=error.message)

    async def _check_configs(self, kernel: str) -> None:
        async with self._is_free:
            waiting = self._questions_by_kernel[kernel]
            while waiting:
                question = waiting.popleft()
                try:
                    async with self._gate.hold_for_computing(COURTESY_S):
                        await self._admission.check_configs(question.kernel, question.problem, question.configs)
                    self._publish(AnswersChanged(kernel=question.kernel.name))
                except KtunedError as error:
                    _log.warning("check_configs_failed", kernel=kernel, reason=error.message)
                finally:
                    # Then a lookup can queue this question again, in case its verdict is forgotten.
                    self._open_questions.pop(question.key).set()
            del self._questions_by_kernel[kernel]
