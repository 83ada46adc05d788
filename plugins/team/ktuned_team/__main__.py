"""Reads a team's store and writes to it: one request on stdin, one reply on stdout, both as JSON.

The daemon starts this program for a moment, and gives up on it after a deadline. So it may hang in a file system or a
network, and it has no state: an interrupted run is simply repeated. The request has these fields:

===========  =================================================================================
url          the place: a directory, or a URL of obstore's (``s3://``, ``gs://``, ``az://``)
prefixes     the names' prefixes below which objects are read
known        the names that are not read again
puts         texts to write, by name; what is there already is not written again
===========  =================================================================================

The reply has ``objects`` (texts by name), ``stored`` (the names of ``puts`` that are there now), ``left_out`` (a reason
by name) and ``faults`` (why the place cannot be read or written). ``has_more`` is true if another run would read more.

An object's name ends in the SHA-256 of its bytes, so objects never change: two writers of one name write equal bytes,
and a damaged or misnamed object is found without knowing its content.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from hashlib import sha256
from typing import Any, Final, TypedDict

import obstore
import obstore.exceptions
import obstore.store

MAX_OBJECT_BYTES: Final = 2**20
"""Largest object that is read: a winner takes a kilobyte, and each of its up to 4,000 names some 100 bytes more."""

MAX_READ_BYTES: Final = 32 * 2**20
"""Most bytes of objects in one reply: some 20,000 winners."""

MAX_LISTED: Final = 200_000
"""Most names in one listing, some 300 bytes each; further ones are left out."""

AT_ONCE: Final = 16
"""Requests to the store that run at the same time."""

REQUEST_S: Final = 20.0
"""Deadline of one request, with its retries."""

_FAULTS: Final = (obstore.exceptions.BaseError, OSError, ValueError)


class Request(TypedDict):
    """What the daemon asks for."""

    url: str
    prefixes: Sequence[str]
    known: Sequence[str]
    puts: Mapping[str, str]


def main() -> None:
    """Carry out the request on stdin."""
    request: Request = json.load(sys.stdin)
    try:
        reply = exchange_objects(open_store(request["url"]), request)
    except _FAULTS as error:
        reply = {"faults": [describe_error(error)]}
    json.dump(reply, sys.stdout)


def open_store(url: str) -> Any:
    """Return the store at a URL.

    A directory must exist: without its mount, objects would go to the local disk. Other members of the team must read
    what is written there, so it gets the directory's rights, whatever the daemon's umask.

    Raises:
        ValueError, OSError, BaseError: The URL is invalid, or the directory is not there.
    """
    if (directory := os.path.expanduser(url.removeprefix("file://"))).startswith("/"):
        os.umask(0o777 & ~stat.S_IMODE(os.stat(directory).st_mode))
        return obstore.store.LocalStore(directory)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    deadline = timedelta(seconds=REQUEST_S)
    return obstore.store.from_url(
        url,
        # Whoever names an endpoint without TLS means a server in the same network, or on this machine.
        client_options={"timeout": deadline, "connect_timeout": "5s", "allow_http": endpoint.startswith("http://")},
        retry_config={"max_retries": 2, "retry_timeout": deadline},
    )


def exchange_objects(store: Any, request: Request) -> dict[str, Any]:
    """Read the objects below the prefixes, then write those that are missing; return the reply."""
    objects: dict[str, str] = {}
    left_out: dict[str, str] = {}
    faults: dict[str, None] = {}
    prefixes = {*request["prefixes"], *(f"{name.rpartition('/')[0]}/" for name in request["puts"])}
    listed = dict(list_objects(store, prefixes))
    # Read the newest first.
    wanted, has_more = select_objects(listed, request)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, content in zip(wanted, pool.map(lambda name: read_object(store, name), wanted), strict=True):
            if isinstance(content, ValueError | PermissionError):
                left_out[name] = describe_error(content)
            elif isinstance(content, Exception):
                faults[describe_error(content)] = None
            elif content is not None:
                objects[name] = content
        # Write. A size that differs is that of a write which a power failure has cut off.
        texts = {name: text.encode() for name, text in request["puts"].items()}
        missing = [name for name, data in texts.items() if name not in listed or listed[name][0] != len(data)]
        written = pool.map(lambda name: write_object(store, name, texts[name]), missing)
        failures = dict(zip(missing, written, strict=True))
    faults |= {describe_error(error): None for error in failures.values() if error is not None}
    stored = [name for name in request["puts"] if failures.get(name) is None]
    return {"objects": objects, "left_out": left_out, "stored": stored, "faults": [*faults], "has_more": has_more}


def list_objects(store: Any, prefixes: Iterable[str]) -> Iterator[tuple[str, tuple[int, float]]]:
    """Yield the objects below some prefixes: the name, the size, and the time of the last write."""
    wanted, count = {*prefixes}, 0
    # One listing of all is cheaper than many small ones.
    for prefix in sorted(wanted) if len(wanted) <= AT_ONCE else ["v1/"]:
        for part in obstore.list(store, prefix=prefix, chunk_size=1_000):
            for found in part:
                if f"{found['path'].rpartition('/')[0]}/" in wanted and (count := count + 1) <= MAX_LISTED:
                    yield found["path"], (found["size"], found["last_modified"].timestamp())


def select_objects(listed: Mapping[str, tuple[int, float]], request: Request) -> tuple[list[str], bool]:
    """Return the objects to read, the newest first, up to the limit for a reply; and whether there are more."""
    prefixes, known = {*request["prefixes"]}, {*request["known"], *request["puts"]}
    wanted: list[str] = []
    total = 0
    for name in sorted(listed, key=lambda name: (-listed[name][1], name)):
        if f"{name.rpartition('/')[0]}/" in prefixes and name not in known:
            total += min(listed[name][0], MAX_OBJECT_BYTES)
            if total > MAX_READ_BYTES:
                return wanted, True
            wanted.append(name)
    return wanted, False


def read_object(store: Any, name: str) -> str | Exception | None:
    """Return an object's text, or why it cannot be used; ``None`` if it was just removed."""
    try:
        answer = obstore.get(store, name)
        if answer.meta["size"] > MAX_OBJECT_BYTES:
            return ValueError(f"it has more than {MAX_OBJECT_BYTES} bytes")
        data = bytes(answer.bytes())
        if name.rpartition("/")[2] != f"{sha256(data).hexdigest()}.json":
            return ValueError("its content is not what its name says")
        return data.decode()
    except FileNotFoundError:
        return None
    except _FAULTS as error:
        return error


def write_object(store: Any, name: str, data: bytes) -> Exception | None:
    """Write an object, whole or not at all; return why that failed."""
    try:
        obstore.put(store, name, data, use_multipart=False)
    except _FAULTS as error:
        return error
    return None


def describe_error(error: Exception) -> str:
    """Return an error as one line: obstore's messages go on with their request, an answer as XML, and a Rust value."""
    words = " ".join(str(error).split()).partition(" Debug source:")[0] or type(error).__name__
    words = re.sub(r"Error performing [A-Z]+ https?://\S+ in .{0,99}? - ", "", words)
    words = re.sub(r"<\?xml.*?<Code>(\w+)</Code>(?:.*?<Message>([^<]*)</Message>)?.*>", r"\1: \2", words)
    return words[:300]


if __name__ == "__main__":
    main()
