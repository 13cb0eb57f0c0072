"""Show an output: a line in Python, a card in a notebook, with a replay of the canvas if it has a trace."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from unmask.errors import shown

if TYPE_CHECKING:
    from unmask.text.generate import Cost

HEIGHT = 560  # height of a replay in pixels


def as_line(output: Any) -> str:
    """Return the class, the shortened text and the cost of an output."""
    name = "text" if output.text or not getattr(output, "token_ids", ()) else "token_ids"
    text = shown(getattr(output, name))
    return f"{type(output).__name__}({name}={text}, {cost_of(output)})"


def cost_of(cost: Cost) -> str:
    """Return the cost in words."""
    return f"{plural(cost.steps, 'step')}, {plural(cost.forwards, 'forward')}, {cost.seconds:.2f} s"


def plural(number: int, noun: str) -> str:
    """Return "1 step" or "2 steps"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def as_html(output: Any) -> str:
    """Return the text and the cost of an output as HTML, and its replay if it has a trace."""
    facts = f"{cost_of(output)}, {output.forced_share:.0%} forced"
    parts = [
        f'<pre style="white-space: pre-wrap">{escape(output.text)}</pre>',
        f'<p style="opacity: 0.7">{escape(facts)}</p>',
    ]
    if output.trace is not None:
        from unmask.trace.html import to_html

        page = escape(to_html(output.trace), quote=True)
        parts.append(
            f'<iframe sandbox="allow-scripts" srcdoc="{page}" title="The canvas, step by step" '
            f'style="width: 100%; height: {HEIGHT}px; border: 0"></iframe>'
        )
    return "<div>" + "".join(parts) + "</div>"
