"""A headless Chromium for tests of the report; it records console messages and network requests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_MS = 30_000
"""On a machine with other work; each of these takes some tenths of a second."""

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def run_chromium() -> Iterator[Browser]:
    """Run a browser, or skip the test with the line that installs it."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("Chromium is missing: apt-get install chromium")
    api: Any = pytest.importorskip("playwright.sync_api", reason="Playwright is missing: pip install playwright")
    with api.sync_playwright() as driver:
        # Chromium's own sandbox needs user namespaces, which root in a container lacks; the pages are ours.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


class OpenPage:
    """A drawn page; ``complaints`` holds console messages and errors, ``requests`` what left the file."""

    def __init__(self, browser: Browser, path: Path, **options: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page: Page = browser.new_page(viewport={"width": 1440, "height": 1000}, **options)
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self._clock = self.page.context.new_cdp_session(self.page)
        self._clock.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.page.goto(make_file_url(path))
        self.page.wait_for_selector("html[data-ready]")

    def __enter__(self) -> OpenPage:
        return self

    def __exit__(self, *error: object) -> None:
        self.page.close()

    @property
    def cpu_s(self) -> float:
        """Return the CPU time in s of the page's main thread."""
        metrics = self._clock.send("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))

    def visit_section(self, section: int) -> None:
        self.page.evaluate("n => { location.hash = encodeURIComponent(state.sections[n].id); }", section)
        self.page.wait_for_selector(".grid")

    def draw_all_cards(self) -> None:
        """Draw every card of a problem's page, as if the reader had scrolled to the end."""
        self.page.wait_for_selector(".grid")
        self.page.evaluate("() => { for (const card of state.cards) if (!card.isSeen) card.show(); }")
        self.page.wait_for_function(
            "() => state.cards.every(card => card.body || card.chart || card.box.querySelector('.empty'))"
        )

    def find_clashing_labels(self) -> list[str]:
        """Return the labels of all charts that overlap others or are cut off."""
        labels: list[str] = self.page.evaluate(_CLASHES)
        return labels


_CLASHES = r"""() => {
    const found = new Set();
    const isText = (one) => one.type === "tspan" && !one.invisible && (one.style.text || "").trim();
    for (const card of state.cards.flatMap((one) => [one, ...(one.parts || [])]).filter((one) => one.chart)) {
        const [width, height] = [card.chart.getWidth(), card.chart.getHeight()];
        const title = card.element.querySelector("h2, h3").innerText;
        const texts = card.chart.getZr().storage.getDisplayList(true).filter(isText).map((one) => {
            const box = one.getBoundingRect().clone();
            if (one.transform) box.applyTransform(one.transform);
            // A line is as high as its letters, whatever the font says of its own height.
            const isUpright = box.height <= box.width || one.style.text.length < 4;
            const size = isUpright ? parseFloat(one.style.font.match(/([\d.]+)px/)[1]) * 0.9 : box.height;
            const top = box.y + (box.height - size) / 2;
            return { text: one.style.text, left: box.x, right: box.x + box.width, top, bottom: top + size };
        });
        texts.forEach((a, i) => {
            const isCut = a.left < -1 || a.top < -1 || a.right > width + 1 || a.bottom > height + 1;
            if (isCut) found.add(`${title}: ${a.text} is cut off`);
            for (const b of texts.slice(i + 1)) {
                const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                if (across > 1 && down > 2) found.add(`${title}: ${a.text} over ${b.text}`);
            }
        });
    }
    return [...found];
}"""


def make_file_url(path: Path) -> str:
    return path.resolve().as_uri()
