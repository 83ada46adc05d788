"""Kernel files: the declarations they make, the spaces and tensors they describe, and their digests."""

from ktuned.declaration import functions
from ktuned.declaration.bound_space import MEMBERSHIP_BOUND, BoundSpace, Conditional
from ktuned.declaration.constraint_syntax import Unsplittable, parse_function, split_function
from ktuned.declaration.declaration import end_declarations, kernel
from ktuned.declaration.declared_kernel import Kernel
from ktuned.declaration.digest import describe_kernel, digest_inputs
from ktuned.declaration.draws import mix_bits
from ktuned.declaration.hard_inputs import EVERYWHERE, HARD_FILLS
from ktuned.declaration.loader import forget_modules, get_kernel_module, load_file, load_if_changed
from ktuned.declaration.poisons import (
    Poison,
    fill_with_poison,
    find_poison,
    look_up_poison,
    view_as_bits,
)
from ktuned.declaration.spaces import make_plain_size, space
from ktuned.declaration.tensor_files import load_tensors, load_tensors_to
from ktuned.declaration.tensors import TensorSpec, find_layout, materialise, materialise_numpy, tensor
from ktuned.declaration.user_errors import iterate_causes, locate_user_line
from ktuned.declaration.user_values import find_mapping_fault
