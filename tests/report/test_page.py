"""The report in a real browser: it draws, its controls work, nothing leaves the file, and data stays data."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

import pytest

from ktuned.protocol.noise import IMPLAUSIBLE_RATIO, NOISY_SPREAD
from ktuned.report import Standing, make_standing_key, render_fragment, render_page, survey_store
from ktuned.store import Overview
from tests.report.browser import OpenPage, make_file_url, run_chromium
from tests.report.sample_store import AXES, MODEL, SampleStore

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MAX_BYTES = 3_000_000
MADE_S = 10.0
OPENED_S = 3.0
PROBLEM: dict[str, Any] = {"M": 4096, "N": 4096, "K": 4096, "dtype": "float16"}
HOSTILE = '</script><img src=x onerror="window.owned=1"><!--<script>\'${1}`{a|b}'
TITLES = {
    "Best so far",
    "Winner, default, reference",
    "Which knobs matter",
    "Roofline",
    "Distribution of latencies",
    "Latency against each knob",
    "Pairs of knobs",
    "Any two figures",
    "Configs as lines",
    "Failures",
    "History of the winner",
    "Two saves side by side",
    "Where the time went",
    "Fastest configs",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run one browser for all tests."""
    with run_chromium() as chromium_browser:
        yield chromium_browser


