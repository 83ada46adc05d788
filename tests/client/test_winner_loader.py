"""Loading of winners where only the client is installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPT = """
import sys
from ktuned_client import Hit, LoadError
hit = Hit("p:gemm", {"M": 4}, "GPU", "fresh", {}, 1.0, artifact=sys.argv[1])
try:
    hit.load()
except LoadError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("manifest", "remedy"),
    [({"recipe": {"plugin": "ktuned-nvrtc"}}, "-m pip install ktuned-nvrtc"), ({}, "install its plugin")],
)
def test_a_missing_plugin_is_one_clear_line(tmp_path: Path, manifest: dict[str, object], remedy: str) -> None:
    """The line names the distribution that compiled the artifact."""
    (tmp_path / "msgpack").symlink_to(Path(str(msgpack.__file__)).parent)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    done = subprocess.run(
        [sys.executable, "-S", "-c", SCRIPT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'client'}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = done.stdout.splitlines()
    assert line.startswith("p:gemm cannot be loaded: its backend is not installed for this Python; ")
    assert line.endswith(remedy)
