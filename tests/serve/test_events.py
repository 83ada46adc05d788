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
from tests.serve.noise import Last, Noise, count_lagging

EPOCH = 11


class FakeSink(Peer):
    """Takes what it is given while it is writable; full after ``room`` sends, if that is given."""

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

    def drain(self, events: Events) -> None:
        """Become writable, as a connection does that has been read."""
        self.room = None
        self.is_writable = True
        events.resume_sending(self)

    @property
    def heard(self) -> list[int | str]:
        return ["gap" if event["type"] == "gap" else event["seq"] for event in self.events]


def wanted(**params: Any) -> SubscribeParams:
    """Return what is read from a request's params."""
    return msgspec.convert(params, SubscribeParams)


def _events(count: int = 0, **settings: int) -> Events:
    events = Events(epoch=EPOCH, **settings)
    for _ in range(count):
        events.publish_event(Noise())
    return events


def test_an_event_has_the_fields_of_the_protocol() -> None:
    """What is sent is one map: seq, epoch, type, kernel, job, and the type's own fields; it is read as it was."""
    events, sink = _events(), FakeSink()
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
TYPES = [Noise, Last]


@pytest.mark.parametrize("kernels", [None, [], ["p:a"], ["p:a", "p:b"]])
@pytest.mark.parametrize("jobs", [None, [], [1], [1, 2]])
@pytest.mark.parametrize("types", [None, [], ["last"], ["last", "noise"]])
def test_a_subscriber_hears_what_passes_every_filter(
    kernels: list[str] | None, jobs: list[int] | None, types: list[str] | None
) -> None:
    """Of all combinations exactly those that every given filter names are heard, live and replayed alike."""
    events, live, late = _events(), FakeSink(), FakeSink()
    events.add_subscription(live, wanted(kernels=kernels, jobs=jobs, types=types))
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
    events.add_subscription(late, wanted(since=[EPOCH, 0], kernels=kernels, jobs=jobs, types=types))
    late.drain(events)
    assert late.events == expected


@pytest.mark.parametrize("since", range(-1, 13))
@pytest.mark.parametrize("epoch", [EPOCH, EPOCH + 1])
def test_a_subscriber_goes_on_from_where_it_was(epoch: int, since: int) -> None:
    """Everything after `since` that the ring holds is replayed; anything else is one `gap`, and then what follows."""
    events, sink = _events(10, ring_events=4), FakeSink()
    events.add_subscription(sink, wanted(since=[epoch, since]))
    assert sink.heard == []  # the answer to `subscribe` goes first
    sink.drain(events)
    is_known = epoch == EPOCH and 6 <= since <= 10
    assert sink.heard == (list(range(since + 1, 11)) if is_known else ["gap"])
    if not is_known:
        assert sink.events == [{"type": "gap", "epoch": EPOCH, "seq": 10, "kernel": None, "job": None}]
    events.publish_event(Noise())
    assert sink.heard[-1] == 11
    assert len(sink.heard) == (11 - since if is_known else 2)


def test_without_since_only_what_follows_is_heard() -> None:
    """A new subscriber starts now."""
    events, sink = _events(3), FakeSink()
    events.add_subscription(sink, SubscribeParams())
    sink.drain(events)
    events.publish_event(Noise())
    assert sink.heard == [4]


@pytest.mark.parametrize("missed", range(10))
def test_a_slow_subscriber_loses_nothing_that_the_ring_holds(missed: int) -> None:
    """One that was not writable gets what it missed once it drains, or a `gap` when it missed more than the ring."""
    events, slow, quick = _events(ring_events=4), FakeSink(), FakeSink()
    events.add_subscription(slow, SubscribeParams())
    events.add_subscription(quick, SubscribeParams())
    events.publish_event(Noise())
    slow.is_writable = False
    for _ in range(missed):
        events.publish_event(Noise())
    assert slow.heard == [1]
    assert quick.heard == list(range(1, missed + 2))
    assert count_lagging(events) == (1 if missed else 0)
    slow.drain(events)
    assert slow.heard[1:] == (list(range(2, missed + 2)) if missed <= 4 else ["gap"])
    events.publish_event(Noise())
    assert slow.heard[-1] == missed + 2


def test_a_replay_stops_where_the_sink_is_full() -> None:
    """A long replay is handed over in batches, and goes on where it stopped."""
    events, sink = Events(epoch=EPOCH), FakeSink()
    for _ in range(100):
        events.publish_event(Noise(text="x" * 10_000))
    events.add_subscription(sink, wanted(since=[EPOCH, 0]))
    sink.room = 1
    events.resume_sending(sink)
    heard = len(sink.heard)
    assert 0 < heard < 20
    sink.drain(events)
    assert sink.heard == list(range(1, 101))
    assert max(sink.sends) < 100_000


def test_the_ring_is_bounded_in_bytes() -> None:
    """Large events push older ones out sooner, down to none at all."""
    events = Events(epoch=EPOCH, ring_bytes=10_000)
    for _ in range(100):
        events.publish_event(Noise(text="x" * 1000))
    assert events._bytes <= 10_000
    assert len(events._ring) == 9
    sink = FakeSink()
    events.add_subscription(sink, wanted(since=[EPOCH, 91]))
    sink.drain(events)
    assert sink.heard == list(range(92, 101))
    events.publish_event(Noise(text="x" * 20_000))
    assert not events._ring
    assert sink.heard[-1] == "gap"


def test_a_second_subscription_replaces_the_first() -> None:
    """A sink has one subscription, so that no event comes twice."""
    events, sink = _events(), FakeSink()
    events.add_subscription(sink, SubscribeParams())
    events.add_subscription(sink, wanted(types=["last"]))
    events.publish_event(Noise())
    events.publish_event(Last())
    assert sink.heard == [2]


@pytest.mark.parametrize("is_closed", [True, False])
def test_who_leaves_hears_nothing_more(is_closed: bool) -> None:
    """Unsubscribing and closing both end a subscription, and doing so twice does no harm."""
    events, sink = _events(), FakeSink()
    events.add_subscription(sink, SubscribeParams())
    if is_closed:
        assert events.remove_subscription(sink)
    assert events.remove_subscription(sink) != is_closed
    assert not events.remove_subscription(sink)
    events.publish_event(Noise())
    assert sink.heard == []
    events.resume_sending(sink)
    assert sink.heard == []
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
    """An argument of a wrong shape is a usage error."""
    subscribe = Handler[Any, Any](SUBSCRIBE, lambda params, connection: None)
    with pytest.raises(UsageError):
        subscribe.read_params(arguments)


def test_an_event_that_cannot_travel_has_no_number() -> None:
    """A mistaken field fails the publisher, and leaves no hole in the numbering."""
    events = _events(1)
    with pytest.raises(TypeError):
        events.publish_event(Noise(text=object()))
    assert events.publish_event(Noise()).seq == 2


@given(st.lists(st.sampled_from(["publish", "stall", "drain"]), max_size=60), st.integers(1, 6))
def test_no_interleaving_loses_an_event_silently(steps: list[str], ring: int) -> None:
    """Numbers only rise, and wherever one is missing a `gap` stands."""
    events, sink = Events(epoch=EPOCH, ring_events=ring), FakeSink()
    events.add_subscription(sink, SubscribeParams())
    for step in steps:
        if step == "publish":
            events.publish_event(Noise())
        elif step == "stall":
            sink.is_writable = False
        else:
            sink.drain(events)
    sink.drain(events)
    place = 0
    for event in sink.events:
        assert event["seq"] == place + 1 or (event["type"] == "gap" and event["seq"] > place)
        place = event["seq"]
    assert place == events.seq