@pytest.fixture(scope="module")
def report_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a report of two kernels, one of them stale."""
    home = tmp_path_factory.mktemp("report")
    store = SampleStore(home / "ktuned.sqlite")
    store.add_kernel("kernels:gemm", PROBLEM, 300, saves=3)
    store.add_kernel("kernels:softmax", {"N": 1024}, 60)
    store.add_peaks()
    store.add_winner_by("max:tflops_float16", "tflops_float16")
    standings = {
        make_standing_key("kernels:gemm", PROBLEM, "NVIDIA H100 80GB HBM3"): Standing("fresh"),
        make_standing_key("kernels:softmax", {"N": 1024}, "NVIDIA H100 80GB HBM3"): Standing(
            "stale", ["softmax.cu changed"]
        ),
    }
    with Overview(home / "ktuned.sqlite") as overview:
        document = survey_store(overview, "1.2.3", standings=standings)
    path = home / "report.html"
    path.write_text(render_page(document))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_charts_are_drawn_without_complaints_and_requests(browser: Browser, report_page: Path, scheme: str) -> None:
    with OpenPage(browser, report_page, color_scheme=scheme) as opened:
        assert opened.page.locator("tbody tr").count() == 2
        assert opened.page.locator(".badge.stale").inner_text() == "stale"
        opened.visit_section(0)
        opened.draw_all_cards()
        assert set(opened.page.locator(".card h2").all_inner_texts()) == TITLES
        inked = opened.page.evaluate(
            """() => [...document.querySelectorAll("canvas")].map((canvas) => {
                const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
                return pixels.some((value) => value > 0);
            })"""
        )
        assert len(inked) >= 16
        assert all(inked)
        assert opened.page.locator(".chip").first.inner_text().startswith("BLOCK_M=")
        assert opened.page.locator(".other").inner_text().startswith("By max:tflops_float16: ")
        assert opened.complaints == []
        assert opened.requests == [make_file_url(report_page)]


def test_the_overview_has_winning_configs_and_coverage(browser: Browser, report_page: Path) -> None:
    """A column that is the same in every row is left out. A click on ``copy`` copies and opens nothing."""
    with OpenPage(browser, report_page) as opened:
        titles = opened.page.locator("thead th").all_inner_texts()
        assert "config" in titles
        assert "device" not in titles
        row = opened.page.locator("tbody tr").first
        shown = row.inner_text()
        assert "300 of 30,720" in shown
        row.get_by_role("button", name="copy").click()
        config = json.loads(paste(opened))
        assert all(f"{knob}=" in shown for knob in config)
        assert config["BLOCK_M"] in AXES["BLOCK_M"]
        assert opened.page.evaluate("location.hash") == ""
        assert opened.complaints == []


def test_the_winner_s_config_and_command_are_copied(browser: Browser, report_page: Path) -> None:
    with OpenPage(browser, report_page) as opened:
        opened.visit_section(0)
        opened.page.get_by_role("button", name="copy command").click()
        opened.page.get_by_role("button", name="copied").wait_for()
        command = shlex.split(paste(opened))
        assert command[:5] == ["ktuned", "tune", "kernels:gemm", "-p", "M=4096,N=4096,K=4096,dtype=float16"]
        assert command[5:8] == ["--device", MODEL, "--config"]
        assert command[8].startswith("BLOCK_M=")


def test_two_saves_are_side_by_side(browser: Browser, report_page: Path) -> None:
    """Both saves can be chosen; knobs whose winning values differ are marked, and the changes in between are listed."""
    with OpenPage(browser, report_page) as opened:
        opened.visit_section(0)
        opened.draw_all_cards()
        card = opened.page.locator("section.card", has=opened.page.get_by_role("heading", name="Two saves"))
        saves = opened.page.evaluate("statesOf(state.sections[0].plain).map((save) => save.trials.best)")
        assert len(saves) == 3
        for first, second in ((1, 2), (0, 2), (2, 2)):
            card.locator("select").nth(0).select_option(str(first))
            card.locator("select").nth(1).select_option(str(second))
            left, right = saves[first], saves[second]
            differing = [knob for knob, value in left["config"].items() if right["config"][knob] != value]
            assert sorted(card.locator("tr.best td:first-child").all_inner_texts()) == sorted(differing)
            factor = f"({right['figure'] / left['figure']:.2f}×)"
            assert factor in card.locator("tbody tr").first.inner_text()
            assert card.locator(".reasons li").count() == (first != second)
        assert opened.complaints == []


def test_a_trial_shows_how_it_was_compiled(browser: Browser, tmp_path: Path) -> None:
    """A click on a config or a failure shows the compiler's line, and links to the source and to kept files."""
    path = tmp_path / "ktuned.sqlite"
    SampleStore(path).add_kernel("kernels:gemm", PROBLEM, 120)
    artifact = tmp_path / "artifacts/ab/abcd"
    (artifact / "sources").mkdir(parents=True)
    for name in ("kernel.ptx", "manifest.json", "tensors.json", "sources/gemm #1.cu"):
        (artifact / name).write_text(name)
    line = "nvcc -DNAME='<b>' -c gemm.cu"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE trials SET artifact = 'abcd' WHERE outcome = 'measured'")
        connection.execute(
            "UPDATE trials SET detail = json_set(detail, '$.compiled.facts.command', json(?))", (json.dumps([line]),)
        )
    with Overview(path) as overview:
        document = survey_store(overview, "1.0", artifacts=tmp_path / "artifacts")
    place = tmp_path / "report.html"
    place.write_text(render_page(document))
    with OpenPage(browser, place) as opened:
        opened.draw_all_cards()
        dialog = opened.page.locator("dialog[open]")
        opened.page.locator("tr.link.best").click()
        assert "winner" in dialog.inner_text()
        assert dialog.locator("pre").inner_text() == line
        links = dialog.locator("a")
        kept = [str(artifact / "kernel.ptx"), str(artifact / "sources/gemm #1.cu")]
        assert links.all_inner_texts() == ["/home/ada/kernels/tune_gemm.py:12", *kept]
        with opened.page.expect_popup() as source:
            links.last.click()
        source.value.wait_for_load_state()
        assert source.value.inner_text("body") == "sources/gemm #1.cu"
        source.value.close()
        dialog.get_by_role("button", name="close").click()
        opened.page.locator("dialog").wait_for(state="detached")
        opened.page.locator(".failures button").first.click()
        assert dialog.locator("pre").last.inner_text() == line
        # Only the kernel file: what was not compiled has left nothing.
        assert links.count() == 1
        opened.page.keyboard.press("Escape")
        opened.page.locator("dialog").wait_for(state="detached")
        assert opened.complaints == []


def test_trials_beyond_the_fastest_name_the_command_that_explains_them(browser: Browser, tmp_path: Path) -> None:
    SampleStore(tmp_path / "ktuned.sqlite").add_kernel("kernels:gemm", PROBLEM, 120)
    with OpenPage(browser, write_page(tmp_path)) as opened:
        opened.draw_all_cards()
        opened.page.get_by_role("button", name="More").click()
        row = (
            opened.page.locator("section.card", has=opened.page.get_by_role("heading", name="Fastest"))
            .locator("tr")
            .last
        )
        row.click()
        trial = row.locator("td").last.inner_text()
        assert f"ktuned results --trial {trial}" in opened.page.locator("dialog[open]").inner_text()


