"""A family of C++ configs whose classes of equal bits are known.

They differ by the order of a sum, by a fused multiply-add, by what is done to denormals or to signed zeros alone, from
launch to launch, and by how many rows there are.
"""

from __future__ import annotations

from typing import Any

from tests.e2e.harness import UNHURRIED, Daemon

SOURCE = """
#include <cfloat>
#include <cmath>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

static int launches = 0;

// A sum for each row, and each element doubled.
void rows(tvm::ffi::TensorView a, tvm::ffi::TensorView b, tvm::ffi::TensorView sums, tvm::ffi::TensorView twice) {
  const float* x = static_cast<const float*>(a.data_ptr());
  const float* y = static_cast<const float*>(b.data_ptr());
  float* s = static_cast<float*>(sums.data_ptr());
  float* t = static_cast<float*>(twice.data_ptr());
  long rows = a.size(0), columns = a.size(1);
  bool is_backward = DOES == 3 ? ++launches % 2 : DOES == 4 && rows >= 8;
  for (volatile long wait = 0; wait < SLOW * 20000; wait = wait + 1) {
  }
  for (long i = 0; i < rows; ++i) {
    float part[LANES] = {};
    for (long k = 0; k < columns; k += LANES)
      for (long lane = 0; lane < LANES; ++lane) {
        long at = is_backward ? columns - 1 - k - lane : k + lane;
        part[lane] = part[lane] + x[i * columns + at] * y[at];
      }
    for (long lane = 1; lane < LANES; ++lane) part[0] += part[lane];
    s[i] = part[0];
    for (long k = 0; k < columns; ++k) {
      float value = x[i * columns + k];
      if (DOES == 1 && std::fabs(value) < FLT_MIN) value = 0.0f;
      t[i * columns + k] = 2.0f * value;
      if (DOES == 2) t[i * columns + k] += 0.0f;
    }
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(rows, rows);
"""

PLAIN, FLUSHES, POSITIVE_ZEROS, DIFFERS, TURNS = range(5)

MANY_ROWS = 8
"""From so many rows on a config that turns adds backwards."""


def config(*, lanes: int = 1, fused: int = 0, does: int = PLAIN, slow: int = 0) -> dict[str, int]:
    """Return a config of the family."""
    return {"LANES": lanes, "FUSED": fused, "DOES": does, "SLOW": slow}


ANCHOR = config(slow=1)
FAST = config()
ORDERED = config(lanes=4)
SLOWLY_ORDERED = config(lanes=4, slow=1)
FUSED = config(fused=1)
FLUSHING = config(does=FLUSHES)
WITHOUT_NEGATIVE_ZERO = config(does=POSITIVE_ZEROS)
RACY = config(does=DIFFERS)
TURNING = config(does=TURNS)
SLOWLY_TURNING = config(does=TURNS, slow=1)
BROKEN = config(lanes=-1)

CLASSES = [[ANCHOR, FAST], [ORDERED, SLOWLY_ORDERED], [FUSED], [FLUSHING], [WITHOUT_NEGATIVE_ZERO]]
"""The true classes; :data:`RACY` has none."""

SPACE = [*(one for members in CLASSES for one in members), RACY]


def family(
    daemon: Daemon,
    *,
    numerics: str = "exact",
    space: Any = SPACE,
    default: Any = ANCHOR,
    problems: Any = ({"M": 16, "K": 64},),
    more: str = "",
) -> str:
    """Write the family's files into a daemon's project, with ``more`` arguments; return the kernel file's path."""
    text = f"""
import without_torch
from ktuned import kernel, space, tensor
from ktuned_tvm_ffi import Build

@kernel(
    sources=["rows.cc"],
    backend="tvm_ffi",
    space=space({space!r}),
    problems={list(problems)!r},
    inputs=lambda p: dict(
        a=tensor((p.M, p.K)), b=tensor(p.K), sums=tensor(p.M, output=True), twice=tensor((p.M, p.K), output=True)
    ),
    reference=lambda a, b: dict(sums=a @ b, twice=2 * a),
    default={default!r},
    numerics={numerics!r},
    strategy="exhaustive",
    {more}
    preset="fast",
    early_stop=1000.0,
    deadlines={UNHURRIED},
)
def rows(p, c):
    # A vectorized sum adds products that were made before.
    flags = ("-fno-tree-vectorize", "-mfma", "-ffp-contract=fast" if c.FUSED else "-ffp-contract=off")
    defines = dict(LANES=c.LANES, DOES=c.DOES, SLOW=c.SLOW)
    return Build("rows", ("a", "b", "sums", "twice"), defines, flags=flags)
"""
    path = daemon.kernel_file(text)
    (path.parent / "rows.cc").write_text(SOURCE)
    return str(path)
