"""One config for a weighted set of problems, in a real daemon."""

from pathlib import Path

from tests.e2e.harness import UNHURRIED, running

FILE = f"""
from ktuned import kernel, space, tensor
from ktuned_fake import Build

TIMES = {{64: dict(a=60.0, b=120.0, c=90.0, d=50.0), 128: dict(a=400.0, b=150.0, c=160.0, d=40.0)}}

@kernel(
    backend="fake", space=space(tag=["a", "b", "c", "d"]), problems=[(dict(n=64), WEIGHT), dict(n=128)], best_for="all",
    inputs=lambda p: dict(x=tensor((p.n,)), y=tensor((p.n,), output=True)), reference=lambda x: dict(y=2 * x),
    deadlines={UNHURRIED}, preset="fast", early_stop=100.0,
)
def it(p, c):
    return Build(us=TIMES[p.n][c.tag], tag=c.tag, does="wrong" if c.tag == "d" and p.n == 128 else "work")
"""


def test_one_config_answers_for_all_problems(tmp_path: Path) -> None:
    """The best compromise, not the best of each; one that is wrong for a problem is out; weights decide.

    Results and exports hold the config that lookups serve.
    """
    with running(tmp_path) as daemon:
        path = daemon.kernel_file(FILE.replace("WEIGHT", "1.0"))
        _, jobs = daemon.tune(path=str(path))
        assert [job["state"] for job in jobs] == ["done", "done"]
        hits = [daemon.client.lookup("it", {"n": n}) for n in (64, 128)]
        assert [(hit.status, dict(hit.config or {})) for hit in hits] == [("fresh", {"tag": "c"})] * 2
        assert 90 <= (hits[0].latency_us or 0) < 120
        assert hits[1].artifact is not None
        marked = [trial["config"] for trial in daemon.client.call("results", kernel="it")["trials"] if trial["winner"]]
        assert marked == [{"tag": "c"}] * 2
        shared = daemon.client.call("export", kernel="it", device=hits[0].device)["document"]["winners"]
        assert [winner["config"] for winner in shared] == [{"tag": "c"}] * 2
        path.write_text(FILE.replace("WEIGHT", "100.0"))

        def is_weighed() -> bool:
            found = [daemon.client.lookup("it", {"n": n}) for n in (64, 128)]
            return [dict(hit.config or {}) for hit in found] == [{"tag": "a"}] * 2

        daemon.until(is_weighed, "the other weight's config")
