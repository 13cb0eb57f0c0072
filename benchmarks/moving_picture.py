"""Draw docs/fill.gif: one prompt under two samplers, side by side, from real runs.

The prompt is an item of mini-gsm8k that both samplers answer correctly and with the same text.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

import unmask
from unmask.experiments.drawing import METHODS, light
from unmask.text.generate import prepare
from unmask.text.prompts import TextModel, tokenizer_of

PROMPT = "Zoe buys 6 cards for 9 dollars each and 5 apples for 7 dollars each. How much does Zoe pay?"
SAMPLERS = {"base": METHODS["Base"][0], "first-mask": METHODS["First mask"][0]}  # name -> colour
WIDTH, MARGIN, LINE, LETTER = 800, 20, 28, 8  # pixels; LETTER is the width of one letter
PANEL = (WIDTH - 3 * MARGIN) // 2
STEP, PAUSE = 160, 5000  # milliseconds of a step and of the last frame
INK, PALE, EDGE, DRAFT = "#222222", "#F4F4F4", "#CCCCCC", "#A0A0A0"
END, BREAK = "∎", "↵"
SHADES = 64
FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
MONO = ImageFont.truetype(FONTS / "DejaVuSansMono.ttf", 13)
SANS = ImageFont.truetype(FONTS / "DejaVuSans.ttf", 14)
SMALL = ImageFont.truetype(FONTS / "DejaVuSans.ttf", 12)
BOLD = ImageFont.truetype(FONTS / "DejaVuSans-Bold.ttf", 15)


@dataclass(frozen=True, slots=True)
class State:
    """The generated part of the canvas after a step."""

    tokens: list[str | None]  # None means a mask
    drafts: dict[int, str] = field(default_factory=dict)  # column -> token that the mask would become now
    forwards: int = 0


def watch(model: TextModel, prompt: str, sampler: str, length: int) -> list[State]:
    """Return the canvas before the first step and after each step."""
    config = unmask.GenerationConfig(max_new_tokens=length)
    chat = [{"role": "user", "content": prompt}]
    run = prepare(model, [chat], unmask.SAMPLERS[sampler], config)
    tokenizer, info, start = tokenizer_of(model), model.info, run.canvas.start

    def text(token: int) -> str:
        return END if token in info.eos_ids else tokenizer.decode([token])

    states = [State([None] * length)]
    for step in run.steps:
        row = step.tokens[0, start:].tolist()
        tokens = [None if token == info.mask_id else text(token) for token in row]
        columns = range(step.window.start - start, step.window.stop - start)
        guesses = zip(columns, step.drawn[0].tolist(), strict=True)
        drafts = {column: text(token) for column, token in guesses if row[column] == info.mask_id}
        states.append(State(tokens, drafts, states[-1].forwards + step.forward))
    return states


def draw(prompt: str, runs: Mapping[str, Sequence[State]]) -> list[Image.Image]:
    """Return a frame before the first step, and one per step of the longest run."""
    places = {name: _places(states[-1].tokens) for name, states in runs.items()}
    bottom = 84 + max(y + LINE for boxes in places.values() for _, y, _ in boxes)
    frames = []
    for tick in range(max(map(len, runs.values()))):
        frame = Image.new("RGB", (WIDTH, bottom + 46), "white")
        pen = ImageDraw.Draw(frame)
        pen.text((MARGIN, 16), prompt, INK, SANS)
        for number, (name, states) in enumerate(runs.items()):
            left, now = MARGIN + number * (PANEL + MARGIN), states[min(tick, len(states) - 1)]
            done = ", done" if now is states[-1] else ""
            pen.text((left, 50), f"{name}: {now.forwards} forwards{done}", SAMPLERS[name], BOLD)
            before = states[max(0, tick - 1)] if tick < len(states) else now
            _draw_state(pen, (left, 84), places[name], now, before, SAMPLERS[name])
        _draw_legend(pen, bottom + 12)
        frames.append(frame)
    return frames


def _places(tokens: Sequence[str | None]) -> list[tuple[int, int, int]]:
    """Return left, top and width of every position in its panel, laid out as in the final text."""
    x, y, places = 0, 0, []
    for token in tokens:
        text = token or ""
        width = LETTER * max(1, len(_shown(text))) + 4
        x += LETTER // 2 if text.startswith(" ") else 0
        if x + width > PANEL:
            x, y = 0, y + LINE
        places.append((x, y, width))
        x += width + 2
        if "\n" in text:
            x, y = 0, y + LINE
    return places


def _shown(token: str) -> str:
    return token.strip(" ").replace("\n", BREAK)


def _draw_state(
    pen: ImageDraw.ImageDraw,
    corner: tuple[int, int],
    places: Sequence[tuple[int, int, int]],
    now: State,
    before: State,
    colour: str,
) -> None:
    """Draw every position: a mask with its draft, a token of this step, or an earlier token."""
    for column, (x, y, width) in enumerate(places):
        token, at = now.tokens[column], (corner[0] + x, corner[1] + y)
        if token is None:
            draft = _shown(now.drafts.get(column, ""))[: width // LETTER]
            _draw_box(pen, at, width, draft, "white", DRAFT)
        elif before.tokens[column] is None:
            _draw_box(pen, at, width, _shown(token), colour, "white")
        elif token == END:
            _draw_box(pen, at, width, END, PALE, DRAFT)
        else:
            _draw_box(pen, at, width, _shown(token), light(light(colour)), INK)


def _draw_box(
    pen: ImageDraw.ImageDraw, at: tuple[int, int], width: int, text: str, ground: str, ink: str
) -> None:
    x, y = at
    outline = EDGE if ground == "white" else ground
    pen.rectangle((x, y, x + width, y + LINE - 6), ground, outline)
    pen.text((x + 3, y + 3), text, ink, MONO)


def _draw_legend(pen: ImageDraw.ImageDraw, top: int) -> None:
    colour, x = SAMPLERS["first-mask"], MARGIN
    parts = {
        "mask": ("", "white", INK),
        "mask with a draft": ("48", "white", DRAFT),
        "this step": ("48", colour, "white"),
        "committed": ("48", light(light(colour)), INK),
        "end of text": (END, PALE, DRAFT),
    }
    for words, (text, ground, ink) in parts.items():
        _draw_box(pen, (x, top), 22, text, ground, ink)
        pen.text((x + 30, top + 3), words, INK, SMALL)
        x += 52 + round(SMALL.getlength(words))


def save_gif(frames: Sequence[Image.Image], path: Path) -> None:
    """Write frames that loop, with a pause after the last. The same frames give the same bytes."""
    both = Image.new("RGB", (frames[0].width, 2 * frames[0].height))
    for place, frame in enumerate((frames[len(frames) // 2], frames[-1])):
        both.paste(frame, (0, place * frame.height))
    palette = both.quantize(SHADES, method=Image.Quantize.MAXCOVERAGE, kmeans=1)
    small = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [STEP] * (len(frames) - 1) + [PAUSE]
    small[0].save(path, save_all=True, append_images=small[1:], duration=times, loop=0, optimize=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mini-llada")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--length", type=int, default=64, help="new tokens")
    parser.add_argument("--out", type=Path, default=Path("docs/fill.gif"))
    chosen = parser.parse_args()
    model = unmask.load(chosen.model, device="cpu")
    runs = {name: watch(model, chosen.prompt, name, chosen.length) for name in SAMPLERS}
    for name, states in runs.items():
        print(name, states[-1].forwards, "".join(filter(None, states[-1].tokens)))
    save_gif(draw(chosen.prompt, runs), chosen.out)


if __name__ == "__main__":
    main()
