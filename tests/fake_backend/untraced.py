"""What a generator of torch needs to be called."""

import torch._prims.rng_prims  # noqa: F401 - registers it
