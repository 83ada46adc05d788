"""The live report answers its own address, and nothing and no one else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest

from ktuned.report import survey_store
from ktuned.report.live import HOST, DocumentCache, LiveServer
from ktuned.store import Overview
from tests.report.browser import Opened, chromium
from tests.report.sample_store import SampleStore

PROBLEM = {"N": 8}


@contextmanager
def serving(path: Path) -> Iterator[LiveServer]:
    """Serve a store's report."""
    with Overview(path) as overview:
        latest = DocumentCache(lambda: survey_store(overview, "1.2.3", is_live=True), overview.data_version)
        with LiveServer(latest) as server:
            thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield server
            finally:
                server.shutdown()
                thread.join()


def answer(server: LiveServer, path: str, host: str | None = None) -> tuple[int, bytes]:
    """Return the status and the body of a request."""
    connection = HTTPConnection(HOST, server.server_port, timeout=10)
    try:
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.fixture
def store(tmp_path: Path) -> SampleStore:
    """A store with one kernel."""
    store = SampleStore(tmp_path / "ktuned.sqlite")
    store.add("p:gemm", PROBLEM, 30)
    return store


def test_only_the_token_opens(store: SampleStore, tmp_path: Path) -> None:
    """Without it, with a wrong one, under another name or at another place there is nothing, not even an error."""
    with serving(tmp_path / "ktuned.sqlite") as server:
        assert answer(server, f"/{server.token}/")[0] == 200
        for path in ("/", "/data", f"/{server.token[:-1]}/", f"/{server.token}x/", f"/{server.token}/other", "//"):
            assert answer(server, path) == (404, b"")
        assert answer(server, f"/{server.token}/", host=f"evil.example:{server.server_port}") == (404, b"")
        assert server.server_address[0] == "127.0.0.1"
        assert len(server.token) >= 32
    with serving(tmp_path / "ktuned.sqlite") as again:
        assert again.token != server.token


def test_data_is_what_is_new(store: SampleStore, tmp_path: Path) -> None:
    """A page that has the newest document gets an empty answer, until another process writes to the store."""
    with serving(tmp_path / "ktuned.sqlite") as server:
        status, body = answer(server, f"/{server.token}/data?since=0")
        made = json.loads(body)["made"]
        assert status == 200
        assert answer(server, f"/{server.token}/data?since={made!r}") == (204, b"")
        server.latest._next = 0.0
        store.add("p:dot", PROBLEM, 10)
        status, body = answer(server, f"/{server.token}/data?since={made!r}")
        assert [section["kernel"] for section in json.loads(body)["sections"]] == ["p:dot", "p:gemm"]


def test_the_page_follows_the_store(store: SampleStore, tmp_path: Path) -> None:
    """New trials appear by themselves, what the reader has chosen stays, and the end of the command is said."""
    with chromium() as browser:
        with serving(tmp_path / "ktuned.sqlite") as server:
            opened = Opened(browser, server.address)
            opened.page.get_by_role("button", name="seconds").click()
            assert "30 of 30 trials" in opened.page.locator(".count").inner_text()
            store.multiply(2)
            opened.page.get_by_text("60 of 60 trials").wait_for()
            assert opened.page.get_by_role("button", name="seconds").get_attribute("aria-pressed") == "true"
            assert opened.complaints == []
        with opened:
            opened.page.get_by_text("the command has ended").wait_for()
            assert {request.split("?")[0] for request in opened.requests} == {server.address, f"{server.address}data"}
