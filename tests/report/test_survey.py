"""The report's document says what the store holds."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ktuned.model import StoreError
from ktuned.report import Document, Standing, make_standing_key, survey_store
from ktuned.store import Overview
from tests.report.sample_store import MODEL, SampleStore
from tests.report.test_columns import unpacked

ASSETS = Path(__file__).parents[2] / "ktuned/report/assets"
PROBLEM = {"M": 64, "N": 32}


def surveyed(path: Path, **options: object) -> Document:
    """Return the document of a store."""
    with Overview(path) as overview:
        return survey_store(overview, "1.2.3", **options)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a store with two kernels, the first in three states."""
    path = tmp_path / "ktuned.sqlite"
    store = SampleStore(path)
    store.add("p:gemm", PROBLEM, 120, saves=3)
    store.add("p:dot", {"N": 8}, 40)
    return path


def test_a_section_is_the_winners_context(path: Path) -> None:
    """It has that context's trials, the winner among them, the bars of the newest job and the history of all."""
    dot, gemm = surveyed(path).sections
    assert (dot.kernel, gemm.kernel, gemm.problem, gemm.device) == ("p:dot", "p:gemm", PROBLEM, MODEL)
    columns = unpacked(gemm.trials)
    assert gemm.winner is not None
    best = min(value for value in columns["latency"] if value is not None)
    assert (
        columns["latency"][columns["id"].index(gemm.winner.trial)]
        == best
        == pytest.approx(gemm.winner.latency_us, rel=1e-3)
    )
    assert [bar.name for bar in gemm.bars] == ["winner", "default", "reference"]
    assert [save.is_shown for save in gemm.history] == [False, False, True]
    assert [save.changes for save in gemm.history] == [[], ["gemm.cu changed"], ["gemm.cu changed"]]
    assert [save.trials.trials for save in gemm.history] == [60, 60, 120]
    assert gemm.knobs[:2] == ["BLOCK_M", "BLOCK_N"]
    assert gemm.facts == ["registers", "spill_bytes", "shared_bytes", "occupancy"]


def test_failures_are_counted_by_their_first_line(path: Path) -> None:
    """Every trial that is no figure is in one of them."""
    (gemm,) = surveyed(path, kernels={"p:gemm"}).sections
    outcomes = unpacked(gemm.trials)["outcome"]
    assert sum(failure.count for failure in gemm.failures) == sum(outcome != "measured" for outcome in outcomes)
    refused = next(failure for failure in gemm.failures if failure.outcome == "compile_error")
    assert refused.message.startswith("ptxas error")
    assert refused.config["BLOCK_M"] in (128, 256)


def test_configs_that_were_not_tried_are_no_failures(tmp_path: Path) -> None:
    """A job that ended early, or a daemon that died, says nothing of the configs behind."""
    path = tmp_path / "ktuned.sqlite"
    SampleStore(path).add("p:gemm", PROBLEM, 12)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE trials SET outcome = 'hung', message = 'no progress' WHERE id <= 4")
        connection.execute("UPDATE trials SET outcome = 'cancelled', message = '' WHERE id BETWEEN 5 AND 10")
        connection.execute("UPDATE trials SET outcome = 'interrupted', message = '' WHERE id > 10")
    (gemm,) = surveyed(path).sections
    assert [(failure.outcome, failure.count) for failure in gemm.failures] == [("hung", 4)]


def test_spans_lead_to_slots_and_lanes(path: Path) -> None:
    """A trial has its slot and its lane, with the times when it began there."""
    columns = unpacked(surveyed(path).sections[1].trials)
    assert set(columns["compile_place"]) == {"slot 1", "slot 2", "slot 3", "slot 4"}
    assert set(columns["lane_place"]) == {"", "cuda:0"}
    assert all(
        began <= ended + 0.1
        for began, ended, place in zip(columns["lane_began"], columns["ended"], columns["lane_place"], strict=True)
        if place
    )


