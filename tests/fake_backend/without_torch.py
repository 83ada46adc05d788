"""With ``FAKE_TENSORS=numpy``, importing this module makes ``import torch`` fail, as if torch were not installed.

Importing torch costs 2 s of CPU, the largest part of most tests with a bench worker. ktuned uses NumPy's tensors then.
For the fake backend, and for kernel files of other backends that do not need torch.
"""

import os
import sys

if os.environ.get("FAKE_TENSORS") == "numpy":
    # How Python says that a module is not there. One that is imported already stays.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
