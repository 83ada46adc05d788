"""Winners: lookups and their pins, checks, portfolios, exports, and exchange with a shared store."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ktuned.model import Scalar
from ktuned.protocol.method import Method, NoParams


class LookupParams(msgspec.Struct, frozen=True):
    """``lookup``: a kernel, a problem and a device; ``tune`` requests a better answer.

    ``objective`` is what the config is to be the best by; the kernel file's own if there is none. ``settle`` is how
    many seconds the answer may wait for a worker's word on configs that might be served instead.
    """

    kernel: str
    problem: dict[str, Scalar]
    device: str | None = None
    tune: bool = True
    pin: str | None = None
    directory: str | None = None
    objective: str | None = None
    settle: float = 0.0


class LookupManyParams(msgspec.Struct, frozen=True):
    """``lookup_many``: several lookups, answered in their order."""

    lookups: list[LookupParams]


class PinInfo(msgspec.Struct, frozen=True):
    """A pin, with the number of questions that it answers and the Unix time of the first."""

    pin: str
    questions: int
    created: float


class PinsAnswer(msgspec.Struct, frozen=True):
    """All pins."""

    pins: tuple[PinInfo, ...]


class UnpinAnswer(msgspec.Struct, frozen=True):
    """The pin that was given up, and how many questions it held."""

    pin: str
    questions: int


class UnpinParams(msgspec.Struct, frozen=True):
    """``unpin``: the pin to remove."""

    pin: str


class CheckParams(msgspec.Struct, frozen=True):
    """``check``: a kernel's winners, or that of one problem; with ``sanitize``, the paths of the sanitizers here."""

    kernel: str
    problem: dict[str, Scalar] | None = None
    sanitize: bool = False
    address: str = ""
    compute: str = ""
    directory: str | None = None


class PortfolioParams(msgspec.Struct, frozen=True):
    """``portfolio``: a kernel, and with ``make`` what to make; what is left out is the kernel file's to say."""

    kernel: str
    directory: str | None = None
    device: str | None = None
    objective: str | None = None
    make: bool = False
    configs: int | None = None
    loss: float | None = None
    tunings: int | None = None


class ExportParams(msgspec.Struct, frozen=True):
    """``export``: the document of one kernel on one device model, or without both the list of them."""

    kernel: str | None = None
    device: str | None = None
    directory: str | None = None


class ImportParams(msgspec.Struct, frozen=True):
    """``import``: a document of winners to take in; with ``dry_run``, only to be judged."""

    document: Any
    dry_run: bool = False


class SharePullParams(msgspec.Struct, frozen=True):
    """``share_pull``: one kernel, or all; ``directory`` decides which project a short name means."""

    kernel: str | None = None
    directory: str | None = None


LOOKUP: Final[Method[LookupParams, dict[str, Any]]] = Method("lookup", LookupParams, dict)
LOOKUP_MANY: Final[Method[LookupManyParams, dict[str, Any]]] = Method("lookup_many", LookupManyParams, dict)
PINS: Final = Method("pins", NoParams, PinsAnswer)
UNPIN: Final = Method("unpin", UnpinParams, UnpinAnswer)
CHECK: Final[Method[CheckParams, dict[str, Any]]] = Method("check", CheckParams, dict)
PORTFOLIO: Final[Method[PortfolioParams, dict[str, Any]]] = Method("portfolio", PortfolioParams, dict)
EXPORT: Final[Method[ExportParams, dict[str, Any]]] = Method("export", ExportParams, dict)
IMPORT: Final[Method[ImportParams, dict[str, Any]]] = Method("import", ImportParams, dict)
SHARE: Final[Method[NoParams, dict[str, Any]]] = Method("share", NoParams, dict)
SHARE_PUSH: Final[Method[NoParams, dict[str, Any]]] = Method("share_push", NoParams, dict)
SHARE_PULL: Final[Method[SharePullParams, dict[str, Any]]] = Method("share_pull", SharePullParams, dict)
