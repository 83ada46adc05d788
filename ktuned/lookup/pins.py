"""Pins: lookups under the same pin always get the same winners, whatever is tuned meanwhile.

The first lookup of a problem under a pin decides. It is answered only after its answer is on the disk.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from ktuned.lookup.answer import compute_age
from ktuned.model import NotFound, Problem, UsageError
from ktuned.protocol import Answer, PinInfo
from ktuned.store import Store, encode_pinned_question

MAX_PINNED: Final = 100_000
"""Answers that all pins may hold together: a thousand runs of a hundred kernels."""

MAX_PIN_BYTES: Final = 200

_PASSING: Final[dict[str, Any]] = {"age_s": None, "generation": 0, "message": ""}
"""Fields of an answer that are true only for a moment, with the values that a pin stores in their place."""


class Pins:
    """Answers lookups under pins; ``on_change`` is called when earlier answers no longer hold."""

    def __init__(self, store: Store, on_change: Callable[[], None]) -> None:
        self._store = store
        self._on_change = on_change

    def find_answer(
        self, pin: str, kernel: str, problem: Problem, device: str | None, objective: str | None = None
    ) -> Answer | None:
        """Return the answer that a pin holds, under any name of the kernel, the device and the objective.

        Raises:
            UsageError: the pin's name is not valid.
        """
        if not pin or len(pin.encode()) > MAX_PIN_BYTES or not pin.isprintable():
            raise UsageError(
                f"the pin {pin[:100]!r} is not a valid name", hint="give a short text, for example the run's id"
            )
        held = self._store.pinned.find_answer(pin, encode_pinned_question(kernel, problem, device, objective))
        return None if held is None else _read_answer(held)

    async def freeze_answer(
        self, pin: str, kernel: str, problem: Problem, device: str | None, objective: str | None, answer: Answer
    ) -> Answer:
        """Pin ``answer`` for the question as asked, and for the question with full names.

        Returns:
            The pinned answer, which is an earlier one if the question already had one.

        Raises:
            UsageError: the pins already hold as many answers as they may.
        """
        asked = encode_pinned_question(kernel, problem, device, objective)
        names = [(answer.kernel, answer.device, named) for named in (objective, answer.objective)]
        keys = [asked, *(encode_pinned_question(name, problem, model, named) for name, model, named in names)]
        held = await self._store.pinned.keep_answer(
            pin, list(dict.fromkeys(keys)), _render_answer(answer), now=time.time(), limit=MAX_PINNED
        )
        return replace(_read_answer(held), generation=answer.generation)

    def list_pins(self) -> list[PinInfo]:
        """Return every pin."""
        return [PinInfo(*row) for row in self._store.pinned.list_pins()]

    async def remove_pin(self, pin: str) -> int:
        """Remove a pin, so that the next lookup decides again; return how many questions it had answers to.

        Raises:
            NotFound: there is no such pin.
        """
        removed = await self._store.pinned.remove_pin(pin)
        if not removed:
            raise NotFound(f"there is no pin {pin!r}", hint="`ktuned lookup --pins` lists them")
        self._on_change()
        return removed


def _render_answer(answer: Answer) -> str:
    return msgspec.json.encode(replace(answer, **_PASSING)).decode()


def _read_answer(text: str) -> Answer:
    """Decode the text of :func:`_render_answer`; texts of older versions lack fields. Drop an artifact that is gone."""
    absent = dict.fromkeys(("config", "latency_us", "artifact", "decided", "file"))
    held = msgspec.convert({**absent, **_PASSING, **json.loads(text)}, Answer)
    is_gone = held.artifact is not None and not os.path.isdir(held.artifact)
    return replace(held, age_s=compute_age(held.decided), artifact=None if is_gone else held.artifact)
