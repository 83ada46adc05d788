"""Traces: digests that include learned names in any order, and kernels that learn them."""

from __future__ import annotations

import json
from itertools import permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ktuned.model.kernel import KernelInfo, SpaceInfo
from ktuned.model.keys import ProjectName
from ktuned.model.plan import Plan
from ktuned.model.trace import NOISE, Observation, add_digests, extend_digest, find_new_observations, reduce_digest

DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex)
ENTRIES = st.lists(st.builds(Observation, st.text(min_size=1), DIGESTS), max_size=5, unique_by=lambda entry: entry.name)
HEADER = Observation("cfg/a.def", "aa", places=("/p/cfg/a.def",), is_source=True)
DATA = Observation("table.bin", "bb", places=("/p/table.bin",), is_data=True)
VARIABLE = Observation("env:CPATH", "", is_source=True)


def make_kernel() -> KernelInfo:
    """Return a kernel that an inspection has found and that has learned nothing."""
    return KernelInfo(
        ProjectName("p"),
        "k",
        "/p/sub/tune_k.py",
        1,
        "fake",
        "d1" * 32,
        "c1" * 32,
        "p1",
        ("/p/sub/k.c",),
        {"/p/sub/tune_k.py": "11", "/p/sub/k.c": "22", "/p/inc/x.h": ""},
        (),
        None,
        None,
        SpaceInfo(),
        Plan(),
        file_parts={"k.c": "22"},
        data_digest="da" * 32,
    )


@given(DIGESTS, ENTRIES)
def test_order_and_steps_do_not_matter(digest: str, entries: list[Observation]) -> None:
    """Names give the same digest whether they are learned together or one by one."""
    digest_at_once = extend_digest(digest, entries)
    for order in list(permutations(entries))[:6]:
        stepwise_digest = digest
        for entry in order:
            stepwise_digest = extend_digest(stepwise_digest, [entry])
        assert stepwise_digest == digest_at_once
    assert extend_digest(digest, []) == digest


@given(DIGESTS, DIGESTS, ENTRIES)
def test_additions_in_another_order_make_the_same_digest(digest: str, other: str, entries: list[Observation]) -> None:
    """An artifact's key takes names as the digests do from which it is made."""
    assert add_digests(other, extend_digest(digest, entries)) == extend_digest(add_digests(other, digest), entries)


@pytest.mark.parametrize("other", [replace(HEADER, digest="ff"), replace(HEADER, digest=""), replace(HEADER, name="x")])
def test_another_content_is_another_digest(other: Observation) -> None:
    assert extend_digest("d1", [HEADER]) != extend_digest("d1", [other]) != "d1"


@pytest.mark.parametrize(
    ("library", "is_same"),
    [
        (Observation("lib.so", "aa", places=("/p/lib.so",), is_source=True), True),
        (Observation("lib.so", "aa", places=("/p/lib.so",), is_data=True), False),
        (Observation("lib.so", "aa", places=("/p/lib.so",), is_source=True, is_data=True), False),
    ],
)
def test_a_process_is_used_further_only_if_compilers_alone_read_what_changed(
    library: Observation, is_same: bool
) -> None:
    """A lane keeps a library that its kernel file has loaded, also if compile workers load that library, too."""
    old = make_kernel().with_observed([library]).code_digest
    new = make_kernel().with_observed([replace(library, digest="bb")]).code_digest
    assert (old == new) is is_same


def test_python_counts_by_its_meaning_and_a_header_by_its_bytes() -> None:
    """A comment in a learned module changes no digest, a comment in a header does; places never count."""
    module = Observation("late.py", "11", meaning="its syntax", is_data=True)
    assert extend_digest("d1", [module]) == extend_digest("d1", [replace(module, digest="ff", places=("/q/late.py",))])
    assert extend_digest("d1", [HEADER]) == extend_digest("d1", [replace(HEADER, places=("/q/a.def",))])
    assert extend_digest("d1", [HEADER]) != extend_digest("d1", [replace(HEADER, digest="ff")])


def test_learned_python_decides_a_measurement_if_it_judges_outputs() -> None:
    """Otherwise a lane reports the inputs and expected outputs that the code makes."""
    module = Observation("late.py", "11", meaning="its syntax", is_data=True)
    judging = replace(make_kernel(), judges=True)
    assert make_kernel().with_observed([module]).data_read == {}
    assert judging.with_observed([module]).data_read == {"late.py": "its syntax"}
    assert make_kernel().with_observed([module]).digest != make_kernel().digest


