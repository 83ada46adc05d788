"""Results for people and for other programs: trials as JSON, CSV and T4."""

from ktuned.report.trial_formats import FORMATS, rendered

__all__ = ["FORMATS", "rendered"]
