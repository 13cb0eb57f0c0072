"""Compare mathematical answers with math-verify. Started as a script, never imported.

Reads a JSON pair [gold, answer] per line from the standard input and writes true or false for each. It has
its own process, so that its time limits work (they need the main thread) and an endless calculation can be
killed.
"""

import json
import logging
import resource
import sys

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

MEMORY = 4 << 30
SECONDS = 3
KINDS = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())


def read(answer: str) -> list:  # type: ignore[type-arg]
    """Parse an answer, given without dollar signs."""
    return parse(f"\\boxed{{{answer}}}", extraction_config=KINDS, parsing_timeout=SECONDS)  # type: ignore[no-any-return]


def same(gold: str, answer: str) -> bool:
    """Return whether the two are equivalent."""
    return bool(verify(read(gold), read(answer), timeout_seconds=SECONDS))


if __name__ == "__main__":
    logging.disable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(same(*json.loads(line))), flush=True)
