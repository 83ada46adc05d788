"""The live report answers at its own address only."""

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
from tests.report.browser import OpenPage, run_chromium
from tests.report.sample_store import SampleStore

PROBLEM = {"N": 8}


@contextmanager
def serve_report(path: Path) -> Iterator[LiveServer]:
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


def send_request(server: LiveServer, path: str, host: str | None = None) -> tuple[int, bytes]:
    connection = HTTPConnection(HOST, server.server_port, timeout=10)
    try:
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.fixture
def sample_store(tmp_path: Path) -> SampleStore:
    """Return a store with one kernel."""
    store = SampleStore(tmp_path / "ktuned.sqlite")
    store.add_kernel("p:gemm", PROBLEM, 30)
    return store


def test_the_report_needs_its_token_host_and_path(sample_store: SampleStore, tmp_path: Path) -> None:
    """Other requests get an empty answer without an error."""
    with serve_report(tmp_path / "ktuned.sqlite") as server:
        assert send_request(server, f"/{server.token}/")[0] == 200
        for path in ("/", "/data", f"/{server.token[:-1]}/", f"/{server.token}x/", f"/{server.token}/other", "//"):
            assert send_request(server, path) == (404, b"")
        assert send_request(server, f"/{server.token}/", host=f"evil.example:{server.server_port}") == (404, b"")
        assert server.server_address[0] == "127.0.0.1"
        assert len(server.token) >= 32
    with serve_report(tmp_path / "ktuned.sqlite") as second:
        assert second.token != server.token


def test_a_page_gets_only_new_data(sample_store: SampleStore, tmp_path: Path) -> None:
    """A page with the newest document gets an empty answer until the store changes."""
    with serve_report(tmp_path / "ktuned.sqlite") as server:
        status, body = send_request(server, f"/{server.token}/data?since=0")
        version = json.loads(body)["made"]
        assert status == 200
        assert send_request(server, f"/{server.token}/data?since={version!r}") == (204, b"")
        server.latest._next = 0.0
        sample_store.add_kernel("p:dot", PROBLEM, 10)
        status, body = send_request(server, f"/{server.token}/data?since={version!r}")
        assert [section["kernel"] for section in json.loads(body)["sections"]] == ["p:dot", "p:gemm"]


def test_the_page_follows_the_store(sample_store: SampleStore, tmp_path: Path) -> None:
    """New trials appear, the reader's choices stay, and the page says when the command has ended."""
    with run_chromium() as browser:
        with serve_report(tmp_path / "ktuned.sqlite") as server:
            opened = OpenPage(browser, server.address)
            opened.page.get_by_role("button", name="seconds").click()
            assert "30 of 30 trials" in opened.page.locator(".count").inner_text()
            sample_store.multiply_trials(2)
            opened.page.get_by_text("60 of 60 trials").wait_for()
            assert opened.page.get_by_role("button", name="seconds").get_attribute("aria-pressed") == "true"
            assert opened.complaints == []
        with opened:
            opened.page.get_by_text("the command has ended").wait_for()
            assert {request.split("?")[0] for request in opened.requests} == {server.address, f"{server.address}data"}
