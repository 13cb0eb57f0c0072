"""Threads that wait for each other do not spin for long, unless the user says so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
PROGRAM = "import os, unmask; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("own", "found"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
def test_waiting_threads_spin_for_a_short_time_unless_the_user_says_so(own, found):
    environment = {name: value for name, value in os.environ.items() if name not in NAMES} | own
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == found
