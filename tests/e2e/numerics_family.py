"""Configs in C whose classes of equal bits are known.

The configs differ in the order of a sum, in a fused multiply-add, in denormals or in signed zeros; one differs from
launch to launch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.daemon_parts import FAKE_BACKEND
from tests.e2e.harness import UNHURRIED, Daemon

CC_BACKEND = Path(__file__).parent.parent / "cc_backend"

SOURCE = """
#include <float.h>
#include <math.h>

static int launches = 0;

// A sum for each row, and each element doubled.
void run(const float* x, const float* y, float* s, float* t, long rows, long columns) {
  int is_backward = DOES == 3 ? ++launches % 2 : 0;
  // Registers alone: how long a loop through the stack takes depends on where that is.
  for (long wait = 0; wait < SLOW * 80000L; ++wait) __asm__ volatile("");
  for (long i = 0; i < rows; ++i) {
    float part[LANES] = {0};
    for (long k = 0; k < columns; k += LANES)
      for (long lane = 0; lane < LANES; ++lane) {
        long at = is_backward ? columns - 1 - k - lane : k + lane;
        part[lane] = part[lane] + x[i * columns + at] * y[at];
      }
    for (long lane = 1; lane < LANES; ++lane) part[0] += part[lane];
    s[i] = part[0];
    for (long k = 0; k < columns; ++k) {
      float value = x[i * columns + k];
      if (DOES == 1 && fabsf(value) < FLT_MIN) value = 0.0f;
      t[i * columns + k] = 2.0f * value;
      if (DOES == 2) t[i * columns + k] += 0.0f;
    }
  }
}
"""

PLAIN, FLUSHES, POSITIVE_ZEROS, DIFFERS = range(4)


def make_config(*, lanes: int = 1, fused: int = 0, does: int = PLAIN, slow: int = 0) -> dict[str, int]:
    return {"LANES": lanes, "FUSED": fused, "DOES": does, "SLOW": slow}


ANCHOR = make_config(slow=1)
FAST = make_config()
ORDERED = make_config(lanes=4)
SLOWLY_ORDERED = make_config(lanes=4, slow=1)
FUSED = make_config(fused=1)
FLUSHING = make_config(does=FLUSHES)
WITHOUT_NEGATIVE_ZERO = make_config(does=POSITIVE_ZEROS)
RACY = make_config(does=DIFFERS)
BROKEN = make_config(lanes=-1)

CLASSES = [[ANCHOR, FAST], [ORDERED, SLOWLY_ORDERED], [FUSED], [FLUSHING], [WITHOUT_NEGATIVE_ZERO]]
"""The true classes; :data:`RACY` has none."""

SPACE = [*(one for members in CLASSES for one in members), RACY]


def make_daemon(directory: Path) -> Daemon:
    """Return a daemon with the family's backend: a C compiler takes a thirtieth of the time of a C++ compiler."""
    path = os.pathsep.join(map(str, (CC_BACKEND, FAKE_BACKEND)))
    return Daemon(directory, env={"PYTHONPATH": path, "CC_LOG": str(directory / "cc.log")})


def write_family(
    daemon: Daemon,
    *,
    numerics: str = "exact",
    space: Any = SPACE,
    default: Any = ANCHOR,
    problems: Any = ({"M": 16, "K": 64},),
) -> str:
    """Write the family's files into a daemon's project and return the path of the kernel file."""
    text = f"""
from ktuned import kernel, space, tensor
from ktuned_cc import Build

@kernel(
    sources=["rows.c"],
    backend="cc",
    space=space({space!r}),
    problems={list(problems)!r},
    inputs=lambda p: dict(
        a=tensor((p.M, p.K)), b=tensor(p.K), sums=tensor(p.M, output=True), twice=tensor((p.M, p.K), output=True)
    ),
    reference=lambda a, b: dict(sums=a @ b, twice=2 * a),
    default={default!r},
    numerics={numerics!r},
    strategy="exhaustive",
    preset="fast",
    early_stop=1000.0,
    deadlines={UNHURRIED},
)
def rows(p, c):
    # Contracts where it may; a vectorized sum adds products that were made before.
    flags = ("-O2", "-fno-tree-vectorize", "-mfma", "-ffp-contract=fast" if c.FUSED else "-ffp-contract=off")
    defines = dict(LANES=c.LANES, DOES=c.DOES, SLOW=c.SLOW)
    return Build(defines, ("a", "b", "sums", "twice"), flags)
"""
    path = daemon.write_kernel(text)
    (path.parent / "rows.c").write_text(SOURCE)
    return str(path)
