"""Learned names in the store: contexts are renamed with their trials, and merge where both names are there."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ktuned.model.kernel import KernelInfo
from ktuned.model.trace import Observation, extend_digest
from ktuned.store.contexts import Context
from ktuned.store.database import Store
from tests.store.samples import CONTEXT, kernel_info, measured, new_job, tried

pytestmark = pytest.mark.anyio

HEADER = Observation("a.def", "aa", places=("/p/a.def",), is_source=True)


async def _learn(store: Store, kernel: KernelInfo, *names: Observation) -> KernelInfo:
    learned = kernel.with_observed(names)
    await store.learned.learn_names(learned, names, names)
    return learned


def _context(kernel: KernelInfo) -> Context:
    return replace(CONTEXT, kernel=kernel.name, digest=kernel.digest)


async def test_results_have_the_new_name(store: Store) -> None:
    """The winner, its trials and the parts of its digest are found by the digest with the name, and by no other."""
    kernel = kernel_info()
    await store.save_kernels([kernel])
    job = await new_job(store, kernel.name)
    await tried(store, job, 8, measured(3.0), _context(kernel))
    learned = await _learn(store, kernel, HEADER)
    winner = store.get_winner(CONTEXT.key)
    assert winner is not None
    assert winner.context == _context(learned)
    assert store.list_best_trials(_context(kernel), 9) == []
    assert store.load_digest_parts(kernel.name, kernel.digest) is None
    assert store.load_digest_parts(kernel.name, learned.digest) == learned.parts
    assert store.learned.list_names() == {kernel.name: {"a.def": HEADER}}
    assert store.load_kernels() == [learned]


async def test_a_module_that_is_also_read_as_text_renames_the_results(store: Store) -> None:
    """Its syntax tree is a part of the digest since the inspection; its text, which a launch has read, is another."""
    kernel = replace(kernel_info(), file="/p/tune_k.py", python_parts={"tune_k.py": "cc"})
    await store.save_kernels([kernel])
    await tried(store, await new_job(store, kernel.name), 8, measured(3.0), _context(kernel))
    learned = await _learn(store, kernel, Observation("tune_k.py", "dd", places=("/p/tune_k.py",), is_data=True))
    assert len(learned.parts) == len(kernel.parts) + 1
    winner = store.get_winner(CONTEXT.key)
    assert winner is not None
    assert winner.context == _context(learned)


async def test_states_that_have_the_name_stay(store: Store) -> None:
    """An earlier state of the kernel gets the name; one that has it, from another inspection, is left alone."""
    kernel = kernel_info()
    earlier = replace(kernel, digest="e" * 64)
    knowing = replace(kernel, digest="f" * 64).with_observed([HEADER])
    for state in (earlier, knowing, kernel):
        await store.save_kernels([state])
        await tried(store, await new_job(store, kernel.name), 8, measured(3.0), _context(state))
    learned = await _learn(store, kernel, HEADER)
    for digest in (extend_digest(earlier.digest, [HEADER]), knowing.digest, learned.digest):
        assert len(store.list_best_trials(replace(_context(kernel), digest=digest), 9)) == 1


async def test_trials_of_a_renamed_context_are_merged_and_the_new_stay(store: Store) -> None:
    """Trials that were entered by the new name already take in the others; where both tried a config, the new stays."""
    kernel = kernel_info()
    await store.save_kernels([kernel])
    job = await new_job(store, kernel.name)
    await tried(store, job, 8, measured(3.0), _context(kernel))
    await tried(store, job, 16, measured(5.0), _context(kernel))
    await tried(store, job, 16, measured(4.0), _context(kernel.with_observed([HEADER])))
    learned = await _learn(store, kernel, HEADER)
    found = {trial.config["BM"]: trial.latency_us for trial in store.list_best_trials(_context(learned), 9)}
    assert found == {8: 3.0, 16: 4.0}
