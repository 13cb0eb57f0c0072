"""Models by name: a registered type, a class in a file, and a Hugging Face masked LM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import unmask
from tests.checkpoints import write_checkpoint
from tests.conftest import GOLDENS
from tests.raises import raises_field
from tests.test_docs import programs
from unmask.cli.app import app
from unmask.evals.fingerprint import fingerprint
from unmask.models import MODEL_TYPES
from unmask.models.checkpoint.load import absolute_name
from unmask.models.llada import LLaDA
from unmask.plugins import plugins

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-model.md"
SOURCE = next(iter(programs(PAGE.read_text(encoding="utf-8")))).partition("\n\nmodel = ")[0]


class Mine(LLaDA):
    """A family of the user."""


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    """A checkpoint of a type that unmask does not know."""
    folder = write_checkpoint(tmp_path / "mine", "llada_tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "Mine"}))
    return folder


def test_a_registered_type_loads_its_checkpoints(typed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(MODEL_TYPES, "mine", raising=False)
    with raises_field("model_type", "Mine", "register_model"):
        unmask.load(typed, device="cpu")
    unmask.register_model("Mine", Mine)
    try:
        assert isinstance(unmask.load(typed, device="cpu"), Mine)
        unmask.register_model("mine", "unmask.models.llada:LLaDA")
        assert type(unmask.load(typed, device="cpu")) is LLaDA
    finally:
        del MODEL_TYPES["mine"]
    with raises_field("family", 3):
        unmask.register_model("mine", 3)  # type: ignore[arg-type]


def test_an_entry_point_names_a_type(typed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "site" / "mine-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[unmask.models]\nmine = unmask.models.llada:LLaDA\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    plugins.cache_clear()
    try:
        assert type(unmask.load(typed, device="cpu")) is LLaDA
    finally:
        plugins.cache_clear()


def test_a_class_of_a_file_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "counting.py"
    path.write_text(SOURCE)
    model = unmask.load(f"{path}:CountOn", device="cpu")
    out = unmask.generate(model, [7, 8], "less", max_new_tokens=8)
    assert list(out.token_ids) == list(range(9, 17))
    known = fingerprint(model)
    assert fingerprint(unmask.load(f"{path}:CountOn")) == known
    path.write_text(SOURCE + "\n# changed\n")
    assert fingerprint(unmask.load(f"{path}:CountOn")) != known
    with raises_field("model", f"{path}:torch"):
        unmask.load(f"{path}:torch")
    with raises_field("model", f"{path}:ModelInfo"):
        unmask.load(f"{path}:ModelInfo")
    with raises_field("dtype", "int8"):
        unmask.load(f"{path}:CountOn", dtype="int8")


def test_names_are_absolute_for_a_process_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bert").mkdir()
    Path("own.py").touch()
    assert absolute_name("hf:bert") == f"hf:{tmp_path / 'bert'}"
    assert absolute_name("bert") == str(tmp_path / "bert")
    assert absolute_name("own.py:Model") == f"{tmp_path / 'own.py'}:Model"
    for name in ("mini-llada", "owner/name@main", "hf:owner/name"):
        assert absolute_name(name) == name


def test_stored_fingerprints_of_checkpoints_are_those_of_their_weights() -> None:
    one, other = (unmask.load(GOLDENS / "llada_tiny", device="cpu") for _ in range(2))
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_hugging_face_masked_lm_is_loaded_by_its_name(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.models.test_hf import write_bert
    from unmask.models.hf import load_hf

    folder = write_bert(tmp_path)
    model = unmask.load(f"hf:{folder}", device="cpu")
    text = "a b"
    assert unmask.generate(model, text, max_new_tokens=4) == unmask.generate(
        load_hf(folder, device="cpu"), text, max_new_tokens=4
    )
    assert unmask.load(f"hf:{folder}", device="cpu", dtype="bfloat16").model.dtype == torch.bfloat16
    command = ["generate", "-m", f"hf:{folder}", "--device", "cpu", text, "-n", "4", "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["text"] == unmask.generate(model, text, max_new_tokens=4).text
    with raises_field("source", str(tmp_path / "nothing")):
        unmask.load(f"hf:{tmp_path / 'nothing'}", device="cpu")
    with raises_field("model", "HuggingFaceLM"):
        unmask.compile(model)
