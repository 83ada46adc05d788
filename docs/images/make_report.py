"""Script that draws report.png: the report of the CPU example, tuned on this machine, in three minutes on quiet cores.

A private daemon tunes a copy of the example in a temporary directory and measures the machine's limits; Chromium
(apt-get install chromium) draws the page without a window.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = Path(__file__).with_name("report.png")
SIZE = (1280, 1205)
"""Down to the end of the second row of charts."""

TRIALS = 68
DRAWING_MS = 10_000
"""Time that the page has for its charts, by its own clock, which runs ahead of the real one."""

DEADLINE_S = 900.0


def main() -> None:
    """Tune, write the report, and draw it."""
    with tempfile.TemporaryDirectory(prefix="ktuned-picture-") as name:
        directory = Path(name)
        home, project = directory / "home", directory / "kernels"
        home.mkdir(mode=0o700)
        shutil.copytree(ROOT / "examples/cpu_gemm", project)
        private = {"KTUNED_HOME": str(home), "KTUNED_SOCKET": str(directory / "run/ktuned.sock")}
        environment = {**os.environ, **private}

        def ktuned(*words: str) -> None:
            command = [sys.executable, "-m", "ktuned", *words]
            subprocess.run(command, cwd=project, env=environment, check=True, timeout=DEADLINE_S)

        try:
            ktuned("doctor", "--peaks")
            ktuned("tune", ".", "--preset", "default", "--trials", str(TRIALS))
            ktuned("report", "gemm", "--output", str(directory / "report.html"))
        finally:
            ktuned("stop")
        size = ",".join(map(str, SIZE))
        subprocess.run(
            [
                *("chromium", "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={size}"),
                *(f"--virtual-time-budget={DRAWING_MS}", f"--screenshot={PICTURE}", str(directory / "report.html")),
            ],
            check=True,
            timeout=DEADLINE_S,
            stderr=subprocess.DEVNULL,
        )
    sys.stderr.write(f"wrote {PICTURE}\n")


if __name__ == "__main__":
    main()
