import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "client" / "unasync.py"


def test_the_client_for_threads_is_derived_from_the_other() -> None:
    """``client.py`` is byte for byte the script's output for ``aio.py``."""
    checked = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
