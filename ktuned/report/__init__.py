"""Results for people and for other programs: the HTML report; trials as JSON, CSV and T4; winners for vLLM.

Names that need the store are imported on first use, because tables and formats need neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ktuned.report.trial_formats import FORMATS, render_trials
from ktuned.report.winner_formats import render_vllm_files

if TYPE_CHECKING:
    from ktuned.report.document import Document, Standing
    from ktuned.report.html_page import render_fragment, render_page
    from ktuned.report.store_survey import make_standing_key, survey_store


_LATER = {
    "Document": "document",
    "Standing": "document",
    "render_fragment": "html_page",
    "make_standing_key": "store_survey",
    "render_page": "html_page",
    "survey_store": "store_survey",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = found
    return found
