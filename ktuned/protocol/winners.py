"""Winners: lookups and their pins, checks, portfolios, exports, and exchange with a shared store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from ktuned.model import LATENCY, Config, Objective, Problem, Scalar, Status, figure_of
from ktuned.protocol.jobs import JobInfo
from ktuned.protocol.kernels import FileError
from ktuned.protocol.method import Method, NoParams
from ktuned_client.answers import DaemonError


class LookupParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """``lookup``: a kernel, a problem and a device; ``tune`` requests a better answer.

    ``objective`` is what the config is to be the best by; the kernel file's own if there is none. ``settle`` is how
    many seconds the answer may wait for a worker's word on configs that might be served instead.
    """

    kernel: str
    problem: Problem
    device: str | None = None
    tune: bool = True
    pin: str | None = None
    directory: str | None = None
    objective: str | None = None
    settle: float = 0.0


class LookupManyParams(msgspec.Struct, frozen=True):
    """``lookup_many``: several lookups, answered in their order."""

    lookups: list[LookupParams]


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The best config known for one problem on one device, and how good it is.

    Fields that hold their defaults are left out of messages: names are the most expensive part to decode.

    Attributes:
        device: the device's model, or what was asked for, where no such device is known.
        latency_us: the winner's latency, None without one; as are ``artifact``, ``age_s`` and ``decided``.
        artifact: the directory of the winner's artifact.
        age_s: seconds since the winner was decided.
        decided: the Unix time at which it was decided.
        file: the kernel file.
        message: why the answer is not better than it is.
        generation: grows whenever the kernel's answers may have changed.
        is_final: whether a final round has decided the winner, here.
        metrics: the winner's metrics of the kernel file, and its energy where that was measured.
        measured: the problem that the winner was measured for, if that is another one.
        objective: what the config is the best by.
        expected_loss: what a portfolio's config is expected to lose against the best one, as a share of its time.
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
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)
    measured: Problem | None = None
    objective: Objective = LATENCY
    expected_loss: float | None = None

    @property
    def figure(self) -> float | None:
        """The winner's figure by the objective; None if it has none."""
        return figure_of(self.objective, self.latency_us, self.metrics)


class RefusedLookup(msgspec.Struct, frozen=True):
    """In the place of the answer to one of several lookups: why it was refused, as the protocol's error map."""

    error: Mapping[str, str]


class LookupManyAnswer(msgspec.Struct, frozen=True):
    """The answers to several lookups, in their order; ``answers`` has a :class:`RefusedLookup` for a refused one."""

    # By their fields alone the two cannot be told apart by msgspec, which gives a caller plain maps of them.
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


class PinInfo(msgspec.Struct, frozen=True):
    """A pin, with the number of questions that it answers and the Unix time of the first."""

    pin: str
    questions: int
    created: float


class PinsAnswer(msgspec.Struct, frozen=True):
    """All pins."""

    pins: tuple[PinInfo, ...]


class UnpinAnswer(msgspec.Struct, frozen=True):
    """The pin that was given up, and how many questions it held."""

    pin: str
    questions: int


class UnpinParams(msgspec.Struct, frozen=True):
    """``unpin``: the pin to remove."""

    pin: str


class CheckParams(msgspec.Struct, frozen=True):
    """``check``: a kernel's winners, or that of one problem; with ``sanitize``, the paths of the sanitizers here."""

    kernel: str
    problem: dict[str, Scalar] | None = None
    sanitize: bool = False
    address: str = ""
    compute: str = ""
    directory: str | None = None


class CheckedWinner(msgspec.Struct, frozen=True, omit_defaults=True):
    """A winner that was run once more, with the ``verdict`` ``right``, ``wrong`` or ``not_checked``.

    Attributes:
        message: what is wrong with it, or why it was not checked.
        hint: what would let it be checked.
        report: the report of a sanitizer on a wrong one.
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


class CheckAnswer(msgspec.Struct, frozen=True):
    """A kernel's winners, each with its verdict."""

    kernel: str
    winners: Sequence[CheckedWinner]


class PortfolioParams(msgspec.Struct, frozen=True):
    """``portfolio``: a kernel, and with ``make`` what to make; what is left out is the kernel file's to say."""

    kernel: str
    directory: str | None = None
    device: str | None = None
    objective: str | None = None
    make: bool = False
    configs: int | None = None
    loss: float | None = None
    tunings: int | None = None


