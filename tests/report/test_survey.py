"""The report's document contains what the store holds."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from math import prod
from pathlib import Path

import pytest

from ktuned.model import StoreError
from ktuned.report import Document, Standing, make_standing_key, survey_store
from ktuned.store import Overview
from tests.report.sample_store import AXES, MODEL, SampleStore
from tests.report.test_columns import unpack_columns

ASSETS = Path(__file__).parents[2] / "ktuned/report/assets"
PROBLEM = {"M": 64, "N": 32}


def make_document(path: Path, **options: object) -> Document:
    """Return the document of a store."""
    with Overview(path) as overview:
        return survey_store(overview, "1.2.3", **options)  # type: ignore[arg-type]


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """Return the path of a store with two kernels, the first with three states of its source."""
    path = tmp_path / "ktuned.sqlite"
    store = SampleStore(path)
    store.add_kernel("p:gemm", PROBLEM, 120, saves=3)
    store.add_kernel("p:dot", {"N": 8}, 40)
    return path


def test_coverage_counts_configs_that_were_tried(store_path: Path) -> None:
    """A cancelled config was not tried; constraints make the size of the space an upper bound."""
    with closing(sqlite3.connect(store_path)) as connection, connection:
        connection.execute("UPDATE trials SET outcome = 'cancelled' WHERE id IN (SELECT max(id) FROM trials)")
        connection.execute("UPDATE kernels SET info = json_set(info, '$.space.constrained', json('true'))")
    dot, gemm = make_document(store_path).sections
    assert (dot.tried, gemm.tried) == (39, 120)
    assert (dot.space_size, dot.is_constrained) == (prod(map(len, AXES.values())), True)


def test_a_section_has_the_trials_of_the_winner_s_context(store_path: Path) -> None:
    """It has the winner, the bars of the newest job and the history of all states."""
    dot, gemm = make_document(store_path).sections
    assert (dot.kernel, gemm.kernel, gemm.problem, gemm.device) == ("p:dot", "p:gemm", PROBLEM, MODEL)
    columns = unpack_columns(gemm.trials)
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


def test_failures_are_counted_by_their_first_line(store_path: Path) -> None:
    """Every trial without a figure is counted once."""
    (gemm,) = make_document(store_path, kernels={"p:gemm"}).sections
    outcomes = unpack_columns(gemm.trials)["outcome"]
    assert sum(failure.count for failure in gemm.failures) == sum(outcome != "measured" for outcome in outcomes)
    refused = next(failure for failure in gemm.failures if failure.outcome == "compile_error")
    assert refused.message.startswith("ptxas error")
    assert refused.config["BLOCK_M"] in (128, 256)


def test_untried_configs_are_no_failures(tmp_path: Path) -> None:
    """A job that ended early, or a killed daemon, leaves untried configs; a busy machine is no failure either."""
    path = tmp_path / "ktuned.sqlite"
    SampleStore(path).add_kernel("p:gemm", PROBLEM, 12)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE trials SET outcome = 'hung', message = 'no progress' WHERE id <= 4")
        connection.execute("UPDATE trials SET outcome = 'cancelled', message = '' WHERE id BETWEEN 5 AND 10")
        connection.execute("UPDATE trials SET outcome = 'interrupted', message = '' WHERE id = 11")
        connection.execute("UPDATE trials SET outcome = 'contended', message = '' WHERE id > 11")
    (gemm,) = make_document(path).sections
    assert [(failure.outcome, failure.count) for failure in gemm.failures] == [("hung", 4)]


def test_a_trial_has_its_slot_and_lane_with_times(store_path: Path) -> None:
    columns = unpack_columns(make_document(store_path).sections[1].trials)
    assert set(columns["compile_place"]) == {"slot 1", "slot 2", "slot 3", "slot 4"}
    assert set(columns["lane_place"]) == {"", "cuda:0"}
    assert all(
        began <= ended + 0.1
        for began, ended, lane in zip(columns["lane_began"], columns["ended"], columns["lane_place"], strict=True)
        if lane
    )


def test_the_state_of_a_winner_is_the_daemon_s(store_path: Path) -> None:
    """Without the daemon the state is unknown."""
    with closing(sqlite3.connect(store_path)) as connection, connection:
        connection.execute("DELETE FROM winners WHERE kernel = 'p:dot'")
    dot, gemm = make_document(
        store_path, standings={make_standing_key("p:gemm", PROBLEM, MODEL): Standing("stale", ["x"])}
    ).sections
    assert (dot.standing.status, gemm.standing.status) == ("untuned", "stale")
    assert make_document(store_path).sections[1].standing.status == "unknown"


def test_a_failed_tuning_is_not_untuned(store_path: Path) -> None:
    """The reason is the newest job's; a trial of named configs does not count."""
    with closing(sqlite3.connect(store_path)) as connection, connection:
        connection.execute("DELETE FROM winners")
        connection.execute("UPDATE jobs SET state = 'failed', message = 'no config works' WHERE kernel = 'p:dot'")
    dot, gemm = make_document(store_path).sections
    assert dot.standing == Standing("failed", ["no config works"])
    assert gemm.standing == Standing("untuned")


