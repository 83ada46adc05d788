"""What only a whole job shows: knobs without effect, overwritten inputs and, with ``reference="default"``, whose fault
a difference from the default's outputs is.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from ktuned.model import TrialDetail
from ktuned.model.keys import DeviceModel, KernelName
from ktuned.model.values import Config, Outcome, Scalar
from ktuned.protocol.trials import Trial
from ktuned.tuning.judgements import COMPARED, DisputedOutputs, Findings, find_knobs_without_effect
from tests.daemon_parts import Parts, make_kernel_text
from tests.trials import make_detail
from tests.tuning.jobs import run_job


def make_contents(configs: list[Config], *decisive: str) -> dict[tuple[tuple[str, Scalar], ...], str]:
    """Return configs with contents that only some of their knobs decide."""
    return {tuple(sorted(config.items())): str([config[name] for name in decisive]) for config in configs}


GRID: list[Config] = [dict(BM=bm, STAGES=stages, SPARE=spare) for bm, stages, spare in product((1, 2), (3, 4), (5, 6))]


@pytest.mark.parametrize(
    ("configs", "decisive", "expected"),
    [
        (GRID, ("BM", "STAGES"), {"SPARE": 8}),
        (GRID, ("BM",), {"STAGES": 8, "SPARE": 8}),
        (GRID, ("BM", "STAGES", "SPARE"), {}),
        ([dict(SPARE=1), dict(SPARE=2)], (), {"SPARE": 2}),
        ([dict(SPARE=1)], (), {}),
        # A knob may have an effect only for other values of BM.
        ([dict(BM=1, SPARE=1), dict(BM=1, SPARE=2), dict(BM=2, SPARE=1)], ("BM",), {}),
        # No two configs differ in one knob only, so nothing is known.
        ([dict(BM=1, SPARE=1), dict(BM=2, SPARE=2)], (), {}),
    ],
)
def test_knobs_without_effect_are_found(
    configs: list[Config], decisive: tuple[str, ...], expected: dict[str, int]
) -> None:
    """A knob has no effect if all configs that differ only in it have the same content."""
    assert find_knobs_without_effect(make_contents(configs, *decisive)) == expected


def test_a_knob_with_an_effect_in_one_config_is_no_finding() -> None:
    contents = make_contents(GRID, "BM", "STAGES")
    contents[next(iter(contents))] = "another"
    assert find_knobs_without_effect(contents) == {}


def test_findings_are_sentences() -> None:
    """Failed configs have no content and are not compared; each overwritten input is counted."""
    findings = Findings()
    for number, config in enumerate(GRID):
        findings.record_result(
            config, make_detail(content=str(config["BM"]), count=9, overwritten=("x",) if number < 3 else None)
        )
    findings.record_result(dict(BM=9, STAGES=9, SPARE=9), make_detail(phase="compile"))
    spare, stages, x = findings.describe_findings()
    assert (spare.split()[0], stages.split()[0]) == ("SPARE", "STAGES")
    assert "(8 compared)" in spare
    assert x.startswith("the kernel overwrites its input x, which is neither an output nor in `setup`")
    assert x.endswith("(3 of 8 configs)")


def test_failing_metrics_are_reported_once() -> None:
    """The message has the first fault and the number of configs without metrics."""
    findings = Findings()
    for number in range(3):
        findings.record_result(
            dict(N=number), make_detail(count=9, metrics_fault=f"the metric gf(p, t): fault {number}")
        )
    assert findings.describe_findings() == ["the metric gf(p, t): fault 0 (3 of 3 configs have no metrics)"]


def test_only_a_part_of_a_long_job_is_compared() -> None:
    findings = Findings()
    for number in range(COMPARED + 10):
        findings.record_result(dict(N=number), make_detail(content="same"))
    (line,) = findings.describe_findings()
    assert f"({COMPARED} compared)" in line


DEFAULT = {"n": 0}


def make_ended_trial(number: int, outcome: Outcome = Outcome.MEASURED, undisputed: Outcome | None = None) -> Trial:
    """Return a config's ended trial; ``undisputed`` is set if it differs from the default."""
    detail = TrialDetail() if undisputed is None else make_detail(undisputed=undisputed, phase="check")
    return Trial(
        id=number,
        job=1,
        kernel=KernelName("p:it"),
        problem={},
        device=DeviceModel("a CPU"),
        config={"n": number},
        outcome=outcome,
        latency_us=10.0 + number,
        spread_us=0.1,
        compile_s=0.0,
        lane_s=0.0,
        message="",
        artifact=None,
        digest="",
        updated=0.0,
        detail=detail,
    )


