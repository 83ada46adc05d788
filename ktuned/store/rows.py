"""Rows of the database as values of :mod:`ktuned.model`: column lists for SELECT, and functions that decode rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs

from ktuned.model import (
    KernelInfo,
    Objective,
    Outcome,
    Peaks,
    Plan,
    TrialDetail,
    TrialResult,
    canonical,
    is_exact,
    is_maximized,
    name_figure,
    needs_metric,
    strip_numerics,
)
from ktuned.protocol import Job, JobState, Root, RootSettings, Trial
from ktuned.store.contexts import Context
from ktuned.store.reader import Row
from ktuned.store.winners import KnownConfig, Winner

CONTEXT_COLUMNS = (
    "contexts.kernel, contexts.problem, contexts.device, contexts.digest, contexts.toolchain, "
    "contexts.device_fingerprint, contexts.measuring_version"
)
"""In the order of :class:`~ktuned.store.Context`'s fields; unique together."""

TUNED = "contexts.measuring_version > 0"
"""The condition that a tuning has measured the trials of a context: judged trials have negative versions."""

FROM_TRIALS = "FROM trials JOIN contexts ON contexts.id = trials.context_id"

_TRIAL_COLUMNS = {
    "id": "trials.id",
    "job": "trials.job_id",
    **{name: f"contexts.{name}" for name in ("kernel", "problem", "device", "digest")},
    **{name: f"trials.{name}" for name in ("config", "outcome", "latency_us", "spread_us", "compile_s", "lane_s")},
    **{name: f"trials.{name}" for name in ("message", "artifact", "updated", "detail")},
}
"""The column of each field of :class:`~ktuned.protocol.Trial`, except its metrics, which are stored with the detail."""

SELECT_TRIALS = f"SELECT {', '.join(_TRIAL_COLUMNS.values())} {FROM_TRIALS}"

SELECT_JOBS = f"SELECT {', '.join(Job.__struct_fields__)} FROM jobs"
"""The columns have the names of :class:`~ktuned.protocol.Job`'s fields."""

SELECT_WINNERS = f"""SELECT {CONTEXT_COLUMNS}, trials.id, trials.config, trials.latency_us, trials.spread_us,
    trials.artifact, winners.decided, winners.final, winners.note,
    iif(json_valid(trials.detail), json_extract(trials.detail, '$.metrics'), NULL), winners.objective
    FROM winners JOIN trials ON trials.id = winners.trial_id JOIN contexts ON contexts.id = trials.context_id"""


def build_detail_sql(name: str, trials: str = "trials") -> str:
    """Return the SQL of a field of a trial's detail; NULL if it has none."""
    # Without json_valid, SQLite would fail the whole SELECT if one row's text is not JSON.
    return f"iif(json_valid({trials}.detail), json_extract({trials}.detail, '$.{name}'), NULL)"


def build_figure_sql(objective: Objective, trials: str = "trials") -> str:
    """Return the SQL of a trial's figure by an objective; NULL if it has none."""
    if is_exact(objective):
        figure = build_figure_sql(strip_numerics(objective), trials)
        return f"iif({build_detail_sql('numerics.same_bits', trials)}, {figure}, NULL)"
    if not needs_metric(objective):
        return f"{trials}.latency_us"
    # A metric's name is an identifier, so it needs no escaping.
    return build_detail_sql(f'metrics."{name_figure(objective)}"', trials)


def build_cost_sql(objective: Objective, trials: str = "trials") -> str:
    """Return the SQL of a trial's cost by an objective, where less is better; NULL if it has no figure."""
    return f"{'-' if is_maximized(objective) else ''}{build_figure_sql(objective, trials)}"


def build_known_trials_sql(objective: Objective) -> str:
    """Return the SELECT of a trial's id, and of :class:`~ktuned.store.KnownConfig`'s fields in their order."""
    columns = f"trials.id, trials.config, trials.outcome, {build_figure_sql(objective)}, trials.compile_s"
    return f"SELECT {columns} {FROM_TRIALS}"


