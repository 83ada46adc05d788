"""The report's document, read from a store."""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from time import time
from typing import Any

import msgspec
from msgspec import structs

from ktuned.ipc import MANIFEST_NAME, locate_artifact, manifest
from ktuned.model import (
    FAILURES,
    LATENCY,
    NOT_TRIED,
    Config,
    DeviceModel,
    KernelInfo,
    KernelName,
    KeyProblem,
    Objective,
    Outcome,
    Peaks,
    Problem,
    SpaceInfo,
    WinnerKey,
    canonical,
    compute_gain,
    compute_shares,
    escape_controls,
    name_unit,
    parse_key_problem,
    select_figure,
    strip_numerics,
)
from ktuned.protocol import Job, JobState, describe_change
from ktuned.report.columns import (
    COARSE,
    Column,
    PackedColumns,
    code_values,
    pack_columns,
    round_figures,
    step_numbers,
    step_times,
)
from ktuned.report.document import (
    Bar,
    Build,
    Document,
    Failure,
    JobFigures,
    OtherWinner,
    Section,
    SourceState,
    Standing,
)
from ktuned.store import Context, ContextSums, Overview, TrialBuild, TrialRow, Winner, compare_contexts

MAX_TRIALS = 100_000
"""Most trials on a page, which take 2 MB. From a larger store, the page has each section's fastest trials and a sample.
"""

MAX_FAILURES = 60
"""Most different messages of a section, the most frequent first; a reader looks at no more."""

MAX_JOBS = 40
"""Most jobs of a section, the newest first; they show the costs of a few days."""

MAX_SAVES = 100
"""Most states of the sources in a section's history, the newest ones; a chart has no room for more points."""

MAX_BUILDS = 25
"""Most of a section's fastest trials whose compiler line and files are on the page; its table begins with as many."""

MAX_FILES = 20
"""Most files of an artifact."""

MESSAGE_CHARACTERS = 240
"""Most characters of a message's first line, so that a thousand messages stay small compared with the trials."""

COMPILE, LANE = "compile", "lane"
"""The kinds of places where a span of a trial ran: a compile slot, or a device's lane."""

_NO_STANDING = Standing("unknown", ("no daemon was asked",))


def survey_store(
    overview: Overview,
    version: str,
    *,
    kernels: Collection[str] | None = None,
    standings: Mapping[WinnerKey, Standing] | None = None,
    max_trials: int = MAX_TRIALS,
    artifacts: Path | None = None,
) -> Document:
    """Return the document of a store, or of some of its kernels.

    ``standings`` is the daemon's verdict on each winner, ``artifacts`` the directory of compiled kernels.
    """
    # The page's charts show latency. A winner by another objective only gets a line, and its metrics are among the
    # trials'. If there is a winner only with exact numerics, it is shown in place of the winner with a tolerance.
    winners: dict[WinnerKey, Winner] = {}
    others: dict[WinnerKey, list[Winner]] = {}
    won_by = {won.key: won for won in overview.list_winners()}
    for won in won_by.values():
        shown_key = won.key._replace(objective=strip_numerics(won.objective))
        if won_by.get(shown_key, won) is won and shown_key == won.context.key:
            winners[shown_key] = won
        else:
            others.setdefault(won.context.key, []).append(won)
    limits = overview.load_peaks()
    known = {kernel.name: kernel for kernel in overview.load_kernels()}
    groups: dict[WinnerKey, list[ContextSums]] = {}
    for sums in overview.load_contexts():
        if kernels is None or sums.context.kernel in kernels:
            groups.setdefault(sums.context.key, []).append(sums)
    shown = {key: _choose_context(group, winners.get(key)) for key, group in groups.items()}
    total = sum(sums.trials for sums in shown.values())
    jobs: dict[str, list[Job]] = {}
    sections = []
    for key in sorted(groups):
        if key.kernel not in jobs:
            jobs[key.kernel] = overview.list_jobs(kernel=key.kernel, limit=MAX_JOBS * 4)
        room = max_trials * shown[key].trials // total if total > max_trials else shown[key].trials
        winner = winners.get(key)
        own = [job for job in jobs[key.kernel] if job.key == key]
        standing = _describe_untuned(own) if winner is None else (standings or {}).get(key, _NO_STANDING)
        sections.append(
            _build_section(
                overview,
                key,
                known.get(key.kernel),
                groups[key],
                shown[key],
                winner,
                own[:MAX_JOBS],
                standing,
                room,
                limits.get(key.device),
                others.get(key, ()),
                artifacts,
            )
        )
    return Document(time(), version, sections)


