from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import ktuned
from ktuned.model.errors import AmbiguousName, KtunedError, NotFound, UsageError
from ktuned.model.trial import TrialResult
from ktuned.model.values import Outcome
from ktuned.protocol.jobs import Job, JobState
from ktuned.serve.method import MAX_ROWS, Peer
from ktuned.store.database import Store
from ktuned_client.wire import PROTOCOL_VERSION
from tests.daemon_parts import Parts, assemble_daemon, make_kernel_text
from tests.serve.noise import Last, Noise

pytestmark = pytest.mark.anyio


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("lookup", {}, "kernel"),
    ("lookup", {"kernel": "it"}, "problem"),
    ("lookup", {"kernel": "it", "problem": {"n": [1]}}, "problem"),
    ("lookup", {"kernel": "it", "problem": {"n": None}}, "problem"),
    ("lookup", {"kernel": "it", "problem": [1]}, "problem"),
    ("lookup", {"kernel": "it", "problem": {"m": 1}}, "names m"),
    ("lookup_many", {"lookups": [{"kernel": 1}]}, "lookups"),
    ("tune", {}, "neither a kernel nor a path"),
    ("tune", {"kernel": "it", "trials": "many"}, "trials"),
    ("tune", {"kernel": "it", "trials": 0}, "trials is 0"),
    ("tune", {"kernel": "it", "time_limit_s": float("inf")}, "time_limit_s is inf"),
    ("tune", {"kernel": "it", "preset": "quick"}, "quick"),
    ("tune", {"kernel": "it", "until": "never"}, "until is 'never'"),
    ("tune", {"kernel": "it", "problem": {"m": 1}}, "names m"),
    ("tune", {"kernel": "nothing"}, "no kernel 'nothing'"),
    ("tune", {"kernel": "it", "priority": -1}, "priority is -1"),
    ("tune", {"kernel": "it", "priority": 1000}, "priority is 1000"),
    ("pause", {"job": 99}, "no job 99"),
    ("pause", {"job": 1, "device": "cpu:0"}, "more than one of job, kernel and device"),
    ("pause", {"device": "cuda:7"}, "no device 'cuda:7'"),
    ("resume", {"job": 99}, "no job 99"),
    ("resume", {"kernel": "nothing"}, "no kernel 'nothing'"),
    ("resume", {"job": "one"}, "job"),
    ("cancel", {}, "a job or a kernel"),
    ("cancel", {"job": 99}, "no job 99"),
    ("jobs", {"job": 99}, "no job 99"),
    ("jobs", {"limit": 0}, "limit is 0"),
    ("jobs", {"state": "sleeping"}, "state"),
    ("jobs", {"kernel": "nothing"}, "no kernel 'nothing'"),
    ("kernels", {"kernel": "nothing"}, "no kernel 'nothing'"),
    ("results", {}, "a kernel or a trial"),
    ("results", {"kernel": "it", "order": "best"}, "'best'"),
    ("results", {"kernel": "it", "before": 3}, "order newest"),
    ("results", {"kernel": "it", "problem": {"m": 1}}, "names m"),
    ("results", {"kernel": "it", "outcome": "good"}, "outcome"),
    ("results", {"trial": 99}, "no trial 99"),
    ("subscribe", {"since": [1]}, "since"),
    ("subscribe", {"types": "winner"}, "types"),
]
"""Method, parameters, and what the error must say."""


class Reader(Peer):
    """Takes events, and does nothing else."""

    is_writable = True

    def __init__(self) -> None:
        self.sent = 0

    def send(self, data: bytes) -> None:
        """Count what comes."""
        self.sent += 1


class Desk:
    """The daemon's methods, called as the server calls them."""

    def __init__(self, parts: Parts) -> None:
        self.events = parts.recorder
        self.peer = Reader()
        self._table = parts.api.handlers

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return a method's result."""
        asked = self._table[method]
        found = asked.handle(asked.read_params(params), self.peer)
        result = await found if inspect.isawaitable(found) else found
        # Over the wire a tuple is a list.
        travelled: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(result))
        return travelled


@pytest.fixture
def desk(parts: Parts) -> Desk:
    """Methods over the parts."""
    return Desk(parts)