def list_context_values(context: Context) -> Row:
    """Return a context's fields in the order of :data:`CONTEXT_COLUMNS`."""
    return (
        context.kernel,
        context.problem,
        context.device,
        context.digest,
        context.toolchain,
        context.device_fingerprint,
        context.measuring_version,
    )


def decode_trial(row: Row) -> Trial:
    """Read a row of :data:`SELECT_TRIALS`."""
    values = dict(zip(_TRIAL_COLUMNS, row, strict=True))
    _decode_json_fields(values, "problem", "config")
    values["detail"], values["metrics"] = decode_detail(values["detail"])
    values["outcome"] = Outcome(values["outcome"]) if values["outcome"] else None
    return Trial(**values)


class _KeptDetail(TrialDetail):
    metrics: Mapping[str, float] = {}


_read_detail = msgspec.json.Decoder(_KeptDetail).decode


def encode_detail(result: TrialResult) -> str:
    """Return the text of the column ``detail``: a result's detail, and its metrics."""
    kept = msgspec.to_builtins(result.detail)
    return msgspec.json.encode({**kept, "metrics": result.metrics} if result.metrics else kept).decode()


def decode_detail(text: str) -> tuple[TrialDetail, Mapping[str, float]]:
    """Return the detail and the metrics that the column ``detail`` holds.

    Raises:
        msgspec.DecodeError: the text is not such JSON.
    """
    return msgspec.json.decode(text, type=TrialDetail), _read_detail(text).metrics


def decode_known_trial(row: Row) -> KnownConfig:
    """Read a row of :func:`build_known_trials_sql`."""
    _, text, outcome, found, compile_s = row
    return KnownConfig(text, json.loads(text), Outcome(outcome), found, compile_s)


def decode_job(row: Row) -> Job:
    """Read a row of :data:`SELECT_JOBS`."""
    values = _decode_named(Job, row)
    _decode_json_fields(values, "problem", "plan", "outcomes", "cost")
    values["plan"] = msgspec.convert(values["plan"], Plan)
    values["state"] = JobState(values["state"])
    return Job(**values)


def encode_job(job: Job) -> dict[str, Any]:
    """Return a job's row, by column."""
    maps = {"problem": job.problem, "plan": job.plan, "outcomes": job.outcomes, "cost": job.cost}
    texts = {name: canonical(msgspec.to_builtins(value)) for name, value in maps.items()}
    return {**structs.asdict(job), **texts, "key_problem": job.key.problem}


def decode_winner(row: Row) -> Winner:
    """Read a row of :data:`SELECT_WINNERS`."""
    (
        *of_context,
        trial_id,
        config,
        latency_us,
        spread_us,
        artifact,
        decided,
        is_final,
        note,
        metrics,
        objective,
    ) = row
    context = Context(*of_context)
    return Winner(
        context,
        trial_id,
        json.loads(context.problem),
        json.loads(config),
        latency_us,
        spread_us,
        artifact,
        decided,
        bool(is_final),
        note,
        json.loads(metrics or "{}"),
        Objective(objective),
    )


def decode_root(row: Row) -> Root:
    """Read a row ``path, name, python, env, asked_python``."""
    path, name, python, env, asked = row
    return Root(path, name, python, json.loads(env), asked=RootSettings(python=asked))


def decode_kernel(row: Row) -> KernelInfo:
    """Read a row ``name, info``."""
    return msgspec.convert(json.loads(row[1]), KernelInfo)


def decode_peaks(row: Row) -> Peaks:
    """Read a row ``device, figures``."""
    return Peaks(**json.loads(row[1]))


def decode_record(row: Row) -> tuple[str, dict[str, Any]]:
    """Read a row of a name and a JSON object."""
    name, data = row
    return name, dict(json.loads(data))


def _decode_named(kind: type[Job], row: Row) -> dict[str, Any]:
    return dict(zip(kind.__struct_fields__, row, strict=True))


def _decode_json_fields(values: dict[str, Any], *names: str) -> None:
    for name in names:
        values[name] = json.loads(values[name])