def test_the_winner_has_its_share_of_the_limit(tmp_path: Path) -> None:
    """The kernel file declares the work, and the device's limits are measured."""
    store = SampleStore(tmp_path / "ktuned.sqlite")
    store.add_kernel("p:gemm", {"M": 4096, "N": 4096, "K": 4096}, 30)
    (section,) = make_document(tmp_path / "ktuned.sqlite").sections
    assert (section.share, section.roof) == (None, None)
    store.add_peaks()
    (section,) = make_document(tmp_path / "ktuned.sqlite").sections
    assert section.winner is not None
    assert section.share is not None
    assert section.share.of == "float16 tensor cores"
    assert section.share.share == pytest.approx(section.winner.metrics["tflops_float16"] / 790.0)
    assert section.roof is not None
    assert section.roof.tflops == {"float16": 790.0, "float32": 51.0}


def test_winners_by_other_objectives_stand_beside_the_fastest(tmp_path: Path) -> None:
    """They have their figure, its gain over the fastest config's, and their config."""
    store = SampleStore(tmp_path / "ktuned.sqlite")
    store.add_kernel("p:gemm", {"M": 4096, "N": 4096, "K": 4096}, 30)
    store.add_winner_by("max:tflops_float16", "tflops_float16")
    (section,) = make_document(tmp_path / "ktuned.sqlite").sections
    (other,) = section.others
    assert section.winner is not None
    assert (other.winner.objective, other.unit) == ("max:tflops_float16", "tflops_float16")
    assert other.fastest == section.winner.metrics["tflops_float16"]
    assert other.gain == pytest.approx(other.figure / other.fastest)
    assert list(other.winner.config)[:2] == ["BLOCK_M", "BLOCK_N"]


def test_a_large_store_keeps_the_fastest(store_path: Path) -> None:
    """If the page is too small for all trials, each section has the winner, the fastest, and a sample of the rest."""
    dot, gemm = make_document(store_path, max_trials=80).sections
    assert (gemm.trials.count, gemm.left_out, dot.trials.count) == (60, 60, 20)
    assert gemm.winner is not None
    assert gemm.winner.trial in unpack_columns(gemm.trials)["id"]
    all_latencies = unpack_columns(make_document(store_path).sections[1].trials)["latency"]
    fastest = sorted(value for value in all_latencies if value is not None)[:30]
    kept = sorted(value for value in unpack_columns(gemm.trials)["latency"] if value is not None)[:30]
    assert kept == pytest.approx(fastest, rel=1e-3)


def test_a_damaged_detail_loses_a_trial_s_facts_alone(store_path: Path) -> None:
    with closing(sqlite3.connect(store_path)) as connection, connection:
        connection.execute("UPDATE trials SET detail = '{' WHERE id % 3 = 0")
        connection.execute("UPDATE trials SET detail = ? WHERE id % 3 = 1", [json.dumps({"facts": [1]})])
    assert [section.trials.count for section in make_document(store_path).sections] == [40, 120]


def test_an_unreadable_store_is_one_line(tmp_path: Path) -> None:
    """Cases: no file, another program's file, an older version."""
    with pytest.raises(StoreError, match="cannot be opened"):
        make_document(tmp_path / "none.sqlite")
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE t (a)")
    with pytest.raises(StoreError, match="another program"):
        make_document(tmp_path / "other.sqlite")


def test_the_vendored_library_has_its_documented_digest() -> None:
    """Its licences are beside it."""
    digest = hashlib.sha256((ASSETS / "echarts.min.js").read_bytes()).hexdigest()
    assert digest in (ASSETS / "SOURCES.md").read_text()
    assert "Apache License" in (ASSETS / "echarts.LICENSE").read_text()
    assert "Apache Software Foundation" in (ASSETS / "echarts.NOTICE").read_text()
    assert "Mike Bostock" in (ASSETS / "echarts.LICENSE-d3").read_text()
