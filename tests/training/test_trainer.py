"""Training a tiny model: it learns, it resumes exactly, its checkpoint is one like any other."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import GOLDENS
from tests.raises import raises_field
from tests.training.toy import draw, recipe_table, write_recipe, write_tokenizer
from unmask import Base, blank, decode, plan
from unmask.models.checkpoint.load import build, load
from unmask.training.__main__ import main
from unmask.training.recipe import Recipe, Schedule, parse, read_recipe
from unmask.training.setup import complete, initialize, vocabulary_size, with_layers
from unmask.training.trainer import Trainer, train

CPU = torch.device("cpu")
RECIPES = sorted((Path(__file__).parents[2] / "unmask" / "training" / "recipes").glob("*.toml"))
DREAM = {
    "model_type": "Dream",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "tie_word_embeddings": True,
}


def log_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_tiny_model_learns_a_pattern_that_base_then_decodes(tmp_path, family):
    model = recipe_table()["model"]
    if family == "dream":
        model = {**model, "config": DREAM}
    recipe = write_recipe(
        tmp_path,
        model=model,
        data={"phases": [{"until": 1, "shares": {"copy": 1, "double": 1}}]},
        optimizer={"lr": 0.006},  # a high one lets the rounding of a CPU decide what is learnt in the end
        schedule={"steps": 240, "warmup_steps": 10},
        run={"batch_size": 32, "log_every": 20, "validate_every": 120, "checkpoint_every": 1000},
    )
    seen = []
    last = train(recipe, tmp_path / "out", device="cpu", watch=seen.append)
    assert last.step == 240
    assert seen[-1] == last
    assert last.loss < 0.1 * seen[0].loss
    assert last.validation["0.15"] < 0.1
    trained = load(tmp_path / "out", device="cpu")
    items = [draw(random.Random(number), {"copy": 1, "double": 1}) for number in range(40)]
    prompts = [trained.tokenizer.chat([{"role": "user", "content": item.prompt}]) for item in items]
    canvas = blank(prompts, 9, mask_id=trained.info.mask_id, pad_id=trained.info.pad_id)
    result = decode(trained, canvas, Base(), plan(canvas.start, 9, steps=9))
    texts = [trained.tokenizer.decode(row) for row in result.generated.tolist()]
    right = [text == item.answer for text, item in zip(texts, items, strict=True)]
    assert sum(right) >= 0.9 * len(items)  # by chance: none


def test_an_interrupted_run_that_is_resumed_equals_one_that_was_not(tmp_path):
    recipe = write_recipe(tmp_path, run={"ema": 0.9, "micro_batches": 2})
    train(recipe, tmp_path / "whole", device="cpu")

    class Stop(Exception):
        pass

    def stop(record) -> None:
        if record.step == 8:
            raise Stop

    with pytest.raises(Stop):
        train(recipe, tmp_path / "parts", device="cpu", watch=stop)
    with pytest.raises(ValueError, match="holds an interrupted run"):
        train(recipe, tmp_path / "parts", device="cpu")
    train(recipe, tmp_path / "parts", device="cpu", resume=True)
    whole, parts = (load(tmp_path / name, device="cpu").state_dict() for name in ("whole", "parts"))
    assert all(whole[name].equal(parts[name]) for name in whole)
    timed = ("elapsed", "tokens_per_second")
    logs = [
        [{k: v for k, v in row.items() if k not in timed} for row in log_of(tmp_path / n)]
        for n in ("whole", "parts")
    ]
    # the interruption cut one record's mean short; everything else is the same
    assert [row["step"] for row in logs[0]] == [row["step"] for row in logs[1]] == [4, 8, 12]
    assert logs[0][0] == logs[1][0]
    assert logs[0][2] == logs[1][2]


def test_the_folder_in_the_end_is_a_checkpoint_like_any_other(tmp_path):
    recipe = write_recipe(tmp_path)
    train(recipe, tmp_path / "out", device="cpu")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
        *("recipe.json", "log.jsonl"),
    }
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16"
    assert (config["vocab_size"], config["embedding_size"]) == (16, 64)
    rows = log_of(tmp_path / "out")
    assert [row["step"] for row in rows] == [4, 8, 12]
    assert set(rows[1]["validation"]) == {"0.15", "0.5", "0.85", "1"}
    assert "validation" not in rows[0]
    with pytest.raises(ValueError, match="already holds weights"):
        train(recipe, tmp_path / "out", device="cpu")


def test_a_loaded_model_is_fine_tuned_on_pairs(tmp_path):
    train(write_recipe(tmp_path), tmp_path / "base", device="cpu")
    (tmp_path / "base" / "generation_config.json").write_text('{"max_new_tokens": 17}')
    pairs = [{"prompt": f"copy {letter}", "answer": "h h"} for letter in "abcdefg"] * 3
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    table = recipe_table(data={"source": "pairs.jsonl", "phases": []}, schedule={"steps": 60})
    table["model"] = {"load": "base"}
    table["optimizer"] = {"name": "adamw", "lr": 0.003}
    (tmp_path / "tune.json").write_text(json.dumps(table))
    last = train(tmp_path / "tune.json", tmp_path / "tuned", device="cpu")
    assert last.validation["0.5"] < 0.1
    tuned = load(tmp_path / "tuned", device="cpu")
    assert tuned.tokenizer is not None
    assert tuned.info.new_tokens == 17


def test_a_run_ends_by_its_time_with_the_learning_rate_at_zero(tmp_path, monkeypatch):
    recipe = write_recipe(tmp_path, schedule={"steps": 10_000, "max_seconds": 100.0})
    clock = iter(range(100_000))
    monkeypatch.setattr("unmask.training.trainer.monotonic", lambda: float(next(clock)))
    last = train(recipe, tmp_path / "out", device="cpu")
    assert last.step < 100
    assert last.progress == 1
    assert last.lr < 0.1 * 0.004


def test_a_broken_loss_stops_the_run(tmp_path):
    recipe = write_recipe(tmp_path, optimizer={"lr": float("1e9"), "max_grad_norm": 0})
    with raises_field("optimizer.lr", 1e9):
        train(recipe, tmp_path / "out", device="cpu")


def test_bfloat16_autocast_keeps_float32_weights_and_falls_with_the_rest(tmp_path):
    recipe = read_recipe(write_recipe(tmp_path, run={"precision": "bfloat16"}, schedule={"steps": 24}))
    trainer = Trainer(recipe, tmp_path / "out", device=CPU)
    seen = []
    last = trainer.run(watch=seen.append)
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    assert last.loss < seen[0].loss


def test_probes_see_the_model_and_reach_the_log(tmp_path):
    train(
        write_recipe(tmp_path),
        tmp_path / "out",
        device="cpu",
        probe=lambda m: {"rows": float(not m.training)},
    )
    assert [row.get("probe") for row in log_of(tmp_path / "out")] == [None, {"rows": 1.0}, {"rows": 1.0}]


def test_the_command_trains_and_says_how_it_goes(tmp_path, monkeypatch, capsys):
    recipe = write_recipe(tmp_path)
    monkeypatch.setattr(
        "sys.argv", ["training", str(recipe), "--out", str(tmp_path / "out"), "--device", "cpu"]
    )
    main()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "step 12" in lines[-1]
    assert "validation at .15/.5/.85/1" in lines[-1]
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_compiled_layers_share_one_graph_per_length(tmp_path, monkeypatch):
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: compiled(f, **{**options, "backend": counter}))
    model = recipe_table()["model"]
    model["config"] = {**model["config"], "n_layers": 4}
    train(write_recipe(tmp_path, model=model, run={"compile": True}), tmp_path / "out", device="cpu")
    # the first layer, whose input needs no gradient, any other one and the loss, for two lengths
    assert counter.frame_count == 6


def test_fresh_weights_follow_the_seed_and_start_as_the_identity(tmp_path):
    folder = write_tokenizer(tmp_path / "tokenizer")
    from unmask.models.text.tokens import Tokenizer

    tokenizer = Tokenizer.from_folder(folder)
    config = complete(recipe_table()["model"]["config"], tokenizer, vocabulary_size(tokenizer))
    first, again, other = build(config), build(config), build(config)
    for model, seed in ((first, 1), (again, 1), (other, 2)):
        initialize(model, seed=seed)
    assert all(p.equal(q) for p, q in zip(first.parameters(), again.parameters(), strict=True))
    assert not first.embed.weight.equal(other.embed.weight)
    tokens = torch.arange(10)[None]
    states = first.states(tokens, None, slice(0, 10), None)
    entered = first.embed(tokens)
    assert torch.allclose(states, first.norm(torch.zeros_like(entered), entered)[1])


def test_the_learning_rate_rises_stays_and_falls_to_zero():
    schedule = Schedule(steps=1000, warmup_steps=99, flat_until=0.5)
    factors = [schedule.factor(step, schedule.progress(step, 0.0)) for step in (0, 49, 99, 500, 750, 1000)]
    assert factors == pytest.approx([0.01, 0.5, 1, 1, 0.5, 0])
    cosine = replace(schedule, decay="cosine")
    assert cosine.factor(750, 0.75) == pytest.approx(0.5)
    assert cosine.factor(600, 0.6) > schedule.factor(600, 0.6)
    timed = replace(schedule, max_seconds=10.0)
    assert [timed.progress(100, 5.0), timed.progress(900, 5.0), timed.progress(5, 99.0)] == [0.5, 0.9, 1]


@pytest.mark.parametrize(
    ("changes", "where", "field", "value"),
    [
        ({"schedule": {"step": 5}}, "schedule", "step", 5),
        ({"schedule": {"steps": 1.5}}, "schedule", "steps", 1.5),
        ({"run": {"compile": 1}}, "run", "compile", 1),
        ({"run": {"micro_batches": 3}}, "run", "micro_batches", 3),
        ({"data": {"phases": [{"until": 2, "shares": {}}]}}, "data: phases[0]", "until", 2.0),
        ({"model": {"load": "x"}}, "model", "load", "x"),
        ({"optimizer": {"betas": [0.9]}}, "optimizer", "betas", [0.9]),
    ],
)
def test_a_wrong_recipe_names_the_field(changes, where, field, value):
    with raises_field(field, value, f"recipe.json: {where}: "):
        parse(Recipe, recipe_table(**changes), "recipe.json")


def test_an_unknown_field_of_a_recipe_gets_a_suggestion():
    with raises_field("step", 5, "did you mean 'steps'?"):
        parse(Recipe, recipe_table(schedule={"step": 5}), "recipe.json")


def test_missing_fields_are_named_all_at_once():
    table = recipe_table()
    del table["schedule"]
    with raises_field("schedule", None, "recipe.json"):
        parse(Recipe, table, "recipe.json")
    del table["name"], table["seed"]
    with raises_field("name, seed, schedule", None, "recipe.json"):
        parse(Recipe, table, "recipe.json")


@pytest.mark.parametrize("name", ["broken.json", "broken.toml"])
@pytest.mark.parametrize("content", [b'{"name": ', b"\xff"])
def test_a_broken_recipe_is_named_by_its_file(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} is (not valid|TOML)"):
        read_recipe(tmp_path / name)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_are_valid_and_their_models_small(path):
    recipe = read_recipe(path)
    assert recipe.name == path.stem
    ids = {"mask_token_id": 1, "eos_token_id": 0, "vocab_size": 2048, "embedding_size": 2048}
    with torch.device("meta"):
        model = build({**ids, **recipe.model.config})
    assert sum(p.numel() for p in model.parameters()) * 2 <= 32_000_000
    assert model.info.max_length >= recipe.data.lengths[-1]


def going_on(folder: Path, model: dict, **changes: dict) -> Path:
    """A recipe that goes on from a checkpoint."""
    path = folder / "going_on.json"
    data = {"lengths": [64], "canvas": 16, "validation_rows": 2}
    path.write_text(json.dumps({**recipe_table(data=data, **changes), "model": model}))
    return path


@pytest.mark.parametrize("name", ["mini-llada", "mini-dream"])
def test_a_model_with_more_layers_computes_the_same_and_learns(tmp_path, name):
    schedule, run = {"steps": 1, "warmup_steps": 0}, {"batch_size": 2, "log_every": 1}
    recipe = going_on(tmp_path, {"load": name, "layers": 11}, schedule=schedule, run=run)
    trainer = Trainer(read_recipe(recipe), tmp_path / "out", device=CPU)
    plain, deeper = load(name, device="cpu", dtype="float32"), trainer.model
    assert len(deeper.layers) == 11
    tokens = torch.tensor([[9, 8, 7, *[plain.info.mask_id] * 5]])
    with torch.no_grad():
        before, after = (model(tokens, None, slice(3, 8), None) for model in (plain, deeper))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-4)
    trainer.run()
    trainer.finish()
    trained = load(tmp_path / "out", device="cpu", dtype="float32")
    assert len(trained.layers) == 11
    assert all(layer.mlp.down.weight.abs().sum() > 0 for layer in trained.layers)


def test_a_shallower_model_keeps_the_first_layer_and_the_last():
    model = load("mini-llada", device="cpu", dtype="float32")
    shallow = with_layers(model, 3)
    assert len(shallow.layers) == 3
    for kept, source in ((0, 0), (2, 7)):
        torch.testing.assert_close(shallow.layers[kept].mlp.down.weight, model.layers[source].mlp.down.weight)


def test_a_number_of_layers_needs_a_checkpoint_and_must_be_two_or_more(tmp_path):
    with raises_field("layers", 1):
        read_recipe(going_on(tmp_path, {"load": "mini-llada", "layers": 1}))
    with raises_field("layers", 3):
        read_recipe(write_recipe(tmp_path, model={"layers": 3}))


def test_layers_of_experts_are_not_added():
    model = load(GOLDENS / "families" / "sdar_moe_tiny", device="cpu")
    with raises_field("layers", 4):
        with_layers(model, 4)


@pytest.mark.parametrize("name", ["sdar_tiny", "fast_dllm_v2_tiny", "a2d_qwen3_tiny"])
def test_every_dense_family_can_have_more_layers(name):
    model = load(GOLDENS / "families" / name, device="cpu", dtype="float32")
    tokens = torch.full((1, 8), model.info.mask_id)
    deeper = with_layers(model, 2 * len(model.layers))
    before, after = (one(tokens, None, slice(4, 8), None) for one in (model, deeper))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-4)


def test_a_run_that_was_killed_while_it_saved_is_resumed(tmp_path):
    recipe = write_recipe(tmp_path)
    out = tmp_path / "out"
    Trainer(read_recipe(recipe), out, device=CPU).run()
    assert (out / "checkpoint.pt").exists()
    (out / "model.safetensors").write_bytes(b"half of it")
    train(recipe, out, device="cpu", resume=True)
    assert load(out, device="cpu").tokenizer is not None
