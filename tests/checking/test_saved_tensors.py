"""Expected outputs on the disk: each dtype that a kernel file may declare comes back as it was."""

from pathlib import Path
from typing import Any

import pytest

from ktuned.checking.tensor_library import NUMPY, TORCH
from ktuned.declaration import tensor
from ktuned.declaration.tensors import DTYPES

CASES: list[tuple[Any, str]] = [(TORCH, dtype) for dtype in DTYPES]
CASES += [(NUMPY, dtype) for dtype in DTYPES if not dtype.startswith(("bfloat", "float8"))]


@pytest.mark.parametrize("shape", [(3, 2), (), (0,)], ids=["matrix", "scalar", "empty"])
@pytest.mark.parametrize(("library", "dtype"), CASES, ids=lambda value: getattr(value, "type_name", value))
def test_saved_tensors_come_back(tmp_path: Path, library: Any, dtype: str, shape: tuple[int, ...]) -> None:
    """Their names, dtypes, shapes and bits are equal."""
    made = library.make_tensor(tensor(shape, dtype, "ones"), "y", "seed", "cpu")
    library.save_tensors({"y": made}, tmp_path / "expected.safetensors")
    (name, loaded), *_ = library.load_tensors(tmp_path / "expected.safetensors").items()
    assert (name, loaded.dtype, tuple(loaded.shape)) == ("y", made.dtype, shape)
    assert library.are_equal_bits(loaded, made)
