"""Reading rows: files of every kind, the hub's layout, and what is said about files that are not right."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path

import pytest

from unmask.evals import Sample, get_task
from unmask.evals.data import Source, load_samples, text_field
from unmask.evals.tasks.mbpp import called_name

SOURCE = Source(file="set/test.jsonl", hub="nobody/nothing", rows=2)
LINES = b'{"q": "one"}\n{"q": "two"}\n'


def make(place: int, row) -> Sample:
    return Sample(f"set/{place}", text_field(row, "q"), None)


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("ending", "pack"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress)],
    ids=["plain", "gz", "bz2"],
)
def test_lines_are_read_packed_or_not(ending, pack, tmp_path):
    write(tmp_path, f"set/test.jsonl{ending}", pack(LINES))
    assert [sample.prompt for sample in load_samples(SOURCE, make, tmp_path)] == ["one", "two"]


def test_a_json_list_is_read_too(tmp_path):
    write(tmp_path, "all.json", b'[{"q": "one"}, {"q": "two"}]')
    assert len(load_samples(Source(file="all.json", hub="", rows=2), make, tmp_path)) == 2


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("test.jsonl", LINES[:-4], "row 2 is not JSON"),
        ("test.jsonl", b'{"q": "one"}\n{"p": 2}\n', "row 2: the field 'q' is missing"),
        ("test.jsonl", b'{"q": "one"}\n{"q": 2}\n', "row 2: the field 'q' must be a text, got 2"),
        ("test.jsonl", b'{"q": "one"}\n[]\n', "row 2: a row must be an object"),
        ("test.jsonl", b'{"q": "one"}\n{"q": "\xff"}\n', "row 2 is not JSON"),
        ("test.jsonl", LINES[:13], "has 1 rows for this benchmark, expected 2"),
        ("test.jsonl", b"", "has 0 rows for this benchmark, expected 2"),
        ("test.jsonl.gz", gzip.compress(LINES, mtime=0)[:-9], "cannot be read"),
        ("test.jsonl.gz", LINES, "cannot be read"),
        ("test.jsonl.bz2", bz2.compress(LINES)[:-9], "cannot be read"),
    ],
)
def test_a_damaged_file_is_named_with_its_row(name, content, says, tmp_path):
    path = write(tmp_path, f"set/{name}", content)
    with pytest.raises(ValueError, match=says) as caught:
        load_samples(SOURCE, make, tmp_path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named_with_a_remedy(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"set/test.jsonl does not exist.*--data or UNMASK_DATA"):
        load_samples(SOURCE, make, tmp_path)


def test_the_folder_of_the_environment_is_read_unless_one_is_named(tmp_path, monkeypatch):
    write(tmp_path, "set/test.jsonl", LINES)
    write(tmp_path, "other/set/test.jsonl", LINES.replace(b"one", b"three"))
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    assert [sample.prompt for sample in load_samples(SOURCE, make, None)] == ["one", "two"]
    assert [sample.prompt for sample in load_samples(SOURCE, make, tmp_path / "other")] == ["three", "two"]


def test_a_hub_that_cannot_be_reached_is_tried_once_and_told_with_a_remedy(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def no_wait(seconds):
        raise AssertionError(f"waited {seconds} s for the hub")

    monkeypatch.setattr("time.sleep", no_wait)
    monkeypatch.setattr("datasets.config.HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("UNMASK_DATA", raising=False)
    offline = datasets.config.HF_HUB_OFFLINE
    with pytest.raises(FileNotFoundError, match=r"nobody/nothing cannot be read.*--data or UNMASK_DATA"):
        load_samples(SOURCE, make, None)
    assert offline == datasets.config.HF_HUB_OFFLINE


@pytest.mark.parametrize(
    ("name", "file", "row", "says"),
    [
        ("gsm8k", "gsm8k/test.jsonl", {"question": "q", "answer": "no mark"}, "must end with ####"),
        ("gsm8k", "gsm8k/test.jsonl", {"question": "q", "answer": "#### x"}, "and a number, got 'x'"),
        ("math", "math/test.jsonl", {"problem": "p", "solution": "s"}, r"must hold a \\boxed"),
        ("mmlu", "mmlu/test.jsonl", {"question": "q", "subject": "s", "choices": ["a"]}, "4 texts, got 1"),
        (
            "hellaswag",
            "hellaswag/val.jsonl",
            {"query": "q", "endings": list("abcd"), "label": 4},
            "0 to 3, got 4",
        ),
        (
            "winogrande",
            "winogrande/dev.jsonl",
            {"sentence": "s", "option1": "a", "option2": "b", "answer": ""},
            "must be '1' or '2', got ''",
        ),
        (
            "mbpp",
            "mbpp/mbpp.jsonl",
            {"task_id": 11, "text": "t", "test_list": []},
            "every program would pass",
        ),
    ],
)
def test_a_row_that_cannot_be_judged_is_refused(name, file, row, says, tmp_path):
    write(tmp_path, file, json.dumps(row).encode())
    with pytest.raises(ValueError, match=rf"row 1: .*{says}"):
        get_task(name).load(tmp_path)


HUB_ROWS = {  # a row with the columns of the hub -> what the sample must hold
    "gsm8k": ({"question": "How many?", "answer": "1+1\n#### 1,002"}, "How many?", "1002"),
    "math": (
        {"problem": "Find $x$.", "level": "Level 1", "type": "Algebra", "solution": r"So $\boxed{7}$."},
        "Find $x$.",
        "7",
    ),
    "math500": (
        {
            **{"problem": "Find $x$.", "solution": r"So $\boxed{7}$.", "answer": "7", "subject": "Algebra"},
            **{"level": 1, "unique_id": "test/algebra/1.json"},
        },
        "Find $x$.",
        "7",
    ),
    "humaneval": (
        {
            **{"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "    return 1\n"},
            **{"test": "def check(f):\n    assert f() == 1\n", "entry_point": "f"},
        },
        "def f():",
        "    return 1\n",
    ),
    "mbpp": (
        {
            **{
                "task_id": 11,
                "text": "Write f.",
                "code": "def f(): return 1",
                "test_list": ["assert f() == 1"],
            },
            **{"test_setup_code": "", "challenge_test_list": []},
        },
        "Write f.",
        "def f(): return 1",
    ),
    "mbpp-sanitized": (
        {
            **{"source_file": "x", "task_id": 11, "prompt": "Write f.", "code": "def f(): return 1"},
            **{"test_imports": ["import math"], "test_list": ["assert f() == 1"]},
        },
        "Write f.",
        "def f(): return 1",
    ),
    "mmlu": (
        {"question": "Which?", "subject": "world_religions", "choices": list("wxyz"), "answer": 2},
        "Which?\n\nA. w\nB. x\nC. y\nD. z",
        "C",
    ),
    "hellaswag": (
        {
            **{
                "ind": 4,
                "activity_label": "Skiing",
                "ctx_a": "A man skis. [substeps] Fast.",
                "ctx_b": "he then",
            },
            **{"ctx": "", "endings": ["[step] a", "b", "c", "d"], "source_id": "s", "split": "val"},
            **{"split_type": "indomain", "label": "3"},
        },
        "Skiing: A man skis. Fast. He then\n\nA. a\nB. b\nC. c\nD. d",
        "D",
    ),
    "winogrande": (
        {"sentence": "Ann met Eve and _ smiled.", "option1": "Ann", "option2": "Eve", "answer": "2"},
        "Ann met Eve and _ smiled.\n\nA. Ann\nB. Eve",
        "B",
    ),
}


@pytest.mark.parametrize("name", HUB_ROWS)
def test_the_columns_of_the_hub_give_samples(name, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.delenv("UNMASK_DATA", raising=False)
    row, asked, gold = HUB_ROWS[name]
    task = get_task(name)
    source = task.load.args[0]  # type: ignore[attr-defined]
    rows = source.rows // len(source.configs) + 1
    write_repository(datasets, tmp_path, source, [row] * rows)
    monkeypatch.chdir(tmp_path)  # a folder of the repository's name stands for it
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=f"has {rows * len(source.configs)} rows for this benchmark"):
        task.load(None)
    make = task.load.args[1]  # type: ignore[attr-defined]
    [sample] = load_samples(
        Source(file="", hub=source.hub, configs=source.configs[:1], split=f"{source.split}[:1]", rows=1),
        make,
        None,
    )
    assert asked in sample.prompt[0]["content"]
    assert sample.gold == gold


def write_repository(datasets, folder: Path, source: Source, rows: list[dict]) -> None:
    """A data set repository on disk, laid out as the hub lays it out."""
    root = folder / source.hub
    names = [config or "default" for config in source.configs]
    for name in names:
        (root / name).mkdir(parents=True)
        datasets.Dataset.from_list(rows).to_parquet(root / name / f"{source.split}-0.parquet")
    configs = "".join(
        f"- config_name: {name}\n  data_files:\n"
        f"  - split: {source.split}\n    path: {name}/{source.split}-*\n"
        for name in names
    )
    (root / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")


def test_hellaswag_reads_alike_from_the_text_copy_and_from_the_original_columns(whole_sets):
    packed = whole_sets / "hellaswag" / "olmo_val_docs_1000.jsonl.gz"
    if not packed.is_file():
        pytest.skip("no second copy of HellaSwag to compare with")
    samples = get_task("hellaswag").load(whole_sets)
    for line in gzip.decompress(packed.read_bytes()).splitlines():
        other = json.loads(line)
        sample = samples[other["val_idx"]]
        assert plain(sample.meta["query"]) == plain(other["query"])
        assert [plain(ending) for ending in sample.meta["endings"]] == [
            plain(text) for text in other["choices"]
        ]
        assert "ABCD".index(sample.gold) == other["gold"]


def plain(text: str) -> str:
    return " ".join(text.replace("..", ".").split())


@pytest.mark.parametrize(
    ("tests", "name"),
    [
        (["assert f(1) == 2"], "f"),
        (["assert set(similar((1, 2))) == set((1,))"], "similar"),
        (["assert math.isclose(area(3), 9, rel_tol=0.1)"], "area"),
        (["assert True"], ""),
    ],
)
def test_the_tested_function_is_found_behind_builtins(tests, name):
    assert called_name(tests) == name
