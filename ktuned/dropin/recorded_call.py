"""A function's declaration and one call of it, as plain data that a drop-in leaves in the spool and a worker reads.

A plugin extends both classes with fields of its own. All fields are plain values, so no methods are needed to write and
read them; fields that this version does not know are ignored.

Content of tensors
    Floating-point tensors travel as dtype and shape, and the worker draws their content at random. Tensors of other
    dtypes may hold indices, for which random content is not safe. Such tensors are *captured*: their content travels
    with the call, in a file that the call names.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from ktuned.dropin.application import FunctionName
from ktuned.model import Scalar
from ktuned.spool import digest_content

CAPTURED = "captured"
"""Fill of a tensor whose content travels with the call."""

MAX_CAPTURED_BYTES = 64 << 20
"""Limit for the captured tensors of a call (indices, masks, lengths). Copying so much from the device takes 10 ms, once
for each key, in a call that spends longer on compiling."""


class NotTunable(Exception):
    """A call or a whole function cannot be tuned by another process; the message is the reason."""


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Everything besides the call that decides a measurement of a function.

    Attributes:
        name: the function's name for people.
        module: the function's module.
        qualname: its name there.
        specialize: names of the problem's values that make up its tuning key.
        variables: the application's environment variables that change what is compiled.
    """

    name: FunctionName
    module: str
    qualname: str
    specialize: tuple[str, ...] = ()
    variables: Mapping[str, str]

    @property
    def source_digest(self) -> str:
        """Digest of the function's source, the same on every machine; empty if the key has the programs instead."""
        return ""

    @property
    def identity(self) -> str:
        """Digest of the declaration and the interpreter; the same in every process that has the function."""
        return digest_content(json.dumps([sys.executable, self.to_plain()], sort_keys=True))

    def to_plain(self) -> dict[str, Any]:
        """Return the fields and the digest of the source as plain data."""
        return {**asdict(self), "source_digest": self.source_digest}


@dataclass(frozen=True, kw_only=True)
class RecordedCall:
    """One call of a function; ``content`` names the file with its captured tensors, if it has any."""

    content: str = ""

    def to_json(self) -> str:
        """Return the text of a record."""
        return json.dumps(asdict(self))

    def pack_captured(self, tensors: Mapping[str, Any]) -> tuple[Self, dict[str, bytes]]:
        """Return the call with the name of the file of its captured tensors, and that file's content by its name.

        The tensors must be on the CPU.
        """
        if not tensors:
            return self, {}
        from safetensors.torch import save

        data: bytes = save(dict(tensors))
        name = f"{digest_content(data)}.safetensors"
        return replace(self, content=name), {name: data}


def check_captured_size(sizes: Mapping[str, int]) -> None:
    """Check that captured tensors are not too large; ``sizes`` holds the bytes of each by name.

    Raises:
        NotTunable: together they exceed :data:`MAX_CAPTURED_BYTES`.
    """
    total = sum(sizes.values())
    if total > MAX_CAPTURED_BYTES:
        raise NotTunable(
            f"its tensors of integers ({', '.join(sizes)}) have {total >> 20} MiB, more than is captured of a call "
            f"({MAX_CAPTURED_BYTES >> 20} MiB)"
        )


def convert_to_scalar(value: Any) -> Scalar:
    """Return a value as problems and configs store it: finite numbers and strings unchanged, others as ``~`` + repr."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"~{value}"
    if type(value) in (bool, int, float) or (type(value) is str and not value.startswith("~")):
        return value  # type: ignore[no-any-return]
    return f"~{value!r}"


def restore_value(scalar: Scalar, listed: Iterable[Any]) -> Any:
    """Return the value that :func:`convert_to_scalar` made a scalar of; one that became text is found among ``listed``.

    Raises:
        LookupError: none of them has that text.
    """
    if not isinstance(scalar, str) or not scalar.startswith("~"):
        return scalar
    for value in listed:
        if convert_to_scalar(value) == scalar:
            return value
    raise LookupError(scalar)
