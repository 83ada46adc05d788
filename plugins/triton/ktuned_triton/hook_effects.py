"""Finds out what a hook does by calling it in the application. Most hooks zero a tensor or reshape a tensor descriptor.

A hook is user code, which no other process imports. But the application would call it anyway, and its effects can be
observed there: torch counts the changes of a tensor, and a descriptor's block shape is a list that can be read.

A hook that changes nothing else, and leaves only zeros in the tensors that it changes, is replayed as data: the tensor
starts as zeros, and the descriptor gets its config's block shape. A key with any other hook is left to Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ktuned.dropin import NotTunable


def observe_config_hook(hook: Callable[[Any], Any], arguments: Mapping[str, Any]) -> set[int]:
    """Call a config's hook with a launch's arguments, and return the ``id`` of each tensor that it zeroed.

    Descriptors keep the block shapes that the hook has set; the caller reads them from the arguments.

    Raises:
        NotTunable: the hook did something that cannot be replayed as data.
        Exception: whatever it raises.
    """
    return _observe_call("a config's pre_hook", lambda: hook(dict(arguments)), arguments)


def observe_tuner_hooks(tuner: Any, arguments: Mapping[str, Any]) -> set[int]:
    """Call an autotuner's user-defined hooks without a launch, and return the ``id`` of each tensor that they zeroed.

    Triton's own hooks, which zero and restore the tensors that the autotuner names, are not called.

    Raises:
        NotTunable: they did something that cannot be replayed as data.
        Exception: whatever they raise.
    """
    zeroed: set[int] = set()
    if tuner.user_defined_pre_hook:
        zeroed = _observe_call("its pre_hook", lambda: tuner.pre_hook(dict(arguments)), arguments)
    if tuner.user_defined_post_hook and _observe_call(
        "its post_hook", lambda: tuner.post_hook(dict(arguments), exception=None), arguments
    ):
        raise NotTunable("its post_hook writes to tensors")
    return zeroed


def _observe_call(hook: str, call: Callable[[], Any], arguments: Mapping[str, Any]) -> set[int]:
    tensors = [value for value in arguments.values() if _counts_changes(value)]
    before = [_read_version(value) for value in tensors]
    others = {name: _capture_state(value) for name, value in arguments.items() if not _counts_changes(value)}
    call()
    for name, state in others.items():
        if _capture_state(arguments[name]) != state:
            raise NotTunable(f"{hook} changes {name}")
    changed = [value for value, version in zip(tensors, before, strict=True) if _read_version(value) != version]
    if any(bool(value.any()) for value in changed):
        raise NotTunable(f"{hook} writes values other than zeros")
    return set(map(id, changed))


def _counts_changes(value: Any) -> bool:
    return hasattr(value, "untyped_storage") and hasattr(value, "_version")


def _read_version(value: Any) -> int:
    try:
        return int(value._version)
    except RuntimeError as error:
        # Tensors made in inference mode do not count their changes.
        raise NotTunable(f"what its hooks do cannot be seen: {error}") from error


def _capture_state(value: Any) -> Any:
    """Return the state of a value that a hook must not change; a descriptor's block shape may change."""
    if hasattr(value, "block_shape"):
        return id(value.base), list(value.shape), list(value.strides)
    return list(value) if isinstance(value, list) else None
