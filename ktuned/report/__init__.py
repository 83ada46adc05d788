"""Results for people and for other programs: the HTML report; trials as JSON, CSV and T4; winners for vLLM and C."""

from ktuned.report.document import Document, Standing
from ktuned.report.live import Latest, LiveServer
from ktuned.report.page import fragment, page
from ktuned.report.pareto import figure_of, front
from ktuned.report.survey import keyed, survey
from ktuned.report.terminal_plot import best_so_far
from ktuned.report.trial_formats import FORMATS, rendered
from ktuned.report.winner_formats import c_file, vllm_files

__all__ = [
    "FORMATS",
    "Document",
    "Latest",
    "LiveServer",
    "Standing",
    "best_so_far",
    "c_file",
    "figure_of",
    "fragment",
    "front",
    "keyed",
    "page",
    "rendered",
    "survey",
    "vllm_files",
]
