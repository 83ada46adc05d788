"""Imports: which winners of a document are accepted, and when the space's own code is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ktuned.catalog.foreign_names import ForeignNames
from ktuned.ipc.places import make_relative
from ktuned.model.errors import UsageError
from ktuned.model.kernel import KernelInfo
from ktuned.model.objective import LATENCY, minimize
from ktuned.model.trace import Observation
from ktuned.protocol import ExportParams, ImportedWinner, ImportParams
from ktuned.serve.exchange import WinnerExchange
from ktuned_client.winners import check_document, render_document
from tests.daemon_parts import ALL_ROUNDS, Parts, assemble_daemon, make_kernel_text

BY_ENERGY = minimize("energy")

pytestmark = pytest.mark.anyio


def make_document(*figures: tuple[float, float]) -> dict[str, Any]:
    """Return a document with winners for ``n = 64``, measured elsewhere, from (``us`` of the config, latency) pairs."""
    winners = [
        {
            "problem": {"n": 64},
            "config": {"us": us},
            "latency_us": latency_us,
            "spread_us": 0.1,
            "decided": 1.0,
            "digest": "d",
            "toolchain": "t",
            "device_fingerprint": "f",
            "measuring_version": 1,
            "artifact": None,
        }
        for us, latency_us in figures
    ]
    shared = {"kernel": "project:it", "device": "Fake CPU", "default": None, "specialize": None, "winners": winners}
    return {"ktuned_winners": 1, "bucket": {}, "names": {}, **shared}


def make_methods(parts: Parts) -> WinnerExchange:
    """Return the methods for exchange over a daemon's parts."""

    async def inspect_kernel(name: str) -> None:
        await parts.inspect_file()

    return WinnerExchange(
        known=parts.daemon.known,
        foreign_names=ForeignNames(parts.catalog, parts.inspector, parts.daemon.traces),
        repetition=parts.daemon.repetition,
        inspect=inspect_kernel,
        publish=parts.daemon.router.publish_event,
    )


async def test_constraint_is_asked_before_a_winner_is_taken(parts: Parts) -> None:
    """A config that ``where`` forbids is refused; a worker evaluates the constraint."""
    await parts.inspect_file(make_kernel_text(configs="us=[10.0, 20.0], where=lambda p, c: c.us > 10.0"))
    params = ImportParams(document=make_document((10.0, 1.0), (20.0, 2.0), (30.0, 3.0)), dry_run=True)
    answer = await make_methods(parts).handle_import(params, None)  # type: ignore[arg-type]
    assert [winner.taken for winner in answer.winners] == [False, True, False]
    refused = "refused: the kernel's space has no such config"
    assert [winner.reason for winner in answer.winners][::2] == [refused, refused]
    assert answer.winners[1].reason.startswith("there was none; ")
    assert "toolchain was t, is" in answer.winners[1].reason


async def test_what_an_import_decides_is_listed_in_the_declared_order(parts: Parts) -> None:
    """The document sorts its keys; the answer has those of problems and configs in the declared order."""
    text = make_kernel_text(configs="us=[10.0], grade=[1]", problems="[dict(n=64, m=2, k=3)]")
    await parts.inspect_file(text.replace("Build(**c)", "Build(us=c.us)"))
    offered = make_document((10.0, 1.0))
    (winner,) = offered["winners"]
    winner.update(problem={"k": 3, "m": 2, "n": 64}, config={"grade": 1, "us": 10.0})
    answer = await make_methods(parts).handle_import(ImportParams(document=offered, dry_run=True), None)  # type: ignore[arg-type]
    (decided,) = answer.winners
    assert (list(decided.problem), list(decided.config)) == (["n", "m", "k"], ["us", "grade"])


async def test_a_winner_outside_the_space_is_replaced(parts: Parts) -> None:
    """However good its figure is."""
    kernel = await parts.inspect_file(make_kernel_text(configs="us=[10.0, 20.0]"))
    await parts.record_measurements(kernel, {10.0: 0.5}, rounds=ALL_ROUNDS)
    params = ImportParams(document=make_document((20.0, 2.0)), dry_run=True)
    (before,) = (await make_methods(parts).handle_import(params, None)).winners  # type: ignore[arg-type]
    await parts.inspect_file(make_kernel_text(configs="us=[20.0]"))
    (after,) = (await make_methods(parts).handle_import(params, None)).winners  # type: ignore[arg-type]
    assert (before.taken, after.taken) == (False, True)


async def learn_names(parts: Parts, *names: str) -> KernelInfo:
    """Learn names for the kernel, as compiling does, and return the kernel."""
    kernel = await parts.inspect_file(make_kernel_text())
    observations = await parts.inspector.observe_names(
        kernel, [Observation(name, "", is_source=True) for name in names]
    )
    below = [
        replace(observation, places=tuple(make_relative(place, str(parts.project)) for place in observation.places))
        for observation in observations
    ]
    await parts.daemon.traces.learn_names(kernel, below)
    return parts.catalog.resolve_kernel("it")


async def export_elsewhere(directory: Path, header: str) -> dict[str, Any]:
    """Return the export of another machine, whose winner was compiled with one header after searching another."""
    async with assemble_daemon(directory) as parts:
        parts.write_file(header, "cfg.h")
        kernel = await learn_names(parts, "cfg.h", "first/cfg.h")
        await parts.record_measurements(kernel, {50.0: 1.0}, rounds=ALL_ROUNDS)
        params = ExportParams(kernel="it", device="Fake CPU")
        answer = await make_methods(parts).handle_export(params, None)  # type: ignore[arg-type]
    document: dict[str, Any] = msgspec.to_builtins(answer.document)
    return document


