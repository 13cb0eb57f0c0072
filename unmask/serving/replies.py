"""The objects of an answer: OpenAI's, with an `unmask` object about the decoding."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import time
from typing import Any

from unmask.serving.job import Answer, Job
from unmask.serving.settings import Settings
from unmask.text.generate import Generation
from unmask.text.prompts import find_tokenizer

FINISH = {"eos": "stop", "stop": "stop", "length": "length"}


@dataclass(frozen=True, slots=True)
class Reply:
    """The objects of one answer, as a chat or as a completion."""

    job: Job
    model: str
    sampler: str
    chat: bool
    created: int = field(default_factory=lambda: int(time()))

    def whole(self, answer: Answer) -> dict[str, Any]:
        """Return the whole answer."""
        message = {"role": "assistant", "content": answer.text}
        content = {"message": message} if self.chat else {"text": answer.text}
        kind = "chat.completion" if self.chat else "text_completion"
        return {
            **self._head(kind, [{"index": 0, **content, "logprobs": None, "finish_reason": finish(answer)}]),
            "usage": usage(self.job, answer),
            "unmask": self.facts(answer),
        }

    def opening(self) -> dict[str, Any] | None:
        """Return the first object of a chat's stream, or None for a completion."""
        return self._chunk({"role": "assistant", "content": ""}) if self.chat else None

    def delta(self, text: str) -> dict[str, Any]:
        """Return a chunk with more text."""
        return self._chunk({"content": text}) if self.chat else self._chunk({}, text=text)

    def last(self, answer: Answer) -> dict[str, Any]:
        """Return the chunk with the finish reason and the cost."""
        more = {} if self.chat else {"text": ""}
        return {**self._chunk({}, finish=finish(answer), **more), "unmask": self.facts(answer)}

    def usage(self, answer: Answer) -> dict[str, Any]:
        """Return the usage chunk, the last of a stream if the client requests it."""
        return {**self._head(self._chunk_kind, []), "usage": usage(self.job, answer)}

    def draft(self, canvas: dict[str, Any]) -> dict[str, Any]:
        """Return the canvas as a draft; clients without support for drafts see a chunk without choices."""
        return {**self._head("unmask.draft", []), **canvas}

    def facts(self, answer: Answer) -> dict[str, Any]:
        """Return the `unmask` object: the cost, sampler and seed, and the gaps or token ids."""
        more: dict[str, Any] = {} if isinstance(answer, Generation) else {"gaps": list(answer.gaps)}
        if isinstance(answer, Generation) and find_tokenizer(self.job.request.run.model) is None:
            more["token_ids"] = list(answer.token_ids)  # there is no text
        return {
            "steps": answer.steps,
            "forwards": answer.forwards,
            "forced_share": answer.forced_share,
            "seconds": round(answer.seconds, 6),
            "queue_seconds": round(self.job.queue_seconds, 6),
            "sampler": self.sampler,
            "seed": answer.seed,
            **more,
        }

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _chunk(self, delta: dict[str, str], *, finish: str | None = None, **more: Any) -> dict[str, Any]:
        own = {"delta": delta} if self.chat else {}
        choice = {"index": 0, **own, **more, "logprobs": None, "finish_reason": finish}
        return self._head(self._chunk_kind, [choice])

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        prefix = "chatcmpl" if self.chat else "cmpl"
        return {
            "id": f"{prefix}-{self.job.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def finish(answer: Answer) -> str:
    """Return OpenAI's word for why a text ended."""
    return FINISH[answer.finish] if isinstance(answer, Generation) else "stop"


def usage(job: Job, answer: Answer) -> dict[str, int]:
    """Return the token counts of the prompt and the answer."""
    prompt = job.request.prompt_tokens
    written = new_tokens(answer)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def new_tokens(answer: Answer) -> int:
    """Count the tokens of an answer."""
    if isinstance(answer, Generation):
        return len(answer.token_ids)
    return sum(len(ids) for ids in answer.gap_ids)


def model_card(settings: Settings, created: int) -> dict[str, Any]:
    """Return the model's entry in /v1/models."""
    return {"id": settings.model_name, "object": "model", "created": created, "owned_by": "unmask"}
