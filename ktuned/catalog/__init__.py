"""Known kernels: projects, roots, discovery, inspection, dependencies, trust."""

from ktuned.catalog.captured_inputs import CapturedInputs
from ktuned.catalog.catalog import Catalog, Changes, FileError, check_problem, environment_of, is_below
from ktuned.catalog.inspection import (
    Listing,
    Survey,
    check_extent,
    find_kernel_files,
    is_kernel_file,
    is_looked_into,
    printable,
    walk,
)
from ktuned.catalog.roots import make_root
from ktuned.catalog.trust import Trust, Untrusted

__all__ = [
    "CapturedInputs",
    "Catalog",
    "Changes",
    "FileError",
    "Listing",
    "Survey",
    "Trust",
    "Untrusted",
    "check_extent",
    "check_problem",
    "environment_of",
    "find_kernel_files",
    "is_below",
    "is_kernel_file",
    "is_looked_into",
    "make_root",
    "printable",
    "walk",
]
