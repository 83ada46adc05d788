"""Many authors side by side, each with a project, a home and a daemon of its own; prints one table of all.

    python tests/author/run.py --authors 14 --edits 500 --seed 3 --minutes 8 --logs DIRECTORY

Each is a ``pytest tests/author --author=full --author-part=I/N``, whose output is a file in the directory. Fails if an
answer was wrongly fresh, more than a tenth of the re-tunes were needless, or an author did not come to its end.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic

REPOSITORY = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(REPOSITORY))

from tests.author.tally import LINE, Tally  # noqa: E402 - found by the line above

END_S = 60.0
"""Time for an author's last edit, and for its daemon's end."""


def start(part: int, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start one author."""
    words = ["-m", "pytest", "tests/author", "-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0"]
    words += ["--author=full", f"--author-seed={options.seed}", f"--author-edits={options.edits}"]
    words += [f"--basetemp={options.logs}/author_{part}"]
    words += [f"--author-part={part}/{options.authors}", f"--author-minutes={options.minutes}"]
    with log_of(part, options).open("wb") as log:
        return subprocess.Popen([sys.executable, *words], cwd=REPOSITORY, stdout=log, stderr=log)


def ended(author: subprocess.Popen[bytes], deadline: float) -> int:
    """Wait for an author's end, interrupt one that is late, and return the exit code."""
    try:
        return author.wait(max(0.0, deadline - monotonic()))
    except subprocess.TimeoutExpired:
        # As a user's Ctrl-C: its daemon is stopped, and its tally printed.
        author.send_signal(signal.SIGINT)
        return author.wait(END_S)


def log_of(part: int, options: argparse.Namespace) -> Path:
    """Return the file with an author's output."""
    return Path(options.logs, f"author_{part}.log")


def main() -> int:
    """Run all authors; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--authors", type=int, default=1, help="how many work at once (default: 1)")
    parser.add_argument("--edits", type=int, default=500, help="edits of all together (default: 500)")
    parser.add_argument("--seed", type=int, default=3, help="what chooses the edits (default: 3)")
    parser.add_argument("--minutes", type=float, default=110.0, help="begin no edit after this time")
    parser.add_argument("--logs", type=Path, required=True, help="the directory of their outputs")
    options = parser.parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    parts = range(1, options.authors + 1)
    authors = [start(part, options) for part in parts]
    deadline = monotonic() + 60.0 * options.minutes + END_S
    codes = [ended(author, deadline) for author in authors]
    total = Tally()
    for part, code in zip(parts, codes, strict=True):
        lines = log_of(part, options).read_text().splitlines()
        tally = next((Tally.from_line(line) for line in lines if line.startswith(LINE)), None)
        if tally is None:
            print(f"author {part} came to no end, exit code {code}:", *lines[-20:], sep="\n  ")
        else:
            total.add(tally)
            print(f"author {part}: {tally.edits.total()} edits, {len(tally.wrong)} wrong, exit code {code}")
    print(total)
    return max(map(abs, codes)) or int(not total.is_precise)


if __name__ == "__main__":
    sys.exit(main())
