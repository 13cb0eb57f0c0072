"""Where the conformance tests run: `pytest tests/conformance --device cuda` repeats them on a GPU."""

import pytest
import torch

from tests.conformance import golden


def pytest_configure(config: pytest.Config) -> None:
    golden.DEVICE = config.getoption("--device")
    torch.set_float32_matmul_precision("highest")  # float32 means float32, not TF32