async def test_hello_says_who_serves(desk: Desk) -> None:
    """A client can report protocol, build and epoch from one answer."""
    told = await desk.call("hello")
    assert (told["protocol"], told["build"], told["epoch"]) == (PROTOCOL_VERSION, ktuned.__version__, 7)


async def test_wrong_parameters_are_one_clear_error(desk: Desk, parts: Parts) -> None:
    """Each is refused as the caller's, in one line that names the field or the thing."""
    await parts.inspect_file(make_kernel_text(specialize="('n',)"))
    for method, params, words in WRONG:
        with pytest.raises((UsageError, NotFound)) as refused:
            await desk.call(method, **params)
        assert words in refused.value.message, (method, params)
        assert "\n" not in refused.value.message
    assert parts.jobs.list_live_jobs() == []


async def test_a_misspelt_field_is_named_with_the_nearest_one(desk: Desk, parts: Parts) -> None:
    """`trails=3` must not tune with the default number of trials."""
    await parts.inspect_file(make_kernel_text())
    with pytest.raises(UsageError, match=r"^tune has no field 'trails' \(did you mean 'trials'\? there are: kernel,"):
        await desk.call("tune", kernel="it", trails=3)
    with pytest.raises(UsageError, match="unknown field `problems`"):
        await desk.call("lookup_many", lookups=[{"kernel": "it", "problem": {"n": 64}, "problems": {}}])
    assert parts.jobs.list_live_jobs() == []


async def test_lookup_many_keeps_the_order(desk: Desk, parts: Parts) -> None:
    """The n-th answer is the n-th question's."""
    await parts.inspect_file(make_kernel_text())
    asked = [{"kernel": name, "problem": {"n": n}, "tune": False} for name, n in (("it", 3), ("no", 1), ("it", 2))]
    answers = (await desk.call("lookup_many", lookups=asked))["answers"]
    assert [(answer["status"], answer["problem"]["n"]) for answer in answers] == [
        ("default", 3),
        ("unknown", 1),
        ("default", 2),
    ]


async def test_tune_says_where_to_subscribe_from(desk: Desk, parts: Parts) -> None:
    """The place is one before anything that the request sets off."""
    parts.write_file(make_kernel_text())
    parts.write_file("def (", "tune_bad.py")
    desk.events.publish_event(Noise())
    told = await desk.call("tune", path=str(parts.project), trials=3, priority=300)
    assert (told["epoch"], told["seq"]) == (7, 1)
    (job,) = told["jobs"]
    assert (job["kernel"], job["state"], job["priority"], job["plan"]["trials"]) == ("project:it", "queued", 300, 3)
    assert [error["line"] for error in told["errors"]] == [1]


async def test_a_budget_says_that_it_joined_an_older_job(desk: Desk, parts: Parts) -> None:
    """The larger of two budgets counts, which the answer says; without a budget, and for a new job, it is silent."""
    await parts.inspect_file(make_kernel_text())
    assert (await desk.call("tune", kernel="it", trials=7))["notices"] == []
    assert (await desk.call("tune", kernel="it", trials=3))["notices"] == [
        "joined job 1, which does this already and tries up to 7 configs"
    ]
    assert (await desk.call("tune", kernel="it"))["notices"] == []


async def test_jobs_by_kernel_state_and_number(desk: Desk, parts: Parts) -> None:
    """What waits comes in its order, then what has ended; a state is looked for beyond the newest rows."""
    await parts.inspect_file(make_kernel_text(problems="[dict(n=1), dict(n=2), dict(n=3)]"))
    await desk.call("tune", kernel="it")
    first, *_ = (await desk.call("jobs"))["jobs"]
    await desk.call("cancel", job=first["id"])
    listed = (await desk.call("jobs", kernel="it"))["jobs"]
    assert [(job["id"], job["state"]) for job in listed] == [(2, "queued"), (3, "queued"), (1, "cancelled")]
    (cancelled,) = (await desk.call("jobs", state="cancelled", limit=1))["jobs"]
    assert cancelled["id"] == 1
    (one,) = (await desk.call("jobs", job=3))["jobs"]
    assert one["problem"] == {"n": 3}
    told = await desk.call("cancel", kernel="it")
    assert [(job["id"], job["state"]) for job in told["jobs"]] == [(2, "cancelled"), (3, "cancelled")]
    assert (await desk.call("cancel", kernel="it"))["jobs"] == []