def _describe_untuned(jobs: Sequence[Job]) -> Standing:
    """Return the standing of a section without a winner: ``failed`` with the reason if its newest job has failed."""
    newest = next((job for job in jobs if not job.plan.configs), None)
    if newest is None or newest.state is not JobState.FAILED:
        return Standing("untuned")
    return Standing("failed", [_first_line(newest.message)])


def _choose_context(group: Sequence[ContextSums], winner: Winner | None) -> ContextSums:
    """Return the context whose trials a section shows: the winner's, else the newest."""
    if winner is not None:
        for sums in group:
            if sums.context == winner.context:
                return sums
    return group[-1]


def _build_section(
    overview: Overview,
    key: WinnerKey,
    kernel: KernelInfo | None,
    group: Sequence[ContextSums],
    shown: ContextSums,
    winner: Winner | None,
    jobs: Sequence[Job],
    standing: Standing,
    room: int,
    peaks: Peaks | None,
    others: Sequence[Winner],
    artifacts: Path | None,
) -> Section:
    rows = overview.load_trials(shown.id)
    kept = _thin_rows(rows, room, -1 if winner is None else winner.trial)
    configs = _parse_configs(kept)
    knobs = _list_knobs(kernel, configs)
    facts = [row.facts for row in kept]
    metrics = [row.metrics for row in kept]
    fact_names = list(dict.fromkeys(name for found in facts for name in found))
    metric_names = list(dict.fromkeys(name for found in metrics for name in found))
    axes = {} if kernel is None else _list_axes(kernel.space, knobs)
    problem = parse_key_problem(key.problem)
    failures = _count_failures(kept, configs, knobs)
    explained = {row.id for row in _list_fastest(kept)[:MAX_BUILDS]} | {failure.trial for failure in failures}
    explained |= set() if winner is None else {winner.trial}
    return Section(
        kernel=key.kernel,
        problem=problem if kernel is None else kernel.order_problem(problem),
        device=key.device,
        standing=standing,
        winner=None if winner is None else _order_knobs(winner, knobs),
        share=next(iter(compute_shares(winner.metrics, peaks)), None) if winner and peaks else None,
        default=None if kernel is None or kernel.default is None else kernel.order_config(kernel.default),
        bars=_compare_with_default(winner, jobs),
        knobs=knobs,
        ends=[_find_ends(axes.get(knob, ())) for knob in knobs],
        facts=fact_names,
        metrics=metric_names,
        tried=sum(row.outcome not in NOT_TRIED for row in rows),
        space_size=None if kernel is None else kernel.space.size,
        is_constrained=kernel is not None and kernel.space.constrained,
        trials=_pack_trials(kept, configs, knobs, axes, (facts, fact_names), (metrics, metric_names)),
        left_out=len(rows) - len(kept),
        file="" if kernel is None else f"{kernel.file}:{kernel.line}",
        builds=_pack_builds(overview.load_builds(explained), artifacts),
        failures=failures,
        history=_describe_history(overview, group, shown, kernel),
        jobs=[JobFigures(job.id, job.reason, job.started, job.cost, _first_line(job.message)) for job in jobs],
        roof=peaks,
        others=[other for won in others if (other := _describe_difference(won, winner, knobs)) is not None],
        numerics=overview.load_bit_classes(shown.id).describe_classes(),
    )


