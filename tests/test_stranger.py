"""A stranger's first hour: a clean clone, a clean environment, and the README to the letter.

pytest -m slow tests/test_stranger.py
"""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import httpx
import pytest

from tests.test_docs import programs

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SAMPLER = next(iter(programs((ROOT / "docs" / "adding-a-sampler.md").read_text(encoding="utf-8"))))
pytestmark = pytest.mark.slow


class Stranger:
    """A clone with an environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.clone, self.bin = folder / "clone", folder / "venv" / "bin"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(self.clone)], check=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)

    def type(self, line: str, *, text: str | None = None, seconds: float = 900) -> str:
        """Run a command line as in an activated environment; return what it prints."""
        command = shlex.split(line)
        command[0] = str(self.bin / command[0])
        done = subprocess.run(
            command, cwd=self.clone, input=text, capture_output=True, text=True, timeout=seconds, check=False
        )
        assert done.returncode == 0, f"{line}: {done.stderr[-2000:]}"
        return done.stdout

    @contextmanager
    def serving(self, line: str) -> Iterator[str]:
        """Run `unmask serve ...` while the caller asks it; yield its address."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [str(self.bin / "unmask"), *shlex.split(line)[1:], "--port", str(port)]
        process, url = subprocess.Popen(command, cwd=self.clone), f"http://127.0.0.1:{port}"
        try:
            deadline = monotonic() + 120
            while True:
                try:
                    httpx.get(f"{url}/readyz", timeout=5).raise_for_status()
                    break
                except httpx.HTTPError:
                    assert process.poll() is None
                    assert monotonic() < deadline
                    sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    made = Stranger(tmp_path_factory.mktemp("stranger"))
    [install] = [line for line in README.splitlines() if line.startswith("pip install --editable")]
    made.type(install)
    return made


def ask(url: str, **fields: object) -> dict:
    body = {
        "model": "mini-llada",
        "messages": [{"role": "user", "content": "Solve the equation: 3x + 5 = 20."}],
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json={**body, **fields}, timeout=120)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_the_quick_start_prints_what_the_readme_shows(stranger):
    [(code, shown)] = [(code, output) for code, output in programs(README).items() if output]
    assert stranger.type(f"python -c {shlex.quote(code)}").strip() == shown.strip()


def test_the_commands_of_the_readme_run(stranger):
    named = re.findall(r"`(unmask compare [^`]+)`", README)
    assert named
    for line in named:
        assert "first-mask" in stranger.type(
            line.replace("unmask compare", "unmask compare -s base,first-mask")
        )
    assert "first-mask" in stranger.type("unmask samplers")
    assert "mini-gsm8k" in stranger.type("unmask tasks")
    assert stranger.type(
        "unmask chat", text="Solve the equation: 3x + 5 = 20.\nSolve the equation: 4x + 4 = 20.\n"
    )


def test_the_server_answers_and_has_its_page(stranger):
    with stranger.serving("unmask serve") as url:
        assert ask(url)["choices"][0]["message"]["content"]
        assert "<html" in httpx.get(url).text


def test_a_sampler_of_a_file_works_in_every_command(stranger):
    (stranger.clone / "margin.py").write_text(SAMPLER)
    name = "margin.py:MarginThreshold"
    assert stranger.type(f"unmask generate 'What is 50% of 120?' -s {name} --set min_margin=0.3")
    result = json.loads(stranger.type(f"unmask eval mini-math --limit 2 -s {name} --json").splitlines()[-1])
    assert result
    with stranger.serving(f"unmask serve mini-llada -s {name}") as url:
        assert ask(url, sampler="MarginThreshold")["choices"]


def test_the_wheel_works_outside_the_clone(stranger, tmp_path):
    stranger.type("pip wheel . --no-deps --wheel-dir dist")
    [wheel] = (stranger.clone / "dist").glob("*.whl")
    stranger.type(f"pip install --force-reinstall --no-deps {wheel}")
    stranger.clone = tmp_path
    assert "boxed" in stranger.type("unmask generate 'Solve the equation: 3x + 5 = 20.' -s first-mask")