async def import_document(parts: Parts, document: dict[str, Any], *, dry_run: bool = False) -> ImportedWinner:
    """Import a document and return the verdict on its winner."""
    params = ImportParams(document=document, dry_run=dry_run)
    (verdict,) = (await make_methods(parts).handle_import(params, None)).winners  # type: ignore[arg-type]
    return verdict


def look_up_status(parts: Parts) -> str:
    return parts.look_up().status.value


@pytest.fixture
async def other_document(tmp_path: Path) -> dict[str, Any]:
    """Return another machine's document."""
    (tmp_path / "there").mkdir()
    return await export_elsewhere(tmp_path / "there", "#define VALUE 1\n")


async def test_equal_learned_names_make_an_import_fresh(parts: Parts, other_document: dict[str, Any]) -> None:
    """Nothing is tuned; an edit of the header makes the winner stale."""
    header = parts.write_file("#define VALUE 1\n", "cfg.h")
    await parts.inspect_file(make_kernel_text())
    assert (await import_document(parts, other_document, dry_run=True)).status == "fresh"
    assert not any(entry.digest for entry in parts.catalog.resolve_kernel("it").learned.values())
    assert (await import_document(parts, other_document)).status == "fresh"
    assert look_up_status(parts) == "fresh"
    header.write_text("#define VALUE 2\n")
    await parts.inspect_file()
    assert look_up_status(parts) == "stale"


async def test_an_import_right_after_a_save_judges_what_was_saved(parts: Parts, other_document: dict[str, Any]) -> None:
    """The watcher has seen the save, and no worker has inspected the file yet."""
    header = parts.write_file("#define VALUE 1\n", "cfg.h")
    kernel = await parts.inspect_file(make_kernel_text())
    assert (await import_document(parts, other_document)).status == "fresh"
    header.write_text("#define VALUE 2\n")
    parts.catalog.mark_suspect_files({kernel.file})
    assert (await import_document(parts, other_document, dry_run=True)).status == "stale"


@pytest.mark.parametrize(
    ("name", "text"), [("cfg.h", "#define VALUE 2\n"), ("first/cfg.h", "#define VALUE 1\n"), ("cfg.h", None)]
)
async def test_a_learned_name_that_differs_makes_an_import_stale(
    parts: Parts, other_document: dict[str, Any], name: str, text: str | None
) -> None:
    """Cases: another header, a new header earlier in the search, no header, with names learned before or after."""
    path = parts.write_file("#define VALUE 1\n", "cfg.h")
    if text is None:
        path.unlink()
    else:
        parts.write_file(text, name)
    await parts.inspect_file(make_kernel_text())
    assert (await import_document(parts, other_document)).status == "stale"
    assert look_up_status(parts) == "stale"
    await learn_names(parts, "cfg.h", "first/cfg.h")
    assert look_up_status(parts) == "stale"


async def test_names_that_only_this_machine_has_learned_keep_an_import_fresh(
    parts: Parts, other_document: dict[str, Any]
) -> None:
    """No winner of the other machine depends on those names."""
    parts.write_file("#define VALUE 1\n", "cfg.h")
    parts.write_file("#define MORE 1\n", "more.h")
    await learn_names(parts, "more.h")
    assert (await import_document(parts, other_document)).status == "fresh"
    assert look_up_status(parts) == "fresh"


async def test_winners_by_other_objectives_travel_apart(parts: Parts) -> None:
    """They have a list of their own, because older readers take every winner of the first list for the fastest."""
    kernel = await parts.inspect_file(make_kernel_text())
    await parts.record_measurements(kernel, {50.0: 5.0}, metrics={"energy": 2.0})
    (trial,) = parts.store.list_trials(kernel=kernel.name)
    await parts.store.decide_winner(trial.id, objective=BY_ENERGY)
    document = await make_methods(parts).handle_export(ExportParams(kernel="it", device="Fake CPU"), None)  # type: ignore[arg-type]
    shared = msgspec.to_builtins(document.document)
    assert [won["latency_us"] for won in shared["winners"]] == [5.0]
    assert "metrics" not in shared["winners"][0]
    (frugal,) = shared["objectives"]["min:energy"]
    assert frugal["metrics"] == {"energy": 2.0}
    check_document(json.loads(render_document(shared)))
    better = {**frugal, "config": {"us": 90.0}, "latency_us": 9.0, "metrics": {"energy": 1.0}}
    unknown = {**better, "config": {"us": 90.0}, "metrics": {}}
    offered = {**shared, "winners": [], "objectives": {"min:energy": [better, unknown], "max:speed": [better]}}
    answer = await make_methods(parts).handle_import(ImportParams(document=offered), None)  # type: ignore[arg-type]
    assert [(won.objective, won.taken) for won in answer.winners] == [
        ("min:energy", True), ("min:energy", False), ("max:speed", False)
    ]  # fmt: skip
    assert [won.reason for won in answer.winners][:2] == [
        "better than the winner here, 2 energy",
        "refused: it has no energy",
    ]
    winners = {won.objective: won for won in parts.store.list_winners()}
    assert (winners[LATENCY].config, winners[BY_ENERGY].config) == ({"us": 50.0}, {"us": 90.0})
    assert winners[BY_ENERGY].metrics == {"energy": 1.0}


async def test_a_document_with_a_field_of_a_wrong_type_is_refused(parts: Parts) -> None:
    """Some fields are not read by the parser of files."""
    await parts.inspect_file(make_kernel_text())
    params = ImportParams(document={**make_document((50.0, 1.0)), "objective": 5})
    with pytest.raises(UsageError, match=r"the document is invalid: Expected `str`, got `int` - at `\$.objective`"):
        await make_methods(parts).handle_import(params, None)  # type: ignore[arg-type]
