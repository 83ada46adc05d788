"""What NVRTC reads, and where it looks in vain, also with precompiled headers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktuned.backends.contract import Unit
from ktuned.model.values import Outcome
from ktuned_nvrtc import Build, Nvrtc, program
from tests.plugins.observed_compiles import ObservedNames, Result, compile_observed

pytestmark = pytest.mark.skipif(program.read_version() < program.FIRST_WITH_TRACE, reason="needs NVRTC 13")

SOURCE = """
#define CFG "cfg.def"
#include CFG
#include <angled.h>
template <int N> __global__ void k(float* x) { x[N] = VALUE; }
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A source whose header no scan finds; the header is in the second of two include directories."""
    root = tmp_path.resolve()
    (root / "late" / "below").mkdir(parents=True)
    (root / "k.cu").write_text(SOURCE)
    (root / "late" / "cfg.def").write_text("#define VALUE 1.f\n")
    (root / "late" / "angled.h").write_text('#include "below/deep.h"\n#include <cuda_fp16.h>\n')
    (root / "late" / "below" / "deep.h").write_text("\n")
    return root


def compile_kernels(project: Path, key: str, *entries: int) -> tuple[list[Result], ObservedNames]:
    """Compile some kernels as a group; return the results and the names that were observed in the project."""
    source, flags = project / "k.cu", ("-Ifirst", "-Ilate")
    units = [
        Unit(f"{key}{n}", Build(f"k<{n}>", ("x",), flags=flags), (source,), source, "k", "sm_90a") for n in entries
    ]
    return compile_observed(Nvrtc, units, project)


def test_the_trace_lists_what_was_read_and_missed(project: Path) -> None:
    """Headers that a macro names, of any suffix, are observed; earlier places are observed as absent."""
    results, names = compile_kernels(project, "a", 0)
    assert [result.outcome for result in results] == [None], results
    assert names.found >= {"late/cfg.def", "late/angled.h", "late/below/deep.h"}
    assert names.absent >= {"cfg.def", "first/cfg.def", "first/angled.h"} or "first" in names.absent


def test_a_precompiled_header_is_as_fresh_as_what_it_holds(project: Path) -> None:
    """Kernels that use a precompiled header depend on all its files; an edit that no scan sees makes another header."""
    for key, entries in (("a", (0, 1)), ("b", (2, 3))):
        _, names = compile_kernels(project, key, *entries)
        assert names.found >= {"late/cfg.def", "late/below/deep.h"}, key
    before = (project / "into" / "b2" / "kernel.cubin").read_bytes()
    (project / "late" / "cfg.def").write_text("#define VALUE 2.f\n")
    results, names = compile_kernels(project, "c", 2, 3)
    assert [result.outcome for result in results] == [None, None], results
    assert names.found >= {"late/cfg.def", "late/below/deep.h"}
    assert (project / "into" / "c2" / "kernel.cubin").read_bytes() != before


@pytest.mark.parametrize(
    ("text", "name"), [('#error "not yet"\n', "late/cfg.def"), ('#include "gone.h"\n', "late/gone.h")]
)
def test_a_refusal_depends_on_what_it_names(project: Path, text: str, name: str) -> None:
    """The files that a failing compilation read or missed are observed."""
    (project / "late" / "cfg.def").write_text(text)
    results, names = compile_kernels(project, "a", 0)
    assert [result.outcome for result in results] == [Outcome.COMPILE_ERROR]
    assert name in names.found | names.absent, results
