"""A slice of the fuzzing for every run of the tests; ``tests/fuzz/run.py`` is the whole."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from ktuned_client import wire
from tests.e2e.harness import Daemon, make_kernel_text
from tests.fuzz.run import SPARE_DESCRIPTORS, Found, against, check, decode, in_process
from tests.fuzz.streams import streams

SEED = 20_240_229


def test_a_slice_in_process() -> None:
    """No stream crashes the codec, nor means two things depending on how it is cut; both kinds are among them."""
    report = in_process(5_000, SEED)
    assert report.streams == 5_000
    assert 1_000 < report.refused < 4_000
    assert report.messages > 1_000


@hypothesis.given(st.binary(max_size=60), st.data())
def test_however_a_stream_is_cut(data: bytes, draw: st.DataObject) -> None:
    """Two cuts anywhere give the messages that the whole gives, and the same refusal."""
    check(data)
    places = sorted(draw.draw(st.lists(st.integers(0, len(data)), min_size=2, max_size=2)))
    whole, is_refused = decode(data, byte_by_byte=False)
    decoder, messages = wire.Decoder(wire.MAX_REQUEST_BYTES, wire.MAX_REQUEST_ITEMS), []
    try:
        for start, end in zip([0, *places], [*places, len(data)], strict=True):
            messages += decoder.feed(data[start:end])
    except wire.ProtocolError:
        assert is_refused
    else:
        assert not is_refused
        assert repr(messages) == repr(whole)


def test_what_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails when the codec does: one that hands out a message twice is found."""
    feed = wire.Decoder.feed
    monkeypatch.setattr(wire.Decoder, "feed", lambda self, data: feed(self, data) * min(2, len(data)))
    with pytest.raises(Found, match="means something else in pieces"):
        check(wire.encode_request(1, "hello", {}))


def test_equal_seeds_are_equal_streams() -> None:
    """What a run found can be found again."""
    assert list(streams(500, 7)) == list(streams(500, 7))
    assert list(streams(500, 7)) != list(streams(500, 8))


def test_a_slice_against_a_live_daemon(tmp_path: Path) -> None:
    """The daemon closes each connection for what was sent or at its end, and its other clients notice nothing."""
    with Daemon(tmp_path) as daemon:
        path = daemon.write_kernel(make_kernel_text("space(us=[50.0], tag=['a'])"))
        daemon.tune(path=str(path), trials=1)
        report = against(daemon, 300, SEED)
        assert report.streams == 300
        assert report.refused > 100
        assert report.descriptors_more <= SPARE_DESCRIPTORS
