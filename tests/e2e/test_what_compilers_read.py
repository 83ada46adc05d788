"""Files that only a C++ compiler finds: an edit of one makes the answer stale, and the new answer has the new bytes."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.harness import UNHURRIED, Daemon

KERNEL = f"""
import without_torch
from ktuned import kernel, space, tensor
from ktuned_tvm_ffi import Build

@kernel(
    backend="tvm_ffi", sources=["it.cc"], space=space(A=[1]), problems=[dict(n=64)], check=None, preset="fast",
    inputs=lambda p: dict(y=tensor((p.n,), output=True)), deadlines={UNHURRIED},
)
def it(p, c):
    return Build("fill", ("y",), flags=("-include", "forced.h", "-Ifirst", "-Ilate"))
"""

SOURCE = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#define CFG "cfg.def"
#include CFG
void fill(tvm::ffi::TensorView y) { static_cast<float*>(y.data_ptr())[0] = VALUE + FORCED; }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fill, fill);
"""


def test_edits_of_files_that_only_the_compiler_finds_are_noticed(tmp_path: Path) -> None:
    """Cases: a flag's file, a macro's file, and a new file earlier in the search path."""
    project = tmp_path / "project"
    for directory in ("first", "late"):
        (project / directory).mkdir(parents=True)
    (project / "it.cc").write_text(SOURCE)
    (project / "forced.h").write_text("#define FORCED 0.f\n")
    (project / "late" / "cfg.def").write_text("#define VALUE 1.f\n")
    with Daemon(tmp_path) as daemon:
        path = daemon.write_kernel(KERNEL)
        daemon.tune(path=path)
        problem = dict(n=64)
        hits = [daemon.client.lookup("it", problem)]
        for name, text in [
            ("forced.h", "#define FORCED 1.f\n"),
            ("first/cfg.def", "#define VALUE 3.f\n"),
        ]:
            (project / name).write_text(text)
            daemon.wait_until(lambda: daemon.client.lookup("it", problem).status == "stale", f"{name} to be seen")
            daemon.wait_until(lambda: daemon.client.lookup("it", problem).status == "fresh", f"{name} to be tuned")
            hits.append(daemon.client.lookup("it", problem))
    artifacts = [hit.artifact for hit in hits]
    assert None not in artifacts
    libraries = {Path(artifact, "kernel.so").read_bytes() for artifact in artifacts if artifact is not None}
    assert len(libraries) == len(hits)
