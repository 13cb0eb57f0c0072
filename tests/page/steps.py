"""Actions of a person on the page, and the parts they look at."""

from __future__ import annotations

from typing import Any

from tests.page.conftest import PROMPT, decode, driver, ended

__all__ = ["PROMPT", "decode", "ended"]
expect = driver().expect


def scrub(page: Any, step: int) -> None:
    """Move the slider with the keyboard."""
    slider = page.get_by_role("slider", name="Step", exact=True)
    slider.focus()
    page.keyboard.press("Home")
    for _ in range(step):
        page.keyboard.press("ArrowRight")
    expect(slider).to_have_value(str(step))


def to_end(page: Any) -> int:
    """Show the last step; its number."""
    page.get_by_role("slider", name="Step", exact=True).focus()
    page.keyboard.press("End")
    return int(page.get_by_role("slider", name="Step", exact=True).input_value())


def cells(page: Any, run: int = 0, kind: str = "") -> Any:
    """The positions of a run's canvas, all or those of a kind."""
    return page.get_by_role("listbox").nth(run).locator(f".cell{kind}")


def held_by(signal: str) -> str:
    """The kind of a position whose first missed threshold is that of this signal."""
    return f'.held[data-reason="{signal}"]'


def answer(page: Any, run: int = 0) -> str:
    return str(page.locator("[data-part=answer]").nth(run).text_content())


def counter(page: Any, name: str, run: int = 0) -> str:
    return str(page.locator(f"[data-counter={name}]").nth(run).text_content())


def slide(page: Any, label: str, presses: int, key: str = "ArrowLeft") -> None:
    """Move a threshold by that many notches."""
    page.get_by_label(label, exact=True).focus()
    for _ in range(presses):
        page.keyboard.press(key)


# elements whose text is too faint
CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.disabled) continue;
    const style = getComputedStyle(element);
    if (style.opacity !== "1") continue;
    const pair = [light(parse(style.color)), light(behind(element))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName} ${element.className} ${ratio.toFixed(2)}`);
  }
  return poor;
}"""
