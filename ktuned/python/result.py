"""The result of a tuning: the winner, its figures, and the trials behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, overload

from ktuned.cli import load_all_trials
from ktuned.model import spell_values
from ktuned.protocol import ListedTrial as Trial
from ktuned.protocol import ResultsParams
from ktuned_client import Client, Hit
from ktuned_client.answers import Config, Problem

if TYPE_CHECKING:
    from ktuned_client.messages import Job

MAX_SHOWN = 20
"""Most rows of a table in a notebook; a data frame has all rows."""


class Trials(Sequence[Trial]):
    """The trials of a problem, fastest first; trials without a latency are at the end."""

    def __init__(self, trials: Iterable[Trial]) -> None:
        by_latency = sorted(trials, key=lambda trial: (trial.latency_us is None, trial.latency_us or 0.0, trial.id))
        self._trials = tuple(by_latency)

    def __len__(self) -> int:
        return len(self._trials)

    @overload
    def __getitem__(self, place: int) -> Trial: ...

    @overload
    def __getitem__(self, place: slice) -> Trials: ...

    def __getitem__(self, place: int | slice) -> Trial | Trials:
        return Trials(self._trials[place]) if isinstance(place, slice) else self._trials[place]

    def to_pandas(self) -> Any:
        """Return a data frame: a row for each config, with a column for each knob and metric.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        import pandas  # type: ignore[import-untyped]

        return pandas.DataFrame([_make_row(trial) for trial in self._trials])

    def __repr__(self) -> str:
        measured = sum(trial.latency_us is not None for trial in self._trials)
        return f"<{len(self)} trials, {measured} measured>"

    def _repr_html_(self) -> str:
        knobs = list(dict.fromkeys(knob for trial in self._trials for knob in trial.config))
        head = "".join(f"<th>{escape(name)}</th>" for name in [*knobs, "outcome", "latency (µs)", "message"])
        rows = []
        for trial in self._trials[:MAX_SHOWN]:
            cells = [str(trial.config.get(knob, "")) for knob in knobs]
            latency = "" if trial.latency_us is None else f"{trial.latency_us:.4g}"
            cells += [trial.outcome or "running", latency, trial.message.partition("\n")[0][:200]]
            style = " style='font-weight:bold'" if trial.winner else ""
            rows.append(f"<tr{style}>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
        rest = len(self) - MAX_SHOWN
        more = f"<p>and {rest} more</p>" if rest > 0 else ""
        return f"<table><tr>{head}</tr>{''.join(rows)}</table>{more}"


@dataclass(frozen=True)
class Result:
    """A tuning's result for one problem.

    ``config`` is the winner, which lookups serve from now on, and ``latency_us`` is its latency in µs. ``default_us``
    and ``reference_us`` are the latencies of the declared default and of the reference, if they were measured. ``job``
    is the job's map as in the protocol, ``message`` the job's message. ``print(result)`` also counts the configs that
    failed.
    """

    kernel: str
    problem: Problem
    device: str
    config: Config
    latency_us: float
    hit: Hit = field(repr=False)
    job: Job = field(repr=False)
    default_us: float | None = None
    reference_us: float | None = None
    message: str = ""

    @property
    def latency(self) -> float:
        """The winner's latency in seconds."""
        return self.latency_us / 1e6

    @property
    def speedup(self) -> float | None:
        """Factor by which the winner is faster than the declared default; ``None`` if the default was not measured."""
        return None if self.default_us is None else self.default_us / self.latency_us

    @cached_property
    def trials(self) -> Trials:
        """All trials of this problem for the kernel's present version; read from the daemon once."""
        wanted = ResultsParams(self.kernel, dict(self.problem), self.device, current=True)
        with Client() as client:
            return Trials(load_all_trials(client, wanted))

    def load(self, *, device: str | None = None, stale: bool = False) -> Any:
        """Return the winner as a callable, which takes the tensors of ``inputs`` by their names.

        Raises:
            LoadError: see :meth:`ktuned_client.Hit.load`.
        """
        return self.hit.load(device=device, stale=stale)

    def to_pandas(self) -> Any:
        """Return the trials as a data frame; see :meth:`Trials.to_pandas`."""
        return self.trials.to_pandas()

    def __str__(self) -> str:
        where = f" [{spell_values(self.problem)}]" if self.problem else ""
        gain = f", {self.speedup:.3g}× the default" if self.speedup else ""
        line = f"{self.kernel}{where} on {self.device}: {self.latency_us:.4g} µs{gain}  {spell_values(self.config)}"
        failed = _describe_failures(self.job["outcomes"])
        return f"{line}\n{failed}" if failed else line

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(str(self))}</code></p>{self.trials._repr_html_()}"


def _make_row(trial: Trial) -> dict[str, Any]:
    figures = {
        "outcome": trial.outcome or "running",
        "latency_us": trial.latency_us,
        "spread_us": trial.spread_us,
        "compile_s": trial.compile_s,
        "lane_s": trial.lane_s,
        "winner": trial.winner,
        "message": trial.message,
    }
    # Knobs come first. If a knob has the name of one of our columns, the knob keeps the name and our column is renamed.
    clear = {name if name not in trial.config else f"trial.{name}": value for name, value in figures.items()}
    return {**trial.config, **clear, **{f"metric.{name}": value for name, value in trial.metrics.items()}}


def _describe_failures(outcomes: Mapping[str, int]) -> str:
    """Return how many configs failed, and how; empty if none did."""
    failed = {name: count for name, count in outcomes.items() if name not in ("measured", "slower") and count}
    if not failed:
        return ""
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(failed.items(), key=lambda pair: -pair[1]))
    share = f"{sum(failed.values())} of {sum(outcomes.values())} configs"
    return f"{share} have no figure: {kinds} (`.trials` has their messages)"