def make_differing_trial(number: int, undisputed: Outcome = Outcome.MEASURED) -> Trial:
    """Return a trial whose outputs differ from the default's."""
    return make_ended_trial(number, Outcome.MISMATCH, undisputed)


def judge_trials(*trials: Trial) -> DisputedOutputs:
    """Return what is known after these trials."""
    disputed = DisputedOutputs(DEFAULT)
    for trial in trials:
        disputed.record_trial(trial)
    return disputed


class TestDisputedOutputs:
    """The rule, without IO."""

    def test_few_that_differ_are_wrong(self) -> None:
        """The default agrees with itself, so this holds even if as many agree as differ."""
        disputed = judge_trials(make_ended_trial(0), make_differing_trial(1))
        assert (disputed.find_acquitted(), disputed.describe_dispute()) == ([], "")

    def test_if_most_differ_none_is_wrong(self) -> None:
        """Each config gets the outcome of its figures."""
        disputed = judge_trials(make_ended_trial(0), make_differing_trial(1), make_differing_trial(2, Outcome.SLOWER))
        outcomes = [(trial.id, result.outcome, result.latency_us) for trial, result in disputed.find_acquitted()]
        assert outcomes == [(1, "measured", 11.0), (2, "slower", 12.0)]
        assert disputed.describe_dispute().startswith("2 of 3 configs differ from the default's outputs")
        assert disputed.describe_dispute().endswith("give a reference=")

    def test_a_default_that_differs_from_itself_proves_nothing(self) -> None:
        assert (
            len(
                judge_trials(
                    make_differing_trial(0), make_ended_trial(1), make_ended_trial(2), make_ended_trial(3)
                ).find_acquitted()
            )
            == 1
        )

    def test_a_config_with_another_fault_stays_failed(self) -> None:
        """A config that crashes or writes outside its tensors is wrong by itself."""
        disputed = judge_trials(
            make_ended_trial(0),
            *(make_ended_trial(n, Outcome.MISMATCH) for n in (1, 2)),
            make_ended_trial(3, Outcome.CRASHED),
        )
        assert (disputed.find_acquitted(), disputed.is_default_doubtful) == ([], False)

    def test_an_acquitted_trial_stays_acquitted(self) -> None:
        """The next job treats such trials as measured."""
        disputed = judge_trials(
            make_ended_trial(0), *(make_ended_trial(n, Outcome.MEASURED, Outcome.MEASURED) for n in (1, 2))
        )
        assert (disputed.find_acquitted(), disputed.is_default_doubtful) == ([], True)


def make_default_reference_text(does: str, **options: str) -> str:
    """Return a kernel whose configs, a slow default and faster ones, do these things."""
    words = does.split()
    configs = ", ".join(f"dict(us={2000.0 if not n else 50.0 + n}, does={word!r})" for n, word in enumerate(words))
    return make_kernel_text(
        configs=f"[{configs}]", default=f"dict(us=2000.0, does={words[0]!r})", reference="'default'", **options
    )


