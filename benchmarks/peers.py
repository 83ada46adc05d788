"""ktuned beside its peers, in one run on one GPU: ``triton.autotune``, TileLang's autotuner, Kernel Tuner.

Starts and imports count on both sides when cold; winners are timed again by one timer, in turns.
"""

import argparse
import importlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.report import show
from benchmarks.sides import Comparison, Unavailable
from ktuned.backends import Absent, cuda_devices

COMPARISONS = {
    "triton": "benchmarks.peer_triton",
    "tilelang": "benchmarks.peer_tilelang",
    "sgemm": "benchmarks.peer_sgemm",
}
"""The module of each comparison: its ``compare`` takes the options, yields a :class:`Comparison` and fills it in."""


Compare = Callable[[argparse.Namespace], Iterator[Comparison]]


def compared(name: str, compare: Compare, options: argparse.Namespace) -> Sequence[dict[str, Any]]:
    """Return the rows of one comparison: those that there are when it fails, and why."""
    found: Comparison | None = None
    ended = ""
    try:
        for begun in compare(options):
            found = begun
    except Unavailable as reason:
        ended = f"skipped: {reason}"
    except Exception as error:
        traceback.print_exc()
        ended = f"failed: {type(error).__name__}: {error}"
    return [{"what": f"{name}: {ended}"}] if found is None else found.rows(ended)


def main() -> None:
    """Run the named comparisons, all by default, and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="|".join(COMPARISONS), help="comparisons (default: all)")
    parser.add_argument("--size", type=int, default=4096, help="size of the half-precision products (%(default)s)")
    parser.add_argument("--sgemm-size", type=int, default=2048, help="size of the SGEMM (default: %(default)s)")
    parser.add_argument("--lang", default="cupy", help="Kernel Tuner's way to the GPU: cupy, nvcuda (%(default)s)")
    parser.add_argument(
        "--execution-backend", default="nvrtc", help="TileLang's, on both sides: nvrtc, tvm_ffi (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in COMPARISONS]:
        parser.error(f"there is no comparison {unknown[0]!r}; there are {', '.join(COMPARISONS)}")
    absent = cuda_devices()
    if isinstance(absent, Absent):
        show("peers", [{"what": f"skipped: {absent.message}"}], as_json=options.json)
        return
    for name in options.names or COMPARISONS:
        compare = importlib.import_module(COMPARISONS[name]).compare
        show(f"peers: {name}", compared(name, compare, options), as_json=options.json)


if __name__ == "__main__":
    main()
