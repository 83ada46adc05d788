"""Kernel files: the declarations they make, the spaces and tensors they describe, and their digests."""

from ktuned.spec import functions
from ktuned.spec.bound_space import MEMBERSHIP_BOUND, BoundSpace, Conditional
from ktuned.spec.constraint_syntax import Unsplittable, parse_function, split_function
from ktuned.spec.declaration import end_declarations, kernel
from ktuned.spec.declared_kernel import Kernel
from ktuned.spec.digest import describe_kernel
from ktuned.spec.draws import mix_bits
from ktuned.spec.hard_inputs import EVERYWHERE, HARD_FILLS
from ktuned.spec.loader import forget_modules, get_kernel_module, load_file, load_if_changed
from ktuned.spec.poisons import (
    Poison,
    fill_with_poison,
    find_poison,
    find_unwritten,
    hold_same_bits,
    look_up_poison,
    view_as_bits,
)
from ktuned.spec.spaces import make_plain_size, space
from ktuned.spec.tensor_files import load_tensors, load_tensors_to
from ktuned.spec.tensors import TensorSpec, find_layout, materialise, materialise_numpy, tensor
from ktuned.spec.user_errors import iterate_causes, locate_user_line
from ktuned.spec.user_values import find_mapping_fault

__all__ = [
    "EVERYWHERE",
    "HARD_FILLS",
    "MEMBERSHIP_BOUND",
    "BoundSpace",
    "Conditional",
    "Kernel",
    "Poison",
    "TensorSpec",
    "Unsplittable",
    "describe_kernel",
    "end_declarations",
    "fill_with_poison",
    "find_layout",
    "find_mapping_fault",
    "find_poison",
    "find_unwritten",
    "forget_modules",
    "functions",
    "get_kernel_module",
    "hold_same_bits",
    "iterate_causes",
    "kernel",
    "load_file",
    "load_if_changed",
    "load_tensors",
    "load_tensors_to",
    "locate_user_line",
    "look_up_poison",
    "make_plain_size",
    "materialise",
    "materialise_numpy",
    "mix_bits",
    "parse_function",
    "space",
    "split_function",
    "tensor",
    "view_as_bits",
]
