"""The command line does not let threads spin for each other; what the user says wins."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from unmask.cli import main
assert "torch" not in sys.modules
sys.argv = ["unmask", "--version"]
try:
    main()
finally:
    print(os.environ["OMP_WAIT_POLICY"])
"""


@pytest.mark.parametrize(("own", "found"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_threads_wait_passively_unless_the_user_says_otherwise(own, found):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | own
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment)
    assert done.stdout.split()[-1] == found, done.stderr
