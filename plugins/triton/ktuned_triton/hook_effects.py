"""Finds out what a hook does by calling it in the application: most zero a tensor or reshape a tensor descriptor.

A hook is user code, which lanes do not import. But the application would call it anyway, and its effects can be seen
there: tensors count their changes, and a descriptor's block shape is a list.

A hook that changes nothing else, and leaves zeros where it wrote, is replayed as data: the tensor begins as zeros, and
the descriptor gets its config's block shape. Any other hook must run where its library is imported, which only its own
keys pay for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


class UnknownEffects(Exception):
    """A hook did something that cannot be replayed as data."""


@dataclass(frozen=True)
class HookEffects:
    """The tensors that a hook zeroed, by their ``id``."""

    zeroed: frozenset[int] = field(default_factory=frozenset)


def observe_config_hook(hook: Callable[[Any], Any], arguments: Mapping[str, Any]) -> HookEffects:
    """Call a config's hook with a launch's arguments, and return what it did.

    Descriptors keep the block shapes that the hook has set; the caller reads them from the arguments.

    Raises:
        UnknownEffects: it did something that cannot be replayed as data.
        Exception: whatever it raises.
    """
    return _observe_call(lambda: hook(dict(arguments)), arguments)


def observe_tuner_hooks(tuner: Any, arguments: Mapping[str, Any]) -> HookEffects:
    """Call an autotuner's user-defined hooks without a launch, and return what they did.

    Triton's own hooks are not called: they zero and restore the tensors that the autotuner names.

    Raises:
        UnknownEffects: they did something that cannot be replayed as data.
        Exception: whatever they raise.
    """
    effects = HookEffects()
    if tuner.user_defined_pre_hook:
        effects = _observe_call(lambda: tuner.pre_hook(dict(arguments)), arguments)
    if tuner.user_defined_post_hook:
        after = _observe_call(lambda: tuner.post_hook(dict(arguments), exception=None), arguments)
        if after.zeroed:
            raise UnknownEffects("a post_hook writes to tensors")
    return effects


def _observe_call(call: Callable[[], Any], arguments: Mapping[str, Any]) -> HookEffects:
    tensors = [value for value in arguments.values() if _counts_changes(value)]
    before = [_read_version(value) for value in tensors]
    others = {name: _capture_state(value) for name, value in arguments.items() if not _counts_changes(value)}
    call()
    for name, state in others.items():
        if _capture_state(arguments[name]) != state:
            raise UnknownEffects(f"a hook changes {name}")
    changed = [value for value, version in zip(tensors, before, strict=True) if _read_version(value) != version]
    for value in changed:
        if bool(value.any()):
            raise UnknownEffects("a hook writes other values than zeros")
    return HookEffects(frozenset(map(id, changed)))


def _counts_changes(value: Any) -> bool:
    return hasattr(value, "untyped_storage") and hasattr(value, "_version")


def _read_version(value: Any) -> int:
    try:
        return int(value._version)
    except RuntimeError as error:
        # Tensors of inference mode keep no version.
        raise UnknownEffects(str(error)) from error


def _capture_state(value: Any) -> Any:
    """Return the state of a value that a hook must not change; a descriptor's block shape may change."""
    if hasattr(value, "block_shape"):
        return id(value.base), list(value.shape), list(value.strides)
    return list(value) if isinstance(value, list) else None