async def test_kernels_by_name_and_place(desk: Desk, parts: Parts) -> None:
    """A path may be a link, a directory or a file; errors come with the place that they are in."""
    await parts.inspect_file(make_kernel_text())
    parts.write_file("def (", "sub/tune_bad.py")
    await parts.inspector.inspect_root(parts.root)
    link = parts.project.parent / "link"
    link.symlink_to(parts.project)
    everything = await desk.call("kernels")
    assert ([kernel["name"] for kernel in everything["kernels"]], len(everything["errors"])) == (["project:it"], 1)
    assert [root["name"] for root in everything["roots"]] == ["project"]
    assert len((await desk.call("kernels", path=f"{link}/tune_it.py"))["kernels"]) == 1
    below = await desk.call("kernels", path=f"{link}/sub/")
    assert (below["kernels"], len(below["errors"])) == ([], 1)
    assert len((await desk.call("kernels", kernel="project:it"))["kernels"]) == 1


async def test_a_short_name_means_the_kernel_of_the_project_that_the_client_works_in(desk: Desk, parts: Parts) -> None:
    """Every method that takes a kernel's name takes the directory that decides between two projects."""
    parts.write_file(make_kernel_text())
    other = parts.project.parent / "q"
    parts.write_file(make_kernel_text(), str(other / "tune_it.py"))
    for place in (parts.project, other):
        await desk.call("tune", path=str(place))
    for name, handler in parts.api.handlers.items():
        params = handler.method.params
        if "kernel" in params.__struct_fields__:
            assert "directory" in params.__struct_fields__, name
    with pytest.raises(AmbiguousName):
        await desk.call("jobs", kernel="it")
    for place, meant in ((other, "q:it"), (parts.project, "project:it")):
        here: dict[str, Any] = {"kernel": "it", "directory": str(place)}
        assert [job["kernel"] for job in (await desk.call("tune", **here))["jobs"]] == [meant]
        assert [job["kernel"] for job in (await desk.call("pause", **here))["jobs"]] == [meant]
        assert [job["kernel"] for job in (await desk.call("jobs", **here))["jobs"]] == [meant]
        assert (await desk.call("results", **here, count=True))["total"] == 0
        with pytest.raises(NotFound, match=f"{meant} has no winner"):
            await desk.call("check", **here)
        assert (await desk.call("export", **here))["shared"] == []
        assert [job["kernel"] for job in (await desk.call("cancel", **here))["jobs"]] == [meant]
        assert (await desk.call("forget", **here))["kernel"] == meant
    parts.kill_workers()


