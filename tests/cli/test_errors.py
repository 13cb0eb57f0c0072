"""Bad input ends in one sentence and exit code 2; nothing but --debug shows a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def shell(*arguments: object, code: str | None = None) -> subprocess.CompletedProcess[str]:
    start = ["-m", "unmask"] if code is None else ["-c", code]
    command = [sys.executable, *start, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)


def check(result, words: str) -> None:
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def spoil_nothing(folder: Path) -> None:
    """The arguments are bad enough."""


def without_weights(folder: Path) -> None:
    for file in folder.glob("*.safetensors*"):
        file.unlink()


def truncated(folder: Path) -> None:
    file = next(folder.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1000])


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def foreign(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "llama"}))


def without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "arguments", "words"),
    [
        (spoil_nothing, ("-m", "no/such/folder"), "'no/such/folder'"),
        (without_weights, (), "has no weights"),
        (without_config, (), "has no config.json"),
        (truncated, (), "is not a complete safetensors file"),
        (foreign, (), "'llama'"),
        (without_tokenizer, (), "has no tokenizer"),
        (spoil_nothing, ("-n", 4090), "at most 4096 tokens"),
        (spoil_nothing, ("--device", "tpu9"), "got 'tpu9'"),
        (spoil_nothing, ("--device", "cuda:77"), "got 'cuda:77'"),
        (spoil_nothing, ("--dtype", "int3"), "got 'int3'"),
        (spoil_nothing, ("--sampler", "lesss"), "did you mean 'less'?"),
        (spoil_nothing, ("--set", "confidence=3"), "did you mean 'min_confidence'?"),
        (
            spoil_nothing,
            ("--trace", "no/such/folder/t.jsonl"),
            "got 'no/such/folder/t.jsonl'; create it first",
        ),
    ],
)
def test_bad_input_ends_in_one_sentence(call, llada, copy, spoil, arguments, words):
    folder = copy(llada)
    spoil(folder)
    result = call("generate", "-m", folder, "hello", *arguments)
    assert result.exit_code == 2
    check(result, words)


def test_a_trace_that_cannot_be_written_costs_no_text(call, llada):
    plain = call("generate", "-m", llada, "hello", "-n", 8)
    result = call("generate", "-m", llada, "hello", "-n", 8, "--trace", "/dev/full")
    assert result.exit_code == 2
    assert result.stdout == plain.stdout != ""
    assert result.stderr.splitlines()[-1] == "error: /dev/full: No space left on device"


@pytest.mark.parametrize(("name", "guess"), [("lesss", "did you mean 'less'? "), ("", ""), ("zzz", "")])
def test_an_unknown_sampler_is_answered_with_the_nearest_name_and_the_command_that_lists_all(
    call, llada, name, guess
):
    result = call("generate", "-m", llada, "hello", "-s", name)
    check(result, f"got {name!r}; {guess}`unmask samplers` lists all")
    assert "first-mask" not in result.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [({"fields": {}}, "sampler is missing"), ({"sampler": "less", "field": {}}, "did you mean 'fields'?")],
)
def test_a_preset_file_that_lacks_a_field_or_has_a_wrong_one_is_named_with_it(
    call, llada, tmp_path, content, words
):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(content))
    result = call("generate", "-m", llada, "hello", "-s", file)
    check(result, words)
    assert f"{file} is not a preset" in result.stderr
    assert "__init__" not in result.stderr


def test_a_process_ends_with_exit_code_2_and_no_traceback(llada, copy):
    folder = copy(llada)
    truncated(folder)
    result = shell("generate", "-m", folder, "hello")
    assert result.returncode == 2
    check(result, "is not a complete safetensors file")


def test_debug_shows_the_traceback(call):
    result = call("generate", "-m", "no/such/folder", "hello", "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: source must be")


def test_wrong_flags_are_typers_to_refuse(call):
    for arguments in (("generate", "-m", "x", "hi", "--stepz", "3"), ("nothing",)):
        result = call(*arguments)
        assert result.exit_code == 2
        assert "Traceback" not in result.stderr


LITTLE_MEMORY = """
import resource, torch
from unmask.cli import main
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, -1))
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_a_process_that_runs_out_of_memory_ends_in_a_sentence(dream, copy):
    folder = copy(dream)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 10**10}))
    result = shell("generate", "-m", folder, "hello", "-n", 2 * 10**9, code=LITTLE_MEMORY)
    assert result.returncode == 2
    check(result, "out of memory; lower --max-new-tokens")


def failed_allocation() -> RuntimeError:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    return caught.value


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), 2, "out of memory"),
        (failed_allocation(), 2, "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), 2, "out of memory"),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), 2, "out of memory"),
        (OSError(28, "No space left on device"), 2, "No space left on device"),
        (OSError("no reason"), 2, "no reason"),
        (ValueError("two\nlines"), 2, "two lines"),
    ],
)
def test_errors_become_sentences(call, monkeypatch, error, code, words):
    def fail(options):
        raise error

    monkeypatch.setattr("unmask.cli.generate.load_model", fail)
    result = call("generate", "-m", "x", "hello")
    assert result.exit_code == code
    check(result, words)


def test_an_interrupt_is_quiet(call, monkeypatch):
    def interrupt(options):
        raise KeyboardInterrupt

    monkeypatch.setattr("unmask.cli.generate.load_model", interrupt)
    result = call("generate", "-m", "x", "hello")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "")


INTERRUPTED = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from unmask.cli import main
main()
"""


def test_an_interrupt_while_the_command_line_is_imported_is_quiet():
    result = shell("generate", "hello", code=INTERRUPTED)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_our_own_mistakes_are_not_hidden(call, monkeypatch):
    def fail(options):
        raise RuntimeError("a bug")

    monkeypatch.setattr("unmask.cli.generate.load_model", fail)
    result = call("generate", "-m", "x", "hello")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "RuntimeError: a bug"
    assert 'raise RuntimeError("a bug")' in result.stderr


def test_a_reader_that_leaves_early_hears_no_complaint():
    command = [sys.executable, "-m", "unmask", "samplers", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) != 0


def test_without_typer_there_is_a_sentence_that_says_how_to_get_it():
    code = "import sys; sys.modules['typer'] = None; from unmask.cli import main; main()"
    result = shell("--help", code=code)
    assert result.returncode == 2
    check(result, "pip install 'unmask[cli]'")


LIGHT = """
import sys
from unmask.cli import main
try:
    main()
finally:
    assert not {"torch", "tokenizers", "jinja2", "safetensors"} & set(sys.modules), "too much was imported"
"""


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("generate", "--help"), ("compare", "--help"), ("--version",), ("tasks",)],
)
def test_help_and_lists_import_nothing_heavy(arguments):
    result = shell(*arguments, code=LIGHT)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


def test_the_version_is_that_of_the_package(call):
    from unmask import __version__

    assert call("--version").stdout == f"unmask {__version__}\n"
