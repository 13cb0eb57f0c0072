"""Chat templates. They are programs of a checkpoint, so each runs in its own process: template_worker.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from unmask.errors import FieldError
from unmask.models.checkpoint.files import CheckpointFiles, read_text

Message = Mapping[str, str]

MESSAGE_KEYS = ("role", "content", "name")
WORKER = Path(__file__).with_name("template_worker.py")
DISTRUST = "do not trust this checkpoint, or replace its template"


class ChatTemplate:
    """A checkpoint's chat template, rendered in a sandbox with a limit on time and memory."""

    def __init__(self, source: str, tokens: Mapping[str, str], origin: str) -> None:
        self.source = source
        self._tokens = tokens
        self._origin = origin
        self._lock = Lock()
        self._worker: _Worker | None = None

    def __reduce__(self) -> tuple[type[ChatTemplate], tuple[str, Mapping[str, str], str]]:
        """Copy and pickle the source, because a process supports neither."""
        return ChatTemplate, (self.source, self._tokens, self._origin)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """Render a conversation to text."""
        variables = {
            **self._tokens,
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        with self._lock:
            if self._worker is None or not self._worker.alive:
                self._worker = _Worker()
                self._text(self._worker.ask(self.source))
            return self._text(self._worker.ask(variables))

    def _text(self, answer: Mapping[str, str]) -> str:
        """Return the text of an answer; raise if there is none."""
        if "text" in answer:
            return answer["text"]
        self._worker = None  # the next call starts a new worker
        template, message = f"the chat template of {self._origin}", answer["message"]
        sentences = {
            "syntax": f"{template} is not valid, {message}",
            "sandbox": f"{template} tries to leave its sandbox: {message}; {DISTRUST}",
            "limit": f"{template} {message}; {DISTRUST}",
            "failure": f"{template} fails on this conversation: {message}",
        }
        raise ValueError(sentences[answer["problem"]])

    def check_nothing_dropped(self, messages: Sequence[Message]) -> None:
        """Raise if the template drops a message, as many do with an unknown role."""
        probes = [{**message, "content": probe(index)} for index, message in enumerate(messages)]
        rendered = self.render(probes, add_generation_prompt=True)
        for index, message in enumerate(messages):
            if probe(index) not in rendered:
                raise FieldError(
                    f"messages[{index}].role",
                    message["role"],
                    f"must be a role that the chat template of {self._origin} knows",
                    "it would drop the message, so put its text into a user message",
                )


class _Worker:
    """A running template_worker.py, which renders one conversation at a time."""

    def __init__(self) -> None:
        if find_spec("jinja2") is None:
            raise ValueError("chat templates need the package jinja2; pip install 'unmask[models]'")
        pipe = subprocess.PIPE
        command = [sys.executable, str(WORKER)]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self._owner = os.getpid()
        weakref.finalize(self, _end, self._process, self._owner)

    @property
    def alive(self) -> bool:
        """Whether the worker runs and belongs to this process, not to the one that it was forked from."""
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, content: object) -> dict[str, str]:
        """Send a line and return the answer, or the reason why the process ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = b""
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(content).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if line:
            answer: dict[str, str] = json.loads(line)
            return answer
        code = self._process.wait()
        what = "takes too long" if code == -signal.SIGPROF else f"ends its process with code {code}"
        return {"problem": "limit", "message": what}


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    """Kill a worker. A forked process only closes its pipes."""
    if owner == os.getpid():
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(OSError):  # closing the input flushes it
            pipe.close()


def probe(index: int) -> str:
    return f"probe{index}end"


def chat_template(files: CheckpointFiles) -> ChatTemplate | None:
    """Return the chat template of a checkpoint, or None if it has none."""
    path = files.folder / "chat_template.jinja"
    source = read_text(path) if path.exists() else files.tokenizer_config.get("chat_template")
    if isinstance(source, list):
        source = _default_template(source, files.folder)
    if source is None:
        return None
    if not isinstance(source, str):
        raise ValueError(
            f"chat_template of {files.folder} must be a string or a list, got {type(source).__name__}"
        )
    return ChatTemplate(source, files.named_tokens(), str(files.folder))


def _default_template(entries: list[Any], folder: Path) -> object:
    """Return the template named 'default', or the only one."""
    named = {e.get("name"): e.get("template") for e in entries if isinstance(e, dict)}
    if "default" not in named and len(named) != 1:
        names = ", ".join(map(str, named)) or "none"
        raise ValueError(f"chat_template of {folder} has no entry named 'default'; available: {names}")
    return named.get("default", next(iter(named.values())))


def checked_messages(messages: object) -> list[Message]:
    """Copy a conversation; raise unless every message has a role and a content."""
    if not isinstance(messages, (list, tuple)):
        raise FieldError("messages", messages, "must be a list of {'role': ..., 'content': ...}")
    if not messages:
        raise FieldError("messages", messages, "must have at least one message")
    for index, message in enumerate(messages):
        _check_message(f"messages[{index}]", message)
    return [dict(message) for message in messages]


def _check_message(name: str, message: object) -> None:
    if not isinstance(message, Mapping):
        raise FieldError(name, message, "must be {'role': ..., 'content': ...}")
    unknown = [key for key in message if key not in MESSAGE_KEYS]
    if unknown:
        raise FieldError(name, unknown[0], f"must have no keys but {', '.join(MESSAGE_KEYS)}")
    for key in ("role", "content"):
        if key not in message:
            remedy = "a message is {'role': 'user', 'content': 'Hello'}"
            raise FieldError(name, dict(message), f"must have a {key}", remedy)
    for key, value in message.items():
        if not isinstance(value, str):
            raise FieldError(f"{name}.{key}", value, "must be a string")
    if not message["role"].strip():
        raise FieldError(
            f"{name}.role", message["role"], "must not be empty", "use user, assistant or system"
        )
