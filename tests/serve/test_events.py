from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned.model import DeviceName, KernelName, UsageError
from ktuned.protocol import SUBSCRIBE, LaneChanged, StreamPosition, SubscribeParams, read_event
from ktuned.serve.events import Events
from ktuned.serve.method import Handler, Peer
from ktuned_client.wire import Decoder, Notification
from tests.serve.noise import LastEvent, NoiseEvent, count_lagging

EPOCH = 11


class FakeSink(Peer):
    """A peer that is writable until it has received ``room`` events; ``None`` is no limit."""

    is_writable: bool = True

    def __init__(self) -> None:
        self.room: int | None = None
        self.events: list[dict[str, Any]] = []
        self.sends: list[int] = []
        self._decoder = Decoder()

    def send(self, data: bytes) -> None:
        assert self.is_writable
        self.sends.append(len(data))
        for message in self._decoder.feed(data):
            assert isinstance(message, Notification)
            assert message.method == "event"
            assert message.params is not None
            self.events.append(message.params)
        if self.room is not None:
            self.room -= 1
            self.is_writable = self.room > 0

    def make_writable(self, events: Events) -> None:
        """Become writable again, as a connection whose data was read."""
        self.room = None
        self.is_writable = True
        events.resume_sending(self)

    @property
    def positions(self) -> list[int | str]:
        return ["gap" if event["type"] == "gap" else event["seq"] for event in self.events]


def make_params(**params: Any) -> SubscribeParams:
    """Return the parsed params of a subscription."""
    return msgspec.convert(params, SubscribeParams)


def make_events(count: int = 0, **settings: int) -> Events:
    events = Events(epoch=EPOCH, **settings)
    for _ in range(count):
        events.publish_event(NoiseEvent())
    return events


def test_an_event_has_the_fields_of_the_protocol() -> None:
    """An event is one map: seq, epoch, type, kernel, job, and the type's own fields."""
    events, sink = make_events(), FakeSink()
    assert events.add_subscription(sink, SubscribeParams()) == StreamPosition(epoch=EPOCH, seq=0)
    lane = LaneChanged(job=3, device=DeviceName("cuda:0"), state="sick", reason="it hangs")
    published = events.publish_event(lane)
    assert (published.epoch, published.seq) == (EPOCH, 1)
    own = {"device": "cuda:0", "state": "sick", "reason": "it hangs"}
    assert sink.events == [{"seq": 1, "epoch": EPOCH, "type": "lane", "kernel": None, "job": 3, **own}]
    assert read_event(sink.events[0]) == published


def test_each_daemon_has_its_own_epoch() -> None:
    """Epochs are random and fit into a signed 64-bit number."""
    epochs = {Events().epoch for _ in range(100)}
    assert len(epochs) == 100
    assert all(0 <= epoch < 2**63 for epoch in epochs)


KERNELS = [None, KernelName("p:a"), KernelName("p:b")]
JOBS = [None, 1, 2]
TYPES = [NoiseEvent, LastEvent]


@pytest.mark.parametrize("kernels", [None, [], ["p:a"], ["p:a", "p:b"]])
@pytest.mark.parametrize("jobs", [None, [], [1], [1, 2]])
@pytest.mark.parametrize("types", [None, [], ["last"], ["last", "noise"]])
def test_a_subscriber_gets_events_that_pass_all_filters(
    kernels: list[str] | None, jobs: list[int] | None, types: list[str] | None
) -> None:
    """All combinations of filters are tried, live and replayed."""
    events, live, late = make_events(), FakeSink(), FakeSink()
    events.add_subscription(live, make_params(kernels=kernels, jobs=jobs, types=types))
    expected = []
    for kernel, job, kind in product(KERNELS, JOBS, TYPES):
        event = msgspec.to_builtins(events.publish_event(kind(kernel=kernel, job=job)))
        passes = (
            kernels is None or kernel in kernels,
            jobs is None or job in jobs,
            types is None or event["type"] in types,
        )
        if all(passes):
            expected.append(event)
    assert live.events == expected
    events.add_subscription(late, make_params(since=[EPOCH, 0], kernels=kernels, jobs=jobs, types=types))
    late.make_writable(events)
    assert late.events == expected


@pytest.mark.parametrize("since", range(-1, 13))
@pytest.mark.parametrize("epoch", [EPOCH, EPOCH + 1])
def test_a_subscriber_resumes_after_since(epoch: int, since: int) -> None:
    """The ring's events after ``since`` are replayed; if some are missing, a ``gap`` comes first."""
    events, sink = make_events(10, ring_events=4), FakeSink()
    events.add_subscription(sink, make_params(since=[epoch, since]))
    assert sink.positions == []  # the answer to `subscribe` goes first
    sink.make_writable(events)
    is_known = epoch == EPOCH and 6 <= since <= 10
    assert sink.positions == (list(range(since + 1, 11)) if is_known else ["gap"])
    if not is_known:
        assert sink.events == [{"type": "gap", "epoch": EPOCH, "seq": 10, "kernel": None, "job": None}]
    events.publish_event(NoiseEvent())
    assert sink.positions[-1] == 11
    assert len(sink.positions) == (11 - since if is_known else 2)


