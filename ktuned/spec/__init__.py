"""Kernel files: the declarations they make, the spaces and tensors they describe, and their digests."""

from ktuned.spec import declaration, functions
from ktuned.spec.bound_space import MEMBERSHIP_BOUND, BoundSpace, Conditional
from ktuned.spec.c_tokens import follow
from ktuned.spec.declaration import Kernel, kernel
from ktuned.spec.digest import describe
from ktuned.spec.expressions import Expression, Formula, Term
from ktuned.spec.loader import forget_modules, is_ours, load_file
from ktuned.spec.poisons import is_same, poison, unwritten
from ktuned.spec.spaces import space
from ktuned.spec.tensors import TensorSpec, materialise, materialise_numpy, tensor

__all__ = [
    "MEMBERSHIP_BOUND",
    "BoundSpace",
    "Conditional",
    "Expression",
    "Formula",
    "Kernel",
    "TensorSpec",
    "Term",
    "declaration",
    "describe",
    "follow",
    "forget_modules",
    "functions",
    "is_ours",
    "is_same",
    "kernel",
    "load_file",
    "materialise",
    "materialise_numpy",
    "poison",
    "space",
    "tensor",
    "unwritten",
]