def paste(opened: OpenPage) -> str:
    """Return what was copied, by pasting it into a field of the page."""
    opened.page.evaluate("document.body.append(make('textarea', { id: 'field' }))")
    field = opened.page.locator("#field")
    field.focus()
    opened.page.keyboard.press("Control+V")
    return field.input_value()


def test_filters_reach_every_chart(browser: Browser, report_page: Path) -> None:
    """A value chosen in the menu, in a chart or on an axis filters the trials; ``Clear`` removes all filters."""
    with OpenPage(browser, report_page) as opened:
        opened.visit_section(0)
        opened.draw_all_cards()
        count = opened.page.locator(".filters .count")
        assert count.inner_text() == "300 of 300 trials"
        menu = opened.page.locator(".filters details", has_text="STAGES")
        menu.locator("summary").click()
        menu.locator("label", has_text="3").locator("input").check()
        shown = int(count.inner_text().split()[0])
        assert 0 < shown < 300
        configs = opened.page.evaluate(
            "[...document.querySelectorAll('.card:last-child tbody tr')].map(r => r.cells[6].innerText)"
        )
        assert set(configs) == {"3"}
        drawn = opened.page.evaluate("state.cards[0].chart.getOption().series[0].data.length")
        assert drawn <= shown
        opened.page.evaluate("() => state.filters.get(state.route).clear()")
        assert count.inner_text() == "300 of 300 trials"
        opened.page.evaluate(
            """() => state.cards.find((card) => card.chart && card.chart.getOption().parallelAxis).chart.dispatchAction(
                { type: "axisAreaSelect", parallelAxisId: "knob WARPS", intervals: [[0, 1]] })"""
        )
        assert int(count.inner_text().split()[0]) < 300
        assert opened.page.locator(".filters .set summary").inner_text() == "WARPS: 2, 4"
        opened.page.get_by_role("button", name="Clear").click()
        assert count.inner_text() == "300 of 300 trials"
        assert opened.complaints == []


def test_no_axis_repeats_a_label(browser: Browser, report_page: Path) -> None:
    """The same holds for an axis with a single value."""
    with OpenPage(browser, report_page) as opened:
        opened.visit_section(1)
        opened.draw_all_cards()
        labels = opened.page.evaluate(
            """state.cards.flatMap(card => [card, ...(card.parts || [])]).filter(card => card.chart).flatMap(card =>
                ["xAxis", "yAxis"].flatMap(kind => card.chart.getModel().queryComponents({ mainType: kind }))
                    .map(one => one.axis.getViewLabels().map(label => label.formattedLabel)))"""
        )
    assert len(labels) > 10
    assert [found for found in labels if len(set(found)) < len(found)] == []


def test_hovering_explains_a_point(browser: Browser, report_page: Path) -> None:
    """Hovering over an improvement shows the trial's latency and config."""
    with OpenPage(browser, report_page) as opened:
        opened.visit_section(0)
        x, y = opened.page.evaluate(
            """() => {
                const { chart, box } = state.cards[0];
                const step = chart.getOption().series[1].data.at(-2);
                const [x, y] = chart.convertToPixel({ seriesIndex: 1 }, step);
                const place = box.getBoundingClientRect();
                return [place.x + x, place.y + y];
            }"""
        )
        opened.page.mouse.move(x - 40, y - 40)
        opened.page.mouse.move(x, y, steps=4)
        tip = opened.page.locator(".tip").first
        tip.wait_for(state="visible")
        text = tip.inner_text()
        assert "winner" in text
        assert "BLOCK_M" in text
        assert re.search(r"\d µs", text)


def test_all_charts_are_printed_in_light_colours(browser: Browser, report_page: Path) -> None:
    """The screen is unchanged afterwards."""
    with OpenPage(browser, report_page, color_scheme="dark") as opened:
        opened.visit_section(0)
        paper = opened.page.pdf(format="A4")
        assert paper.count(b"/Type /Page\n") >= 3
        assert opened.page.evaluate("document.documentElement.dataset.theme") is None
        assert opened.complaints == []


