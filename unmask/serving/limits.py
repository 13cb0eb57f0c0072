"""Limits on the requests that the engine accepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unmask.errors import FieldError, positive, whole
from unmask.text.config import GenerationConfig
from unmask.text.gaps import Gap
from unmask.text.prompts import Prompt, TextModel, find_tokenizer
from unmask.types import Sampler

MAX_STOPS = 16
MAX_STOP_LENGTH = 256  # characters
MIB = 1 << 20
SHORTENING = 4  # characters that normalization may merge into one, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the engine, which rejects larger requests before any work is done.

    Attributes:
        max_rows: Rows decoded together; a guided request needs two.
        max_batch_tokens: Tokens of all rows together.
        max_queue: Waiting requests.
        max_prompt_tokens: Tokens of a prompt.
        max_new_tokens: Tokens that a request may decode.
        max_steps: Steps that a request may take.
        max_state_mb: MiB that the samplers of all running requests may keep between steps.
        max_memory_mb: MiB of device memory that all running requests may take. None means nine tenths of
            the memory that is free when nothing runs, or no limit without a GPU.
        deadline: Seconds from arrival to answer; a request may ask for less. None means no limit.
    """

    max_rows: int = 16
    max_batch_tokens: int = 32768
    max_queue: int = 256
    max_prompt_tokens: int = 4096
    max_new_tokens: int = 1024
    max_steps: int = 1024
    max_state_mb: int = 8192
    max_memory_mb: int | None = None
    deadline: float | None = 600.0

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_batch_tokens", "max_prompt_tokens", "max_new_tokens", "max_steps"):
            whole(name, getattr(self, name), 1)
        whole("max_queue", self.max_queue, 0)
        whole("max_state_mb", self.max_state_mb, 1)
        if self.max_memory_mb is not None:
            whole("max_memory_mb", self.max_memory_mb, 1)
        if self.deadline is not None:
            positive("deadline", self.deadline)

    def check_config(self, config: GenerationConfig) -> None:
        """Raise if the settings exceed the limits."""
        if config.max_new_tokens is not None:
            _at_most("max_new_tokens", config.max_new_tokens, self.max_new_tokens)
        if config.steps is not None:
            _at_most("steps", config.steps, self.max_steps)
        _at_most("stop", len(config.stop), MAX_STOPS, "strings")
        for stop in config.stop:
            _at_most("stop", len(stop), MAX_STOP_LENGTH, "is too long: a stop string's length")
        for each in config.constraints(1):
            if each is not None and each.recursive:
                problem = "must not refer to itself on a server: nothing bounds the time of its parser"
                raise FieldError("constraint", each, problem, "use a schema without recursion")
        if config.guidance and self.max_rows < 2:
            problem = "takes two rows of a batch, and this server decodes one at a time"
            raise FieldError("guidance", config.guidance, problem, "leave it out")

    def check_prompt(self, model: TextModel, prompt: Prompt) -> None:
        """Raise if a prompt is certainly too long, by its token ids or characters, before it is encoded."""
        if not isinstance(prompt, str) and not any(isinstance(part, Mapping) for part in prompt):
            _at_most("prompts", len(prompt), self.max_prompt_tokens, "is too long: the prompt's tokens")
            return
        turns = [{"content": prompt}] if isinstance(prompt, str) else prompt
        letters = sum(len(turn.get("content", "")) for turn in turns if isinstance(turn, Mapping))
        longest = getattr(find_tokenizer(model), "longest_token", None)
        if longest is not None:
            most = min(self.max_prompt_tokens, model.info.max_length) * longest * SHORTENING
            _at_most("prompts", letters, most, "is too long: the prompt's letters")

    def check_gaps(self, parts: list[str | Gap]) -> None:
        """Raise if the gaps are too long in total, before they are laid out."""
        tokens = sum(part.bounds[1] for part in parts if isinstance(part, Gap))
        _at_most("text", tokens, self.max_new_tokens, "has too long gaps: the tokens of all gaps")

    def check_size(self, prompt_tokens: int, length: int, lanes: int) -> None:
        """Raise if a request is too large to be decoded at all."""
        _at_most("prompts", prompt_tokens, self.max_prompt_tokens, "is too long: the prompt's tokens")
        _at_most("prompts", length * lanes, self.max_batch_tokens, "is too long: all tokens of a request")

    def check_state(self, sampler: Sampler, state: int) -> None:
        """Raise if a sampler would keep more bytes than all requests together may."""
        if state > self.max_state_mb * MIB:
            problem = f"may keep at most {self.max_state_mb} MiB on this server and needs {state // MIB}"
            remedy = "ask for fewer tokens, shorter blocks or a shorter history"
            raise FieldError("sampler", type(sampler).__name__, problem, remedy)

    def fits(self, rows: int, tokens: int, state: int) -> bool:
        """Return whether rows with this many tokens and bytes of state can be decoded together."""
        if state > self.max_state_mb * MIB:
            return False
        return rows <= self.max_rows and tokens <= self.max_batch_tokens

    def time_left(self, deadline: float | None) -> float | None:
        """Return the shorter of the request's and the server's deadline, or None if there is none."""
        if deadline is not None:
            positive("deadline", deadline)
        deadlines = [seconds for seconds in (deadline, self.deadline) if seconds is not None]
        return min(deadlines, default=None)


def _at_most(name: str, value: int, high: int, what: str = "") -> None:
    """Raise if a value is above this server's limit; `what` begins the problem, in words."""
    if value > high:
        raise FieldError(name, value, f"{what} must be at most {high} on this server".lstrip())