def test_a_learned_name_is_in_the_digests_that_it_decides() -> None:
    """Files that compilers read decide artifacts, files that make data decide the data, and all decide the kernel's
    digest.
    """
    before = make_kernel()
    compiled, measured = before.with_observed([HEADER]), before.with_observed([DATA])
    assert compiled.digest == extend_digest(before.digest, [HEADER])
    assert compiled.source_digest == extend_digest(before.source_digest, [HEADER])
    assert measured.source_digest == before.source_digest
    assert measured.data_read == {}
    assert before.with_observed([replace(DATA, is_run=True)]).data_read == {DATA.name: DATA.decisive[:16]}
    assert compiled.data_read == {}
    assert compiled.stamps == {**before.stamps, "/p/cfg/a.def": "aa"}
    assert set(compiled.parts) - set(before.parts) == {"source:../cfg/a.def"}
    assert set(before.with_observed([VARIABLE]).parts) - set(before.parts) == {"env:CPATH"}


def test_a_known_name_is_not_learned_twice() -> None:
    """A known name that is read for another purpose changes only that purpose's digest."""
    learned_once = make_kernel().with_observed([HEADER, VARIABLE])
    assert learned_once.with_observed([HEADER]) is learned_once
    assert find_new_observations(learned_once.learned, [HEADER, VARIABLE]) == []
    learned_twice = learned_once.with_observed([replace(HEADER, is_source=False, is_data=True)])
    assert (learned_twice.digest, learned_twice.source_digest) == (learned_once.digest, learned_once.source_digest)
    assert learned_twice.learned[HEADER.name].is_data
    assert learned_twice.learned["cfg/a.def"].is_source


def test_equal_values_count_as_one() -> None:
    """So the digest stays if a value returns; after :data:`NOISE` changes any value counts as the same."""
    one = DATA
    for number in range(NOISE):
        one = replace(one, digest=f"{number}").with_equal_value(one.decisive)
        now = make_kernel().with_observed([one])
        back = make_kernel().with_observed([replace(one, digest=DATA.digest)])
        assert back.digest == now.digest
        other = make_kernel().with_observed([replace(one, digest="other")])
        assert (other.digest == now.digest) is one.is_noise is (number == NOISE - 1)


def test_a_known_name_keeps_what_was_learned_of_it() -> None:
    """Whether it was learned before or is found again; the digests cover the equal values."""
    known = replace(HEADER, digest="ff").with_equal_value(HEADER.digest)
    found = make_kernel().with_observed([HEADER]).with_observed([known, replace(HEADER, is_run=True)])
    assert found.learned[HEADER.name] == replace(HEADER, alike=known.alike, is_run=True)
    assert found.digest == make_kernel().with_observed([known]).digest
    assert found.source_digest == make_kernel().with_observed([known]).source_digest


@pytest.mark.parametrize(
    ("found", "is_contradicted"),
    [
        (HEADER, False),
        (replace(HEADER, digest="ff"), True),
        (replace(HEADER, digest=""), True),
        (Observation("sub/k.c", "22", places=("/p/sub/k.c",)), False),
        (Observation("sub/k.c", "33", places=("/p/sub/k.c",)), True),
        (Observation("inc/x.h", "33", places=("/p/inc/x.h",)), True),
        (DATA, False),
    ],
)
def test_an_observation_that_contradicts_the_known_is_found(found: Observation, is_contradicted: bool) -> None:
    """The file has changed since the kernel was inspected."""
    assert (make_kernel().with_observed([HEADER]).find_contradiction([found]) is found) is is_contradicted


def test_artifacts_depend_on_sources_and_on_absent_headers() -> None:
    """Learned headers count, too; the kernel file does not. Without sources, all files count."""
    assert set(make_kernel().with_observed([HEADER, DATA]).compiled_files) == {
        "/p/sub/k.c",
        "/p/inc/x.h",
        "/p/cfg/a.def",
    }
    assert set(replace(make_kernel(), sources=(), file_parts={}).compiled_files) == set(make_kernel().stamps)


def test_learned_names_survive_the_store() -> None:
    learned = make_kernel().with_observed([HEADER, DATA, VARIABLE])
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(learned))), KernelInfo) == learned


@given(DIGESTS, ENTRIES, ENTRIES)
def test_entries_added_to_a_digest_can_be_removed(
    digest: str, first: list[Observation], rest: list[Observation]
) -> None:
    """The result is the digest with the other entries only, whatever the order."""
    assert reduce_digest(extend_digest(extend_digest(digest, first), rest), first) == extend_digest(digest, rest)
