"""The documents say what the code says: every table that repeats a fact is compared with it."""

import inspect
import re
from pathlib import Path

import msgspec
import pytest

from ktuned import config, kernel
from ktuned.model import PRESETS, Outcome, Status
from ktuned.spec.tensors import FILLS
from ktuned.tuning.deadlines import DEFAULT_DEADLINES

ROOT = Path(__file__).parent.parent
PLACES_OF_DOCUMENTS = ("*.md", "docs/*.md", "client/*.md", "plugins/*/*.md", "examples/*/*.md")
DOCUMENTS = sorted(path for pattern in PLACES_OF_DOCUMENTS for path in ROOT.glob(pattern))


def _table(document: str, heading: str) -> list[list[str]]:
    """Return the rows, without the header, of the first table below a heading."""
    _, _, rest = (ROOT / document).read_text().partition(f"\n{heading}\n")
    lines = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert lines, f"{document} has no table below {heading}"
    # A cell may hold an escaped bar.
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[0].splitlines()]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def _names(document: str, heading: str) -> list[str]:
    return [name for row in _table(document, heading) for name in re.findall(r"`(\w+)`", row[0])]


def test_presets() -> None:
    """The README's presets have the figures that are measured with."""
    told = {row[0].strip("`"): [float(cell) for cell in row[1:]] for row in _table("README.md", "## Presets")}
    meant = {
        preset.name: [
            float(value)
            for value in (
                preset.warmup,
                preset.repetitions,
                preset.timing_s,
                preset.finalists,
                preset.finalist_rounds,
            )
        ]
        for preset in PRESETS.values()
    }
    assert told == meant


def test_outcomes_and_statuses() -> None:
    """The README explains every outcome, and every status that a lookup may have."""
    assert _names("README.md", "## Outcomes") == [str(outcome) for outcome in Outcome]
    assert _names("README.md", "## A lookup") == [*(str(status) for status in Status), "unavailable"]


def test_arguments_of_kernel() -> None:
    """Every argument of ``kernel`` is explained, and none that it does not have."""
    parameters = inspect.signature(kernel).parameters.values()
    taken = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
    assert set(_names("docs/kernel-files.md", "## `@kernel(...)`")) == taken


def test_fills_and_deadlines() -> None:
    """Every fill is explained, and every phase has the deadline that is told."""
    assert set(_names("docs/kernel-files.md", "## Tensors")) == set(FILLS)
    told = {row[0].strip("`"): float(row[1]) for row in _table("docs/kernel-files.md", "## Deadlines")}
    assert told == dict(DEFAULT_DEADLINES)


def test_settings() -> None:
    """The README's config.toml is one that a daemon takes, and names every setting."""
    (block,) = re.findall(r"^```toml\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    told = msgspec.toml.decode(block)
    assert msgspec.toml.decode(block, type=config.File).roots
    assert set(told) == set(config.File.__struct_fields__)
    assert set(told["roots"][0]) == set(config.RootSettings.__struct_fields__)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link of a document names a file that is there."""
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


PLACES = sorted(set(re.findall(r"`(ktuned/[\w/.]+)`", (ROOT / "docs/architecture.md").read_text())))


@pytest.mark.parametrize("path", PLACES)
def test_the_tour_visits_what_exists(path: str) -> None:
    """Every place that the architecture's tour names is there."""
    assert (ROOT / path).exists()
