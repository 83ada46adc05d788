"""Kernel files: the declarations they make, the spaces and tensors they describe, and their digests."""

from ktuned.spec import functions
from ktuned.spec.accesses import ACCESSES
from ktuned.spec.bound_space import MEMBERSHIP_BOUND, BoundSpace, Conditional
from ktuned.spec.declaration import end_declarations, kernel
from ktuned.spec.declared_kernel import Kernel
from ktuned.spec.digest import describe_kernel
from ktuned.spec.distributions import distribution, installed_versions, owners
from ktuned.spec.draws import mix as mix_bits
from ktuned.spec.expressions import Expression, Formula, Term
from ktuned.spec.hard_inputs import EVERYWHERE, HARD_FILLS
from ktuned.spec.loader import forget_modules, get_kernel_module, load_file, load_unless_held
from ktuned.spec.observer import OBSERVER, FreshProcessNeeded
from ktuned.spec.origin import installed_in, is_ours
from ktuned.spec.poisons import (
    as_bits,
    is_distinct,
    is_same,
    other_poison_bits,
    poison,
    poison_bits,
    signed_poisons,
    unwritten,
)
from ktuned.spec.python_files import digest_meaning
from ktuned.spec.raised import iterate_causes, locate_user_line
from ktuned.spec.spaces import space
from ktuned.spec.tensors import TensorSpec, layout, materialise, materialise_numpy, tensor
from ktuned.spec.user_values import find_mapping_fault

__all__ = [
    "ACCESSES",
    "EVERYWHERE",
    "HARD_FILLS",
    "MEMBERSHIP_BOUND",
    "OBSERVER",
    "BoundSpace",
    "Conditional",
    "Expression",
    "Formula",
    "FreshProcessNeeded",
    "Kernel",
    "TensorSpec",
    "Term",
    "as_bits",
    "describe_kernel",
    "digest_meaning",
    "distribution",
    "end_declarations",
    "find_mapping_fault",
    "forget_modules",
    "functions",
    "get_kernel_module",
    "installed_in",
    "installed_versions",
    "is_distinct",
    "is_ours",
    "is_same",
    "iterate_causes",
    "kernel",
    "layout",
    "load_file",
    "load_unless_held",
    "locate_user_line",
    "materialise",
    "materialise_numpy",
    "mix_bits",
    "other_poison_bits",
    "owners",
    "poison",
    "poison_bits",
    "signed_poisons",
    "space",
    "tensor",
    "unwritten",
]
