"""Winners: lookups, checks, exports, and the exchange with a team's store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ktuned.model import LATENCY, Config, FrozenStruct, Objective, Problem, Scalar, select_figure
from ktuned.protocol.method import Method, Params
from ktuned_client.answers import DaemonError


class Status(StrEnum):
    """Status of a lookup's answer, best first."""

    FRESH = "fresh"
    STALE = "stale"
    NEAR = "near"
    DEFAULT = "default"
    UNKNOWN = "unknown"


class LookupParams(Params):
    """``lookup``: a kernel, a problem and a device; ``tune`` requests a better answer.

    ``objective`` is the objective by which the config should be the best, by default the kernel file's own. ``settle``
    is how many seconds the answer may wait until a worker has decided whether better configs are valid for the problem.
    """

    kernel: str
    problem: Problem
    device: str | None = None
    tune: bool = True
    directory: str | None = None
    objective: str | None = None
    settle: float = 0.0


class LookupManyParams(Params):
    """``lookup_many``: several lookups, answered in their order."""

    lookups: list[LookupParams]


class Answer(FrozenStruct, omit_defaults=True):
    """The best config known for one problem on one device, and how good it is.

    Fields that hold their defaults are left out of messages: names are the most expensive part to decode.

    Attributes:
        kernel: the kernel's full name.
        problem: the problem that was asked for.
        device: the device's model, or the device as it was asked for if it is not known.
        status: how good the answer is.
        config: the best config known; None if there is none.
        latency_us: the winner's latency. Without a winner it is None, and so are ``artifact``, ``age_s`` and
            ``decided``.
        artifact: the directory of the winner's artifact.
        age_s: seconds since the winner was decided.
        decided: the Unix time at which it was decided.
        file: the kernel file.
        message: why there is no better answer.
        generation: grows whenever the kernel's answers may have changed.
        is_final: whether a final round on this machine has decided the winner.
        metrics: the winner's metrics.
        measured: the problem that the winner was measured for, if it is not this problem.
        objective: the objective by which the config is the best.
    """

    kernel: str
    problem: Problem
    device: str | None
    status: Status
    config: Config | None
    latency_us: float | None
    artifact: str | None
    age_s: float | None
    decided: float | None
    file: str | None
    message: str
    generation: int
    is_final: bool = msgspec.field(default=False, name="final")
    metrics: Mapping[str, float] = {}
    measured: Problem | None = None
    objective: Objective = LATENCY

    @property
    def figure(self) -> float | None:
        """The winner's figure by the objective; None if it was not measured."""
        return select_figure(self.objective, self.latency_us, self.metrics)


class RefusedLookup(FrozenStruct):
    """Stands in place of an answer in :class:`LookupManyAnswer`: the protocol's error map of a refused lookup."""

    error: Mapping[str, str]


class LookupManyAnswer(FrozenStruct):
    """The answers to several lookups, in their order; a refused lookup has a :class:`RefusedLookup`."""

    # Any, because msgspec cannot tell an Answer from a RefusedLookup by the fields; a caller gets plain maps.
    answers: Sequence[Any]

    def read_answers(self) -> list[Answer]:
        """Return the answers.

        Raises:
            DaemonError: one of the lookups was refused.
        """
        for answer in self.answers:
            if "error" in answer:
                raise DaemonError.from_wire(answer["error"])
        return msgspec.convert(self.answers, list[Answer])


class CheckParams(Params):
    """``check``: a kernel's winners, or one problem's. With ``sanitize``, ``address`` and ``compute`` are the paths of
    the sanitizers on this machine.
    """

    kernel: str
    problem: dict[str, Scalar] | None = None
    sanitize: bool = False
    address: str = ""
    compute: str = ""
    directory: str | None = None


class CheckedWinner(FrozenStruct, omit_defaults=True):
    """A winner that was run once more, with the verdict on it.

    Attributes:
        problem: the winner's problem.
        device: the device's model.
        objective: the objective by which it won.
        config: the winner's config.
        verdict: ``right``, ``wrong`` or ``not_checked``.
        message: what is wrong with it, or why it was not checked.
        hint: how it could be checked.
        report: a sanitizer's report, if it found the winner wrong.
        checks: the checks that were made.
    """

    problem: Problem
    device: str
    objective: Objective
    config: Config
    verdict: str
    message: str
    hint: str = ""
    report: str = ""
    checks: Sequence[str] = ()


class CheckAnswer(FrozenStruct):
    """A kernel's winners, each with its verdict."""

    kernel: str
    winners: Sequence[CheckedWinner]


class ExportParams(Params):
    """``export``: the document of one kernel on one device model; without both, the list of what can be exported."""

    kernel: str | None = None
    device: str | None = None
    directory: str | None = None


