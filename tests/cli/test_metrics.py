"""OpenMetrics: every line is one that the specification allows, and the figures are the status's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import strategies as st

from ktuned.cli.metrics import render_metrics
from ktuned.protocol import STATUS
from tests.e2e.harness import Daemon, kernel_text

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABELS = re.compile(r'(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)="(?P<value>(?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,|$)')
SAMPLE = re.compile(rf"(?P<name>{NAME})(?:\{{(?P<labels>.*)\}})? (?P<value>-?[0-9.]+(?:e[+-]?[0-9]+)?)")
SUFFIX = {"gauge": "", "counter": "_total", "info": "_info"}
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parse(text: str) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """Return each family's samples, after every rule of the format that the text could break."""
    assert text.endswith("# EOF\n")
    families: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    name = kind = ""
    for line in text.removesuffix("# EOF\n").splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert re.fullmatch(NAME, name)
            assert name not in families, "a family's lines stand together"
            families[name] = {}
        elif line.startswith("# UNIT "):
            _, _, family, unit = line.split(" ")
            assert family == name
            assert name.endswith(f"_{unit}")
        elif line.startswith("# HELP "):
            assert line.split(" ")[2] == name
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            assert sample["name"] == name + SUFFIX[kind]
            labels = sample["labels"] or ""
            found = list(LABELS.finditer(labels))
            assert "".join(one[0] for one in found) == labels, line
            key = frozenset(
                (one["name"], re.sub(r"\\.", lambda escape: UNESCAPED[escape[0]], one["value"])) for one in found
            )
            assert len(key) == len(found)
            assert key not in families[name], "a sample is there once"
            assert kind != "counter" or float(sample["value"]) >= 0
            families[name][key] = float(sample["value"])
    assert all(families.values())
    return families


def test_a_daemons_metrics(tmp_path: Path) -> None:
    """`ktuned status --openmetrics` reports what a tuning did: trials, lookups, lanes, queues, the store."""
    with Daemon(tmp_path) as daemon:
        daemon.kernel_file(kernel_text("space(us=[50.0, 60.0], tag=['a'])"))
        daemon.tune(path=str(tmp_path / "project"))
        daemon.client.lookup("it", {"n": 64})
        ran = daemon.ktuned("status", "--openmetrics")
        status = daemon.client.call("status")
    assert ran.returncode == 0, ran.stderr
    families = parse(ran.stdout)
    one = frozenset[tuple[str, str]]()
    assert families["ktuned_trials"][one] == 2
    assert families["ktuned_lookups"][one] == 1
    assert families["ktuned_store_rows"][frozenset({("table", "winners")})] == 1
    assert frozenset({("channel", "writer")}) in families["ktuned_channel_used"]
    assert families["ktuned_build"][frozenset({("version", status["version"]), ("protocol", "1")})] == 1
    assert set(families["ktuned_lane_sick"].values()) == {0.0}
    assert set(status["rates"]) == set(status["totals"]) == {"requests", "lookups", "trials"}
    assert status["rates"]["trials"] > 0
    assert set(status["caches"]) == {"answers", "shortcuts", "winners", "admitted"}


TEXT = st.text(st.characters(exclude_categories=["Cs", "Zl", "Zp", "Cc"], include_characters='\n"\\'), max_size=20)
LANES = st.lists(
    st.fixed_dictionaries({"device": TEXT, "model": TEXT, "state": TEXT}),
    max_size=3,
    unique_by=lambda lane: (lane["device"], lane["model"]),
)


@hypothesis.given(LANES, st.dictionaries(TEXT, st.fixed_dictionaries({"used": st.integers(0, 9)}), max_size=3))
def test_whatever_names_hold_is_escaped(lanes: list[dict[str, Any]], channels: dict[str, Any]) -> None:
    """Quotes, backslashes and line ends of a model's name break no line, and come back as they were."""
    families = parse(render_metrics(STATUS.read_answer({"version": '1"\n\\', "lanes": lanes, "channels": channels})))
    told = {frozenset({("device", lane["device"]), ("model", lane["model"])}) for lane in lanes}
    assert set(families.get("ktuned_lane_busy", {})) == told
    assert set(families.get("ktuned_channel_used", {})) == {frozenset({("channel", name)}) for name in channels}


def test_another_versions_status_is_taken() -> None:
    """What a daemon leaves out has no samples, and nothing fails."""
    theirs = {"version": "0.0.1", "protocol": 9, "uptime_s": "long"}
    assert parse(render_metrics(STATUS.read_answer(theirs))) == {
        "ktuned_build": {frozenset({("version", "0.0.1"), ("protocol", "9")}): 1.0}
    }
    assert set(parse(render_metrics(STATUS.read_answer({"uptime_s": 1.5})))) == {
        "ktuned_build",
        "ktuned_uptime_seconds",
    }
