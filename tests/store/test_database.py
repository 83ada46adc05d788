"""The store: writing and reading, reopening, and winners by the rule."""

import math
import time
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from ktuned.model.errors import NotFound, StoreError, UsageError
from ktuned.model.keys import DeviceModel, KeyProblem
from ktuned.model.plan import Plan
from ktuned.model.trial import TrialDetail, TrialResult
from ktuned.model.values import RETRIED_BY_NEXT_JOB, Outcome, canonical
from ktuned.protocol.jobs import JobState, Priority
from ktuned.protocol.kernels import Root
from ktuned.store.database import Store
from ktuned.store.winners import Winner
from tests.store.samples import (
    CONTEXT,
    NEW_CONTEXT,
    OTHER_KERNEL,
    PROBLEM,
    create_job,
    make_failed_result,
    make_kernel_info,
    make_measured_result,
    run_trial,
)
from tests.trials import make_detail

pytestmark = pytest.mark.anyio

NOT_MEASURED = sorted(set(Outcome) - {Outcome.MEASURED})


def get_sample_winner(store: Store) -> Winner | None:
    """Return the winner of the sample key."""
    return store.get_winner(CONTEXT.key)


def get_winning_trial(store: Store) -> int | None:
    """Return the trial of the sample key's winner."""
    winner = get_sample_winner(store)
    return winner.trial if winner else None


async def test_a_fresh_store_is_empty(store: Store) -> None:
    assert store.notice == ""
    assert not any(
        [
            store.load_roots(),
            store.load_kernels(),
            store.load_probes(),
            store.list_jobs(),
            store.list_trials(),
            store.list_winners(),
        ]
    )
    assert store.get_job(1) is None
    assert store.get_trial(1) is None
    assert store.find_trial(CONTEXT, {"BM": 1}) is None
    size = store.measure_store()
    assert (size.trials, size.winners, size.jobs) == (0, 0, 0)
    assert size.bytes > 0


async def test_the_directory_is_private(store: Store) -> None:
    assert store.path.parent.stat().st_mode & 0o777 == 0o700


async def test_everything_outlives_the_process(database: Path) -> None:
    """Values are equal after closing and opening: roots, kernels, probes, jobs, trials, winners."""
    roots = [Root("/a", "a", "/a/.venv/bin/python", {"X": "1"}), Root("/b", "b", "python3")]
    infos = [make_kernel_info("add"), make_kernel_info("gemm")]
    probe = {"tvm_ffi": {"devices": [{"name": "cpu:0"}], "fingerprint": {"cxx": "12"}}}
    async with Store.open(database) as store:
        for root in roots:
            await store.add_root(root)
        await store.save_kernels(infos)
        await store.save_probe("python3", probe)
        job = await create_job(store)
        trial_id = await run_trial(store, job, 1, make_measured_result(3.0))
        ended = replace(
            job,
            state=JobState.DONE,
            priority=400,
            started=1001.0,
            finished=1002.5,
            done=1,
            total=4,
            best_us=3.0,
            default_us=9.0,
            reference_us=12.0,
            outcomes={"measured": 1},
            message="budget spent",
            cost={"compile_s": 1.5},
        )
        await store.update_job(ended)
        trial, winner = store.get_trial(trial_id), get_sample_winner(store)
    assert not database.with_name("ktuned.db-wal").exists()
    async with Store.open(database) as store:
        assert store.load_roots() == roots
        assert store.load_kernels() == infos
        assert store.load_probes() == {"python3": probe}
        assert store.list_jobs() == [ended] == [store.get_job(job.id)]
        assert store.get_trial(trial_id) == trial
        assert get_sample_winner(store) == winner
    assert trial is not None
    assert (trial.kernel, trial.problem, trial.config) == (CONTEXT.kernel, PROBLEM, {"BM": 1})
    assert (trial.outcome, trial.latency_us, trial.artifact, trial.digest) == (Outcome.MEASURED, 3.0, "ab12", "d1")
    assert trial.detail == make_detail(count=10)