def test_standings_are_the_daemons_word(path: Path) -> None:
    """Without it the state is unknown; without a winner there is none."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM winners WHERE kernel = 'p:dot'")
    dot, gemm = surveyed(
        path, standings={make_standing_key("p:gemm", PROBLEM, MODEL): Standing("stale", ["x"])}
    ).sections
    assert (dot.standing.status, gemm.standing.status) == ("untuned", "stale")
    assert surveyed(path).sections[1].standing.status == "unknown"


def test_the_winner_has_its_share_of_the_limit(tmp_path: Path) -> None:
    """Where the kernel file declares its work and the device's limits are known; the roof is for the chart."""
    store = SampleStore(tmp_path / "ktuned.sqlite")
    store.add("p:gemm", {"M": 4096, "N": 4096, "K": 4096}, 30)
    (section,) = surveyed(tmp_path / "ktuned.sqlite").sections
    assert (section.share, section.roof) == (None, None)
    store.add_peaks()
    (section,) = surveyed(tmp_path / "ktuned.sqlite").sections
    assert section.winner is not None
    assert section.share is not None
    assert section.share.of == "float16 tensor cores"
    assert section.share.share == pytest.approx(section.winner.metrics["tflops_float16"] / 790.0)
    assert section.roof is not None
    assert section.roof.tflops == {"float16": 790.0, "float32": 51.0}


def test_winners_by_other_objectives_stand_beside_the_fastest(tmp_path: Path) -> None:
    """With their figure, how much better that is than the fastest config's, and their config."""
    store = SampleStore(tmp_path / "ktuned.sqlite")
    store.add("p:gemm", {"M": 4096, "N": 4096, "K": 4096}, 30)
    store.add_winner_by("max:tflops_float16", "tflops_float16")
    (section,) = surveyed(tmp_path / "ktuned.sqlite").sections
    (other,) = section.others
    assert section.winner is not None
    assert (other.winner.objective, other.unit) == ("max:tflops_float16", "tflops_float16")
    assert other.fastest == section.winner.metrics["tflops_float16"]
    assert other.gain == pytest.approx(other.figure / other.fastest)
    assert list(other.winner.config)[:2] == ["BLOCK_M", "BLOCK_N"]


def test_a_large_store_keeps_the_fastest(path: Path) -> None:
    """Where the page has no room for all, each section has its share: the winner, the fastest, a sample of the rest."""
    dot, gemm = surveyed(path, max_trials=80).sections
    assert (gemm.trials.count, gemm.left_out, dot.trials.count) == (60, 60, 20)
    assert gemm.winner is not None
    assert gemm.winner.trial in unpacked(gemm.trials)["id"]
    whole = unpacked(surveyed(path).sections[1].trials)["latency"]
    fastest = sorted(value for value in whole if value is not None)[:30]
    kept = sorted(value for value in unpacked(gemm.trials)["latency"] if value is not None)[:30]
    assert kept == pytest.approx(fastest, rel=1e-3)


def test_damaged_details_cost_a_trial_its_facts_alone(path: Path) -> None:
    """A detail that is no JSON, or of another form, is none."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE trials SET detail = '{' WHERE id % 3 = 0")
        connection.execute("UPDATE trials SET detail = ? WHERE id % 3 = 1", [json.dumps({"facts": [1]})])
    assert [section.trials.count for section in surveyed(path).sections] == [40, 120]


def test_a_store_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    """No file, another program's, and one of an older version say so."""
    with pytest.raises(StoreError, match="cannot be opened"):
        surveyed(tmp_path / "none.sqlite")
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE t (a)")
    with pytest.raises(StoreError, match="another program"):
        surveyed(tmp_path / "other.sqlite")


def test_the_library_is_the_one_that_is_documented() -> None:
    """The vendored file has the digest in SOURCES.md, and stands beside its licences."""
    digest = hashlib.sha256((ASSETS / "echarts.min.js").read_bytes()).hexdigest()
    assert digest in (ASSETS / "SOURCES.md").read_text()
    assert "Apache License" in (ASSETS / "echarts.LICENSE").read_text()
    assert "Apache Software Foundation" in (ASSETS / "echarts.NOTICE").read_text()
    assert "Mike Bostock" in (ASSETS / "echarts.LICENSE-d3").read_text()
