"""Exact numerics: the winner has the anchor's bits, and the classes of equal bits are the true ones."""

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
    """Run a daemon that knows the family's backend."""
    with known.make_daemon(tmp_path) as running:
        yield running


def _classes(daemon: Daemon) -> dict[str, list[dict[str, Any]]]:
    """Return the configs of each class by its letter."""
    found: dict[str, list[dict[str, Any]]] = {}
    for trial in daemon.client.call("results", kernel="rows")["trials"]:
        found.setdefault(trial["class"], []).append(trial["config"])
    return {letter: sorted(configs, key=str) for letter, configs in found.items()}


def _config(daemon: Daemon, **asked: Any) -> dict[str, Any]:
    found: dict[str, Any] = daemon.client.call("lookup", kernel="rows", problem=PROBLEM, tune=False, **asked)
    return found


def test_the_classes_found_are_the_true_ones_and_the_fastest_of_the_anchors_wins(daemon: Daemon) -> None:
    """Among a sum's orders, a contraction, a race, and configs that differ on denormals or signed zeros alone."""
    _, (job,) = daemon.tune(path=known.family(daemon))
    assert (job["state"], job["objective"]) == ("done", "exact:latency")
    found = _classes(daemon)
    assert found.pop("nondeterministic") == [known.RACY]
    assert sorted(found.values(), key=str) == sorted((sorted(one, key=str) for one in known.CLASSES), key=str)
    assert found["A"] == sorted([known.ANCHOR, known.FAST], key=str)
    answer = _config(daemon)
    assert (answer["status"], answer["config"], answer["objective"]) == ("fresh", known.FAST, "exact:latency")
    assert answer["message"].startswith("exact costs")
    assert "5 classes of equal bits on 8 inputs: A (the anchor) 2" in job["message"]
    assert "bits change with DOES, FUSED, LANES, not with SLOW" in job["message"]


def test_a_program_that_asks_while_a_tuning_runs_sees_no_other_bits(daemon: Daemon) -> None:
    """From the anchor to the winner, whatever is measured meanwhile."""
    served = []
    space = [known.ANCHOR, known.ORDERED, known.FUSED, known.FAST, known.FLUSHING]
    with daemon.client.tune(path=known.family(daemon, space=space)) as tuning:
        for _ in tuning:
            served.append(_config(daemon)["config"])
    assert [config for config in served if config not in known.CLASSES[0]] == []
    assert known.ANCHOR in served
    assert _config(daemon)["config"] == known.FAST


def test_winners_of_one_numerics_do_not_serve_the_other(daemon: Daemon) -> None:
    """A tuning by tolerance finds every latency known; its winner is no answer to a question for the anchor's bits."""
    path = known.family(daemon, numerics="tolerance", space=[known.ANCHOR, known.ORDERED])
    daemon.tune(path=path)
    assert _config(daemon)["config"] == known.ORDERED
    assert _config(daemon, objective="exact:latency")["config"] == known.ANCHOR
    assert _config(daemon, objective="exact:latency")["status"] == "default"
    before = {trial["id"]: trial["latency_us"] for trial in daemon.client.call("results", kernel="rows")["trials"]}
    daemon.tune(kernel="rows", numerics="exact")
    assert _config(daemon, objective="exact:latency")["config"] == known.ANCHOR
    assert _config(daemon, objective="exact:latency")["status"] == "fresh"
    assert _config(daemon)["config"] == known.ORDERED
    assert before.keys() == {trial["id"] for trial in daemon.client.call("results", kernel="rows")["trials"]}
    shown = daemon.run_ktuned("results", "rows").stdout
    assert "exact costs" in shown
    assert "B 1, best" in shown


def test_a_nondeterministic_config_is_shown_as_such_under_tolerance(daemon: Daemon) -> None:
    """It may win there."""
    daemon.tune(path=known.family(daemon, numerics="tolerance", space=[known.ANCHOR, known.RACY]))
    assert _config(daemon)["config"] == known.RACY
    trials = daemon.client.call("results", kernel="rows", details=True)["trials"]
    labels = {trial["config"]["DOES"]: trial["detail"].get("nondeterministic") for trial in trials}
    assert labels == {known.PLAIN: None, known.DIFFERS: True}
    assert {trial["class"] for trial in trials} == {"", "nondeterministic"}


def test_another_anchor_may_be_chosen_and_stays_chosen(daemon: Daemon) -> None:
    """By the part of a config that differs from the default; the default itself takes its place again."""
    space = [known.ANCHOR, known.FAST, known.ORDERED, known.SLOWLY_ORDERED]
    path = known.family(daemon, space=space)
    daemon.tune(path=path)
    assert _config(daemon)["config"] == known.FAST
    done = daemon.run_ktuned("tune", "rows", "--anchor", "LANES=4")
    assert done.returncode == 0, done.stderr
    assert _config(daemon)["config"] == known.ORDERED
    daemon.tune(kernel="rows")
    assert _config(daemon)["config"] == known.ORDERED
    daemon.tune(kernel="rows", anchor=known.ANCHOR)
    assert _config(daemon)["config"] == known.FAST


