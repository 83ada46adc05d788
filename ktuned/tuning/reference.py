"""The config whose outputs are expected, where a kernel file says ``reference="default"``: brought to its artifact.

It is compiled like every other config, before a lane opens the problem, and the lane loads what was compiled. Where no
default is declared, the first config of the space that compiles, and that the device can load, is the reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import structlog

from ktuned.fleet import CannotOpen, ReferenceUnusable
from ktuned.ipc import replies, requests
from ktuned.model import Outcome
from ktuned.store import Artifacts
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.trial_lifecycle import Attempt

_log = structlog.get_logger()

_MOST_DAMAGED = 3
"""Times that one job compiles an artifact again which a lane has found damaged."""


class Reference:
    """One job's reference: :meth:`set_candidates` names the configs, :meth:`prepare_artifact` makes one ready."""

    def __init__(self, brief: JobBrief, compiling: CompileStage, artifacts: Artifacts) -> None:
        self._brief = brief
        self._compiling = compiling
        self._artifacts = artifacts
        self._candidates: list[replies.Proposal] = []
        self._are_proposed = anyio.Event()
        self._turn = anyio.Lock()
        self._reasons: list[str] = []
        self._damaged = 0
        self._wanted = ""
        self.unit: requests.UnitRef | None = None
        """The reference that lanes open the problem with; it stays until another one is prepared."""

    def set_candidates(self, candidates: Sequence[replies.Proposal]) -> None:
        """Take the configs that may be the reference, the first one first; they are tried one after the other."""
        self._candidates = list(candidates)
        self._are_proposed.set()

    async def prepare_artifact(self) -> None:
        """Have the artifact there that opening the problem needs; there is nothing to do where none is needed.

        Callers hold no lane: compiling waits for other jobs, which may wait for that.

        Raises:
            CannotOpen: none of the configs can be compiled, or run on the device.
            WorkerError, StoreError: as a compile.
        """
        if not self._brief.kernel.expects_default_outputs:
            return
        # What was learned of the kernel since gives its artifact another key, and changes nothing in it. To compile it
        # again would wait for a slot, which a final round keeps closed.
        if self._wanted and self._artifacts.is_sealed(self._wanted):
            return
        await self._are_proposed.wait()
        async with self._turn:
            while self._candidates:
                proposal = self._candidates[0]
                reason = await self._compile_candidate(proposal)
                if not reason:
                    return
                self._drop_candidate(reason)
        more = f" (and {len(self._reasons) - 1} more cannot run)" if len(self._reasons) > 1 else ""
        kernel = self._brief.kernel
        raise CannotOpen(
            f"{kernel.file}:{kernel.line}: {kernel.kernel}: reference='default', but the default config is "
            f"{self._reasons[0]}{more}",
            hint="give another default, or a reference",
        )

    async def _compile_candidate(self, proposal: replies.Proposal) -> str:
        """Have a config's artifact there, and :attr:`unit` name it; return the outcome that it has instead."""
        if proposal.build is None:
            return f"{proposal.outcome}: {proposal.message}"
        attempt = Attempt(0, proposal.config, self._brief.make_unit(proposal.build))
        for end in await self._compiling.compile_attempts([attempt], is_reference=True):
            return f"{end.result.outcome}: {end.result.message}"
        self.unit = attempt.unit
        self._wanted = attempt.unit.key
        return ""

    def replace_unusable(self, unusable: ReferenceUnusable) -> None:
        """Take note that a lane cannot open the problem with an artifact: it is made again, or the next one is."""
        if unusable.key != self._wanted:
            # Another lane has found that, too.
            return
        _log.info("reference_unusable", artifact=unusable.key, reason=unusable.message, damaged=unusable.is_damaged)
        if unusable.is_damaged:
            self._damaged += 1
            self._artifacts.discard_artifact(unusable.key)
        if not unusable.is_damaged or self._damaged > _MOST_DAMAGED:
            self._drop_candidate(f"{Outcome.UNSUPPORTED}: {unusable.message}")
        self._wanted = ""

    def _drop_candidate(self, reason: str) -> None:
        self._reasons.append(reason)
        del self._candidates[0]
