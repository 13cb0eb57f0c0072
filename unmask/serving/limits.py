"""Limits on the requests that the engine accepts."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.errors import whole
from unmask.text.config import GenerationConfig
from unmask.text.gaps import Gap

MAX_STOPS = 16
MAX_STOP_LENGTH = 256  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the engine; it rejects larger requests before any work is done."""

    max_rows: int = 16  # rows decoded together; a guided request needs two
    max_batch_tokens: int = 32768  # number of rows times the longest row
    max_queue: int = 256  # waiting requests
    max_prompt_tokens: int = 4096
    max_new_tokens: int = 1024
    max_steps: int = 1024
    deadline: float | None = 600.0  # seconds from arrival to answer; a request may ask for less

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_batch_tokens", "max_prompt_tokens", "max_new_tokens", "max_steps"):
            whole(name, getattr(self, name), 1)
        whole("max_queue", self.max_queue, 0)
        if self.deadline is not None and not self.deadline > 0:
            raise ValueError(f"deadline must be more than 0 seconds or None, got {self.deadline!r}")

    def check_config(self, config: GenerationConfig) -> None:
        """Raise if the settings exceed the limits."""
        if config.max_new_tokens is not None:
            self._at_most("max_new_tokens", config.max_new_tokens, self.max_new_tokens)
        if config.steps is not None:
            self._at_most("steps", config.steps, self.max_steps)
        if config.cache is not None:
            raise ValueError(
                f"cache does not go with batches whose rows come and go, got {config.cache!r}; leave it out"
            )
        self._at_most("stop strings", len(config.stop), MAX_STOPS)
        for stop in config.stop:
            self._at_most("a stop string's length", len(stop), MAX_STOP_LENGTH)
        if config.guidance:
            self._at_most("the rows of a guided request", 2, self.max_rows)

    def check_gaps(self, parts: list[str | Gap]) -> None:
        """Raise if the gaps are too long, before laying them out."""
        wanted = sum(part.bounds[1] for part in parts if isinstance(part, Gap))
        self._at_most("the tokens of all gaps", wanted, self.max_new_tokens)

    def check_size(self, prompt_tokens: int, length: int, lanes: int) -> None:
        """Refuse what could never be decoded."""
        self._at_most("the prompt's tokens", prompt_tokens, self.max_prompt_tokens)
        self._at_most("all tokens of a request", length * lanes, self.max_batch_tokens)

    def fits(self, lanes: int, longest: int) -> bool:
        """Whether this many rows of this length can be decoded together."""
        return lanes <= self.max_rows and lanes * longest <= self.max_batch_tokens

    def time_left(self, asked: float | None) -> float | None:
        """The seconds that a request has."""
        if asked is not None and not asked > 0:
            raise ValueError(f"deadline must be more than 0 seconds, got {asked!r}")
        given = [seconds for seconds in (asked, self.deadline) if seconds is not None]
        return min(given, default=None)

    def _at_most(self, name: str, value: int, high: int) -> None:
        if value > high:
            raise ValueError(f"{name} must be at most {high} on this server, got {value}")
