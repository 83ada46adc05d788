"""Adopted functions of applications: the daemon reads their calls from the spool, tunes them, and answers questions."""

from ktuned.adoption.adopted_files import AdoptedDirectory, read_function
from ktuned.adoption.adoptions import Adoptions
from ktuned.adoption.key_tunings import KeyTunings
