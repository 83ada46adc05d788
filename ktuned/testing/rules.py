"""How the conformance suites report a rule that a plugin breaks."""

from __future__ import annotations


class NotConforming(AssertionError):
    """A plugin breaks a rule that ktuned relies on; the message says which."""


def require_rule(holds: object, fault: str) -> None:
    """Raise unless a rule holds.

    Args:
        holds: True, or anything that counts as true, if it does.
        fault: What is wrong otherwise.

    Raises:
        NotConforming: It does not.
    """
    if not holds:
        raise NotConforming(fault)