async def test_roots_and_kernels_are_replaced_and_removed(store: Store) -> None:
    """Two roots cannot have one name."""
    await store.add_root(Root("/a", "a", "python3"))
    await store.add_root(Root("/a", "a2", "python3.12"))
    assert store.load_roots() == [Root("/a", "a2", "python3.12")]
    with pytest.raises(UsageError, match="'a2' of /b is taken by /a"):
        await store.add_root(Root("/b", "a2", "python3"))
    await store.remove_root("/a")
    assert store.load_roots() == []
    await store.save_kernels([make_kernel_info("add"), make_kernel_info("gemm")])
    edited = replace(make_kernel_info("gemm"), digest="d2")
    await store.save_kernels([edited], removed=["proj:add"])
    assert store.load_kernels() == [edited]


async def test_jobs_are_listed_newest_first(store: Store) -> None:
    """Filters and the limit apply, and ids are never reused."""
    first, second, third = [await create_job(store) for _ in range(3)]
    other = await create_job(store, OTHER_KERNEL.kernel)
    await store.update_job(replace(second, state=JobState.RUNNING))
    await store.update_job(replace(third, state=JobState.DONE))
    assert [job.id for job in store.list_jobs()] == [other.id, third.id, second.id, first.id]
    assert [job.id for job in store.list_jobs(limit=2)] == [other.id, third.id]
    assert [job.id for job in store.list_jobs(kernel=CONTEXT.kernel, states=[JobState.QUEUED, JobState.RUNNING])] == [
        2,
        1,
    ]
    assert store.list_jobs(states=[]) == []
    await store.update_job(replace(other, state=JobState.CANCELLED))
    await store.forget_trials(OTHER_KERNEL.kernel)
    assert (await create_job(store)).id == other.id + 1
    with pytest.raises(NotFound, match="no job 4"):
        await store.update_job(other)


async def test_a_context_of_another_problem_is_refused(store: Store) -> None:
    job = await create_job(store)
    with pytest.raises(UsageError, match="is not the context's problem"):
        await store.begin_trial(CONTEXT, {"M": 65}, job.id, {"BM": 1})


async def test_a_config_is_found_whatever_the_order_of_its_knobs(store: Store) -> None:
    """In another context it is another trial."""
    job = await create_job(store)
    number = await store.begin_trial(CONTEXT, PROBLEM, job.id, {"BM": 1, "BN": 2})
    trial = store.find_trial(CONTEXT, {"BN": 2, "BM": 1})
    assert trial is not None
    assert (trial.id, trial.outcome) == (number, None)
    grounds = [
        replace(CONTEXT, digest="other"),
        replace(CONTEXT, toolchain="other"),
        replace(CONTEXT, device_fingerprint="other"),
        replace(CONTEXT, device=DeviceModel("other")),
        replace(CONTEXT, measuring_version=0),
    ]
    for ground in grounds:
        assert store.find_trial(ground, {"BM": 1, "BN": 2}) is None


async def test_trials_that_begin_together_have_ids_in_order(store: Store) -> None:
    job = await create_job(store)
    numbers = await store.begin_trials(CONTEXT, PROBLEM, job.id, [{"BM": value} for value in range(5)])
    trials = [store.get_trial(number) for number in numbers]
    assert [trial.config if trial else None for trial in trials] == [{"BM": value} for value in range(5)]


@pytest.mark.parametrize("outcome", NOT_MEASURED)
async def test_a_retried_trial_reuses_its_row(store: Store, outcome: Outcome) -> None:
    """The row is cleared and belongs to the new job."""
    first, second = await create_job(store), await create_job(store)
    number = await run_trial(store, first, 1, make_failed_result(outcome))
    assert await store.begin_trial(CONTEXT, PROBLEM, second.id, {"BM": 1}) == number
    trial = store.get_trial(number)
    assert trial is not None
    assert (trial.job, trial.outcome, trial.message, trial.detail) == (second.id, None, "", TrialDetail())


async def test_a_measured_trial_keeps_its_latency_until_it_is_measured_again(store: Store) -> None:
    """The winner stays, too."""
    job = await create_job(store)
    number = await run_trial(store, job, 1, make_measured_result(5.0))
    before = store.get_trial(number)
    assert await store.begin_trial(CONTEXT, PROBLEM, job.id, {"BM": 1}) == number
    assert store.get_trial(number) == before
    assert get_winning_trial(store) == number


