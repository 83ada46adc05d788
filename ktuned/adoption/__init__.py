"""Applications' functions in the daemon: their calls are taken in from the spool, tuned, and answered for."""

from ktuned.adoption.adopted_files import AdoptedDirectory
from ktuned.adoption.adoptions import Adoptions
from ktuned.adoption.key_tunings import KeyTunings

__all__ = ["AdoptedDirectory", "Adoptions", "KeyTunings"]
