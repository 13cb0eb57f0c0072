"""Compiles a language to an automaton over bytes, with limited memory. A script, never imported.

It reads a JSON object from standard input: {"regex": ...} or {"json_schema": ...}. It writes {"accept":
[...], "table": base64 of int32 [states, 256], -1 for no state} or {"problem": ..., "message": ...}. State 0
is the start.
"""

import base64
import json
import resource
import sys
from array import array
from collections.abc import Iterator
from typing import Any

from outlines_core import Index, Vocabulary
from outlines_core.json_schema import build_regex_from_schema

MEMORY = 2 << 30  # bytes of address space
MAX_STATES = 20_000
END = "\U0010ffff"  # marks the end of a text; not a character
UNSAFE = (*range(0x20), 0x22, 0x5C)  # bytes that a JSON string must escape


def compile_language(request: dict[str, Any]) -> dict[str, Any]:
    """Return the automaton of a request, or the problem with it."""
    if "json_schema" not in request:
        return automaton(index(request["regex"]))
    schema = json.loads(request["json_schema"])
    for pattern in patterns(schema):
        moves = index(pattern[1:-1]).get_transitions()
        if any(byte in options for options in moves.values() for byte in UNSAFE):
            message = f"the pattern {pattern!r} must not match quotes, backslashes or control characters"
            return {"problem": "schema", "message": message}
    return automaton(index(build_regex_from_schema(request["json_schema"])))


def index(pattern: str) -> Index:
    """Return the transitions of a pattern followed by the end mark."""
    letters = {bytes([byte]): [byte] for byte in range(256)}
    # without the mark, the first alternative that matches would hide longer ones
    return Index(f"(?:{pattern}){END}", Vocabulary(256, letters))


def automaton(moves: Index) -> dict[str, Any]:
    """Number the states from 0 and pack their transitions."""
    transitions, final, start = moves.get_transitions(), moves.get_final_states(), moves.get_initial_state()
    number = {state: i for i, state in enumerate(dict.fromkeys([start, *transitions]))}
    if len(number) > MAX_STATES:
        return {"problem": "limit", "message": f"it has more than {MAX_STATES} states"}
    table = array("i", [-1]) * (256 * len(number))
    for state, options in transitions.items():
        for byte, target in options.items():
            if byte < 256 and target in number:
                table[256 * number[state] + byte] = number[target]
    packed = base64.b64encode(table.tobytes()).decode()
    accept = [i for state, i in number.items() if walk(transitions, state, END.encode()) in final]
    return {"accept": accept, "table": packed}


def walk(transitions: dict[int, dict[int, int]], state: int | None, text: bytes) -> int | None:
    """Return the state after a text, or None if there is none."""
    for byte in text:
        state = None if state is None else transitions.get(state, {}).get(byte)
    return state


def patterns(schema: Any) -> Iterator[str]:
    """Yield the patterns of strings in a schema."""
    if isinstance(schema, dict):
        if schema.get("type") == "string" and isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for name, part in schema.items():
            if name not in ("enum", "const"):
                yield from patterns(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from patterns(part)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        answer = compile_language(json.load(sys.stdin))
    except MemoryError:
        answer = {"problem": "limit", "message": f"it needs more than {MEMORY >> 20} MiB of memory"}
    except ValueError as error:
        answer = {"problem": "pattern", "message": str(error).split("\n")[0]}
    json.dump(answer, sys.stdout)
