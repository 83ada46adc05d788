"""Inputs that an application saved: an edit or a loss of their file is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.e2e.harness import Daemon, make_kernel_text

PROBLEM = dict(n=64)
KERNEL = make_kernel_text(
    "space([dict(us=100.0), dict(us=900.0)])",
    inputs="lambda p: dict(ktuned.load_tensors('saved/x.safetensors'), y=tensor((p.n,), output=True))",
    check="lambda i, o: float(i['x'][0]) < 1.0",
    default="dict(us=900.0)",
).replace("from ktuned import", "import ktuned\nfrom ktuned import", 1)


def save_tensor(path: Path, value: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"x": np.full(64, value, "float32")}, path)


def list_changes(daemon: Daemon) -> list[str]:
    (why,) = daemon.client.call("kernels", kernel="it", why=True)["kernels"][0]["why"]
    return [change["where"] for change in why["changes"]]


def wait_until_status(daemon: Daemon, status: str) -> None:
    daemon.wait_until(lambda: daemon.client.lookup("it", PROBLEM).status == status, f"a {status} answer")


def test_a_saved_tensor_is_an_input_and_its_edit_makes_the_winner_stale(daemon: Daemon) -> None:
    """The edit is tuned with the new numbers; the old file restores the old winner."""
    saved = daemon.directory / "project/saved/x.safetensors"
    save_tensor(saved, 0.5)
    job = daemon.tune_one(path=daemon.write_kernel(KERNEL))
    assert job["state"] == "done", job["message"]
    assert daemon.client.lookup("it", PROBLEM).status == "fresh"

    save_tensor(saved, 7.0)
    daemon.wait_until(lambda: list_changes(daemon) == ["saved/x.safetensors"], "the change to be named")
    assert daemon.client.lookup("it", PROBLEM).status == "stale"
    daemon.tune(kernel="it")
    newest = daemon.client.call("results", kernel="it", order="newest", limit=2)["trials"]
    assert {trial["outcome"] for trial in newest} == {"mismatch"}

    save_tensor(saved, 0.5)
    wait_until_status(daemon, "fresh")
