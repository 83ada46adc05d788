"""``ktuned run`` calls this module by name when a process imports Inductor, to adopt ``torch.compile``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ktuned.dropin import account


def adopt(module: Any, mode: str, numerics: str, winners: str, summary: str) -> None:
    """Adopt ``torch.compile``'s max-autotune; ``module`` is Inductor's ``compile_fx``.

    Inductor is left as it is, with one line in the summary, if anything about it is not as this plugin knows it.
    """
    account.directory = Path(summary)
    from ktuned_inductor import hooks, seams, self_test
    from ktuned_inductor.decisions import decisions

    try:
        reason = _explain_options(numerics, winners) or seams.explain_difference()
        if not reason:
            # A program that leaves Inductor nothing to choose does not wait for the self-test.
            decisions.find_failure = self_test.find_failure
            hooks.install_hooks()
            hooks.find_tuner()
            if mode == "wait":
                account.record_note("torch.compile does not wait: the next start has the winners of its graphs")
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    if reason:
        hooks.report_left_alone(reason)


def _explain_options(numerics: str, winners: str) -> str:
    if numerics == "exact":
        return "with --numerics exact Inductor chooses by itself: its choices differ in bits"
    return "with --winners Inductor chooses by itself: files of winners have no graphs" if winners else ""
