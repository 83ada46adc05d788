import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "client" / "unasync.py"


def test_the_client_for_threads_is_derived_from_the_other() -> None:
    """``client.py`` is, to the byte, what the script makes of ``aio.py``."""
    script = runpy.run_path(str(SCRIPT))
    assert script["MADE"].read_text() == script["derive_client"](script["SOURCE"].read_text())
