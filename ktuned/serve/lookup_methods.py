"""The methods of lookups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import Any

from ktuned.answers import Lookup
from ktuned.lookup import SETTLE_S, Lookups
from ktuned.model import FrozenStruct, KtunedError
from ktuned.protocol import (
    LOOKUP,
    LOOKUP_MANY,
    Answer,
    LookupManyAnswer,
    LookupManyParams,
    LookupParams,
    RefusedLookup,
)
from ktuned.serve.method import DeferredAnswer, Handler, Peer


class LookupMethods(FrozenStruct):
    """Answers lookups from memory. Only a lookup with ``settle`` may wait."""

    lookups: Lookups

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return every method with its handler."""
        return [
            Handler(LOOKUP, self.handle_lookup),
            Handler(LOOKUP_MANY, self.handle_lookup_many),
        ]

    def handle_lookup(self, params: LookupParams, peer: Peer) -> Answer | DeferredAnswer:
        """Answer one lookup from memory."""
        look_up = partial(
            self.lookups.look_up,
            params.kernel,
            params.problem,
            params.device,
            tune=params.tune,
            directory=params.directory,
            objective=params.objective,
        )
        found = look_up(repeats=peer.repeats)
        if found.undecided and params.settle > 0:
            settle_until = monotonic() + min(params.settle, SETTLE_S)
            return _defer_answer(partial(self.lookups.settle_answer, found, look_up, settle_until))
        return found.answer

    def handle_lookup_many(self, params: LookupManyParams, peer: Peer) -> LookupManyAnswer | DeferredAnswer:
        """Answer several lookups, in their order; a refused lookup has its error in place of an answer."""
        answers = [self._look_up_or_explain(entry, peer) for entry in params.lookups]
        if not any(type(answer) is DeferredAnswer for answer in answers):
            return LookupManyAnswer(answers)

        async def finish_answers() -> LookupManyAnswer:
            return LookupManyAnswer(
                [await answer.rest() if type(answer) is DeferredAnswer else answer for answer in answers]
            )

        return DeferredAnswer(finish_answers)

    def _look_up_or_explain(self, params: LookupParams, peer: Peer) -> Answer | DeferredAnswer | RefusedLookup:
        try:
            return self.handle_lookup(params, peer)
        except KtunedError as error:
            return RefusedLookup(error.to_wire())


def _defer_answer(find: Callable[[], Awaitable[Lookup]]) -> DeferredAnswer:
    async def finish_answer() -> Answer:
        return (await find()).answer

    return DeferredAnswer(finish_answer)
