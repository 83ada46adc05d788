"""Known kernels: projects, roots, discovery, inspection, dependencies."""

from ktuned.catalog.admission import Admission, complete_config, decide_by_declaration, decide_config
from ktuned.catalog.catalog import Catalog, Changes, is_below, make_root_environment, read_problem
from ktuned.catalog.discovery import (
    MAX_DIRECTORIES,
    Listing,
    check_extent,
    find_kernel_files,
    guess_backend,
    is_kernel_file,
    may_hold_kernel_files,
    walk_directories,
)
from ktuned.catalog.foreign_names import ForeignNames
from ktuned.catalog.inspection import FileInspector, escape_path
from ktuned.catalog.project_file import PROJECT_FILE, Project, read_project
from ktuned.catalog.roots import find_project_top, make_root, name_roots, remake_root, remake_roots
from ktuned.catalog.traces import Traces
