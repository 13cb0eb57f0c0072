"""Write one trace or two as a self-contained page, from the same modules as the server's page."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import asdict
from hashlib import sha256
from importlib.resources import files
from typing import Any

from unmask.trace import Trace

MODULES = (
    "dom",
    "signals",
    "run",
    "traced",
    "drafts",
    "differ",
    "verdict",
    "cells",
    "inspector",
    "chart",
    "panel",
    "player",
    "stage",
    "trace",
)
DATA = "{{data}}"
IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export ", re.MULTILINE)


def to_html(trace: Trace, other: Trace | None = None) -> str:
    """Return a page that shows any step of a trace, and where it first disagrees with another."""
    traces = [trace] if other is None else [trace, other]
    return template().replace(DATA, _data([_content(each) for each in traces]), 1)


def template() -> str:
    """Return the page without its traces, with DATA where their JSON belongs."""
    script, style = bundle(), _read("style.css")
    parts = {
        "policy": f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}",
        "style": style,
        "data": DATA,
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _read("trace.html"))


def bundle() -> str:
    """Join the modules of the page into one."""
    known: set[str] = set()
    pieces = []
    for name in MODULES:
        source = _read(f"{name}.js")
        missing = set(IMPORT.findall(source)) - known
        assert not missing, f"{name}.js imports {', '.join(missing)}, which must come before it"
        known.add(name)
        pieces.append(EXPORT.sub("", IMPORT.sub("", source)))
    return "\n".join(pieces)


def _content(trace: Trace) -> dict[str, Any]:
    changes = [{**asdict(step), "texts": {}} for step in trace.changes]
    return {
        "header": asdict(trace.header),
        "texts": trace.texts,
        "changes": changes,
        "complete": trace.complete,
    }


def _data(content: object) -> str:
    """Encode as JSON that is safe in a script element, because a token may spell </script>."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _hash(text: str) -> str:
    """Return the hash of an inline script or style for a Content-Security-Policy."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    return (files("unmask") / "trace" / "web" / name).read_text(encoding="utf-8")
