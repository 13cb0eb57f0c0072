"""Install a browser for the tests of the page, if this machine has none and lets us.

python tools/browser.py

Without a browser these tests are skipped, or fail if the environment variable CI is set.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 300


def find() -> str | None:
    """Return the path of a browser: the one that UNMASK_TEST_BROWSER names, or one on the path."""
    named = os.environ.get("UNMASK_TEST_BROWSER")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


def works() -> bool:
    """Return whether a browser can be started."""
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        try:
            playwright.chromium.launch(executable_path=find(), args=["--no-sandbox"]).close()
        except Error:
            return False
    return True


def install() -> None:
    """Try playwright's own browser, then the distribution's package."""
    attempts = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if shutil.which("apt-get") and os.geteuid() == 0:
        attempts += [["apt-get", "update"], ["apt-get", "install", "--yes", "chromium"]]
    for command in attempts:
        try:
            subprocess.run(command, timeout=SECONDS, check=True, capture_output=True)
        except (OSError, subprocess.SubprocessError):
            continue
        if works():
            return


if __name__ == "__main__":
    if not works():
        install()
        if not works():
            print("no browser could be installed: the tests of the page will not run", file=sys.stderr)
