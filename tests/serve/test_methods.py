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
from tests.serve.noise import LastEvent, NoiseEvent

pytestmark = pytest.mark.anyio


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("lookup", {}, "kernel"),
    ("lookup", {"kernel": "it"}, "problem"),
    ("lookup", {"kernel": "it", "problem": {"n": [1]}}, "problem"),
    ("lookup", {"kernel": "it", "problem": {"n": None}}, "problem"),
    ("lookup", {"kernel": "it", "problem": [1]}, "problem"),
    ("lookup", {"kernel": "it", "problem": {"m": 1}}, "does not take m"),
    ("lookup_many", {"lookups": [{"kernel": 1}]}, "lookups"),
    ("tune", {}, "neither a kernel nor a path"),
    ("tune", {"kernel": "it", "trials": "many"}, "trials"),
    ("tune", {"kernel": "it", "trials": 0}, "trials is 0"),
    ("tune", {"kernel": "it", "time_limit_s": float("inf")}, "time_limit_s is inf"),
    ("tune", {"kernel": "it", "preset": "quick"}, "quick"),
    ("tune", {"kernel": "it", "until": "never"}, "until is 'never'"),
    ("tune", {"kernel": "it", "problem": {"m": 1}}, "does not take m"),
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
    ("results", {"kernel": "it", "problem": {"m": 1}}, "does not take m"),
    ("results", {"kernel": "it", "outcome": "good"}, "outcome"),
    ("results", {"trial": 99}, "no trial 99"),
    ("subscribe", {"since": [1]}, "since"),
    ("subscribe", {"types": "winner"}, "types"),
]
"""Method, parameters, and what the error must say."""


class CountingPeer(Peer):
    """A peer that counts the events it is sent."""

    is_writable = True

    def __init__(self) -> None:
        self.sent = 0

    def send(self, data: bytes) -> None:
        self.sent += 1


