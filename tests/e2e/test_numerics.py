"""Exact numerics: the winner has the anchor's bits, and the found classes of equal bits are the true ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ktuned_client import DaemonError
from tests.e2e import numerics_family as known
from tests.e2e.harness import Daemon

PROBLEM = {"M": 16, "K": 64}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Run a daemon with the family's backend."""
    with known.make_daemon(tmp_path) as running:
        yield running


def fetch_classes(daemon: Daemon) -> dict[str, list[dict[str, Any]]]:
    """Return the configs of each class by its letter."""
    classes: dict[str, list[dict[str, Any]]] = {}
    for trial in daemon.client.call("results", kernel="rows")["trials"]:
        classes.setdefault(trial["class"], []).append(trial["config"])
    return {letter: sorted(configs, key=str) for letter, configs in classes.items()}


def look_up_config(daemon: Daemon, **options: Any) -> dict[str, Any]:
    answer: dict[str, Any] = daemon.client.call("lookup", kernel="rows", problem=PROBLEM, tune=False, **options)
    return answer


def test_the_true_classes_are_found_and_the_fastest_of_the_anchor_s_class_wins(daemon: Daemon) -> None:
    job = daemon.tune_one(path=known.write_family(daemon))
    assert (job["state"], job["objective"]) == ("done", "exact:latency")
    classes = fetch_classes(daemon)
    assert classes.pop("nondeterministic") == [known.RACY]
    assert sorted(classes.values(), key=str) == sorted((sorted(members, key=str) for members in known.CLASSES), key=str)
    assert classes["A"] == sorted([known.ANCHOR, known.FAST], key=str)
    answer = look_up_config(daemon)
    assert (answer["status"], answer["config"], answer["objective"]) == ("fresh", known.FAST, "exact:latency")
    assert answer["message"].startswith("exact costs")
    assert "5 classes of equal bits on 8 inputs: A (the anchor) 2" in job["message"]
    assert "bits change with DOES, FUSED, LANES, not with SLOW" in job["message"]


def test_lookups_during_a_tuning_get_the_anchor_s_bits_alone(daemon: Daemon) -> None:
    configs = []
    space = [known.ANCHOR, known.ORDERED, known.FUSED, known.FAST, known.FLUSHING]
    with daemon.client.tune(path=known.write_family(daemon, space=space)) as tuning:
        for _ in tuning:
            configs.append(look_up_config(daemon)["config"])
    assert [config for config in configs if config not in known.CLASSES[0]] == []
    assert known.ANCHOR in configs
    assert look_up_config(daemon)["config"] == known.FAST


def test_a_winner_by_tolerance_does_not_serve_exact_numerics(daemon: Daemon) -> None:
    """Its tuning reuses all latencies."""
    path = known.write_family(daemon, numerics="tolerance", space=[known.ANCHOR, known.ORDERED])
    daemon.tune(path=path)
    assert look_up_config(daemon)["config"] == known.ORDERED
    assert look_up_config(daemon, objective="exact:latency")["config"] == known.ANCHOR
    assert look_up_config(daemon, objective="exact:latency")["status"] == "default"
    before = {trial["id"]: trial["latency_us"] for trial in daemon.client.call("results", kernel="rows")["trials"]}
    daemon.tune(kernel="rows", numerics="exact")
    assert look_up_config(daemon, objective="exact:latency")["config"] == known.ANCHOR
    assert look_up_config(daemon, objective="exact:latency")["status"] == "fresh"
    assert look_up_config(daemon)["config"] == known.ORDERED
    assert before.keys() == {trial["id"] for trial in daemon.client.call("results", kernel="rows")["trials"]}
    output = daemon.run_ktuned("results", "rows").stdout
    assert "exact costs" in output
    assert "B 1, best" in output


def test_a_nondeterministic_config_is_marked_under_tolerance(daemon: Daemon) -> None:
    """It may win there."""
    daemon.tune(path=known.write_family(daemon, numerics="tolerance", space=[known.ANCHOR, known.RACY]))
    assert look_up_config(daemon)["config"] == known.RACY
    trials = daemon.client.call("results", kernel="rows", details=True)["trials"]
    labels = {trial["config"]["DOES"]: trial["detail"].get("numerics", {}).get("nondeterministic") for trial in trials}
    assert labels == {known.PLAIN: None, known.DIFFERS: True}
    assert {trial["class"] for trial in trials} == {"", "nondeterministic"}


