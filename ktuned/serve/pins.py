"""Pins: who looks up under the same pin sees the same winners for good, whatever is tuned meanwhile.

The first lookup of a problem under a pin decides, and is told once that is on the disk.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any, Final

from ktuned.errors import NotFound, UsageError
from ktuned.model import Problem, canonical
from ktuned.serve.calling import Method
from ktuned.serve.connection import Connection
from ktuned.serve.params import NoParams, UnpinParams
from ktuned.store import Store

MAX_PINNED: Final = 100_000
"""Answers that pins may hold altogether: a thousand runs of a hundred kernels."""

MAX_PIN_BYTES: Final = 200


class Pins:
    """Answers lookups under pins; ``changed`` is called when what was answered no longer holds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.changed: Callable[[], None] = lambda: None

    def table(self) -> dict[str, Method[Any]]:
        """Return the methods by their names on the wire."""
        return {"pins": Method(NoParams, self.pins), "unpin": Method(UnpinParams, self.unpin)}

    def find(self, pin: str, kernel: str, problem: Problem, device: str | None) -> dict[str, Any] | None:
        """Return what a pin holds for a question, however its first asker named kernel and device.

        Raises:
            UsageError: the pin is no name.
        """
        if not pin or len(pin.encode()) > MAX_PIN_BYTES or not pin.isprintable():
            raise UsageError(f"the pin {pin[:100]!r} is no name", hint="give a short text, for example the run's id")
        held = self._store.pinned.find(pin, _key(kernel, problem, device))
        return None if held is None else _as_answer(held)

    async def freeze(
        self, pin: str, kernel: str, problem: Problem, device: str | None, answer: dict[str, Any]
    ) -> dict[str, Any]:
        """Hold ``answer`` for the question, and for the same one by full names; return what holds: the first one's.

        Raises:
            UsageError: there are too many.
        """
        keys = [_key(kernel, problem, device), _key(answer["kernel"], problem, answer["device"])]
        kept = {name: value for name, value in answer.items() if name not in ("age_s", "generation", "message")}
        held = await self._store.pinned.hold(pin, keys, json.dumps(kept), now=time.time(), limit=MAX_PINNED)
        return {**_as_answer(held), "generation": answer["generation"]}

    def pins(self, nothing: NoParams, connection: Connection) -> dict[str, Any]:
        """List the pins, and how many answers each holds since when."""
        return {
            "pins": [
                {"pin": pin, "questions": count, "created": created}
                for pin, count, created in self._store.pinned.pins()
            ]
        }

    async def unpin(self, wanted: UnpinParams, connection: Connection) -> dict[str, Any]:
        """Give up a pin: who looks up under it from now on decides anew."""
        removed = await self._store.pinned.give_up(wanted.pin)
        if not removed:
            raise NotFound(f"there is no pin {wanted.pin!r}", hint="`ktuned forget --pins` lists them")
        self.changed()
        return {"pin": wanted.pin, "questions": removed}


def _key(kernel: str, problem: Problem, device: str | None) -> str:
    return canonical({"kernel": kernel, "problem": dict(problem), "device": device})


def _as_answer(held: str) -> dict[str, Any]:
    """Return a held answer as it is now: older, and without an artifact that is gone."""
    answer: dict[str, Any] = json.loads(held)
    if answer.get("artifact") is not None and not os.path.isdir(answer["artifact"]):
        answer["artifact"] = None
    decided = answer.get("decided")
    answer["age_s"] = None if decided is None else round(max(0.0, time.time() - decided), 3)
    return answer