@pytest.mark.anyio
class TestJobs:
    """A kernel without a reference of its own."""

    async def test_a_single_config_that_differs_from_the_default_is_wrong(self, parts: Parts) -> None:
        """The other configs compete; the default needs no reference."""
        await parts.inspect_file(make_default_reference_text("work wrong work"))
        ended = await run_job(parts)
        outcomes = {trial.config["us"]: (trial.outcome, trial.message) for trial in parts.store.list_trials()}
        assert outcomes[51.0][0] == "mismatch"
        assert outcomes[51.0][1].startswith("differs from the default's outputs: y: 64 of 64 elements")
        assert (ended["outcomes"], ended["message"]) == ({"measured": 2, "mismatch": 1}, "")
        (winner,) = parts.store.list_winners()
        assert winner.config["us"] == 52.0

    async def test_if_most_differ_all_compete_and_the_message_says_so(self, parts: Parts) -> None:
        """The next job treats them as measured and repeats nothing."""
        await parts.inspect_file(make_default_reference_text("work wrong wrong"))
        ended = await run_job(parts)
        assert ended["outcomes"] == {"measured": 3, "mismatch": 0}, ended
        assert "2 of 3 configs differ from the default's outputs" in str(ended["message"])
        (winner,) = parts.store.list_winners()
        assert winner.config["us"] in (51.0, 52.0)
        before = len(parts.recorder.list_events("refining"))
        ended = await run_job(parts)
        assert ended["best_us"] is not None
        assert len(parts.recorder.list_events("refining")) == before

    async def test_a_default_that_does_not_run_is_one_error(self, parts: Parts) -> None:
        """The message names the line and the remedy."""
        await parts.inspect_file(make_default_reference_text("compile_error work"))
        ended = await run_job(parts)
        assert ended["state"] == "failed"
        assert "reference='default', but the default config is compile_error: " in str(ended["message"])

    async def test_without_a_declared_default_the_first_config_that_runs_is_the_reference(self, parts: Parts) -> None:
        """The first configs of a list may not run on this device."""
        does = ("compile_error", "unsupported", "work", "wrong", "work")
        configs = ", ".join(f"dict(us={50.0 + n}, does={word!r})" for n, word in enumerate(does))
        await parts.inspect_file(make_kernel_text(configs=f"[{configs}]", reference="'default'"))
        ended = await run_job(parts)
        expected = {"compile_error": 1, "unsupported": 1, "measured": 2, "mismatch": 1}
        assert (ended["state"], ended["outcomes"]) == ("done", expected), ended

    async def test_if_no_config_runs_there_is_one_error(self, parts: Parts) -> None:
        """The message says why the first config does not run and how many were tried."""
        configs = ", ".join(f"dict(us={50.0 + n}, does={word!r})" for n, word in enumerate(["unsupported"] * 3))
        await parts.inspect_file(make_kernel_text(configs=f"[{configs}]", reference="'default'"))
        ended = await run_job(parts)
        expected = "the default config is unsupported: wants more shared memory than there is (and 2 more cannot run)"
        assert (ended["state"], expected in str(ended["message"])) == ("failed", True), ended

    async def test_the_default_is_compiled_once_and_not_in_the_lane(self, parts: Parts, tmp_path: Path) -> None:
        """This holds even if its compilation is already running; its trial has the compile time."""
        log = tmp_path / "compiles"
        await parts.inspect_file(make_default_reference_text("work work work"))
        parts.set_variables(FAKE_LOG=str(log))
        async with parts.run_jobs():
            ended = await parts.tune()
        assert ended["outcomes"] == {"measured": 3}, ended
        keys = log.read_text().splitlines()
        assert len(keys) == len(set(keys)) == 3
        assert all(trial.compile_s for trial in parts.store.list_trials())

    async def test_a_damaged_artifact_of_the_default_is_compiled_again(self, parts: Parts) -> None:
        await parts.inspect_file(make_default_reference_text("work work"))
        await run_job(parts)
        make_ended_trial = next(trial for trial in parts.store.list_trials() if trial.config["us"] == 2000.0)
        file = parts.artifacts.locate_artifact(make_ended_trial.artifact or "") / "kernel.json"
        file.chmod(0o600)
        file.write_text("{}")
        ended = await run_job(parts, again=True)
        assert (ended["state"], ended["message"]) == ("done", ""), ended
        assert file.read_text() != "{}"