def test_after_an_edit_the_anchor_is_served_until_bits_are_compared_again(daemon: Daemon) -> None:
    """The winner from before was compared with another anchor."""
    space = [known.ANCHOR, known.FAST]
    path = known.family(daemon, space=space)
    daemon.tune(path=path)
    source = daemon.directory / "project" / "rows.c"
    source.write_text(source.read_text().replace("2.0f * value", "3.0f * value"))
    kernel = daemon.directory / "project" / "tune_it.py"
    kernel.write_text(kernel.read_text().replace("twice=2 * a", "twice=3 * a"))
    answers = []

    def is_tuned_again() -> bool:
        answers.append(_config(daemon))
        jobs = daemon.client.call("jobs", kernel="rows")["jobs"]
        return [job["state"] for job in jobs].count("done") > 1

    daemon.wait_until(is_tuned_again, "the edit to be tuned")
    # While the daemon is not sure that anything has changed, the winner is still known to be of the present state.
    assert all(answer["config"] == known.ANCHOR for answer in answers if answer["status"] == "default")
    assert "default" in {answer["status"] for answer in answers}
    assert _config(daemon)["config"] == known.FAST


def test_an_anchor_outside_the_space_is_refused_and_an_untuned_problem_has_the_anchor(daemon: Daemon) -> None:
    """In one line, and nothing changes; a near problem's winner has bits that nobody has compared there."""
    daemon.tune(path=known.family(daemon, space=[known.ANCHOR, known.FAST]))
    near = daemon.client.call("lookup", kernel="rows", problem={"M": 32, "K": 64}, tune=False)
    assert (near["status"], near["config"]) == ("default", known.ANCHOR)
    for anchor, name in (({"LANES": 3}, "LANES=3"), ({"LINES": 3}, "LINES=3")):
        with pytest.raises(DaemonError, match=f"{name} cannot be the anchor: project:rows cannot try") as refused:
            daemon.tune(kernel="rows", anchor=anchor)
        assert "\n" not in str(refused.value)
        assert _config(daemon)["config"] == known.FAST


def test_an_anchor_that_can_be_none_ends_the_job(daemon: Daemon) -> None:
    """With one line; the winner, and the choice of an anchor from before, stay."""
    space = [known.ANCHOR, known.ORDERED, known.SLOWLY_ORDERED, known.BROKEN, known.RACY]
    daemon.tune(path=known.family(daemon, space=space), anchor=known.SLOWLY_ORDERED)
    for anchor, message in (
        (known.BROKEN, "the anchor LANES=-1, FUSED=0, DOES=0, SLOW=0 failed: compile_error: "),
        (known.RACY, "the anchor LANES=1, FUSED=0, DOES=3, SLOW=0 is nondeterministic: its own outputs differ"),
    ):
        _, (job,) = daemon.tune(kernel="rows", anchor=anchor)
        assert job["state"] == "failed"
        assert job["message"].startswith(message)
        assert "\n" not in job["message"]
        assert _config(daemon)["config"] == known.ORDERED
        _, (again,) = daemon.tune(kernel="rows")
        assert again["state"] == "done"
        assert _config(daemon)["config"] == known.ORDERED


def test_a_project_may_ask_for_exact_numerics(daemon: Daemon) -> None:
    """Of all kernels that do not say themselves what they want."""
    path = known.family(daemon, space=[known.ANCHOR, known.ORDERED])
    (daemon.directory / "project" / "ktuned.toml").write_text('[defaults]\nnumerics = "exact"\n')
    kernel = daemon.directory / "project" / "tune_it.py"
    kernel.write_text(kernel.read_text().replace("    numerics='exact',\n", ""))
    daemon.tune(path=path)
    answer = _config(daemon)
    assert (answer["objective"], answer["config"]) == ("exact:latency", known.ANCHOR)


def test_a_kernel_without_a_default_fails_alone_where_its_project_is_exact(daemon: Daemon) -> None:
    """With one line that says what is missing; an anchor that is chosen is enough."""
    path = known.family(daemon, space=[known.ANCHOR, known.FAST])
    (daemon.directory / "project" / "ktuned.toml").write_text('[defaults]\nnumerics = "exact"\n')
    kernel = daemon.directory / "project" / "tune_it.py"
    text = kernel.read_text().replace("    numerics='exact',\n", "")
    kernel.write_text(text.replace(f"    default={known.ANCHOR!r},\n", ""))
    _, (job,) = daemon.tune(path=path)
    assert job["state"] == "failed"
    assert job["message"].startswith("project:rows declares no default whose bits the winner could have")
    _, (job,) = daemon.tune(kernel="rows", anchor=known.ANCHOR)
    assert job["state"] == "done"
    assert _config(daemon)["config"] == known.FAST
