"""``torch.compile``'s max-autotune on a GPU, from the first start to the third."""

import os
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import Daemon

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

DEADLINE_S = 240.0

PROGRAM = """\
import torch
from torch._dynamo.utils import counters
from torch._inductor.select_algorithm import AlgorithmSelectorCache

timed = []
AlgorithmSelectorCache.benchmark = lambda *args, **kwargs: timed.append(1)

@torch.compile(mode="max-autotune-no-cudagraphs")
def multiply(x, y):
    return torch.relu(x @ y)

torch.manual_seed(0)
x, y = (torch.randn(512, 512, device="cuda", dtype=torch.bfloat16) for _ in range(2))
found, expected = multiply(x, y), torch.relu(x @ y)
print(torch.allclose(found, expected, rtol=2e-2, atol=0.5), len(timed), counters["inductor"]["fxgraph_cache_hit"])
"""


def test_product_is_tuned_between_two_starts(tmp_path: Path) -> None:
    """The first start records, the daemon tunes, the second saves the graph with the winner, the third loads it."""
    (tmp_path / "product.py").write_text(PROGRAM)
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    with Daemon(tmp_path, spares=True, tensors="torch", env=variables) as daemon:

        def run(hits: int, *summary: str) -> None:
            done = daemon.run_ktuned("run", sys.executable, str(tmp_path / "product.py"), timeout_s=DEADLINE_S)
            assert (done.returncode, done.stdout) == (0, f"True 0 {hits}\n"), done.stderr
            assert "left alone" not in done.stderr, done.stderr
            for words in summary:
                assert words in done.stderr, done.stderr

        def has_ended() -> bool:
            jobs = daemon.client.call("jobs")["jobs"]
            return bool(jobs) and all(job["state"] in ("done", "failed", "cancelled") for job in jobs)

        run(0, "0 tuned", "recorded now")
        daemon.wait_until(has_ended, "the end of the tunings")
        for job in daemon.client.call("jobs")["jobs"]:
            assert job["state"] == "done", job
        run(0, "0 recorded now")
        run(1, "torch.compile loaded 1 graph from its cache")
