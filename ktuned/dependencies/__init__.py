"""The dependencies of a kernel's results: the code and files that a process reads, and how each enters the digest.

:mod:`.code_observer` observes the Python code that a kernel file runs. :mod:`.accesses` finds all other files and
variables that the process and its children read, by means of the observer library (:mod:`ktuned.observer`).
:mod:`.origin` decides by a file's place what represents it in a digest: its content, a distribution
(:mod:`.distributions`) or the interpreter. :mod:`.unobservable` recognizes programs that the observer cannot see.
"""

from ktuned.dependencies.accesses import ACCESSES
from ktuned.dependencies.code_observer import OBSERVER, FreshProcessNeeded, ImportEnd
from ktuned.dependencies.distributions import find_distribution, find_owners, find_record_owner, read_installed_versions
from ktuned.dependencies.origin import find_installed_place, is_ours, is_users_header
from ktuned.dependencies.python_files import digest_meaning, mentions_source_text
