"""Applications' functions in the daemon: their calls are taken in from the spool, tuned, and answered for."""

from ktuned.adoption.adopted_files import AdoptedDirectory
from ktuned.adoption.adoptions import Adoptions

__all__ = ["AdoptedDirectory", "Adoptions"]
