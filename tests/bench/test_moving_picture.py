from __future__ import annotations

from PIL import Image

from benchmarks.moving_picture import STEP, draw, save_gif, watch
from tests.checkpoints import write_checkpoint
from unmask import SAMPLERS, GenerationConfig, generate, load

LENGTH = 6


def test_the_moving_picture_has_a_frame_per_step_and_pauses_at_the_end(tmp_path):
    model = load(write_checkpoint(tmp_path / "llada", "llada_tiny"), device="cpu")
    runs = {name: watch(model, "hello", name, LENGTH) for name in ("base", "first-mask")}
    steps = max(len(states) for states in runs.values()) - 1
    assert 1 < steps <= LENGTH
    for name, states in runs.items():
        chat = [{"role": "user", "content": "hello"}]
        [answer] = generate(model, [chat], SAMPLERS[name], GenerationConfig(max_new_tokens=LENGTH))
        assert (len(states) - 1, states[-1].forwards) == (answer.steps, answer.forwards)
    for path in (tmp_path / "first.gif", tmp_path / "second.gif"):
        save_gif(draw("hello", runs), path)
    assert (tmp_path / "first.gif").read_bytes() == (tmp_path / "second.gif").read_bytes()
    with Image.open(tmp_path / "first.gif") as picture:
        assert picture.n_frames == steps + 1
        assert picture.info["duration"] == STEP
        picture.seek(steps)
        assert picture.info["duration"] > 10 * STEP
