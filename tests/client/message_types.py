"""Generates the client's types of messages, ``ktuned_client/messages.py``, from the protocol's structs.

``python tests/client/message_types.py`` writes the file. A struct's bases are written only where several messages share
them; a base leaves a field out that a message gives another type, because a ``TypedDict`` cannot do that.
"""

import inspect
import subprocess
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from textwrap import indent
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import msgspec

from ktuned import protocol
from ktuned.model import CompilerError, Plan, Scalar, TrialDetail
from ktuned.protocol.events import Event
from ktuned_client import messages

MADE = Path(messages.__file__)

ANSWERS: tuple[type[msgspec.Struct], ...] = (
    protocol.Answer,
    protocol.RefusedLookup,
    protocol.LookupManyAnswer,
    Plan,
    protocol.JobInfo,
    protocol.Trial,
    protocol.FileError,
    protocol.StreamPosition,
    protocol.TuneAnswer,
    CompilerError,
    protocol.Factors,
    protocol.JudgedProblem,
    protocol.Candidate,
    protocol.JudgeAnswer,
)
"""The messages that are not events."""

NAMES = {"JobInfo": "Job"}
"""The client's names of types, where they differ from the daemon's."""

FINAL = {protocol.Answer}
"""Types that a type checker must be able to tell from another by a field that they lack."""

ONLY_DAEMON = {"key_problem"}
"""Fields that the daemon never sends."""

HEAD = '''"""Types of the maps that the daemon sends: jobs, trials, events and answers.

Generated from the daemon's types by ``tests/client/message_types.py``: change those.

At run time messages are plain dicts. Editors and type checkers know their fields by these types, and the fields of an
event by its ``type``::

    for event in tuned.tune("gemm"):
        if event["type"] == "job_done":
            print(event["job_state"]["state"])

A field's name ends in its unit; without one, a time is in Unix seconds. A daemon of another version
may add fields, or lack some.
"""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict, final

Values = Mapping[str, Any]
"""A problem, a config, or facts, by name."""

'''


def generate_messages() -> str:
    """Return the source of the client's module."""
    events = _merge_variants(protocol.EVENT_TYPES.values())
    kinds: dict[Any, list[str]] = {kind: [] for kind in ANSWERS}
    for kind in events:
        kinds |= {base: [] for base in reversed(kind.__mro__) if issubclass(base, Event) and base not in kinds}
    enums: dict[str, str] = {}
    classes = [_write_class(kind, kinds, events.get(kind, []), enums) for kind in kinds]
    union = "\n    | ".join(kind.__name__ for kind in events)
    body = "\n\n".join(filter(None, (*enums.values(), *classes)))
    source = f'{HEAD}{body}\n\nEvent = (\n    {union}\n)\n"""An event; its ``type`` says which one."""\n'
    formatter = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(MADE), "-"]
    return subprocess.run(formatter, input=source, text=True, capture_output=True, check=True).stdout


def _merge_variants(events: Iterable[type[Event]]) -> dict[type[Event], list[str]]:
    """Return the types to write, with their tags: events that add nothing to their base are written as the base."""
    merged: dict[type[Event], list[str]] = {}
    for kind in events:
        base: Any = kind.__bases__[0]
        is_variant = base is not Event and kind.__struct_fields__ == base.__struct_fields__
        merged.setdefault(base if is_variant else kind, []).append(str(kind.__struct_config__.tag))
    return merged


def _write_class(
    kind: type[msgspec.Struct], kinds: Mapping[type, object], tags: Sequence[str], enums: dict[str, str]
) -> str:
    base, inherited = _find_base(kind, kinds, enums)
    fields = {name: hint for name, hint in _select_fields(kind, kinds, enums).items() if name not in inherited}
    if tags:
        fields = {"type": f"Literal[{', '.join(map(repr, tags))}]", **fields}
    words = inspect.cleandoc(kind.__doc__ or "")
    for field in msgspec.structs.fields(kind):
        words = words.replace(f"\n    {field.name}:", f"\n    {field.encode_name}:")
    lines = [f'"""{words}\n"""', *(f"{name}: {hint}" for name, hint in fields.items())]
    if not fields:
        return ""
    above = "TypedDict" if base is None else _name_type(base)
    decorator = "@final\n" if kind in FINAL else ""
    return f"{decorator}class {_name_type(kind)}({above}):\n{indent(chr(10).join(lines), '    ')}\n"


def _find_base(kind: Any, kinds: Mapping[type, object], enums: dict[str, str]) -> tuple[type | None, dict[str, str]]:
    """Return the nearest base that is written, and the fields that it has; a base that would add nothing is not."""
    inherited: dict[str, str] = {}
    nearest = None
    for base in reversed(kind.__mro__[1:]):
        fields = _select_fields(base, kinds, enums) if base in kinds else {}
        if fields.keys() - inherited.keys():
            nearest, inherited = base, fields
    return nearest, inherited


def _name_type(kind: type) -> str:
    return "EventBase" if kind is Event else NAMES.get(kind.__name__, kind.__name__)


def _select_fields(kind: Any, kinds: Mapping[type, object], enums: dict[str, str]) -> dict[str, str]:
    """Return the client's types of a struct's fields, except those that a message below it gives another type."""
    fields = _list_fields(kind, kinds, enums)
    below = [_list_fields(other, kinds, enums) for other in kinds if issubclass(other, kind) and other is not kind]
    return {name: hint for name, hint in fields.items() if all(other[name] == hint for other in below)}


def _list_fields(kind: Any, kinds: Mapping[type, object], enums: dict[str, str]) -> dict[str, str]:
    hints = get_type_hints(kind)
    leaves_out = kind.__struct_config__.omit_defaults
    fields = {}
    for field in msgspec.structs.fields(kind):
        if field.name not in ONLY_DAEMON:
            hint = _convert_type(hints[field.name], kinds, enums)
            is_sent = (field.required or not leaves_out) and msgspec.UnsetType not in get_args(hints[field.name])
            fields[field.encode_name] = hint if is_sent else f"NotRequired[{hint}]"
    return fields


def _convert_type(hint: Any, kinds: Mapping[type, object], enums: dict[str, str]) -> str:
    """Return the text of the client's type for a type of the daemon."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in (Any, Scalar):
        return "Any"
    if hint is TrialDetail or (origin is Mapping and args[1] in (Any, Scalar)):
        return "Values"
    if isinstance(hint, NewType):
        return _convert_type(hint.__supertype__, kinds, enums)
    if origin in (Union, types.UnionType):
        return " | ".join(_convert_type(arg, kinds, enums) for arg in args if arg is not msgspec.UnsetType)
    if origin is Mapping:
        return f"Mapping[{', '.join(_convert_type(arg, kinds, enums) for arg in args)}]"
    if origin in (tuple, Sequence, list):
        return f"list[{_convert_type(args[0], kinds, enums)}]"
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        enums[hint.__name__] = f"{hint.__name__} = Literal[{', '.join(repr(str(member)) for member in hint)}]"
        return hint.__name__
    if hint in kinds:
        return _name_type(hint)
    return "None" if hint is type(None) else str(hint.__name__)


if __name__ == "__main__":
    MADE.write_text(generate_messages())