def test_names_and_messages_are_data(browser: Browser, tmp_path: Path) -> None:
    """Names, values and messages are shown as text and run nothing."""
    store = SampleStore(tmp_path / "ktuned.sqlite")
    axes: dict[str, list[Any]] = {
        HOSTILE: [HOSTILE, "plain"],
        "__proto__": ["constructor", "toString"],
        "C": list(range(30)),
    }
    store.add_kernel(
        f"{HOSTILE}:{HOSTILE}", {HOSTILE: HOSTILE}, 80, device=HOSTILE, messages=[HOSTILE], axes=axes, default=False
    )
    with Overview(tmp_path / "ktuned.sqlite") as overview:
        document = survey_store(overview, HOSTILE)
    place = tmp_path / "report.html"
    text = render_page(document)
    place.write_text(text)
    assert "<img" not in text
    with OpenPage(browser, place) as opened:
        opened.draw_all_cards()
        assert HOSTILE in opened.page.locator("h1").inner_text()
        assert opened.page.locator("img").count() == 0
        assert opened.page.evaluate("window.owned") is None
        assert opened.complaints == []
        assert opened.requests == [make_file_url(place)]
        # Even a tag that got into the page runs nothing.
        opened.page.evaluate("text => { document.body.insertAdjacentHTML('beforeend', text); }", HOSTILE)
        opened.page.wait_for_timeout(100)
        assert opened.page.evaluate("window.owned") is None


def test_the_report_is_one_frame_in_a_notebook(browser: Browser, report_page: Path, tmp_path: Path) -> None:
    """The frame cannot reach the notebook's page."""
    with Overview(report_page.parent / "ktuned.sqlite") as overview:
        document = survey_store(overview, "1.2.3", kernels={"kernels:softmax"})
    place = tmp_path / "notebook.html"
    place.write_text(f"<!doctype html><title>notebook</title><body>{render_fragment(document)}</body>")
    found = browser.new_page()
    try:
        found.goto(make_file_url(place))
        found.frame_locator("iframe").locator(".card canvas").first.wait_for()
        assert found.evaluate("document.querySelector('iframe').contentDocument") is None
    finally:
        found.close()


def test_a_report_of_100000_trials_is_small_and_opens_soon(browser: Browser, tmp_path: Path) -> None:
    store = SampleStore(tmp_path / "ktuned.sqlite")
    store.add_kernel("kernels:gemm", PROBLEM, 2_000)
    store.multiply_trials(50)
    began = process_time()
    with Overview(tmp_path / "ktuned.sqlite") as overview:
        document = survey_store(overview, "1.2.3")
    content = render_page(document).encode()
    # CPU time, and the browser's below: other tests run beside this one.
    assert process_time() - began < MADE_S
    assert document.sections[0].trials.count == 100_000
    assert len(content) <= MAX_BYTES
    place = tmp_path / "report.html"
    place.write_bytes(content)
    with OpenPage(browser, place) as opened:
        assert 0.05 < opened.cpu_s < OPENED_S
        assert opened.complaints == []


LONG_AXES: dict[str, list[Any]] = {
    f"QUITE_LONG_KNOB_{place}": ["persistent_cooperative", "persistent_pingpong", 3] for place in range(18)
}


@pytest.mark.parametrize("width", [1440, 1010, 700, 390])
def test_no_label_overlaps_another_or_is_cut_off(browser: Browser, tmp_path: Path, width: int) -> None:
    """Cases: close lines, long or many names, narrow windows."""
    store = SampleStore(tmp_path / "ktuned.sqlite")
    store.add_kernel("kernels:close", PROBLEM, 90, saves=3, default_times=1.01, reference_times=1.03)
    store.add_kernel("kernels:long", {"N": 3}, 120, axes=LONG_AXES, default=False)
    with OpenPage(browser, write_page(tmp_path)) as opened:
        opened.page.set_viewport_size({"width": width, "height": 1000})
        for section in range(2):
            opened.visit_section(section)
            opened.draw_all_cards()
            assert opened.find_clashing_labels() == []