async def test_unfinished_trials_are_interrupted_and_running_jobs_queued(database: Path) -> None:
    """At the next opening, which counts them."""
    async with Store.open(database) as store:
        running, _, done = [await create_job(store) for _ in range(3)]
        await store.update_job(replace(running, state=JobState.RUNNING))
        await store.update_job(replace(done, state=JobState.DONE))
        finished = await run_trial(store, running, 1, make_measured_result(5.0))
        unfinished = await store.begin_trials(CONTEXT, PROBLEM, running.id, [{"BM": 2}, {"BM": 3}])
    async with Store.open(database) as store:
        assert (store.recovered.trials, store.recovered.jobs) == (2, 1)
        assert {trial.id for trial in store.list_trials(outcome=Outcome.INTERRUPTED)} == set(unfinished)
        assert {trial.id for trial in store.list_trials(outcome=Outcome.MEASURED)} == {finished}
        assert [job.state for job in store.list_jobs()] == [JobState.DONE, JobState.QUEUED, JobState.QUEUED]
    async with Store.open(database) as store:
        assert (store.recovered.trials, store.recovered.jobs) == (0, 0)
    assert Outcome.INTERRUPTED in RETRIED_BY_NEXT_JOB


@pytest.mark.parametrize("outcome", NOT_MEASURED)
async def test_only_measured_trials_win(store: Store, outcome: Outcome) -> None:
    """Other outcomes never win, even with a better figure (``slower`` has an estimate)."""
    job = await create_job(store)
    estimate = replace(make_failed_result(outcome), latency_us=0.5)
    await run_trial(store, job, 1, estimate)
    assert get_sample_winner(store) is None
    winner = await run_trial(store, job, 2, make_measured_result(5.0))
    loser = await run_trial(store, job, 3, estimate)
    assert get_winning_trial(store) == winner
    with pytest.raises(UsageError, match=f"it is {outcome}, not measured"):
        await store.decide_winner(loser)
    assert [trial.id for trial in store.list_best_trials(CONTEXT, 9)] == [winner]


@pytest.mark.parametrize("outcome", sorted(RETRIED_BY_NEXT_JOB))
async def test_a_stopped_or_disturbed_repetition_keeps_the_latency(store: Store, outcome: Outcome) -> None:
    """The winner stays, too."""
    job = await create_job(store)
    winner, other = [
        await run_trial(store, job, config, make_measured_result(us)) for config, us in enumerate((1.0, 2.0))
    ]
    await store.begin_trials(CONTEXT, PROBLEM, job.id, [{"BM": 0}])
    before = store.get_trial(winner)
    assert await store.finish_trial(winner, make_failed_result(outcome)) is None
    assert (store.get_trial(winner), get_winning_trial(store)) == (before, winner)
    assert (
        await store.finish_trials([(other, make_failed_result(outcome)), (winner, make_failed_result(outcome))]) is None
    )
    settled = await store.settle_final_round(
        [(winner, make_failed_result(outcome)), (other, make_measured_result(2.5))], other
    )
    assert settled is not None
    assert (settled.trial, store.get_trial(winner)) == (other, before)


@pytest.mark.parametrize("outcome", [one for one in NOT_MEASURED if one not in RETRIED_BY_NEXT_JOB])
async def test_a_winner_that_fails_is_followed_by_the_next_best(store: Store, outcome: Outcome) -> None:
    """When the last measured trial has failed, there is no winner."""
    job = await create_job(store)
    third, first, second = [
        await run_trial(store, job, config, make_measured_result(us)) for config, us in enumerate((3.0, 1.0, 2.0))
    ]
    for failing, heir in ((first, second), (second, third)):
        winner = await store.finish_trial(failing, make_failed_result(outcome))
        assert winner is not None
        assert (winner.trial, get_winning_trial(store)) == (heir, heir)
    assert await store.finish_trial(third, make_failed_result(outcome)) is None
    assert get_sample_winner(store) is None


