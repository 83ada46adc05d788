"""Known kernels: projects, roots, discovery, inspection, dependencies."""

from ktuned.catalog.admission import Admission, complete_config, declared_admission
from ktuned.catalog.buckets import Buckets
from ktuned.catalog.captured_inputs import CapturedInputs
from ktuned.catalog.catalog import Catalog, Changes, check_problem, environment_of, is_below
from ktuned.catalog.discovery import (
    MAX_DIRECTORIES,
    Listing,
    check_extent,
    find_kernel_files,
    guess_backend,
    is_kernel_file,
    is_looked_into,
    walk_directories,
)
from ktuned.catalog.foreign_names import ForeignNames
from ktuned.catalog.inspection import FileInspector, printable_path
from ktuned.catalog.project_file import PROJECT_FILE, Project, read_project
from ktuned.catalog.roots import asked_again, known_roots, make_root, name_roots, project_top
from ktuned.catalog.traces import Traces

__all__ = [
    "MAX_DIRECTORIES",
    "PROJECT_FILE",
    "Admission",
    "Buckets",
    "CapturedInputs",
    "Catalog",
    "Changes",
    "FileInspector",
    "ForeignNames",
    "Listing",
    "Project",
    "Traces",
    "asked_again",
    "check_extent",
    "check_problem",
    "complete_config",
    "declared_admission",
    "environment_of",
    "find_kernel_files",
    "guess_backend",
    "is_below",
    "is_kernel_file",
    "is_looked_into",
    "known_roots",
    "make_root",
    "name_roots",
    "printable_path",
    "project_top",
    "read_project",
    "walk_directories",
]