@pytest.mark.parametrize("width", [1440, 390])
def test_names_of_knobs_are_whole(browser: Browser, tmp_path: Path, width: int) -> None:
    """On a phone the chart of configs as lines is scrolled within its card."""
    SampleStore(tmp_path / "ktuned.sqlite").add_kernel("kernels:long", {"N": 3}, 120, axes=LONG_AXES, default=False)
    with OpenPage(browser, write_page(tmp_path)) as opened:
        opened.page.set_viewport_size({"width": width, "height": 844})
        opened.draw_all_cards()
        drawn = opened.page.evaluate(
            """() => state.cards.find((card) => card.chart && card.chart.getOption().parallelAxis)
                .chart.getZr().storage.getDisplayList(true).filter((one) => one.type === "tspan")
                .map((one) => one.style.text)"""
        )
        assert set(LONG_AXES) <= set(drawn)
        assert opened.page.evaluate("document.documentElement.scrollWidth") == width


def test_figures_below_a_microsecond_keep_their_digits(browser: Browser, tmp_path: Path) -> None:
    """A latency of 0.37 µs has four digits, its spread two."""
    SampleStore(tmp_path / "ktuned.sqlite").add_kernel("kernels:few", {"N": 1}, 5)
    with OpenPage(browser, write_page(tmp_path)) as opened:
        texts = opened.page.evaluate("[latency(0.37331), latency(0.01962, 2), latency(7.483), latency(1234.56)]")
    assert texts == ["0.3733 µs", "0.020 µs", "7.483 µs", "1.235 ms"]


def test_a_page_of_few_configs_has_the_table_and_no_charts_of_trials(browser: Browser, tmp_path: Path) -> None:
    """Bars and the table show all of five configs."""
    SampleStore(tmp_path / "ktuned.sqlite").add_kernel("kernels:few", {"N": 1}, 5)
    with OpenPage(browser, write_page(tmp_path)) as opened:
        opened.draw_all_cards()
        titles = set(opened.page.locator("section.card h2").all_inner_texts())
        assert (
            {"Winner, default, reference", "Fastest configs"}
            <= titles
            <= {
                "Winner, default, reference",
                "Failures",
                "Where the time went",
                "Fastest configs",
            }
        )
        assert opened.page.locator(".filters").count() == 0
        assert opened.complaints == []


def test_trials_are_named_by_their_ids(browser: Browser, tmp_path: Path) -> None:
    """The table shows the ids that ``--trial`` takes."""
    path = tmp_path / "ktuned.sqlite"
    store = SampleStore(path)
    store.add_kernel("kernels:first", {"N": 1}, 40)
    store.add_kernel("kernels:second", {"N": 1}, 5)
    with closing(sqlite3.connect(path)) as connection:
        ids = {row[0] for row in connection.execute("SELECT id FROM trials WHERE id > 40")}
    with OpenPage(browser, write_page(tmp_path)) as opened:
        opened.page.locator("tbody tr", has_text="second").first.click()
        opened.draw_all_cards()
        table = opened.page.locator("section.card", has=opened.page.get_by_role("heading", name="Fastest configs"))
        shown = {int(row) for row in table.locator("tbody tr td:last-child").all_inner_texts()}
        assert shown
        assert shown <= ids


def test_a_kernel_without_a_figure_shows_its_failures_alone(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "ktuned.sqlite"
    SampleStore(path).add_kernel("kernels:hopeless", {"N": 1}, 8)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM winners")
        connection.execute("UPDATE trials SET outcome = 'hung', latency_us = NULL")
    with OpenPage(browser, write_page(tmp_path)) as opened:
        opened.draw_all_cards()
        titles = opened.page.locator("section.card h2").all_inner_texts()
        assert "Failures" in titles
        assert "Fastest configs" not in titles
        assert opened.page.get_by_text("passes the filters").count() == 0
        assert opened.complaints == []


def test_a_knob_measured_with_one_value_is_in_no_chart(browser: Browser, tmp_path: Path) -> None:
    """Values that always failed appear among the failures only."""
    path = tmp_path / "ktuned.sqlite"
    SampleStore(path).add_kernel("kernels:gemm", {"N": 1}, 120)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            """UPDATE trials SET config = json_set(config, '$.SWIZZLE', 1), outcome = 'measured',
            latency_us = coalesce(latency_us, 900.0) WHERE id > 1"""
        )
        connection.execute(
            "UPDATE trials SET outcome = 'crashed', config = json_set(config, '$.SWIZZLE', 8) WHERE id = 2"
        )
    with OpenPage(browser, write_page(tmp_path)) as opened:
        opened.draw_all_cards()
        assert "SWIZZLE" in opened.page.locator(".filters").inner_text()
        assert "SWIZZLE" not in opened.page.locator(".mini h3").all_inner_texts()
        axes = opened.page.evaluate(
            """state.cards.map((card) => card.chart && card.chart.getOption().parallelAxis).find(Boolean)
                .map((axis) => axis.name)"""
        )
        assert "WARPS" in axes
        assert "SWIZZLE" not in axes