async def test_a_new_context_replaces_the_winner(store: Store) -> None:
    """The first measured trial wins, however slow; old latencies never win again."""
    job = await create_job(store)
    await run_trial(store, job, 1, make_measured_result(1.0))
    first = await run_trial(store, job, 1, make_measured_result(50.0), NEW_CONTEXT)
    winner = get_sample_winner(store)
    assert winner is not None
    assert (winner.trial, winner.context) == (first, NEW_CONTEXT)
    better = await run_trial(store, job, 2, make_measured_result(40.0), NEW_CONTEXT)
    assert get_winning_trial(store) == better
    assert (heir := await store.finish_trial(better, make_failed_result(Outcome.CRASHED))) is not None
    assert heir.trial == first


async def test_a_batch_of_results_is_stored_as_one(store: Store) -> None:
    """If one result is invalid, none is stored."""
    job = await create_job(store)
    numbers = await store.begin_trials(CONTEXT, PROBLEM, job.id, [{"BM": number} for number in range(5)])
    results = [
        make_measured_result(3.0),
        make_failed_result(Outcome.CRASHED),
        make_measured_result(2.0),
        make_measured_result(4.0),
    ]
    winner = await store.finish_trials(list(zip(numbers, results, strict=False)))
    assert winner is not None
    assert winner == get_sample_winner(store)
    assert winner.trial == numbers[2]
    assert await store.finish_trials([(numbers[3], make_measured_result(5.0))]) is None
    with pytest.raises(UsageError):
        await store.finish_trials(
            [(numbers[4], make_measured_result(1.0)), (numbers[3], make_measured_result(math.inf))]
        )
    unfinished = store.get_trial(numbers[4])
    assert unfinished is not None
    assert unfinished.outcome is None
    assert get_sample_winner(store) == winner


async def test_a_winner_measured_again_keeps_its_key_until_finalists_decide(store: Store) -> None:
    """A final round decides whatever the latencies are."""
    job = await create_job(store)
    noisy_best, other, also = [
        await run_trial(store, job, config, make_measured_result(us)) for config, us in enumerate((1.0, 1.5, 9.0))
    ]
    winner = await store.finish_trial(noisy_best, make_measured_result(2.0))
    assert winner is not None
    assert (winner.trial, winner.latency_us) == (noisy_best, 2.0)
    assert (await store.decide_winner(also)).trial == also == get_winning_trial(store)
    assert (await store.decide_winner(other)).trial == other == get_winning_trial(store)
    assert (challenger := await store.finish_trial(noisy_best, make_measured_result(1.4))) is not None
    assert challenger.trial == noisy_best


async def test_each_kernel_problem_and_device_has_its_winner(store: Store) -> None:
    job = await create_job(store)
    contexts = [
        CONTEXT,
        OTHER_KERNEL,
        replace(CONTEXT, device=DeviceModel("gpu-y")),
        replace(CONTEXT, problem=KeyProblem('{"M":1}')),
    ]
    for latency_us, context in enumerate(contexts, start=1):
        number = await store.begin_trial(
            context, {"M": 1} if context.problem == '{"M":1}' else PROBLEM, job.id, {"BM": 1}
        )
        assert await store.finish_trial(number, make_measured_result(latency_us)) is not None
    assert {winner.context for winner in store.list_winners()} == set(contexts)
    assert [winner.context for winner in store.list_winners(OTHER_KERNEL.kernel)] == [OTHER_KERNEL]


@pytest.mark.parametrize("latency_us", [None, math.nan, math.inf, 0.0, -5.0])
async def test_a_measured_result_needs_a_finite_latency(store: Store, latency_us: float | None) -> None:
    """The trial stays unfinished."""
    job = await create_job(store)
    number = await store.begin_trial(CONTEXT, PROBLEM, job.id, {"BM": 1})
    with pytest.raises(UsageError, match="cannot be measured"):
        await store.finish_trial(number, TrialResult(Outcome.MEASURED, latency_us))
    assert (trial := store.get_trial(number)) is not None
    assert trial.outcome is None


async def test_an_unknown_trial_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound, match="no trial 5"):
        await store.finish_trial(5, make_measured_result(1.0))
    with pytest.raises(NotFound, match="no trial 5"):
        await store.decide_winner(5)


