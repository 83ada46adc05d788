"""Judgements: an honest verdict on configs that are not trusted, such as those that a program has written."""

from __future__ import annotations

from ktuned.model import CompilerError, Config, DeviceModel, FrozenStruct, JudgeVerdict, KernelName, Problem, Scalar
from ktuned.protocol.method import Method, Params

SCHEMA = 1
"""The version of the answer. Within a version, fields are only added."""

WINNER = "winner"
"""The value of ``against`` that stands for the current winner."""


class JudgeParams(Params):
    """``judge``: a kernel by name, or the only kernel of a file.

    Attributes:
        kernel: the kernel; with ``path``, one of several in the file.
        path: the kernel file.
        configs: the candidates; None for the default, or the first config of a space without a default.
        problem: the problem; None for all that are declared.
        device: the device.
        against: what candidates are compared with: ``winner``, a config, or the path of another kernel file, whose
            winner or default is judged, too.
        quick: judge by fewer launches.
        python: the interpreter of the file's workers.
        directory: the client's working directory.
    """

    kernel: str | None = None
    path: str | None = None
    configs: list[dict[str, Scalar]] | None = None
    problem: dict[str, Scalar] | None = None
    device: str | None = None
    against: str | dict[str, Scalar] | None = None
    quick: bool = False
    python: str | None = None
    directory: str | None = None


class Factors(FrozenStruct):
    """How many times as fast as each base a candidate is; None if the base has no latency.

    Attributes:
        reference: the kernel file's reference.
        default: the declared default.
        winner: the current winner.
        against: what the request has named.
    """

    reference: float | None = None
    default: float | None = None
    winner: float | None = None
    against: float | None = None


class JudgedProblem(FrozenStruct):
    """A candidate on one problem.

    Attributes:
        verdict: the verdict on this problem.
        reason: why, in one sentence.
        latency_us, spread_us: the median latency of a launch, and its interquartile range; None unless it is right.
        factor_over: its speed relative to others.
        limit: what limits the device for this kernel, such as ``memory bandwidth``.
        limit_share: the share of that limit that it reaches.
        trial: the trial's id, for ``results``.
    """

    problem: Problem
    verdict: JudgeVerdict
    reason: str
    latency_us: float | None = None
    spread_us: float | None = None
    factor_over: Factors = Factors()
    limit: str | None = None
    limit_share: float | None = None
    trial: int | None = None


class Candidate(FrozenStruct):
    """A judged config.

    Attributes:
        config: the config.
        verdict: the worst verdict of its problems.
        reason: why, in one sentence.
        problems: the verdict on each problem.
        registers: the most registers of a thread, if the compiler says so.
        spills: bytes of a thread's spilled registers, if the compiler says so.
        errors: the compiler's first errors.
        checked: what was checked, each in a sentence.
        not_enforced: what this system could not enforce, each in a sentence.
    """

    config: Config
    verdict: JudgeVerdict
    reason: str
    problems: tuple[JudgedProblem, ...]
    registers: int | None = None
    spills: int | None = None
    errors: tuple[CompilerError, ...] = ()
    checked: tuple[str, ...] = ()
    not_enforced: tuple[str, ...] = ()


class JudgeAnswer(FrozenStruct):
    """The verdicts on all candidates, in the order of the request.

    Attributes:
        judge: the version of this schema.
        kernel: the kernel's full name.
        file: its file.
        device: the device model.
        candidates: the verdicts.
    """

    judge: int
    kernel: KernelName
    file: str
    device: DeviceModel
    candidates: tuple[Candidate, ...]


JUDGE = Method("judge", JudgeParams, JudgeAnswer)