class PortfolioLimits(msgspec.Struct, frozen=True):
    """How many configs a portfolio may have, how much it may lose, and how many problems may be tuned for it."""

    configs: int = 4
    loss: float = 0.02
    tunings: int = 12


class PortfolioDocument(msgspec.Struct, frozen=True):
    """A portfolio with what it was fitted to, as the store keeps it.

    Attributes:
        ktuned_portfolio: the version of the format; :class:`ktuned.portfolio.Portfolio` reads it.
        tree: the tree that chooses among the configs, as plain data.
        configs: the configs as canonical texts, the one for most problems first.
        problems: the number of problems that it was fitted to.
        matrix: their costs; :class:`ktuned.portfolio.Matrix` as plain data.
        over: the problems that it is for, with their weights.
        wanted: the limits that it was made with.
        created: the Unix time of the fit.
    """

    ktuned_portfolio: int
    tree: dict[str, Any]
    configs: Sequence[str]
    expected_loss: float
    fitted_loss: float
    single_loss: float
    wanted_loss: float
    problems: int
    matrix: dict[str, Any]
    over: Sequence[tuple[Problem, float]]
    wanted: PortfolioLimits
    created: float


class PortfolioInfo(PortfolioDocument, frozen=True, kw_only=True):
    """A kernel's portfolio on a device model by an objective; whether it was measured as all is now."""

    device: str
    objective: Objective
    current: bool


class PortfolioProgress(msgspec.Struct):
    """A portfolio that is being made, or was made last.

    Attributes:
        state: ``queued``, ``running``, ``done`` or ``failed``; ``message`` says why it failed.
        problems: how many problems it is for.
        tuned: how many of them were tuned for it.
        measured: how many configs were measured for it, on any problem.
        jobs: the newest job that was made for it, if any.
    """

    kernel: str
    device: str
    objective: Objective
    problems: int
    state: str = "queued"
    message: str = ""
    tuned: int = 0
    measured: int = 0
    jobs: Sequence[int] = ()

    @property
    def is_under_way(self) -> bool:
        """True until it is made, or has failed."""
        return self.state in ("queued", "running")


class PortfolioAnswer(msgspec.Struct, frozen=True):
    """A kernel's portfolios, and those that are being made for it or were made last."""

    kernel: str
    portfolios: Sequence[PortfolioInfo]
    making: Sequence[PortfolioProgress]


class ExportParams(msgspec.Struct, frozen=True):
    """``export``: the document of one kernel on one device model, or without both the list of them."""

    kernel: str | None = None
    device: str | None = None
    directory: str | None = None


class ExportedWinner(msgspec.Struct, frozen=True):
    """A winner in a document: figures and the context of the measurement, all but the document's kernel and device.

    Attributes:
        decided: the Unix time of the decision.
        artifact: the key of its artifact.
        metrics: only of winners by other objectives.
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


class WinnersDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """The winners of one kernel on one device model, as files hold them (docs/sharing.md, "The files").

    What older files lack stays unset. :mod:`ktuned_client.winners` reads, checks and writes the files.

    Attributes:
        ktuned_winners: the version of the format.
        default: the config that the kernel declares.
        specialize: the problem keys that winners are kept for; None for all.
        bucket: the rules of shape buckets by problem key.
        names: what was read for the kernel besides its file, each with the ends that it was read for.
        winners: those by latency.
        objective: what lookups mean that name no objective.
        objectives: the winners by other objectives. They stand apart, because a reader that knows of no objectives
            takes every one of ``winners`` for the fastest.
        artifacts: the directory of the artifacts, relative to the file.
    """

    ktuned_winners: int
    kernel: str
    device: str
    winners: Sequence[ExportedWinner]
    default: Config | UnsetType | None = UNSET
    specialize: Sequence[str] | UnsetType | None = UNSET
    bucket: Mapping[str, Any] | UnsetType = UNSET
    names: Mapping[str, Sequence[str]] | UnsetType = UNSET
    objective: Objective = LATENCY
    objectives: Mapping[Objective, Sequence[ExportedWinner]] = msgspec.field(default_factory=dict)
    artifacts: str | None = None

    @classmethod
    def read(cls, content: Any) -> WinnersDocument:
        """Read a document that :func:`ktuned_client.winners.check_document` has checked.

        Raises:
            ValueError: a further field is of a wrong type; the message continues a sentence, as that function's does.
        """
        try:
            return msgspec.convert(content, cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"is invalid: {error}") from error

    @property
    def by_objective(self) -> dict[Objective, Sequence[ExportedWinner]]:
        """All winners, by what they are the best by."""
        return {LATENCY: self.winners, **self.objectives}

    def count_winners(self) -> int:
        """Return the number of all winners."""
        return sum(map(len, self.by_objective.values()))


class ExportInfo(msgspec.Struct, frozen=True):
    """A kernel and a device model that can be exported, and the number of winners that this has."""

    kernel: str
    device: str
    winners: int


class ExportAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What can be exported; or the ``document`` that was asked for, and the paths of its artifacts by their keys."""

    shared: Sequence[ExportInfo] | None = None
    document: WinnersDocument | None = None
    artifacts: Mapping[str, str] | None = None