def test_another_anchor_can_be_chosen_and_stays(daemon: Daemon) -> None:
    """The choice names knobs that differ from the default; choosing the default ends it."""
    space = [known.ANCHOR, known.FAST, known.ORDERED, known.SLOWLY_ORDERED]
    path = known.write_family(daemon, space=space)
    daemon.tune(path=path)
    assert look_up_config(daemon)["config"] == known.FAST
    done = daemon.run_ktuned("tune", "rows", "--anchor", "LANES=4")
    assert done.returncode == 0, done.stderr
    assert look_up_config(daemon)["config"] == known.ORDERED
    daemon.tune(kernel="rows")
    assert look_up_config(daemon)["config"] == known.ORDERED
    daemon.tune(kernel="rows", anchor=known.ANCHOR)
    assert look_up_config(daemon)["config"] == known.FAST


def test_after_an_edit_the_anchor_is_served_until_bits_are_compared(daemon: Daemon) -> None:
    """The old winner was compared with another anchor."""
    space = [known.ANCHOR, known.FAST]
    path = known.write_family(daemon, space=space)
    daemon.tune(path=path)
    source = daemon.directory / "project" / "rows.c"
    source.write_text(source.read_text().replace("2.0f * value", "3.0f * value"))
    kernel = daemon.directory / "project" / "tune_it.py"
    kernel.write_text(kernel.read_text().replace("twice=2 * a", "twice=3 * a"))
    answers = []

    def is_tuned_again() -> bool:
        answers.append(look_up_config(daemon))
        jobs = daemon.client.call("jobs", kernel="rows")["jobs"]
        return [job["state"] for job in jobs].count("done") > 1

    daemon.wait_until(is_tuned_again, "the edit to be tuned")
    # While the daemon is not sure that anything has changed, the winner is still known to be of the present state.
    assert all(answer["config"] == known.ANCHOR for answer in answers if answer["status"] == "default")
    assert "default" in {answer["status"] for answer in answers}
    assert look_up_config(daemon)["config"] == known.FAST


def test_an_anchor_outside_the_space_is_refused_and_an_untuned_problem_has_the_anchor(daemon: Daemon) -> None:
    """A near problem's winner has bits that were not compared for this problem."""
    daemon.tune(path=known.write_family(daemon, space=[known.ANCHOR, known.FAST]))
    near = daemon.client.call("lookup", kernel="rows", problem={"M": 32, "K": 64}, tune=False)
    assert (near["status"], near["config"]) == ("default", known.ANCHOR)
    for anchor, name in (({"LANES": 3}, "LANES=3"), ({"LINES": 3}, "LINES=3")):
        with pytest.raises(DaemonError, match=f"{name} cannot be the anchor: project:rows cannot try") as refused:
            daemon.tune(kernel="rows", anchor=anchor)
        assert "\n" not in str(refused.value)
        assert look_up_config(daemon)["config"] == known.FAST


def test_an_anchor_that_fails_ends_the_job(daemon: Daemon) -> None:
    """The winner and the previous anchor stay."""
    space = [known.ANCHOR, known.ORDERED, known.SLOWLY_ORDERED, known.BROKEN, known.RACY]
    daemon.tune(path=known.write_family(daemon, space=space), anchor=known.SLOWLY_ORDERED)
    for anchor, message in (
        (known.BROKEN, "the anchor LANES=-1 FUSED=0 DOES=0 SLOW=0 failed: compile_error: "),
        (known.RACY, "the anchor LANES=1 FUSED=0 DOES=3 SLOW=0 is nondeterministic: its own outputs differ"),
    ):
        job = daemon.tune_one(kernel="rows", anchor=anchor)
        assert job["state"] == "failed"
        assert job["message"].startswith(message)
        assert "\n" not in job["message"]
        assert look_up_config(daemon)["config"] == known.ORDERED
        second = daemon.tune_one(kernel="rows")
        assert second["state"] == "done"
        assert look_up_config(daemon)["config"] == known.ORDERED


def test_a_kernel_without_a_default_fails_in_an_exact_project(daemon: Daemon) -> None:
    """The error says what is missing; a chosen anchor is enough."""
    path = known.write_family(daemon, space=[known.ANCHOR, known.FAST])
    (daemon.directory / "project" / "ktuned.toml").write_text('[defaults]\nnumerics = "exact"\n')
    kernel = daemon.directory / "project" / "tune_it.py"
    text = kernel.read_text().replace("    numerics='exact',\n", "")
    kernel.write_text(text.replace(f"    default={known.ANCHOR!r},\n", ""))
    job = daemon.tune_one(path=path)
    assert job["state"] == "failed"
    assert job["message"].startswith("project:rows declares no default whose bits the winner could have")
    job = daemon.tune_one(kernel="rows", anchor=known.ANCHOR)
    assert job["state"] == "done"
    assert look_up_config(daemon)["config"] == known.FAST
