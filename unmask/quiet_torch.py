"""Import torch without its warning that NumPy is missing, as unmask does not need NumPy."""

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Failed to initialize NumPy: No module named 'numpy'", UserWarning)
    import torch  # noqa: F401
