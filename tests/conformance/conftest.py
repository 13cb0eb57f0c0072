"""Settings of the conformance tests.

`pytest tests/conformance --goldens DIR` replays another golden set; `--goldens` may be repeated.
`--device cuda` repeats the tests on a GPU.
"""

import pytest
import torch

from tests.conformance import golden
from tests.conftest import golden_folders


def pytest_configure(config: pytest.Config) -> None:
    golden.DEVICE = config.getoption("--device")
    torch.set_float32_matmul_precision("highest")  # float32 means float32, not TF32
    for folder in golden_folders(config):
        if not any((folder / part / "manifest.json").exists() for part in ("logits", "trajectories")):
            raise pytest.UsageError(
                f"--goldens {folder} holds neither logits/manifest.json nor trajectories/manifest.json"
            )
