"""What an application's hooks do, seen where they are called: most zero a tensor or reshape a tensor descriptor.

A hook is the user's code, which lanes do not import. But what it did can be seen in the application, which would call
it anyway: tensors count their changes, and a descriptor's block is a list. A hook that changed nothing else, and left
zeros where it wrote, is replayed as data: the tensor begins as zeros, and the descriptor has its config's block. One
that does anything else runs where the library is imported, and its keys alone pay for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


class UnknownEffects(Exception):
    """A hook did something that is not replayed as data."""


@dataclass(frozen=True)
class HookEffects:
    """The tensors that a hook has zeroed, by their ``id``."""

    zeroed: frozenset[int] = field(default_factory=frozenset)


def observe_config_hook(hook: Callable[[Any], Any], arguments: Mapping[str, Any]) -> HookEffects:
    """Call a config's hook with a launch's arguments, and return what it did.

    Blocks of descriptors are left as the hook has set them: the caller reads them from the arguments.

    Raises:
        UnknownEffects: it did something that is not replayed as data.
        Exception: whatever it raises.
    """
    return _observe(lambda: hook(_as_given(arguments)), arguments)


def observe_tuner_hooks(tuner: Any, arguments: Mapping[str, Any]) -> HookEffects:
    """Call the hooks that an autotuner's author gave around no launch at all, and return what they did.

    Triton's own hooks zero and restore tensors by name, which is known without calling them.

    Raises:
        UnknownEffects: they did something that is not replayed as data.
        Exception: whatever they raise.
    """
    effects = HookEffects()
    if tuner.user_defined_pre_hook:
        effects = _observe(lambda: tuner.pre_hook(_as_given(arguments)), arguments)
    if tuner.user_defined_post_hook:
        after = _observe(lambda: tuner.post_hook(_as_given(arguments), exception=None), arguments)
        if after.zeroed:
            raise UnknownEffects("a post_hook writes to tensors")
    return effects


def _as_given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return dict(arguments)


def _observe(call: Callable[[], Any], arguments: Mapping[str, Any]) -> HookEffects:
    tensors = [value for value in arguments.values() if _counts_changes(value)]
    before = [_version(value) for value in tensors]
    others = {name: _plain_state(value) for name, value in arguments.items() if not _counts_changes(value)}
    call()
    for name, state in others.items():
        if _plain_state(arguments[name]) != state:
            raise UnknownEffects(f"a hook changes {name}")
    changed = [value for value, version in zip(tensors, before, strict=True) if _version(value) != version]
    for value in changed:
        if bool(value.any()):
            raise UnknownEffects("a hook writes other values than zeros")
    return HookEffects(frozenset(map(id, changed)))


def _counts_changes(value: Any) -> bool:
    return hasattr(value, "untyped_storage") and hasattr(value, "_version")


def _version(value: Any) -> int:
    try:
        return int(value._version)
    except RuntimeError as error:
        # Inference mode keeps no versions.
        raise UnknownEffects(str(error)) from error


def _plain_state(value: Any) -> Any:
    """Return what of a value a hook may have changed; a descriptor's block is meant to be."""
    if hasattr(value, "block_shape"):
        return id(value.base), list(value.shape), list(value.strides)
    return list(value) if isinstance(value, list) else None
