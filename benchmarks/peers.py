"""ktuned beside its peers, in one run on one GPU: ``triton.autotune``, TileLang's autotuner, Kernel Tuner.

Starts and imports count on both sides when cold; winners are timed again by one timer, in turns.
"""

import argparse
import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from benchmarks.report import show
from benchmarks.sides import Comparison, Unavailable
from ktuned.backends import Absent, cuda_devices

COMPARISONS = {
    "triton": "benchmarks.peer_triton",
    "tilelang": "benchmarks.peer_tilelang",
    "sgemm": "benchmarks.peer_sgemm",
}
"""The module of each comparison: its function ``compare`` takes the options and returns a :class:`Comparison`."""


def compared(name: str, options: argparse.Namespace) -> Sequence[dict[str, Any]]:
    """Return the rows of one comparison; one row with the reason where it cannot be made."""
    if importlib.util.find_spec(COMPARISONS[name]) is None:
        return [{"what": f"{name}: there is no such comparison yet"}]
    try:
        made: Comparison = importlib.import_module(COMPARISONS[name]).compare(options)
    except Unavailable as reason:
        return [{"what": f"{name}: skipped: {reason}"}]
    return made.rows()


def main() -> None:
    """Run the named comparisons, all by default, and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="|".join(COMPARISONS), help="comparisons (default: all)")
    parser.add_argument("--size", type=int, default=4096, help="size of the half-precision products (%(default)s)")
    parser.add_argument("--sgemm-size", type=int, default=2048, help="size of the SGEMM (default: %(default)s)")
    parser.add_argument("--lang", default="cupy", help="Kernel Tuner's way to the GPU: cupy, nvcuda (%(default)s)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in COMPARISONS]:
        parser.error(f"there is no comparison {unknown[0]!r}; there are {', '.join(COMPARISONS)}")
    absent = cuda_devices()
    if isinstance(absent, Absent):
        show("peers", [{"what": f"skipped: {absent.message}"}], as_json=options.json)
        return
    for name in options.names or COMPARISONS:
        show(f"peers: {name}", compared(name, options), as_json=options.json)


if __name__ == "__main__":
    main()
