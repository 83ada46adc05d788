"""``ktuned portfolio`` from the command to code that needs no ktuned."""

import json
from pathlib import Path

from ktuned_client import Client
from tests.e2e.harness import Daemon
from tests.scheduling.test_portfolios import kernel_file

DEADLINE_S = 10.0


def test_a_portfolio_is_made_shown_and_written(daemon: Daemon, tmp_path: Path) -> None:
    """The command follows it to its end; lookups are answered by its tree, and so does the written code."""
    kernel = daemon.kernel_file(kernel_file())
    assert daemon.ktuned("add", str(kernel)).returncode == 0
    refused = daemon.ktuned("portfolio", "it", "--show")
    assert (refused.returncode, "has no portfolio" in refused.stderr) == (2, True)
    files = [str(tmp_path / f"chosen{suffix}") for suffix in (".py", ".h", ".json")]
    options = [option for file in files for option in ("-o", file)]
    done = daemon.ktuned("portfolio", "it", "--configs", "3", "--loss", "1%", "--tunings", "3", *options)
    assert done.returncode == 0, done.stderr
    assert "expected loss" in done.stdout
    assert "n ≤ " in done.stdout
    names: dict[str, object] = {}
    exec(compile(Path(files[0]).read_text(), files[0], "exec"), names)  # the export is code
    choose = names["choose_config"]
    assert callable(choose)
    with Client(daemon.socket, deadline_s=DEADLINE_S) as client:
        for size in (20, 300, 1000):
            hit = client.lookup("it", {"n": size})
            assert (hit.status, hit.config) == ("near", choose({"n": size}))
            assert hit.expected_loss is not None
    assert "expected loss" in daemon.ktuned("lookup", "it", "-p", "n=300").stdout
    shown = daemon.ktuned("portfolio", "it", "--show", "--json")
    assert json.loads(shown.stdout) == json.loads(Path(files[2]).read_text())
    wrong = daemon.ktuned("portfolio", "it", "-o", "chosen.txt")
    assert (wrong.returncode, "none of .py, .h, .json" in wrong.stderr) == (2, True)
