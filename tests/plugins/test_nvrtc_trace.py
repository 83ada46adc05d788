"""What NVRTC has read, and where it looked in vain, with precompiled headers too."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktuned.backends.contract import Unit
from ktuned.model.values import Outcome
from ktuned_nvrtc import Build, Nvrtc, program
from tests.plugins.observed_compiles import Result, Seen, compile_observed

pytestmark = pytest.mark.skipif(program.read_version() < program.FIRST_WITH_TRACE, reason="needs NVRTC 13")

SOURCE = """
#define CFG "cfg.def"
#include CFG
#include <angled.h>
template <int N> __global__ void k(float* x) { x[N] = VALUE; }
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A source whose header no scan finds, behind the first of two directories."""
    here = tmp_path.resolve()
    (here / "late" / "below").mkdir(parents=True)
    (here / "k.cu").write_text(SOURCE)
    (here / "late" / "cfg.def").write_text("#define VALUE 1.f\n")
    (here / "late" / "angled.h").write_text('#include "below/deep.h"\n#include <cuda_fp16.h>\n')
    (here / "late" / "below" / "deep.h").write_text("\n")
    return here


def compiled(project: Path, key: str, *entries: int) -> tuple[list[Result], Seen]:
    """Compile some kernels as a group; return the results, and the names of what was observed in the project."""
    source, flags = project / "k.cu", ("-Ifirst", "-Ilate")
    units = [
        Unit(f"{key}{n}", Build(f"k<{n}>", ("x",), flags=flags), (source,), source, "k", "sm_90a") for n in entries
    ]
    return compile_observed(Nvrtc, units, project)


def test_the_trace_lists_what_was_read_and_missed(project: Path) -> None:
    """Headers by macro and of any suffix are observed, the earlier places as absent."""
    results, seen = compiled(project, "a", 0)
    assert [one.outcome for one in results] == [None], results
    assert seen.found >= {"late/cfg.def", "late/angled.h", "late/below/deep.h"}
    assert seen.absent >= {"cfg.def", "first/cfg.def", "first/angled.h"} or "first" in seen.absent


def test_a_precompiled_header_is_as_fresh_as_what_it_holds(project: Path) -> None:
    """Kernels that use one depend on all that it holds, and an edit that no scan sees makes another."""
    for key, entries in (("a", (0, 1)), ("b", (2, 3))):
        _, seen = compiled(project, key, *entries)
        assert seen.found >= {"late/cfg.def", "late/below/deep.h"}, key
    before = (project / "into" / "b2" / "kernel.cubin").read_bytes()
    (project / "late" / "cfg.def").write_text("#define VALUE 2.f\n")
    results, seen = compiled(project, "c", 2, 3)
    assert [one.outcome for one in results] == [None, None], results
    assert seen.found >= {"late/cfg.def", "late/below/deep.h"}
    assert (project / "into" / "c2" / "kernel.cubin").read_bytes() != before


@pytest.mark.parametrize(
    ("text", "wanted"), [('#error "not yet"\n', "late/cfg.def"), ('#include "gone.h"\n', "late/gone.h")]
)
def test_a_refusal_depends_on_what_it_names(project: Path, text: str, wanted: str) -> None:
    """Of a program that is refused, what it has read is observed, and what it lacks."""
    (project / "late" / "cfg.def").write_text(text)
    results, seen = compiled(project, "a", 0)
    assert [one.outcome for one in results] == [Outcome.COMPILE_ERROR]
    assert wanted in seen.found | seen.absent, results
