"""``ktuned run``: the drop-ins in the places of TileLang's, in a program that does not know of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ktuned.dropin import account, when_imported

MODULE = "tilelang.autotuner.tuner"
"""The module that defines them; all others import them from there."""


def install(mode: str) -> None:
    """Replace ``tilelang.autotune`` and ``AutoTuner``, now or when they are imported.

    They wait for winners in every ``mode``, as TileLang's do: programs read a kernel's latency at once.
    """
    when_imported(MODULE, _replace)


def _replace(module: Any) -> None:
    try:
        from ktuned_tilelang import autotuner
        from ktuned_tilelang.tuning import Choices

        function_class, tuner_class = autotuner.function_class(), autotuner.tuner_class()
    except (ImportError, AttributeError) as error:
        # The program is no worse off than without ktuned.
        account.leave_alone("tilelang.autotune", f"ktuned-tilelang does not know it: {error}")
        return
    theirs = module.autotune
    choices = Choices()

    def autotune(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        decorate = theirs(*args, **kwargs)

        def take(function: Any) -> Any:
            made = decorate(function)
            made.__class__ = function_class
            made.choices = choices
            return made

        return take

    autotune.__doc__ = theirs.__doc__
    tuner_class.choices = choices
    module.autotune = autotune
    module.AutoTuner = tuner_class