def _thin_rows(rows: Sequence[TrialRow], room: int, winner: int) -> Sequence[TrialRow]:
    """Return all rows if there is room for them, else the fastest, the winner, and an even sample of the others."""
    if len(rows) <= room:
        return rows
    best = {row.id for row in _list_fastest(rows)[: room // 2]} | {winner}
    others = [row.id for row in rows if row.id not in best]
    sampled = max(1, room - len(best))
    best |= {others[place * len(others) // sampled] for place in range(sampled) if others}
    return [row for row in rows if row.id in best]


def _list_fastest(rows: Sequence[TrialRow]) -> list[TrialRow]:
    return sorted((row for row in rows if row.latency_us is not None), key=lambda row: row.latency_us or 0.0)


def _pack_builds(builds: Iterable[TrialBuild], artifacts: Path | None) -> str:
    """Return what ``Section.builds`` holds."""
    found = {
        str(build.trial): Build([escape_controls(line) for line in build.command], _list_files(build, artifacts))
        for build in builds
    }
    return base64.b64encode(zlib.compress(msgspec.json.encode(found))).decode("ascii")


def _list_files(build: TrialBuild, artifacts: Path | None) -> Sequence[str]:
    """Return the paths of an artifact's files, such as sources and PTX; none if it is not kept."""
    if artifacts is None or build.artifact is None:
        return ()
    hidden = (MANIFEST_NAME, manifest.TENSORS_NAME)
    paths = sorted(locate_artifact(artifacts, build.artifact).rglob("*"))
    return [escape_controls(str(path)) for path in paths if path.is_file() and path.name not in hidden][:MAX_FILES]


def _parse_configs(rows: Sequence[TrialRow]) -> list[Config]:
    return [msgspec.json.decode(row.config) for row in rows]


def _list_knobs(kernel: KernelInfo | None, configs: Sequence[Config]) -> list[str]:
    """Return the names of all knobs, in the order in which the space declares them."""
    found = list(dict.fromkeys(knob for config in configs for knob in config))
    if kernel is None:
        return found
    return list(kernel.order_config(dict.fromkeys(found, 0)))


def _in_order(config: Config, knobs: Sequence[str]) -> Config:
    return {knob: config[knob] for knob in knobs if knob in config}


def _pack_trials(
    rows: Sequence[TrialRow],
    configs: Sequence[Config],
    knobs: Sequence[str],
    axes: Mapping[str, Sequence[Any]],
    facts: tuple[Sequence[Mapping[str, float]], Sequence[str]],
    metrics: tuple[Sequence[Mapping[str, float]], Sequence[str]],
) -> PackedColumns:
    columns: dict[str, Column] = {
        "id": step_numbers(row.id for row in rows),
        "outcome": code_values([row.outcome for row in rows], [Outcome.MEASURED.value]),
        "job": code_values([row.job for row in rows]),
        "message": code_values(_collect_messages(rows), [""]),
        "latency": round_figures(row.latency_us for row in rows),
        "spread": round_figures((row.spread_us for row in rows), COARSE),
        "compile_s": round_figures((row.compile_s or None for row in rows), COARSE),
        "lane_s": round_figures((row.lane_s or None for row in rows), COARSE),
        "ended": step_times(row.updated for row in rows),
    }
    spans = [{kind: (name, began) for kind, name, began in row.spans} for row in rows]
    for place in (COMPILE, LANE):
        found = [spans_of_row.get(place) for spans_of_row in spans]
        columns[f"{place}_place"] = code_values(["" if span is None else span[0] for span in found], [""])
        columns[f"{place}_began"] = step_times(
            row.updated if span is None else span[1] for row, span in zip(rows, found, strict=True)
        )
    for number, knob in enumerate(knobs):
        columns[f"knob {number}"] = code_values(
            [config.get(knob) for config in configs], _sort_values(axes.get(knob, ()), configs, knob)
        )
    for prefix, (values, names) in (("fact", facts), ("metric", metrics)):
        for number, name in enumerate(names):
            columns[f"{prefix} {number}"] = round_figures(found.get(name) for found in values)
    return pack_columns(len(rows), columns)


def _list_axes(space: SpaceInfo, knobs: Sequence[str]) -> Mapping[str, Sequence[Any]]:
    """Return each knob's values in a space, as far as the space lists them."""
    return space.axes or {knob: [config[knob] for config in space.configs or () if knob in config] for knob in knobs}


def _find_ends(declared: Sequence[Any]) -> Sequence[float]:
    """Return the least and the greatest of a knob's values; nothing if not all values are numbers."""
    is_numeric = declared and all(type(value) in (int, float) for value in declared)
    return (min(declared), max(declared)) if is_numeric else ()


def _sort_values(declared: Sequence[Any], configs: Sequence[Config], knob: str) -> list[Any]:
    """Return the values of a knob that were tried: numbers by size, other values in the order of their declaration."""
    tried = list(
        {(type(value), value): value for config in configs if (value := config.get(knob)) is not None}.values()
    )
    if all(isinstance(value, int | float) for value in tried):
        return sorted(tried)
    places = {value: place for place, value in enumerate(declared)}
    return sorted(tried, key=lambda value: (places.get(value, len(places)), str(value)))


def _collect_messages(rows: Sequence[TrialRow]) -> list[str]:
    """Return the first line of each failure's message; a rare line is replaced by ``…``."""
    lines = ["" if row.outcome == Outcome.MEASURED else _first_line(row.message) for row in rows]
    frequent = {line for line, _ in Counter(lines).most_common(4 * MAX_FAILURES)}
    return [line if line in frequent else "…" for line in lines]


def _first_line(message: str) -> str:
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return line if len(line) <= MESSAGE_CHARACTERS else line[: MESSAGE_CHARACTERS - 1] + "…"


def _describe_difference(won: Winner, fastest: Winner | None, knobs: Sequence[str]) -> OtherWinner | None:
    figure = won.figure
    if figure is None:
        return None
    beside = None if fastest is None else select_figure(won.objective, fastest.latency_us, fastest.metrics)
    gain = compute_gain(won.objective, beside, figure)
    return OtherWinner(_order_knobs(won, knobs), figure, name_unit(won.objective), beside, gain)


def _order_knobs(winner: Winner, knobs: Sequence[str]) -> Winner:
    return structs.replace(winner, config=_in_order(winner.config, knobs) or winner.config)


def _compare_with_default(winner: Winner | None, jobs: Sequence[Job]) -> list[Bar]:
    """Return the bars of the winner, the default and the reference; the last two come from the newest job with them."""
    bars = [] if winner is None else [Bar("winner", winner.latency_us, winner.spread_us)]
    for name in ("default", "reference"):
        for job in jobs:
            latency_us: float | None = getattr(job, f"{name}_us")
            if latency_us is not None:
                bars.append(Bar(name, latency_us, getattr(job, f"{name}_spread_us")))
                break
    return bars


def _count_failures(rows: Sequence[TrialRow], configs: Sequence[Config], knobs: Sequence[str]) -> list[Failure]:
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], int] = {}
    for place, row in enumerate(rows):
        if row.outcome in FAILURES:
            kind = row.outcome, _first_line(row.message)
            counts[kind] += 1
            first.setdefault(kind, place)
    return [
        Failure(*kind, count, rows[first[kind]].id, _in_order(configs[first[kind]], knobs))
        for kind, count in counts.most_common(MAX_FAILURES)
    ]


def _describe_history(
    overview: Overview, group: Sequence[ContextSums], shown: ContextSums, kernel: KernelInfo | None
) -> list[SourceState]:
    """Return the states in which trials were made, oldest first, with their changes in words."""
    ordered = sorted(group, key=lambda sums: sums.first)[-MAX_SAVES:]
    changes: list[list[str]] = [
        [],
        *(_describe_changes(overview, old.context, new.context, kernel) for old, new in pairwise(ordered)),
    ]
    return [SourceState(sums, change, sums is shown) for sums, change in zip(ordered, changes, strict=True)]


def _describe_changes(overview: Overview, then: Context, now: Context, kernel: KernelInfo | None) -> list[str]:
    file = "the kernel file" if kernel is None else kernel.file.rpartition("/")[2]
    found = compare_contexts(
        then,
        now,
        (overview.load_digest_parts(then.kernel, then.digest), overview.load_digest_parts(now.kernel, now.digest)),
        (overview.load_fingerprint_versions(then.toolchain), overview.load_fingerprint_versions(now.toolchain)),
        (
            overview.load_fingerprint_versions(then.device_fingerprint),
            overview.load_fingerprint_versions(now.device_fingerprint),
        ),
        file,
    )
    return [describe_change(change) for change in found]


def make_standing_key(kernel: str, problem: Problem, device: str, objective: str = LATENCY) -> WinnerKey:
    """Return the key of a winner in ``standings``."""
    return WinnerKey(KernelName(kernel), KeyProblem(canonical(problem)), DeviceModel(device), Objective(objective))