async def test_trials_are_listed_by_every_filter(store: Store) -> None:
    """Filters combine; ``newest`` and ``fastest`` are orders; the limit applies."""
    one, two = await create_job(store), await create_job(store)
    slow = await run_trial(store, one, 1, make_measured_result(9.0))
    fast = await run_trial(store, two, 2, make_measured_result(1.0))
    hung = await run_trial(store, two, 3, make_failed_result(Outcome.HUNG))
    other = await run_trial(store, one, 1, make_measured_result(5.0), OTHER_KERNEL)

    def ids(**filters: object) -> list[int]:
        return [trial.id for trial in store.list_trials(**filters)]  # type: ignore[arg-type]

    assert ids() == [other, hung, fast, slow]
    assert ids(limit=2) == [other, hung]
    assert ids(kernel=CONTEXT.kernel) == [hung, fast, slow]
    assert ids(kernel=CONTEXT.kernel, order="fastest") == [fast, slow]
    assert ids(order="fastest") == [other, fast, slow]
    assert ids(outcome=Outcome.HUNG) == [hung]
    assert ids(job=two.id) == [hung, fast]
    given_up = await run_trial(store, one, 4, replace(make_failed_result(Outcome.SLOWER), latency_us=0.5))
    assert ids(kernel=CONTEXT.kernel, order="fastest") == [fast, slow, given_up]
    assert ids(problem=canonical(PROBLEM), device="cpu-x", job=one.id) == [given_up, other, slow]
    assert ids(problem="{}") == ids(device="gpu-y") == []


async def test_forgetting_an_outcome_elects_the_next_best(store: Store) -> None:
    """Forgetting ``measured`` leaves no winner."""
    job = await create_job(store)
    await run_trial(store, job, 1, make_measured_result(9.0))
    hung = await run_trial(store, job, 2, make_failed_result(Outcome.HUNG))
    await run_trial(store, job, 3, make_measured_result(1.0), OTHER_KERNEL)
    assert await store.forget_trials(CONTEXT.kernel, Outcome.MEASURED) == (1, 1)
    assert get_sample_winner(store) is None
    assert [trial.id for trial in store.list_trials(kernel=CONTEXT.kernel)] == [hung]
    assert len(store.list_winners()) == 1


async def test_forgetting_a_problem_keeps_the_others(store: Store) -> None:
    """Its trials, winner and ended jobs are gone."""
    job = await create_job(store)
    await run_trial(store, job, 1, make_measured_result(9.0))
    other = replace(CONTEXT, problem=KeyProblem(canonical({"M": 1})))
    mistaken = await store.create_job(
        other.key, {"M": 1}, priority=Priority.ASKED, reason="asked", plan=Plan(), now=1000.0
    )
    number = await store.begin_trial(other, {"M": 1}, mistaken.id, {"BM": 1})
    await store.finish_trial(number, make_measured_result(1.0))
    for ended in (job, mistaken):
        await store.update_job(replace(ended, state=JobState.DONE))
    assert await store.forget_trials(CONTEXT.kernel, problem=other.problem) == (1, 1)
    assert [winner.context.problem for winner in store.list_winners()] == [CONTEXT.problem]
    assert [one.id for one in store.list_jobs()] == [job.id]


async def test_forgetting_a_kernel_keeps_running_jobs(store: Store) -> None:
    """Their new results count; ended jobs and trials are gone with their ids."""
    done, running = await create_job(store), await create_job(store)
    old = await run_trial(store, done, 1, make_measured_result(1.0))
    await store.update_job(replace(done, state=JobState.DONE))
    await store.update_job(replace(running, state=JobState.RUNNING))
    under_way = await store.begin_trial(CONTEXT, PROBLEM, running.id, {"BM": 2})
    assert await store.forget_trials(CONTEXT.kernel) == (1, 1)
    assert get_sample_winner(store) is None
    assert store.get_trial(old) is None
    assert [job.id for job in store.list_jobs()] == [running.id]
    assert await store.finish_trial(under_way, make_measured_result(7.0)) is not None
    assert await store.begin_trial(CONTEXT, PROBLEM, running.id, {"BM": 1}) > under_way
    assert await store.forget_trials("proj:nobody") == (0, 0)