async def test_a_path_is_added_without_jobs_and_unwatched_again(desk: Desk, parts: Parts, tmp_path: Path) -> None:
    """``add`` makes kernels known and tunes nothing; ``unwatch`` cancels their jobs and keeps their results."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "tune_it.py").write_text(make_kernel_text("other"))
    added = await desk.call("add", path=str(place))
    assert ([kernel["name"] for kernel in added["kernels"]], added["errors"]) == (["elsewhere:other"], [])
    assert parts.jobs.list_live_jobs() == []
    with pytest.raises(UsageError, match="part of") as refused:
        await desk.call("unwatch", path=str(place / "tune_it.py"))
    assert str(place) in refused.value.hint
    with pytest.raises(NotFound, match="not watched"):
        await desk.call("unwatch", path=str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match=r"config\.toml"):
        await desk.call("unwatch", path=str(parts.project))
    await desk.call("tune", kernel="other")
    gone = await desk.call("unwatch", path=str(place))
    assert (gone["path"], gone["kernels"]) == (str(place.resolve()), ["elsewhere:other"])
    assert ([root.path for root in parts.catalog.roots], parts.jobs.list_live_jobs()) == ([str(parts.project)], [])
    assert parts.store.load_roots() == []
    (job,) = parts.store.list_jobs(kernel="elsewhere:other")
    assert job.state is JobState.CANCELLED
    parts.kill_workers()


async def test_knobs_and_keys_stand_in_the_declared_order(desk: Desk, parts: Parts) -> None:
    """The store sorts them; results, lookups and jobs have them as the kernel file does."""
    space = "us=[50.0], tag=['b', 'a']"
    kernel = await parts.inspect_file(make_kernel_text(configs=space, problems="[dict(n=1, m=2, k=3)]"))
    problem = {"k": 3, "m": 2, "n": 1}
    device = parts.machine.find_device(parts.environment, "fake", None)
    context = parts.machine.build_context(kernel, parts.environment, problem, device)
    await desk.call("tune", kernel="it", problem=problem)
    (job,) = (await desk.call("jobs", kernel="it"))["jobs"]
    assert [*job["problem"]] == ["n", "m", "k"]
    trial = await parts.store.begin_trial(context, problem, job["id"], {"tag": "a", "us": 50.0})
    await parts.store.finish_trial(trial, TrialResult(Outcome.MEASURED, 7.0, 0.1))
    for asked in ({"kernel": "it"}, {"trial": trial}):
        (found,) = (await desk.call("results", **asked))["trials"]
        assert ([*found["config"]], [*found["problem"]]) == (["us", "tag"], ["n", "m", "k"])
    assert kernel.order_config({"extra": 1, "tag": "a", "us": 1.0}) == {"us": 1.0, "tag": "a", "extra": 1}


async def test_results_begin_with_the_fastest(desk: Desk, parts: Parts) -> None:
    """Then come those without a figure; only a single trial comes with its detail."""
    kernel = await parts.inspect_file(make_kernel_text())
    await parts.record_measurements(kernel, {50.0: 7.0, 90.0: 3.0}, count=10)
    device = parts.machine.find_device(parts.environment, "fake", None)
    context = parts.machine.build_context(kernel, parts.environment, {"n": 64}, device)
    failed = await parts.store.begin_trial(context, {"n": 64}, 1, {"us": 1.0})
    await parts.store.finish_trial(failed, TrialResult(Outcome.CRASHED, message="it died"))

    trials = (await desk.call("results", kernel="it", problem={"n": 64}))["trials"]
    assert [trial["latency_us"] for trial in trials] == [3.0, 7.0, None]
    assert all(trial["detail"] == {} for trial in trials)
    assert len((await desk.call("results", kernel="it", limit=2))["trials"]) == 2
    newest = (await desk.call("results", kernel="it", order="newest"))["trials"]
    assert [trial["id"] for trial in newest] == [3, 2, 1]
    (crashed,) = (await desk.call("results", kernel="it", outcome="crashed"))["trials"]
    assert (crashed["id"], crashed["message"]) == (failed, "it died")
    (one,) = (await desk.call("results", trial=1))["trials"]
    assert one["detail"] == {"count": 10}
    assert (await desk.call("results", kernel="it", problem={"n": 65}))["trials"] == []


async def test_results_go_on_where_a_page_ended(desk: Desk, parts: Parts) -> None:
    """Pages before a trial leave none out, the total counts all, and the winner is marked in each."""
    kernel = await parts.inspect_file(make_kernel_text())
    await parts.record_measurements(kernel, {50.0: 7.0, 90.0: 3.0, 70.0: 5.0}, count=10)
    first = await desk.call("results", kernel="it", order="newest", limit=2, count=True, details=True)
    assert [trial["id"] for trial in first["trials"]] == [3, 2]
    assert first["total"] == 3
    assert first["trials"][0]["detail"] == {"count": 10}
    rest = await desk.call("results", kernel="it", order="newest", limit=2, before=2, count=True)
    assert ([trial["id"] for trial in rest["trials"]], rest["total"]) == ([1], 3)
    assert [trial["winner"] for trial in (*first["trials"], *rest["trials"])] == [False, True, False]
    assert (await desk.call("results", trial=2))["trials"][0]["winner"]


async def test_results_take_a_device_by_its_name_here(desk: Desk, parts: Parts) -> None:
    """As every other command does; a word that is no name here is a model, which may be elsewhere."""
    kernel = await parts.inspect_file(make_kernel_text())
    await parts.record_measurements(kernel, {50.0: 7.0})
    device = parts.machine.find_device(parts.environment, "fake", None)
    for named in (device.name, device.model):
        (trial,) = (await desk.call("results", kernel="it", device=named))["trials"]
        assert trial["device"] == device.model
    assert (await desk.call("results", kernel="it", device="H200"))["trials"] == []


async def test_results_of_what_a_kernel_is_now(desk: Desk, parts: Parts) -> None:
    """`current` leaves out what was measured before the file was edited, however fast it was."""
    before = await parts.inspect_file(make_kernel_text())
    await parts.record_measurements(before, {50.0: 3.0})
    now = await parts.inspect_file(make_kernel_text(rtol="0.5"))
    assert now.digest != before.digest
    await parts.record_measurements(now, {50.0: 7.0})
    latencies = [trial["latency_us"] for trial in (await desk.call("results", kernel="it"))["trials"]]
    assert latencies == [3.0, 7.0]
    (current,) = (await desk.call("results", kernel="it", current=True))["trials"]
    assert (current["latency_us"], current["digest"]) == (7.0, now.digest)


async def test_answers_are_bounded(tmp_path: Path) -> None:
    """However much is asked for, an answer stays below a message's limit."""
    asked = []

    class Watched(Store):
        def list_jobs(self, **options: Any) -> list[Job]:
            asked.append(options["limit"])
            return super().list_jobs(**options)

    async with assemble_daemon(tmp_path, store_type=Watched) as parts:
        asked.clear()
        await Desk(parts).call("jobs", limit=10**9)
    assert asked == [MAX_ROWS]