class Methods:
    """The daemon's methods, called as the server calls them."""

    def __init__(self, parts: Parts) -> None:
        self.events = parts.recorder
        self.peer = CountingPeer()
        self._table = parts.api.handlers

    async def call_method(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method and return its result."""
        handler = self._table[method]
        answer = handler.handle(handler.read_params(params), self.peer)
        result = await answer if inspect.isawaitable(answer) else answer
        # Over the wire a tuple is a list.
        travelled: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(result))
        return travelled


@pytest.fixture
def methods(parts: Parts) -> Methods:
    """Return the methods of the parts."""
    return Methods(parts)


async def test_hello_says_who_serves(methods: Methods) -> None:
    """The answer has protocol, build and epoch."""
    answer = await methods.call_method("hello")
    assert (answer["protocol"], answer["build"], answer["epoch"]) == (PROTOCOL_VERSION, ktuned.__version__, 7)


async def test_wrong_parameters_are_one_clear_error(methods: Methods, parts: Parts) -> None:
    """Each error is the caller's, in one line that names the field or the thing."""
    await parts.inspect_file(make_kernel_text(specialize="('n',)"))
    for method, params, words in WRONG:
        with pytest.raises((UsageError, NotFound)) as refused:
            await methods.call_method(method, **params)
        assert words in refused.value.message, (method, params)
        assert "\n" not in refused.value.message
    assert parts.jobs.list_live_jobs() == []


async def test_a_misspelt_field_is_named_with_the_nearest_one(methods: Methods, parts: Parts) -> None:
    """``trails=3`` must not tune with the default number of trials."""
    await parts.inspect_file(make_kernel_text())
    with pytest.raises(UsageError, match=r"^tune has no field 'trails' \(did you mean 'trials'\? there are: kernel,"):
        await methods.call_method("tune", kernel="it", trails=3)
    with pytest.raises(UsageError, match="unknown field `problems`"):
        await methods.call_method("lookup_many", lookups=[{"kernel": "it", "problem": {"n": 64}, "problems": {}}])
    assert parts.jobs.list_live_jobs() == []


async def test_lookup_many_keeps_the_order(methods: Methods, parts: Parts) -> None:
    await parts.inspect_file(make_kernel_text())
    asked = [{"kernel": name, "problem": {"n": n}, "tune": False} for name, n in (("it", 3), ("no", 1), ("it", 2))]
    answers = (await methods.call_method("lookup_many", lookups=asked))["answers"]
    assert [(answer["status"], answer["problem"]["n"]) for answer in answers] == [
        ("default", 3),
        ("unknown", 1),
        ("default", 2),
    ]


async def test_tune_says_where_to_subscribe_from(methods: Methods, parts: Parts) -> None:
    """The position is before all events that the request causes."""
    parts.write_file(make_kernel_text())
    parts.write_file("def (", "tune_bad.py")
    methods.events.publish_event(NoiseEvent())
    answer = await methods.call_method("tune", path=str(parts.project), trials=3, priority=300)
    assert (answer["epoch"], answer["seq"]) == (7, 1)
    (job,) = answer["jobs"]
    assert (job["kernel"], job["state"], job["priority"], job["plan"]["trials"]) == ("project:it", "queued", 300, 3)
    assert [error["line"] for error in answer["errors"]] == [1]


async def test_a_budget_says_that_it_joined_an_older_job(methods: Methods, parts: Parts) -> None:
    """The larger of two budgets counts. Without a budget, and for a new job, there is no notice."""
    await parts.inspect_file(make_kernel_text())
    assert (await methods.call_method("tune", kernel="it", trials=7))["notices"] == []
    assert (await methods.call_method("tune", kernel="it", trials=3))["notices"] == [
        "joined job 1, which already does this work and tries up to 7 configs"
    ]
    assert (await methods.call_method("tune", kernel="it"))["notices"] == []


async def test_jobs_by_kernel_state_and_number(methods: Methods, parts: Parts) -> None:
    """Queued jobs come first, in their order, then ended ones; a state is searched for beyond the newest rows."""
    await parts.inspect_file(make_kernel_text(problems="[dict(n=1), dict(n=2), dict(n=3)]"))
    await methods.call_method("tune", kernel="it")
    first, *_ = (await methods.call_method("jobs"))["jobs"]
    await methods.call_method("cancel", job=first["id"])
    listed = (await methods.call_method("jobs", kernel="it"))["jobs"]
    assert [(job["id"], job["state"]) for job in listed] == [(2, "queued"), (3, "queued"), (1, "cancelled")]
    (cancelled,) = (await methods.call_method("jobs", state="cancelled", limit=1))["jobs"]
    assert cancelled["id"] == 1
    (one,) = (await methods.call_method("jobs", job=3))["jobs"]
    assert one["problem"] == {"n": 3}
    told = await methods.call_method("cancel", kernel="it")
    assert [(job["id"], job["state"]) for job in told["jobs"]] == [(2, "cancelled"), (3, "cancelled")]
    assert (await methods.call_method("cancel", kernel="it"))["jobs"] == []


async def test_kernels_are_found_by_name_and_path(methods: Methods, parts: Parts) -> None:
    """A path may be a link, a directory or a file; errors belong to a path."""
    await parts.inspect_file(make_kernel_text())
    parts.write_file("def (", "sub/tune_bad.py")
    await parts.inspector.inspect_root(parts.root)
    link = parts.project.parent / "link"
    link.symlink_to(parts.project)
    everything = await methods.call_method("kernels")
    assert ([kernel["kernel"] for kernel in everything["kernels"]], len(everything["errors"])) == (["project:it"], 1)
    assert [root["name"] for root in everything["roots"]] == ["project"]
    assert len((await methods.call_method("kernels", path=f"{link}/tune_it.py"))["kernels"]) == 1
    below = await methods.call_method("kernels", path=f"{link}/sub/")
    assert (below["kernels"], len(below["errors"])) == ([], 1)
    assert len((await methods.call_method("kernels", kernel="project:it"))["kernels"]) == 1


async def test_a_short_name_is_the_kernel_of_the_client_s_project(methods: Methods, parts: Parts) -> None:
    """All methods that take a kernel's name take the client's directory."""
    parts.write_file(make_kernel_text())
    other = parts.project.parent / "q"
    parts.write_file(make_kernel_text(), str(other / "tune_it.py"))
    for directory in (parts.project, other):
        await methods.call_method("tune", path=str(directory))
    for name, handler in parts.api.handlers.items():
        params = handler.method.params
        if "kernel" in params.__struct_fields__:
            assert "directory" in params.__struct_fields__, name
    with pytest.raises(AmbiguousName):
        await methods.call_method("jobs", kernel="it")
    for directory, meant in ((other, "q:it"), (parts.project, "project:it")):
        here: dict[str, Any] = {"kernel": "it", "directory": str(directory)}
        assert [job["kernel"] for job in (await methods.call_method("tune", **here))["jobs"]] == [meant]
        assert [job["kernel"] for job in (await methods.call_method("pause", **here))["jobs"]] == [meant]
        assert [job["kernel"] for job in (await methods.call_method("jobs", **here))["jobs"]] == [meant]
        assert (await methods.call_method("results", **here, count=True))["total"] == 0
        with pytest.raises(NotFound, match=f"{meant} has no winner"):
            await methods.call_method("check", **here)
        assert (await methods.call_method("export", **here))["shared"] == []
        assert [job["kernel"] for job in (await methods.call_method("cancel", **here))["jobs"]] == [meant]
        assert (await methods.call_method("forget", **here))["kernel"] == meant
    parts.kill_workers()


async def test_add_tunes_nothing_and_unwatch_cancels_jobs(methods: Methods, parts: Parts, tmp_path: Path) -> None:
    """Results stay."""
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    (directory / "tune_it.py").write_text(make_kernel_text("other"))
    added = await methods.call_method("add", path=str(directory))
    assert ([kernel["kernel"] for kernel in added["kernels"]], added["errors"]) == (["elsewhere:other"], [])
    assert parts.jobs.list_live_jobs() == []
    with pytest.raises(UsageError, match="part of") as refused:
        await methods.call_method("unwatch", path=str(directory / "tune_it.py"))
    assert str(directory) in refused.value.hint
    with pytest.raises(NotFound, match="not watched"):
        await methods.call_method("unwatch", path=str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match=r"config\.toml"):
        await methods.call_method("unwatch", path=str(parts.project))
    await methods.call_method("tune", kernel="other")
    unwatched = await methods.call_method("unwatch", path=str(directory))
    assert (unwatched["path"], unwatched["kernels"]) == (str(directory.resolve()), ["elsewhere:other"])
    assert ([root.path for root in parts.catalog.roots], parts.jobs.list_live_jobs()) == ([str(parts.project)], [])
    assert parts.store.load_roots() == []
    (job,) = parts.store.list_jobs(kernel="elsewhere:other")
    assert job.state is JobState.CANCELLED
    parts.kill_workers()


async def test_knobs_and_keys_have_the_declared_order(methods: Methods, parts: Parts) -> None:
    """The store sorts them; results, lookups and jobs do not."""
    space = "us=[50.0], tag=['b', 'a']"
    kernel = await parts.inspect_file(make_kernel_text(configs=space, problems="[dict(n=1, m=2, k=3)]"))
    problem = {"k": 3, "m": 2, "n": 1}
    context = parts.build_context(kernel, problem)
    await methods.call_method("tune", kernel="it", problem=problem)
    (job,) = (await methods.call_method("jobs", kernel="it"))["jobs"]
    assert [*job["problem"]] == ["n", "m", "k"]
    trial = await parts.store.begin_trial(context, problem, job["id"], {"tag": "a", "us": 50.0})
    await parts.store.finish_trial(trial, TrialResult(Outcome.MEASURED, 7.0, 0.1))
    for params in ({"kernel": "it"}, {"trial": trial}):
        (found,) = (await methods.call_method("results", **params))["trials"]
        assert ([*found["config"]], [*found["problem"]]) == (["us", "tag"], ["n", "m", "k"])
    assert kernel.order_config({"extra": 1, "tag": "a", "us": 1.0}) == {"us": 1.0, "tag": "a", "extra": 1}


async def test_results_begin_with_the_fastest(methods: Methods, parts: Parts) -> None:
    """Trials without a figure come last; only a single requested trial has its detail."""
    kernel = await parts.inspect_file(make_kernel_text())
    await parts.record_measurements(kernel, {50.0: 7.0, 90.0: 3.0}, count=10)
    failed = await parts.store.begin_trial(parts.build_context(), {"n": 64}, 1, {"us": 1.0})
    await parts.store.finish_trial(failed, TrialResult(Outcome.CRASHED, message="it died"))

    trials = (await methods.call_method("results", kernel="it", problem={"n": 64}))["trials"]
    assert [trial["latency_us"] for trial in trials] == [3.0, 7.0, None]
    assert all(trial["detail"] == {} for trial in trials)
    assert len((await methods.call_method("results", kernel="it", limit=2))["trials"]) == 2
    newest = (await methods.call_method("results", kernel="it", order="newest"))["trials"]
    assert [trial["id"] for trial in newest] == [3, 2, 1]
    (crashed,) = (await methods.call_method("results", kernel="it", outcome="crashed"))["trials"]
    assert (crashed["id"], crashed["message"]) == (failed, "it died")
    (one,) = (await methods.call_method("results", trial=1))["trials"]
    assert one["detail"] == {"timing": {"count": 10}}
    assert (await methods.call_method("results", kernel="it", problem={"n": 65}))["trials"] == []


async def test_pages_of_results_are_complete(methods: Methods, parts: Parts) -> None:
    """The total counts all pages, and the winner is marked in each."""
    kernel = await parts.inspect_file(make_kernel_text())
    await parts.record_measurements(kernel, {50.0: 7.0, 90.0: 3.0, 70.0: 5.0}, count=10)
    first = await methods.call_method("results", kernel="it", order="newest", limit=2, count=True, details=True)
    assert [trial["id"] for trial in first["trials"]] == [3, 2]
    assert first["total"] == 3
    assert first["trials"][0]["detail"] == {"timing": {"count": 10}}
    rest = await methods.call_method("results", kernel="it", order="newest", limit=2, before=2, count=True)
    assert ([trial["id"] for trial in rest["trials"]], rest["total"]) == ([1], 3)
    assert [trial["winner"] for trial in (*first["trials"], *rest["trials"])] == [False, True, False]
    assert (await methods.call_method("results", trial=2))["trials"][0]["winner"]


async def test_results_take_a_device_name_or_model(methods: Methods, parts: Parts) -> None:
    """A word that is no device name here is a model."""
    kernel = await parts.inspect_file(make_kernel_text())
    await parts.record_measurements(kernel, {50.0: 7.0})
    device = parts.machine.find_device(parts.environment, "fake", None)
    for named in (device.name, device.model):
        (trial,) = (await methods.call_method("results", kernel="it", device=named))["trials"]
        assert trial["device"] == device.model
    assert (await methods.call_method("results", kernel="it", device="H200"))["trials"] == []


async def test_current_results_leave_out_earlier_states(methods: Methods, parts: Parts) -> None:
    before = await parts.inspect_file(make_kernel_text())
    await parts.record_measurements(before, {50.0: 3.0})
    now = await parts.inspect_file(make_kernel_text(rtol="0.5"))
    assert now.digest != before.digest
    await parts.record_measurements(now, {50.0: 7.0})
    latencies = [trial["latency_us"] for trial in (await methods.call_method("results", kernel="it"))["trials"]]
    assert latencies == [3.0, 7.0]
    (current,) = (await methods.call_method("results", kernel="it", current=True))["trials"]
    assert (current["latency_us"], current["digest"]) == (7.0, now.digest)


async def test_answers_are_bounded(tmp_path: Path) -> None:
    """However much is requested, the answer stays below the limit of a message."""
    requests = []

    class Watched(Store):
        def list_jobs(self, **options: Any) -> list[Job]:
            requests.append(options["limit"])
            return super().list_jobs(**options)

    async with assemble_daemon(tmp_path, store_type=Watched) as parts:
        requests.clear()
        await Methods(parts).call_method("jobs", limit=10**9)
    assert requests == [MAX_ROWS]


async def test_unsubscribe_ends_a_subscription(methods: Methods) -> None:
    assert await methods.call_method("subscribe", types=["last"]) == {"epoch": 7, "seq": 0}
    methods.events.publish_event(LastEvent())
    methods.events.publish_event(NoiseEvent())
    assert methods.peer.sent == 1
    await methods.call_method("unsubscribe")
    methods.events.publish_event(LastEvent())
    assert methods.peer.sent == 1


async def test_shutdown_is_answered_before_the_daemon_ends(methods: Methods, parts: Parts) -> None:
    assert await methods.call_method("shutdown") == {}
    assert parts.api.stopping.is_set()


class SlowlyEndingStore(Store):
    """A store that delays the record of a job's end."""

    ending: anyio.Event | None = None

    async def update_job(self, job: Job) -> None:
        """Record a job; delay a cancelled job until other tasks have run."""
        if self.ending is not None and job.state is JobState.CANCELLED:
            ending, self.ending = self.ending, None
            ending.set()
            await anyio.wait_all_tasks_blocked()
        await super().update_job(job)


async def test_a_job_that_ends_by_itself_does_not_disturb_a_cancel(tmp_path: Path) -> None:
    """The kernel's other jobs are cancelled."""
    async with assemble_daemon(tmp_path, store_type=SlowlyEndingStore) as parts:
        desk = Methods(parts)
        await parts.inspect_file(make_kernel_text(problems="[dict(n=1), dict(n=2)]"))
        await desk.call_method("tune", kernel="it")
        first, second = (job.id for job in parts.jobs.list_live_jobs())
        assert isinstance(parts.store, SlowlyEndingStore)
        ending = parts.store.ending = anyio.Event()
        cancelled: list[int] = []

        async def cancel_all() -> None:
            cancelled.extend(job["id"] for job in (await desk.call_method("cancel", kernel="it"))["jobs"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_all)
            await ending.wait()
            # While the first is being cancelled, the second ends.
            tasks.start_soon(parts.jobs.cancel_job, second)
        assert cancelled == [first]
        with pytest.raises(KtunedError, match="is cancelled already"):
            await desk.call_method("cancel", job=second)


async def test_forget_takes_trials_and_jobs_of_one_kernel(methods: Methods, parts: Parts) -> None:
    """Its answers are gone, and its jobs are stopped."""
    kernel = await parts.inspect_file(make_kernel_text())
    await parts.record_measurements(kernel, {50.0: 7.0, 90.0: 3.0})
    await methods.call_method("tune", kernel="it")
    assert (await methods.call_method("forget", kernel="it", outcome="crashed"))["trials"] == 0
    assert len(parts.jobs.list_live_jobs()) == 1
    assert await methods.call_method("forget", kernel="it") == {"kernel": "project:it", "trials": 2, "winners": 1}
    assert parts.jobs.list_live_jobs() == []
    assert (await methods.call_method("lookup", kernel="it", problem={"n": 64}, tune=False))["status"] == "default"


async def test_a_subscription_to_a_job_raises_its_priority(methods: Methods, parts: Parts) -> None:
    """Another subscription, ``unsubscribe`` and the end of the connection lower it again."""
    await parts.inspect_file(make_kernel_text())
    accepted = await methods.call_method("tune", kernel="it")
    (job,) = accepted["jobs"]
    assert (job["priority"], job["waiters"], job["waits_for"]) == (350, 0, "")

    async def standing() -> tuple[int, int]:
        (now,) = (await methods.call_method("jobs", job=job["id"]))["jobs"]
        return now["priority"], now["waiters"]

    async def close() -> None:
        assert methods.peer.on_gone is not None
        methods.peer.on_gone()

    for leave in (
        lambda: methods.call_method("unsubscribe"),
        lambda: methods.call_method("subscribe", types=["winner"]),
        close,
    ):
        await methods.call_method("subscribe", jobs=[job["id"]])
        assert await standing() == (400, 1)
        await leave()
        assert await standing() == (350, 0)


async def test_a_given_priority_stays(methods: Methods, parts: Parts) -> None:
    """A ``tune`` with a priority keeps it while somebody waits."""
    await parts.inspect_file(make_kernel_text())
    (job,) = (await methods.call_method("tune", kernel="it", priority=100))["jobs"]
    await methods.call_method("subscribe", jobs=[job["id"]])
    (now,) = (await methods.call_method("jobs", job=job["id"]))["jobs"]
    assert (now["priority"], now["waiters"]) == (100, 1)


async def test_a_pause_holds_a_job_a_kernel_a_device_or_all(methods: Methods, parts: Parts) -> None:
    """Each pause has its reason, and is ended by its own ``resume`` alone."""
    await parts.inspect_file(make_kernel_text(problems="[dict(n=1), dict(n=2)]"))
    await methods.call_method("tune", kernel="it")

    async def waits() -> list[str]:
        return [job["waits_for"] for job in (await methods.call_method("jobs"))["jobs"]]

    paused = await methods.call_method("pause", job=1)
    assert [(job["id"], job["state"]) for job in paused["jobs"]] == [(1, "paused")]
    assert await waits() == ["", "it is paused"]
    assert len((await methods.call_method("jobs", state="paused"))["jobs"]) == 1
    assert len((await methods.call_method("pause", kernel="it"))["jobs"]) == 2
    resumed = await methods.call_method("resume", kernel="it")
    assert [job["state"] for job in resumed["jobs"]] == ["queued"] * 2
    # The machine's other backends know this device too, by another model.
    assert "Fake CPU" in (await methods.call_method("pause", device="cpu:0"))["paused"]
    assert await waits() == ["its device is paused"] * 2
    assert (await methods.call_method("resume", device="cpu:0"))["paused"] == []
    assert (await methods.call_method("pause", device="Fake CPU"))["paused"] == ["Fake CPU"]
    assert (await methods.call_method("pause"))["paused"] == ["", "Fake CPU"]
    assert (await methods.call_method("resume", device="Fake CPU"))["paused"] == [""]
    assert await waits() == ["all tuning is paused"] * 2
    assert (await methods.call_method("resume", kernel="it"))["jobs"] == []
    assert parts.store.load_pauses() == {""}
    assert (await methods.call_method("resume"))["paused"] == []
    devices = [event["device"] for event in parts.recorder.list_events("paused", "resumed")]
    assert devices[-4:] == ["Fake CPU", "", "Fake CPU", ""]


async def test_stale_only_tunes_no_fresh_problem(methods: Methods, parts: Parts) -> None:
    """A problem with an open job is included."""
    kernel = await parts.inspect_file(make_kernel_text(problems="[dict(n=64), dict(n=32)]"))
    await parts.record_measurements(kernel, {50.0: 7.0})
    accepted = await methods.call_method("tune", kernel="it", stale_only=True)
    assert [job["problem"] for job in accepted["jobs"]] == [{"n": 32}]