class ExportedWinner(FrozenStruct):
    """A winner in a document: its figures and the context of its measurement; kernel and device are the document's.

    Attributes:
        problem: the problem.
        config: the config.
        latency_us: its latency.
        decided: the Unix time of the decision.
        digest: the digest of the kernel's sources.
        toolchain: the fingerprint of the toolchain.
        device_fingerprint: the fingerprint of the device.
        measuring_version: the version of ktuned's way of measuring.
        spread_us: the spread of its latency.
        artifact: the key of its artifact.
        metrics: its metrics; only for winners by objectives other than latency.
        made: a digest of its Build, inputs and artifact, and of what launches have read; empty if a part is unknown.
    """

    problem: Problem
    config: Config
    latency_us: float
    decided: float
    digest: str
    toolchain: str
    device_fingerprint: str
    measuring_version: int
    spread_us: float | None = None
    artifact: str | None = None
    metrics: Mapping[str, float] | UnsetType = UNSET
    made: str | UnsetType = UNSET


class ExportedFunction(FrozenStruct):
    """The application's function that a kernel was adopted from: its name, and the digest of its source."""

    name: str
    source: str


class WinnersDocument(FrozenStruct, omit_defaults=True):
    """The winners of one kernel on one device model: a file's content. docs/reference/sharing.md has the fields.

    :mod:`ktuned_client.winners` reads, checks and writes the files.

    Attributes:
        ktuned_winners: the version of the format.
        kernel: the kernel's full name.
        device: the device's model.
        default: the default config that the kernel declares.
        specialize: the problem keys that winners are kept for; None for all.
        bucket: the rules of shape buckets by problem key.
        names: what was read for the kernel besides its file, each with the ends that it was read for.
        parts: what the winners' digests and fingerprints were made of: for each of them short digests, or versions, by
            label. An import names by these what differs.
        function: the application's function that the kernel was adopted from, if it was; drop-ins find their winners
            by it.
        winners: the winners by latency.
        objective: the objective of lookups that name none.
        objectives: the winners by other objectives. They are apart from ``winners``, because a reader that does not
            know objectives takes each of ``winners`` for the fastest.
        artifacts: the directory of the artifacts, relative to the file.
    """

    ktuned_winners: int
    kernel: str
    device: str
    winners: Sequence[ExportedWinner]
    default: Config | None
    specialize: Sequence[str] | None
    bucket: Mapping[str, Any]
    names: Mapping[str, Sequence[str]]
    parts: Mapping[str, Mapping[str, str]] = {}
    function: ExportedFunction | UnsetType = UNSET
    objective: Objective = LATENCY
    objectives: Mapping[Objective, Sequence[ExportedWinner]] = {}
    artifacts: str | None = None

    @classmethod
    def read(cls, content: Any) -> WinnersDocument:
        """Read a document that :func:`ktuned_client.winners.check_document` has checked.

        Raises:
            ValueError: a field that the check does not cover has a wrong type; as with ``check_document``, the message
                continues a sentence that begins with the file's name.
        """
        try:
            return msgspec.convert(content, cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"is invalid: {error}") from error

    @property
    def by_objective(self) -> dict[Objective, Sequence[ExportedWinner]]:
        """All winners, by objective."""
        return {LATENCY: self.winners, **self.objectives}

    def count_winners(self) -> int:
        """Return the number of all winners."""
        return sum(map(len, self.by_objective.values()))


class ExportInfo(FrozenStruct):
    """A kernel and a device model that can be exported, and the number of their winners."""

    kernel: str
    device: str
    winners: int


class ExportAnswer(FrozenStruct, omit_defaults=True):
    """The list of what can be exported (``shared``); or the requested ``document``, and its artifacts' paths by key."""

    shared: Sequence[ExportInfo] | None = None
    document: WinnersDocument | None = None
    artifacts: Mapping[str, str] | None = None


class ImportParams(Params):
    """``import``: a :class:`WinnersDocument` to take in; with ``dry_run`` it is only judged.

    If several checkouts of the document's project are watched, the one around ``directory`` is meant.
    """

    # Any, so that an invalid document is refused with the same message as an invalid file.
    document: Any
    dry_run: bool = False
    directory: str | None = None


class ImportedWinner(FrozenStruct):
    """The decision about one winner of a document; if it is taken, lookups serve it with this ``status``."""

    problem: Problem
    config: Config
    objective: str
    taken: bool = False
    status: Status | None = None
    reason: str = ""


class ImportAnswer(FrozenStruct):
    """The decision about each winner of a document."""

    kernel: str
    device: str
    winners: Sequence[ImportedWinner]


class ShareParams(Params):
    """``share``: exchange winners with the team's store now; ``push`` writes ours, otherwise others' are read."""

    push: bool = False


class ShareAnswer(FrozenStruct):
    """The team's store, how many winners were sent there now, and how many of others' became winners here."""

    url: str
    sent: int
    taken: int


LOOKUP = Method("lookup", LookupParams, Answer)
LOOKUP_MANY = Method("lookup_many", LookupManyParams, LookupManyAnswer)
CHECK = Method("check", CheckParams, CheckAnswer)
EXPORT = Method("export", ExportParams, ExportAnswer)
IMPORT = Method("import", ImportParams, ImportAnswer)
SHARE = Method("share", ShareParams, ShareAnswer)
