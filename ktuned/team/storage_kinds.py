"""The kinds of storage, by the scheme of a URL; each imports its library when it is named.

Apart from :mod:`~ktuned.team.storage`, which they implement.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from ktuned.team.settings import REDIS
from ktuned.team.storage import OPERATION_S, Storage, StorageError, shown

INSTALL: Final = "pip install 'ktuned[team]'"
"""Brings the libraries that object storage and Redis need."""


def open_storage(url: str, *, deadline_s: float = OPERATION_S) -> Storage:
    """Return the storage at a URL: a path or ``file://``, ``redis://``, ``rediss://``, ``unix://``, or object storage.

    Raises:
        StorageError: its library is not installed, or the URL means nothing.
    """
    scheme = urlsplit(url).scheme
    if scheme in ("", "file"):
        from ktuned.team.directory_storage import DirectoryStorage

        return DirectoryStorage(url.removeprefix("file://"), deadline_s=deadline_s)
    try:
        if scheme in REDIS:
            from ktuned.team.redis_storage import RedisStorage

            return RedisStorage(url, deadline_s=deadline_s)
        from ktuned.team.object_storage import ObjectStorage

        return ObjectStorage(url, deadline_s=deadline_s)
    except ImportError as error:
        library = "redis" if scheme in REDIS else "obstore"
        raise StorageError(f"{shown(url)}: {library} is not installed ({error})", hint=INSTALL) from error
