"""The answer to a lookup: a value everywhere but on the wire and in a pin, where it is a map."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from time import time
from typing import Any

import msgspec
from msgspec.structs import replace

from ktuned.model import LATENCY, Config, Objective, Problem, Status


class Answer(msgspec.Struct, frozen=True):
    """The best config known for one problem on one device, and how good it is.

    ``decided`` is the Unix time at which the incumbent won, ``artifact`` the directory of its artifact; both are absent
    without one, as is ``latency_us``. ``file`` is the kernel file, ``measured`` the problem that the winner was
    measured for, where that is another one. ``generation`` grows whenever the kernel's answers may have changed. One
    that is not certain may be better in a moment, and is not pinned. ``is_final``: a final round has decided it, here.
    ``undecided`` are configs that might be served instead: a worker has yet to say whether the space holds them.
    ``failure`` is why no tuning is queued that would fail again; ``message`` may say other things.
    ``expected_loss`` is what a portfolio's config is expected to lose against the best one.
    """

    kernel: str
    problem: Problem
    device: str | None
    status: Status
    generation: int = 0
    config: Config | None = None
    latency_us: float | None = None
    artifact: str | None = None
    decided: float | None = None
    message: str = ""
    is_certain: bool = True
    is_final: bool = False
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)
    file: str | None = None
    measured: Problem | None = None
    objective: Objective = LATENCY
    undecided: tuple[Config, ...] = ()
    expected_loss: float | None = None
    failure: str = ""

    def to_wire(self) -> dict[str, Any]:
        """Return the protocol's map, with the age that the answer has now, without what is as in ``LEFT_OUT``."""
        answer: dict[str, Any] = {
            "kernel": self.kernel,
            "problem": dict(self.problem),
            "device": self.device,
            "status": self.status.value,
            "config": None if self.config is None else dict(self.config),
            "latency_us": self.latency_us,
            "artifact": self.artifact,
            "age_s": None if self.decided is None else round(max(0.0, time() - self.decided), 3),
            "decided": self.decided,
            "file": self.file,
            "message": self.message,
            "generation": self.generation,
        }
        if self.is_final:
            answer["final"] = True
        if self.metrics:
            answer["metrics"] = dict(self.metrics)
        if self.measured is not None:
            answer["measured"] = dict(self.measured)
        if self.objective != LATENCY:
            answer["objective"] = self.objective
        if self.expected_loss is not None:
            answer["expected_loss"] = self.expected_loss
        return answer

    def to_pin(self) -> str:
        """Return the text that a pin holds: what stays true of the answer."""
        kept = self.to_wire()
        for name in ("age_s", "generation", "message"):
            del kept[name]
        return json.dumps(kept)

    @classmethod
    def from_pin(cls, text: str) -> Answer:
        """Rebuild from :meth:`to_pin`'s text, without an artifact that is gone."""
        held: dict[str, Any] = json.loads(text)
        answer = cls(
            held["kernel"],
            held["problem"],
            held["device"],
            Status(held["status"]),
            config=held.get("config"),
            latency_us=held.get("latency_us"),
            artifact=held.get("artifact"),
            decided=held.get("decided"),
            is_final=held.get("final", False),
            metrics=held.get("metrics", {}),
            file=held.get("file"),
            measured=held.get("measured"),
            objective=Objective(held.get("objective", LATENCY)),
            expected_loss=held.get("expected_loss"),
        )
        if answer.artifact is not None and not os.path.isdir(answer.artifact):
            return replace(answer, artifact=None)
        return answer
