"""Learned names: contexts are renamed with their trials, and merge if both names exist."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ktuned.model.kernel import KernelInfo
from ktuned.model.trace import Observation, extend_digest
from ktuned.store.contexts import Context
from ktuned.store.database import Store
from tests.store.samples import CONTEXT, create_job, make_kernel_info, make_measured_result, run_trial

pytestmark = pytest.mark.anyio

HEADER = Observation("a.def", "aa", places=("/p/a.def",), is_source=True)


async def learn_name(store: Store, kernel: KernelInfo, *names: Observation) -> KernelInfo:
    learned = kernel.with_observed(names)
    await store.learned.learn_names(learned, names, names)
    return learned


def make_context(kernel: KernelInfo) -> Context:
    return replace(CONTEXT, kernel=kernel.name, digest=kernel.digest)


async def test_results_are_found_under_the_new_name_only(store: Store) -> None:
    kernel = make_kernel_info()
    await store.save_kernels([kernel])
    job = await create_job(store, kernel.name)
    await run_trial(store, job, 8, make_measured_result(3.0), make_context(kernel))
    learned = await learn_name(store, kernel, HEADER)
    winner = store.get_winner(CONTEXT.key)
    assert winner is not None
    assert winner.context == make_context(learned)
    assert store.list_best_trials(make_context(kernel), 9) == []
    assert store.load_digest_parts(kernel.name, kernel.digest) is None
    assert store.load_digest_parts(kernel.name, learned.digest) == learned.parts
    assert store.learned.list_names() == {kernel.name: {"a.def": HEADER}}
    assert store.load_kernels() == [learned]


async def test_a_module_that_is_also_read_as_text_renames_the_results(store: Store) -> None:
    """The digest has its syntax tree from the inspection, and its text from a launch."""
    kernel = replace(make_kernel_info(), file="/p/tune_k.py", python_parts={"tune_k.py": "cc"})
    await store.save_kernels([kernel])
    await run_trial(store, await create_job(store, kernel.name), 8, make_measured_result(3.0), make_context(kernel))
    learned = await learn_name(store, kernel, Observation("tune_k.py", "dd", places=("/p/tune_k.py",), is_data=True))
    assert len(learned.parts) == len(kernel.parts) + 1
    winner = store.get_winner(CONTEXT.key)
    assert winner is not None
    assert winner.context == make_context(learned)


async def test_an_earlier_state_gets_the_name_and_one_that_has_it_stays(store: Store) -> None:
    kernel = make_kernel_info()
    earlier = replace(kernel, digest="e" * 64)
    knowing = replace(kernel, digest="f" * 64).with_observed([HEADER])
    for state in (earlier, knowing, kernel):
        await store.save_kernels([state])
        await run_trial(store, await create_job(store, kernel.name), 8, make_measured_result(3.0), make_context(state))
    learned = await learn_name(store, kernel, HEADER)
    for digest in (extend_digest(earlier.digest, [HEADER]), knowing.digest, learned.digest):
        assert len(store.list_best_trials(replace(make_context(kernel), digest=digest), 9)) == 1


async def test_trials_of_a_renamed_context_are_merged_and_newer_ones_stay(store: Store) -> None:
    """If both contexts tried a config, the trial under the new name stays."""
    kernel = make_kernel_info()
    await store.save_kernels([kernel])
    job = await create_job(store, kernel.name)
    await run_trial(store, job, 8, make_measured_result(3.0), make_context(kernel))
    await run_trial(store, job, 16, make_measured_result(5.0), make_context(kernel))
    await run_trial(store, job, 16, make_measured_result(4.0), make_context(kernel.with_observed([HEADER])))
    learned = await learn_name(store, kernel, HEADER)
    latencies = {trial.config["BM"]: trial.latency_us for trial in store.list_best_trials(make_context(learned), 9)}
    assert latencies == {8: 3.0, 16: 4.0}