async def test_concurrent_writes_share_commits(store: Store) -> None:
    job = await create_job(store)
    ids: dict[int, int] = {}

    async def begin(config: int) -> None:
        ids[config] = await store.begin_trial(CONTEXT, PROBLEM, job.id, {"BM": config})

    before = store.describe_writer()
    async with anyio.create_task_group() as tasks:
        for config in range(200):
            tasks.start_soon(begin, config)
    after = store.describe_writer()
    assert (after.writes or 0) - (before.writes or 0) == 200
    assert (after.commits or 0) - (before.commits or 0) < 100
    assert len(set(ids.values())) == 200
    assert all((trial := store.get_trial(number)) and trial.config == {"BM": config} for config, number in ids.items())


async def test_a_closed_store_raises_its_error(database: Path) -> None:
    """Closing again is harmless."""
    store = Store.open(database)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.remove_root("/a")
    with pytest.raises(StoreError, match="closed"):
        store.load_roots()


async def test_a_store_whose_file_was_deleted_raises_its_error(database: Path) -> None:
    """Nothing is reported as stored; values that were read before stay readable."""
    async with Store.open(database) as store:
        assert store.lost == ""
        await store.add_root(Root("/a", "a", "python3"))
        assert [root.path for root in store.load_roots()] == ["/a"]
        aside = database.with_name("aside")
        database.rename(aside)
        for _ in range(2):
            assert "was removed or replaced" in store.lost
            with pytest.raises(StoreError, match="was removed or replaced") as caught:
                await store.remove_root("/a")
            assert "restart" in caught.value.hint
            assert [root.path for root in store.load_roots()] == ["/a"]
            database.write_bytes(b"")
        aside.replace(database)
        assert store.lost == ""
        await store.remove_root("/a")
        assert store.load_roots() == []


async def test_reads_use_indexes(store: Store) -> None:
    """The daemon's frequent queries scan no table of trials."""
    statements: list[tuple[str, tuple[object, ...]]] = []
    real = store._reader.fetch_rows

    def spy(sql: str, *values: object) -> list[tuple[object, ...]]:
        statements.append((sql, values))
        return real(sql, *values)

    store._reader.fetch_rows = spy  # type: ignore[method-assign]
    store.find_trial(CONTEXT, {"BM": 1})
    store.list_best_trials(CONTEXT, 5)
    store.get_winner(CONTEXT.key)
    store.list_winners()
    store.get_trial(1)
    store.list_trials()
    store.list_trials(job=1)
    store.list_trials(order="fastest")
    store.list_trials(kernel=CONTEXT.kernel, order="fastest")
    store.list_jobs(states=[JobState.QUEUED])
    for sql, values in statements:
        plan = [row[3] for row in real(f"EXPLAIN QUERY PLAN {sql}", *values)]
        # Walking backwards by id ends at the limit, unless something must be sorted first.
        sorts = any("TEMP B-TREE" in step for step in plan)
        assert "SCAN trials" not in plan or (sql.endswith("ORDER BY trials.id DESC") and not sorts), (sql, plan)


@pytest.mark.parametrize("rows", [200_000])
async def test_a_large_store_opens_and_answers(database: Path, rows: int) -> None:
    """Opening does not scan the trials."""
    async with Store.open(database) as store:
        job = await create_job(store)
        await store.begin_trial(CONTEXT, PROBLEM, job.id, {"BM": -1})
        await store._write_to_disk(
            lambda connection: (
                connection.executemany(
                    "INSERT INTO trials (context_id, job_id, config, outcome, latency_us, updated) "
                    "VALUES (1, 1, ?, 'measured', ?, 1.0)",
                    ((f'{{"BM":{number}}}', 1.0 + number) for number in range(rows)),
                ).rowcount
            )
        )
    started = time.perf_counter()
    async with Store.open(database) as store:
        print(f"opened in {time.perf_counter() - started:.3f} s")
        assert store.recovered.trials == 1
        assert store.measure_store().trials == rows + 1
        assert [trial.latency_us for trial in store.list_best_trials(CONTEXT, 1)] == [1.0]
        assert (trial := store.find_trial(CONTEXT, {"BM": rows - 1})) is not None
        assert trial.latency_us == float(rows)
