"""The reference of a kernel file that says ``reference="default"``: the config whose outputs are expected.

The reference is compiled like every other config, before a lane opens the problem; the lane then loads its artifact.
The candidates are the declared default, or without a default the first configs of the space. The first candidate that
compiles, and that the device can load, is the reference. If a lane cannot load a candidate, the next takes its place. A
damaged artifact is compiled again, a few times.
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
"""How often one job compiles a damaged artifact again."""


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
        """The reference with which lanes open the problem, until another one is prepared."""

    def set_candidates(self, candidates: Sequence[replies.Proposal]) -> None:
        """Name the configs that may be the reference; they are tried in this order."""
        self._candidates = list(candidates)
        self._are_proposed.set()

    async def prepare_artifact(self) -> None:
        """Make sure that the reference's artifact exists, if lanes need one to open the problem.

        The caller must not hold a lane: compiling waits for other jobs, which may wait for the lane.

        Raises:
            CannotOpen: No candidate can be compiled, and loaded by the device.
            WorkerError, StoreError: As :meth:`CompileStage.compile_attempts`.
        """
        if not self._brief.kernel.expects_default_outputs:
            return
        # Names that were learned since then would give the artifact another key, although it is the same. Compiling it
        # again would wait for a slot, and a final round keeps the slots closed.
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
        """Compile a candidate and make it :attr:`unit`; return why that failed, or nothing."""
        if proposal.build is None:
            return f"{proposal.outcome}: {proposal.message}"
        attempt = Attempt(0, proposal.config, self._brief.make_unit(proposal.build))
        for end in await self._compiling.compile_attempts([attempt], is_reference=True):
            return f"{end.result.outcome}: {end.result.message}"
        self.unit = attempt.unit
        self._wanted = attempt.unit.key
        return ""

    def replace_unusable(self, unusable: ReferenceUnusable) -> None:
        """Take note that a lane cannot use an artifact: compile it again if it is damaged, else drop the candidate."""
        if unusable.key != self._wanted:
            # Another lane has reported this already.
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