async def test_events_come_and_go_by_connection(desk: Desk) -> None:
    """``unsubscribe`` ends what ``subscribe`` began."""
    assert await desk.call("subscribe", types=["last"]) == {"epoch": 7, "seq": 0}
    desk.events.publish_event(Last())
    desk.events.publish_event(Noise())
    assert desk.peer.sent == 1
    await desk.call("unsubscribe")
    desk.events.publish_event(Last())
    assert desk.peer.sent == 1


async def test_shutdown_ends_the_daemon(desk: Desk, parts: Parts) -> None:
    """It is answered first; then the parts are taken down."""
    assert await desk.call("shutdown") == {}
    assert parts.api.stopping.is_set()


class SlowEnd(Store):
    """A store that takes its time to record that a job has ended."""

    ending: anyio.Event | None = None

    async def update_job(self, job: Job) -> None:
        """Record a job as it is now, if it was cancelled after the others had their turn."""
        if self.ending is not None and job.state is JobState.CANCELLED:
            ending, self.ending = self.ending, None
            ending.set()
            await anyio.wait_all_tasks_blocked()
        await super().update_job(job)


async def test_job_that_ends_by_itself_spoils_no_cancel(tmp_path: Path) -> None:
    """Of a kernel's jobs, those that still can be cancelled are."""
    async with assemble_daemon(tmp_path, store_type=SlowEnd) as parts:
        desk = Desk(parts)
        await parts.inspect_file(make_kernel_text(problems="[dict(n=1), dict(n=2)]"))
        await desk.call("tune", kernel="it")
        first, second = (job.id for job in parts.jobs.list_live_jobs())
        assert isinstance(parts.store, SlowEnd)
        ending = parts.store.ending = anyio.Event()
        cancelled: list[int] = []

        async def cancel_all() -> None:
            cancelled.extend(job["id"] for job in (await desk.call("cancel", kernel="it"))["jobs"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_all)
            await ending.wait()
            # While the first is being cancelled, the second ends.
            tasks.start_soon(parts.jobs.cancel_job, second)
        assert cancelled == [first]
        with pytest.raises(KtunedError, match="is cancelled already"):
            await desk.call("cancel", job=second)


async def test_forget_takes_trials_and_jobs_of_one_kernel(desk: Desk, parts: Parts) -> None:
    """What is forgotten is no answer any more; what worked on it is stopped."""
    kernel = await parts.inspect_file(make_kernel_text())
    await parts.record_measurements(kernel, {50.0: 7.0, 90.0: 3.0})
    await desk.call("tune", kernel="it")
    assert (await desk.call("forget", kernel="it", outcome="crashed"))["trials"] == 0
    assert len(parts.jobs.list_live_jobs()) == 1
    assert await desk.call("forget", kernel="it") == {"kernel": "project:it", "trials": 2}
    assert parts.jobs.list_live_jobs() == []
    assert (await desk.call("lookup", kernel="it", problem={"n": 64}, tune=False))["status"] == "default"


async def test_who_subscribes_to_a_job_waits_for_it(desk: Desk, parts: Parts) -> None:
    """Naming a job in a subscription lifts it; another one, ``unsubscribe`` or the connection's end drop it."""
    await parts.inspect_file(make_kernel_text())
    accepted = await desk.call("tune", kernel="it")
    (job,) = accepted["jobs"]
    assert (job["priority"], job["waiters"], job["waits_for"]) == (350, 0, "")

    async def standing() -> tuple[int, int]:
        (now,) = (await desk.call("jobs", job=job["id"]))["jobs"]
        return now["priority"], now["waiters"]

    async def close() -> None:
        assert desk.peer.on_gone is not None
        desk.peer.on_gone()

    for leave in (
        lambda: desk.call("unsubscribe"),
        lambda: desk.call("subscribe", types=["winner"]),
        close,
    ):
        await desk.call("subscribe", jobs=[job["id"]])
        assert await standing() == (400, 1)
        await leave()
        assert await standing() == (350, 0)


async def test_given_priority_is_meant(desk: Desk, parts: Parts) -> None:
    """A ``tune`` with a priority stays there while someone waits for it."""
    await parts.inspect_file(make_kernel_text())
    (job,) = (await desk.call("tune", kernel="it", priority=100))["jobs"]
    await desk.call("subscribe", jobs=[job["id"]])
    (now,) = (await desk.call("jobs", job=job["id"]))["jobs"]
    assert (now["priority"], now["waiters"]) == (100, 1)


async def test_pauses_by_job_kernel_device_and_altogether(desk: Desk, parts: Parts) -> None:
    """Each pause says what it paused, keeps it from running with its reason, and is taken back by itself alone."""
    await parts.inspect_file(make_kernel_text(problems="[dict(n=1), dict(n=2)]"))
    await desk.call("tune", kernel="it")

    async def waits() -> list[str]:
        return [job["waits_for"] for job in (await desk.call("jobs"))["jobs"]]

    paused = await desk.call("pause", job=1)
    assert [(job["id"], job["state"]) for job in paused["jobs"]] == [(1, "paused")]
    assert await waits() == ["", "it is paused"]
    assert len((await desk.call("jobs", state="paused"))["jobs"]) == 1
    assert len((await desk.call("pause", kernel="it"))["jobs"]) == 2
    resumed = await desk.call("resume", kernel="it")
    assert [job["state"] for job in resumed["jobs"]] == ["queued"] * 2
    # The machine's other backends know this device too, by another model.
    assert "Fake CPU" in (await desk.call("pause", device="cpu:0"))["paused"]
    assert await waits() == ["its device is paused"] * 2
    assert (await desk.call("resume", device="cpu:0"))["paused"] == []
    assert (await desk.call("pause", device="Fake CPU"))["paused"] == ["Fake CPU"]
    assert (await desk.call("pause"))["paused"] == ["", "Fake CPU"]
    assert (await desk.call("resume", device="Fake CPU"))["paused"] == [""]
    assert await waits() == ["all tuning is paused"] * 2
    assert parts.store.load_pauses() == {""}
    assert (await desk.call("resume"))["paused"] == []
    told = [event["device"] for event in parts.recorder.list_events("paused", "resumed")]
    assert told[-4:] == ["Fake CPU", "", "Fake CPU", ""]


async def test_stale_only_leaves_out_what_is_fresh(desk: Desk, parts: Parts) -> None:
    """Problems whose winner stands on the present context make no job, unless one is open already."""
    kernel = await parts.inspect_file(make_kernel_text(problems="[dict(n=64), dict(n=32)]"))
    await parts.record_measurements(kernel, {50.0: 7.0})
    accepted = await desk.call("tune", kernel="it", stale_only=True)
    assert [job["problem"] for job in accepted["jobs"]] == [{"n": 32}]
