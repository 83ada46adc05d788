"""A slice of the fuzzing for every run of the tests; ``tests/fuzz/run.py`` runs all of it."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from ktuned_client import wire
from tests.e2e.harness import Daemon, make_kernel_text
from tests.fuzz.run import SPARE_DESCRIPTORS, ForbiddenEffect, check_stream, decode_stream, fuzz_codec, fuzz_daemon
from tests.fuzz.streams import make_streams

SEED = 20_240_229


def test_random_streams_agree_whole_and_byte_by_byte() -> None:
    """Streams with messages and refused ones are among them."""
    report = fuzz_codec(5_000, SEED)
    assert report.streams == 5_000
    assert 1_000 < report.refused < 4_000
    assert report.messages > 1_000


@hypothesis.given(st.binary(max_size=60), st.data())
def test_the_cut_of_a_stream_changes_nothing(data: bytes, draw: st.DataObject) -> None:
    """Two random cuts give the same messages, and the same refusal."""
    check_stream(data)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), min_size=2, max_size=2)))
    whole, is_refused = decode_stream(data, byte_by_byte=False)
    decoder, messages = wire.Decoder(wire.MAX_REQUEST_BYTES, wire.MAX_REQUEST_ITEMS), []
    try:
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            messages += decoder.feed(data[start:end])
    except wire.ProtocolError:
        assert is_refused
    else:
        assert not is_refused
        assert repr(messages) == repr(whole)


def test_a_codec_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The codec of this test returns a message twice."""
    feed = wire.Decoder.feed
    monkeypatch.setattr(wire.Decoder, "feed", lambda self, data: feed(self, data) * min(2, len(data)))
    with pytest.raises(ForbiddenEffect, match="means something else in pieces"):
        check_stream(wire.encode_request(1, "hello", {}))


def test_equal_seeds_give_equal_streams() -> None:
    assert list(make_streams(500, 7)) == list(make_streams(500, 7))
    assert list(make_streams(500, 7)) != list(make_streams(500, 8))


def test_random_streams_do_not_disturb_a_live_daemon(tmp_path: Path) -> None:
    """The daemon closes each connection, and other clients notice nothing."""
    with Daemon(tmp_path) as daemon:
        path = daemon.write_kernel(make_kernel_text("space(us=[50.0], tag=['a'])"))
        daemon.tune(path=path, trials=1)
        report = fuzz_daemon(daemon, 300, SEED)
        assert report.streams == 300
        assert report.refused > 100
        assert report.descriptors_more <= SPARE_DESCRIPTORS