class ImportParams(msgspec.Struct, frozen=True):
    """``import``: a :class:`WinnersDocument` to take in; with ``dry_run``, only to be judged."""

    # Anything else is refused with the words in which a file is refused.
    document: Any
    dry_run: bool = False


class ImportedWinner(msgspec.Struct, frozen=True):
    """The decision about one winner of a document; ``status`` is what it is served as, if it is taken."""

    problem: Problem
    config: Config
    objective: str
    taken: bool = False
    status: Status | None = None
    reason: str = ""


class ImportAnswer(msgspec.Struct, frozen=True):
    """The decision about each winner of a document."""

    kernel: str
    device: str
    winners: Sequence[ImportedWinner]


class ShareAnswer(msgspec.Struct, frozen=True):
    """Where the shared store is, and how the exchange with it stands.

    Attributes:
        url: None without a store.
        read_only: nothing is published there.
        looked: the Unix time of the last look at all kernels; None before the first.
        found: the number of our keys that had winners there then.
        fresh: how many of them are fresh here.
        fault: what keeps the store from being used now.
        notices: what is odd about it, one line each.
    """

    url: str | None
    read_only: bool = False
    looked: float | None = None
    found: int | None = None
    fresh: int | None = None
    fault: str = ""
    notices: Sequence[str] = ()


class SharePushAnswer(msgspec.Struct, frozen=True):
    """The store, which has all winners of ours, and how many of them were sent now."""

    url: str
    sent: int


class SharePullParams(msgspec.Struct, frozen=True):
    """``share_pull``: one kernel, or all; ``directory`` decides which project a short name means."""

    kernel: str | None = None
    directory: str | None = None


class SharePullAnswer(msgspec.Struct, frozen=True):
    """What others have found for our declared problems, and the jobs that verify it.

    Attributes:
        found: the number of problems that the store has winners for.
        fresh: how many of them are fresh here.
        jobs: the jobs, as ``jobs`` returns them.
        epoch: with ``seq``, the place in the stream of events from which those of the jobs come.
    """

    url: str
    found: int
    fresh: int
    jobs: tuple[JobInfo, ...]
    errors: tuple[FileError, ...]
    notices: Sequence[str]
    epoch: int
    seq: int


LOOKUP: Final = Method("lookup", LookupParams, Answer)
LOOKUP_MANY: Final = Method("lookup_many", LookupManyParams, LookupManyAnswer)
PINS: Final = Method("pins", NoParams, PinsAnswer)
UNPIN: Final = Method("unpin", UnpinParams, UnpinAnswer)
CHECK: Final = Method("check", CheckParams, CheckAnswer)
PORTFOLIO: Final = Method("portfolio", PortfolioParams, PortfolioAnswer)
EXPORT: Final = Method("export", ExportParams, ExportAnswer)
IMPORT: Final = Method("import", ImportParams, ImportAnswer)
SHARE: Final = Method("share", NoParams, ShareAnswer)
SHARE_PUSH: Final = Method("share_push", NoParams, SharePushAnswer)
SHARE_PULL: Final = Method("share_pull", SharePullParams, SharePullAnswer)
