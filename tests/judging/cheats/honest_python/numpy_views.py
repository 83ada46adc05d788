"""numpy_views: NumPy, on views of the tensors."""

import numpy
import torch


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    inputs, outputs = x.numpy(), y.numpy()
    outputs[:] = 0
    for _ in range(12):
        numpy.add(outputs * numpy.float32(0.5), inputs, out=outputs)
