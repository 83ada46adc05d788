"""A kernel file's own metrics: computed where configs are measured, kept with each trial, shown with each winner."""

from __future__ import annotations

from typing import Any

import pytest

from ktuned.model.values import Outcome
from tests.daemon_parts import Parts, make_kernel_text

pytestmark = pytest.mark.anyio


async def tune_with_metrics(parts: Parts, metrics: str) -> None:
    await parts.inspect_file(make_kernel_text(metrics=metrics))
    async with parts.run_jobs():
        await parts.tune()


async def test_a_winner_has_the_metrics_of_its_final_latency(parts: Parts) -> None:
    """Trials, the winner's event and lookups have them, and they match the final round's latency."""
    await tune_with_metrics(parts, "dict(speed=lambda p, t: p.n / t, us=lambda p, t: 1e6 * t)")
    trials = parts.store.list_trials(kernel="project:it", outcome=Outcome.MEASURED)
    assert all(set(trial.metrics) == {"speed", "us"} for trial in trials)
    answer = parts.look_up()
    assert answer.is_final
    assert answer.metrics["speed"] == pytest.approx(64e6 / answer.metrics["us"])
    (winning_trial,) = [trial for trial in trials if trial.config == answer.config]
    assert winning_trial.detail.final.rounds > 1
    assert answer.metrics["us"] == pytest.approx(winning_trial.latency_us)
    assert parts.recorder.list_events("winner")[-1]["metrics"] == answer.metrics


async def test_a_failing_metric_does_not_lose_the_measurement(parts: Parts) -> None:
    """The trial's message names the metric and its line."""
    await tune_with_metrics(parts, "dict(broken=lambda p, t: p.n / 0)")
    trials = parts.store.list_trials(kernel="project:it")
    assert "measured" in {trial.outcome for trial in trials}
    assert all("the metric broken(p, t)" in trial.message for trial in trials if trial.message)
    assert any(trial.message for trial in trials)
    assert parts.look_up().metrics == {}


@pytest.mark.parametrize(
    ("metrics", "fault"),
    [
        ("[1]", "metrics is of type list"),
        ("{'a b': abs}", "cannot be called 'a b'"),
        ("dict(latency=abs)", "cannot be called 'latency'"),
        ("dict(tflops=3)", "the metric tflops is of type int"),
    ],
)
async def test_invalid_metrics_are_errors_of_the_kernel_file(parts: Parts, metrics: str, fault: str) -> None:
    path = parts.write_file(make_kernel_text(metrics=metrics))
    changes: Any = await parts.inspector.inspect_files(parts.root, [str(path)])
    (error,) = changes.errors
    assert fault in error.message
    assert error.line > 0
