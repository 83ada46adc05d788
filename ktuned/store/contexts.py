"""Why a winner is stale: the files, arguments and versions that changed since it was measured. No IO."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ktuned.model import ENVIRONMENT, LATENCY, DeviceModel, FrozenStruct, KernelName, KeyProblem, Objective, WinnerKey
from ktuned.protocol import Change

MEASURING_VERSION = 1
"""Raised whenever measuring changes, so that latencies that were measured in different ways are never compared."""

JUDGING_VERSION = -1
"""The version of judged trials: negative, and lowered whenever judging changes."""


class Context(FrozenStruct):
    """Everything that a measurement depends on, except the config."""

    kernel: KernelName
    problem: KeyProblem
    device: DeviceModel
    digest: str
    toolchain: str
    device_fingerprint: str
    measuring_version: int = MEASURING_VERSION

    @property
    def key(self) -> WinnerKey:
        """The key of the winner by latency that a measurement in this context may become."""
        return self.key_for(LATENCY)

    @property
    def judged(self) -> Context:
        """The context of judged trials, whose results are never mixed with those of tuning."""
        return replace(self, measuring_version=JUDGING_VERSION)

    def key_for(self, objective: Objective) -> WinnerKey:
        """Return the key of the winner by an objective that a measurement in this context may become."""
        return WinnerKey(self.kernel, self.problem, self.device, objective)


SOURCE = "source"
"""Group of a kernel's parts that are files or distributions; the other parts are arguments of ``@kernel``."""


def compare_contexts(
    then: Context,
    now: Context,
    parts: tuple[Mapping[str, str] | None, Mapping[str, str] | None],
    toolchains: tuple[Mapping[str, str] | None, Mapping[str, str] | None],
    drivers: tuple[Mapping[str, str] | None, Mapping[str, str] | None],
    kernel_file: str,
) -> list[Change]:
    """Return the differences between the contexts ``then`` and ``now``.

    Args:
        then: the context of a measurement.
        now: the present one.
        parts: the parts of both kernel digests by label; None if they were not stored. The change is then reported
            without its parts.
        toolchains: likewise, the parts of both toolchains.
        drivers: likewise, the parts of both device fingerprints.
        kernel_file: the file that is named for changes that belong to no other file.
    """
    found: list[Change] = []
    if then.digest != now.digest:
        found += _compare_parts(*parts, kernel_file) or [
            Change("unknown", kernel_file, "", then.digest[:16], now.digest[:16])
        ]
    for kind, pair, old, new in (
        ("toolchain", toolchains, then.toolchain, now.toolchain),
        ("driver", drivers, then.device_fingerprint, now.device_fingerprint),
    ):
        if old != new:
            found += _compare_versions(kind, *pair, kernel_file) or [Change(kind, kind, "", old, new)]
    if then.measuring_version != now.measuring_version:
        found.append(
            Change("measuring", "ktuned", "way of measuring", str(then.measuring_version), str(now.measuring_version))
        )
    # Remove duplicates: a variable may decide both compiling and measuring.
    return list(dict.fromkeys(found))


def _compare_parts(then: Mapping[str, str] | None, now: Mapping[str, str] | None, kernel_file: str) -> list[Change]:
    if then is None or now is None:
        return []
    labels = sorted(label for label in {*then, *now} if then.get(label, "") != now.get(label, ""))
    return [_describe_part(label, then.get(label, ""), now.get(label, ""), kernel_file) for label in labels]


def _describe_part(label: str, before: str, after: str, kernel_file: str) -> Change:
    group, _, rest = label.partition(":")
    if label.startswith(ENVIRONMENT):
        return Change("environment", kernel_file, rest, before, after)
    if group == SOURCE:
        return Change(SOURCE, rest, "", before, after)
    return Change("argument", kernel_file, rest, before, after)


def _compare_versions(
    kind: str, then: Mapping[str, str] | None, now: Mapping[str, str] | None, kernel_file: str
) -> list[Change]:
    if then is None or now is None:
        return []
    return [
        Change("environment", kernel_file, name.removeprefix(ENVIRONMENT), then.get(name, ""), now.get(name, ""))
        if name.startswith(ENVIRONMENT)
        else Change(kind, name, "", then.get(name, ""), now.get(name, ""))
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]
