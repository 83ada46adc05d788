"""Projects: the name that each root has, or had."""

from __future__ import annotations

import pytest

from ktuned.protocol.kernels import Root
from ktuned.store.database import Store

pytestmark = pytest.mark.anyio


async def named(store: Store, **names: str) -> None:
    """Give roots their names."""
    await store.projects.save_names({f"/{path}": name for path, name in names.items()})


async def test_names_move_on_in_one_step(store: Store) -> None:
    """One project may take the name that another gives up, and two may swap theirs."""
    await named(store, a="one", b="two")
    await named(store, a="two", b="three")
    assert store.projects.load_names() == {"/a": "two", "/b": "three"}
    await named(store, a="three", b="two")
    assert store.projects.load_names() == {"/a": "three", "/b": "two"}


async def test_a_name_that_was_given_up_is_free(store: Store) -> None:
    """A root that is not watched any more has no claim to the name that another one has since."""
    await named(store, a="one")
    await named(store, b="one")
    assert store.projects.load_names() == {"/b": "one"}


async def test_a_watched_root_is_renamed_too(store: Store) -> None:
    """The next daemon finds the root under its name."""
    await store.add_root(Root("/p", "proj", "python"))
    await named(store, p="proj")
    await named(store, p="other")
    assert [root.name for root in store.load_roots()] == ["other"]
