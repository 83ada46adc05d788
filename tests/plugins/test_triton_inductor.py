"""Inductor under ``ktuned run``: its own kernels are none of Triton's drop-in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ktuned.cli.commands.run import hook_environment
from ktuned.dropin import Account
from tests.e2e.harness import Daemon

PROGRAM = Path(__file__).with_name("triton_app") / "compiled.py"


@pytest.mark.gpu
def test_each_drop_in_adopts_its_own_functions(tmp_path: Path) -> None:
    """All results are right. Triton's adopts the program's own function, Inductor's the product and what follows it."""
    (tmp_path / "summary").mkdir()
    with Daemon(tmp_path, tensors="torch") as daemon:
        environment = {**daemon.env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment |= hook_environment("background", "tolerance", str(tmp_path / "summary"), environment)
        done = subprocess.run(
            [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=200, check=False
        )
    assert done.stdout.splitlines()[-1:] == ["a call: right Autotuner"], done.stdout + done.stderr
    account = Account.from_directory(tmp_path / "summary")
    assert not account.left_alone
    own, product, rest = sorted(account.adopted)
    assert (own, product.rpartition(".")[2], rest.partition(".")[0]) == ("__main__.doubled", "mm", "graph")
