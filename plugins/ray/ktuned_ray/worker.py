"""A worker on a node: the same process as here, with the same requests and replies, started by the node's keeper.

A request takes these steps: lease the device or a CPU, carry the files that the request names, pass the request to the
keeper, bring compiled artifacts back. The keeper watches the deadlines, so that the network does not affect them. If
the node is lost, all current requests fail with :class:`~ktuned.fleet.HostLost`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
import structlog
from msgspec.structs import replace

from ktuned.bridge import CallFailed
from ktuned.fleet import (
    BridgeDown,
    BridgeSlow,
    DeadlineExpired,
    Environment,
    HostLost,
    Output,
    RequestFailed,
    Worker,
    WorkerDied,
)
from ktuned.ipc import decoding, replies, requests
from ktuned.model import Device, DeviceName, KtunedError, Phase, Role
from ktuned_ray import node_calls
from ktuned_ray.node_link import CALL_S, NodeLink

if TYPE_CHECKING:
    from ktuned_ray.executor import ClusterExecutor

_log = structlog.get_logger()

GRACE_S: Final = 10.0
"""How long an answer may take in addition to the deadlines of its phases, which the keeper watches."""


class RemoteWorker(Worker):
    """A worker on a node; made by :class:`~ktuned_ray.executor.ClusterExecutor`."""

    def __init__(
        self,
        role: Role,
        environment: Environment,
        started: node_calls.Started,
        executor: ClusterExecutor,
        link: NodeLink,
    ) -> None:
        super().__init__(role, environment, started.pid)
        self._number = started.worker
        self._executor = executor
        self._link = link
        self._outputs: list[Output] = []
        self._phases: Mapping[str, float] = {}
        self._kill_reason = ""
        self._is_killed = False

    @property
    def is_alive(self) -> bool:
        """True until it has ended, or was killed."""
        return not self.gone.is_set() and not self._is_killed

    async def send_request(
        self,
        request: requests.Request[Any, Any],
        deadlines: Mapping[str, float],
        *,
        on_item: Callable[[Any], None] | None = None,
        on_computed: Callable[[], None] | None = None,
    ) -> tuple[Any, Output]:
        """Send a request and wait for its reply, as :meth:`Worker.send_request`; ``on_computed`` is never called.

        Raises:
            WorkerDied, DeadlineExpired, RequestFailed: as for :meth:`Worker.send_request`.
            HostLost: the node is lost, or others have the device.
        """
        self.requests += 1
        self._outputs = []
        done = False
        try:
            try:
                async with self._executor.leases.hold_resource(self._link, self._resource):
                    reply = await self._pass_request(request, deadlines, on_item)
            except (BridgeDown, BridgeSlow, CallFailed) as error:
                await self._await_end_reason()
                raise self._make_death_error(error, request.first_phase) from error
            done = True
            return reply, self.take_output()
        except RequestFailed:
            done = True
            raise
        finally:
            if not done:
                self.kill()

    @property
    def _resource(self) -> str | None:
        """The resource that a request must lease: the device, a CPU (an empty name), or nothing."""
        if self.role is Role.COMPILE:
            return ""
        return self.device or None

    async def _await_end_reason(self) -> None:
        """Wait a moment for the reason why a call failed: the worker's end, or its node's."""
        with anyio.move_on_after(CALL_S if self._link.reason else 1.0):
            await self.gone.wait()

    def _make_death_error(self, error: KtunedError, phase: Phase) -> WorkerDied:
        if self._kill_reason:
            return WorkerDied(-9, phase, self.take_output(), self._kill_reason)
        return HostLost(self.environment.host, self._link.reason or error.message, phase)

    async def _pass_request(
        self,
        request: requests.Request[Any, Any],
        deadlines: Mapping[str, float],
        on_item: Callable[[Any], None] | None,
    ) -> Any:
        began = monotonic()
        carrier = self._executor.get_carrier(self._link)
        small_parcels = await carrier.provide_files(request, self.environment)
        provided_at = monotonic()
        reply_type, item_type = requests.find_answer_types(type(request))
        brought: list[tuple[replies.CompiledUnit, bytes]] = []

        def pass_on(value: Any, output: Output) -> None:
            self._outputs.append(output)
            if on_item is not None:
                on_item(value)

        def take_item(item: node_calls.Item) -> None:
            assert item_type is not None
            value = decoding.convert(item.value, item_type)
            output = Output(item.stdout, item.stderr)
            if isinstance(value, replies.CompiledUnit):
                self._outputs.append(output)
                brought.append((value, item.artifact))
                return
            carrier.forget_damaged(value, request)
            pass_on(value, output)

        call = node_calls.Exchange(
            self._number, msgspec.msgpack.encode(_localize_request(request)), dict(deadlines), small_parcels or None
        )
        # Each item restarts the deadline, as it does for a phase.
        ended = await self._link.call_keeper(call, sum(deadlines.values()) + GRACE_S, take_item)
        ended_at = monotonic()
        for value, packed in brought:
            # At most as many items as units were compiled in the group.
            pass_on(await carrier.bring_artifact(value, packed), Output())
        self._outputs.append(Output(ended.stdout, ended.stderr))
        self._phases = ended.phases or {}
        self.memory_bytes = ended.memory_bytes or self.memory_bytes
        self._raise_failure(ended)
        reply = decoding.convert(ended.value, reply_type)
        carrier.forget_damaged(reply, request)
        if isinstance(reply, replies.ProbeReport) and reply.observed is not None:
            self._executor.watch_toolchain(self._link, self.environment, reply.observed)
        _log.debug(
            "node_exchanged",
            node=self.environment.host,
            operation=type(request).__name__,
            provide_ms=_to_ms(provided_at - began),
            way_ms=_to_ms(ended_at - provided_at - ended.seconds),
            keeper_ms=_to_ms(ended.seconds - sum(self._phases.values())),
            bring_ms=_to_ms(monotonic() - ended_at),
            **{f"{phase}_ms": _to_ms(seconds) for phase, seconds in self._phases.items()},
        )
        return reply

    def _raise_failure(self, ended: node_calls.Exchanged) -> None:
        if ended.failure is not None:
            raise RequestFailed(ended.failure, Phase(ended.phase), self.take_output())
        if ended.expired_s is not None:
            raise DeadlineExpired(Phase(ended.phase), ended.expired_s, self.take_output())
        if ended.returncode is not None:
            stopped = ended.stopped or self._kill_reason
            raise WorkerDied(ended.returncode, Phase(ended.phase), self.take_output(), stopped, ended.fault)

    def kill(self, why: str = "") -> None:
        """End the worker and all that it started; :attr:`gone` is set when it has."""
        self._kill_reason = why or self._kill_reason
        if self.is_alive:
            self._is_killed = True
            self._executor.kill_worker(self._link, self._number, self._kill_reason)

    def measure_memory(self) -> None:
        """Leave :attr:`memory_bytes` as in the last answer, because the keeper watches the limit."""

    def take_output(self) -> Output:
        """Return the output of the worker's code since the last call, and forget it."""
        outputs, self._outputs = self._outputs, []
        return Output("".join(output.stdout for output in outputs), "".join(output.stderr for output in outputs))

    def read_phase_durations(self) -> Mapping[str, float]:
        """Return the seconds of each phase of the last request."""
        return self._phases


def _to_ms(seconds: float) -> float:
    return round(1000 * seconds, 2)


def _localize_request(request: requests.Request[Any, Any]) -> requests.Request[Any, Any]:
    """Return a request with its device's name on the node."""
    device = getattr(request, "device", None)
    if not isinstance(device, Device) or not device.host:
        return request
    local = replace(device, name=DeviceName(device.local_name))
    return replace(request, device=local)
