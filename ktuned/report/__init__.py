"""Results for people and for other programs: trials as JSON, CSV and T4; winners for vLLM, and for C and C++."""

from ktuned.report.pareto import figure_of, front
from ktuned.report.trial_formats import FORMATS, rendered
from ktuned.report.winner_formats import c_file, vllm_files

__all__ = ["FORMATS", "c_file", "figure_of", "front", "rendered", "vllm_files"]