def test_without_an_effect_of_knobs_there_is_a_sentence(browser: Browser, tmp_path: Path) -> None:
    """A chart of their importance would mislead."""
    store = SampleStore(tmp_path / "ktuned.sqlite")
    store.add_kernel("kernels:noise", {"N": 3}, 120, axes=LONG_AXES, default=False)
    with OpenPage(browser, write_page(tmp_path)) as opened:
        opened.draw_all_cards()
        opened.page.locator("#unexplained").wait_for(state="visible")
        assert opened.page.locator("#unexplained").inner_text().startswith("Which knobs matter is unclear: ")
        assert not opened.page.get_by_role("heading", name="Which knobs matter").is_visible()
        assert opened.complaints == []


def test_without_a_device_limit_there_is_no_roofline(browser: Browser, tmp_path: Path) -> None:
    """A sentence has the command that measures the limits."""
    SampleStore(tmp_path / "ktuned.sqlite").add_kernel("kernels:gemm", PROBLEM, 60)
    with OpenPage(browser, write_page(tmp_path)) as opened:
        opened.draw_all_cards()
        assert opened.page.get_by_role("heading", name="Roofline").count() == 0
        assert "`ktuned doctor --peaks` measures the device's limits" in opened.page.locator(".insights").inner_text()


def test_a_winner_at_the_end_of_a_knob_is_reported(browser: Browser, tmp_path: Path) -> None:
    """Only if the latency still falls at the end of the knob."""
    path = tmp_path / "ktuned.sqlite"
    SampleStore(path).add_kernel("kernels:gemm", {"N": 1}, 60, axes={"TILE": list(range(1, 61))}, default=False)
    insights = []
    falling, turning = "1000.0 / json_extract(config, '$.TILE')", "100.0 + abs(50 - json_extract(config, '$.TILE'))"
    for latency, most in ((falling, 60), (turning, 60), (falling, 61)):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"UPDATE trials SET outcome = 'measured', latency_us = {latency}")
            axis = json.dumps(list(range(1, most + 1)))
            connection.execute("UPDATE kernels SET info = json_set(info, '$.space.axes.TILE', json(?))", (axis,))
            connection.execute("UPDATE winners SET trial_id = (SELECT id FROM trials ORDER BY latency_us LIMIT 1)")
        with OpenPage(browser, write_page(tmp_path)) as opened:
            insights.append(opened.page.locator(".insights").inner_text())
    assert "TILE=60 is the largest value of its knob" in insights[0]
    assert "of its knob" not in insights[1]
    # A value of the space beyond it was not tried.
    assert "of its knob" not in insights[2]


def test_a_reference_that_took_too_long_has_a_badge(browser: Browser, tmp_path: Path) -> None:
    """The rule is that of results and lookups."""
    store = SampleStore(tmp_path / "ktuned.sqlite")
    store.add_kernel("kernels:likely", {"N": 1}, 5, reference_times=20.0)
    store.add_kernel("kernels:unlikely", {"N": 1}, 5, reference_times=1488.0)
    with OpenPage(browser, write_page(tmp_path)) as opened:
        assert opened.page.evaluate("[NOISY_SPREAD, IMPLAUSIBLE_RATIO]") == [NOISY_SPREAD, IMPLAUSIBLE_RATIO]
        rows = opened.page.locator("tbody tr")
        assert [rows.nth(place).locator(".badge.noisy").count() for place in range(2)] == [0, 1]
        for section, badges in enumerate((0, 1)):
            opened.visit_section(section)
            assert opened.page.locator(".tiles .badge.noisy").count() == badges
            sentence = "the reference took 1,488 times the winner's time"
            assert (sentence in opened.page.locator(".insights").inner_text()) is bool(badges)
        assert opened.complaints == []


def write_page(directory: Path) -> Path:
    """Write the report of a directory's store."""
    with Overview(directory / "ktuned.sqlite") as overview:
        path = directory / "report.html"
        path.write_text(render_page(survey_store(overview, "1.0")))
    return path
