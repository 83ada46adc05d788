"""Whether a config is right: the tensors that it works on, what must be in its outputs, and what it must leave alone.

Start reading at :mod:`~ktuned.checking.problem_data`, the tensors that all configs of a problem share. Its inputs come
from :mod:`~ktuned.checking.problem_inputs`, the expected outputs from :mod:`~ktuned.checking.reference`.
:mod:`~ktuned.checking.verdict` compares outputs by a tolerance, :mod:`~ktuned.checking.bits` bit by bit, and
:mod:`~ktuned.checking.judged_outputs` those of timed launches with those of the launch that was judged right.
:mod:`~ktuned.checking.guards` are the memory around the tensors, which reveals a write beyond them. All of this handles
tensors of torch or NumPy through :mod:`~ktuned.checking.tensor_library`.
"""

from ktuned.checking.bits import BitsComparison
from ktuned.checking.free_memory import require_free_memory, require_free_memory_for_spare
from ktuned.checking.guards import Guards
from ktuned.checking.judged_outputs import JudgedOutputs
from ktuned.checking.placement import PATTERN, Region, Span
from ktuned.checking.problem_data import ProblemData
from ktuned.checking.reference import DEFAULT_CONFIG
from ktuned.checking.tensor_library import TensorLibrary, choose_library
from ktuned.checking.torch_tensors import GpuBytes
from ktuned.checking.verdict import Verdict
