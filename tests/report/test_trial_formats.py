"""Formats of trials: each contains every trial, and can be read back."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import msgspec
import pytest

from benchmarks.recorded_spaces import read_recorded_space
from ktuned.model import Outcome
from ktuned.protocol import ListedTrial
from ktuned.report import FORMATS, render_trials
from tests.cli.samples import make_listed_trial, make_trial_map

MAPS = [
    make_trial_map(1, winner=True, latency_us=12.5, detail={"timing": {"samples": [12.25, 12.5]}}),
    make_trial_map(2, "compile_error", message='it said "no",\nand more', problem={"M": 64, "N": 3}),
    make_trial_map(3, "interrupted"),
]
TRIALS = msgspec.convert(MAPS, list[ListedTrial])


def test_json_has_the_protocol_s_maps() -> None:
    assert json.loads(render_trials(TRIALS, "json")) == MAPS


def test_csv_has_a_row_for_each_trial() -> None:
    """CSV has a column for each problem key and knob; messages may contain quotes and line breaks."""
    first, second, third = csv.DictReader(io.StringIO(render_trials(TRIALS, "csv")))
    assert (first["id"], first["winner"], first["latency_us"], first["c.BM"]) == ("1", "1", "12.5", "1")
    assert (second["p.N"], second["message"]) == ("3", 'it said "no",\nand more')
    assert (third["p.N"], third["outcome"]) == ("", "interrupted")


def test_t4_is_read_back(tmp_path: Path) -> None:
    """T4 has the configs and their objectives in ms; a trial without a config is left out."""
    path = tmp_path / "results.json"
    path.write_text(render_trials(TRIALS, "t4"))
    space = read_recorded_space(path)
    assert space.configs == ({"BM": 1}, {"BM": 2})
    assert space.objectives == (0.0125, None)
    result = json.loads(path.read_text())["results"][0]
    assert result["times"]["runtimes"] == [0.01225, 0.0125]
    assert result["timestamp"] == "1970-01-01T00:16:40.000+00:00"


@pytest.mark.parametrize("form", FORMATS)
def test_every_outcome_can_be_exported(form: str) -> None:
    assert render_trials([make_listed_trial(1, outcome) for outcome in Outcome], form)
