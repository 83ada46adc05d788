"""matrix_product: a product with the powers of a half."""

import torch

powers = 0.5 ** torch.arange(12.0)


def launch(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(torch.matmul(x[:, None].expand(-1, 12), powers))