def test_without_since_only_later_events_are_sent() -> None:
    events, sink = make_events(3), FakeSink()
    events.add_subscription(sink, SubscribeParams())
    sink.make_writable(events)
    events.publish_event(NoiseEvent())
    assert sink.positions == [4]


@pytest.mark.parametrize("missed", range(10))
def test_a_slow_subscriber_gets_missed_events_or_a_gap(missed: int) -> None:
    events, slow, quick = make_events(ring_events=4), FakeSink(), FakeSink()
    events.add_subscription(slow, SubscribeParams())
    events.add_subscription(quick, SubscribeParams())
    events.publish_event(NoiseEvent())
    slow.is_writable = False
    for _ in range(missed):
        events.publish_event(NoiseEvent())
    assert slow.positions == [1]
    assert quick.positions == list(range(1, missed + 2))
    assert count_lagging(events) == (1 if missed else 0)
    slow.make_writable(events)
    assert slow.positions[1:] == (list(range(2, missed + 2)) if missed <= 4 else ["gap"])
    events.publish_event(NoiseEvent())
    assert slow.positions[-1] == missed + 2


def test_a_replay_stops_while_the_sink_is_full() -> None:
    """It goes on where it stopped."""
    events, sink = Events(epoch=EPOCH), FakeSink()
    for _ in range(100):
        events.publish_event(NoiseEvent(text="x" * 10_000))
    events.add_subscription(sink, make_params(since=[EPOCH, 0]))
    sink.room = 1
    events.resume_sending(sink)
    count = len(sink.positions)
    assert 0 < count < 20
    sink.make_writable(events)
    assert sink.positions == list(range(1, 101))
    assert max(sink.sends) < 100_000


def test_the_ring_is_bounded_in_bytes() -> None:
    """Large events push older ones out sooner."""
    events = Events(epoch=EPOCH, ring_bytes=10_000)
    for _ in range(100):
        events.publish_event(NoiseEvent(text="x" * 1000))
    assert events._bytes <= 10_000
    assert len(events._ring) == 9
    sink = FakeSink()
    events.add_subscription(sink, make_params(since=[EPOCH, 91]))
    sink.make_writable(events)
    assert sink.positions == list(range(92, 101))
    events.publish_event(NoiseEvent(text="x" * 20_000))
    assert not events._ring
    assert sink.positions[-1] == "gap"


def test_a_second_subscription_replaces_the_first() -> None:
    """A sink has one subscription, so that no event is sent twice."""
    events, sink = make_events(), FakeSink()
    events.add_subscription(sink, SubscribeParams())
    events.add_subscription(sink, make_params(types=["last"]))
    events.publish_event(NoiseEvent())
    events.publish_event(LastEvent())
    assert sink.positions == [2]


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_subscription_ends_by_unsubscribing_or_closing(is_closed: bool) -> None:
    """Ending it twice does no harm."""
    events, sink = make_events(), FakeSink()
    events.add_subscription(sink, SubscribeParams())
    if is_closed:
        assert events.remove_subscription(sink)
    assert events.remove_subscription(sink) != is_closed
    assert not events.remove_subscription(sink)
    events.publish_event(NoiseEvent())
    assert sink.positions == []
    events.resume_sending(sink)
    assert sink.positions == []
    assert not events._subscriptions


@pytest.mark.parametrize(
    "arguments",
    [
        {"since": 1},
        {"since": "ab"},
        {"since": [1]},
        {"since": [1, "2"]},
        {"since": [1, 2, 3]},
        {"since": [True, 2]},
        {"since": {1: 2, 3: 4}},
        {"kernels": "p:k"},
        {"kernels": 5},
        {"jobs": ["1"]},
        {"jobs": [True]},
        {"types": [1]},
    ],
    ids=repr,
)
def test_a_malformed_subscription_is_refused(arguments: dict[str, Any]) -> None:
    subscribe = Handler[Any, Any](SUBSCRIBE, lambda params, connection: None)
    with pytest.raises(UsageError):
        subscribe.read_params(arguments)


def test_an_event_that_cannot_be_encoded_has_no_number() -> None:
    """The publisher gets the error, and no number is missing."""
    events = make_events(1)
    with pytest.raises(TypeError):
        events.publish_event(NoiseEvent(text=object()))
    assert events.publish_event(NoiseEvent()).seq == 2


@given(st.lists(st.sampled_from(["publish", "stall", "drain"]), max_size=60), st.integers(1, 6))
def test_a_missing_event_is_always_marked_by_a_gap(steps: list[str], ring: int) -> None:
    """Random interleavings: the numbers rise, and a ``gap`` precedes every missing one."""
    events, sink = Events(epoch=EPOCH, ring_events=ring), FakeSink()
    events.add_subscription(sink, SubscribeParams())
    for step in steps:
        if step == "publish":
            events.publish_event(NoiseEvent())
        elif step == "stall":
            sink.is_writable = False
        else:
            sink.make_writable(events)
    sink.make_writable(events)
    position = 0
    for event in sink.events:
        assert event["seq"] == position + 1 or (event["type"] == "gap" and event["seq"] > position)
        position = event["seq"]
    assert position == events.seq
