"""Encode text to token ids and decode it, with a checkpoint's own files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import tokenizers

from unmask.errors import FieldError
from unmask.models.checkpoint.files import CheckpointFiles
from unmask.models.checkpoint.implied import MASKS
from unmask.models.text.chat import ChatTemplate, Message, chat_template, checked_messages, probe
from unmask.models.text.vocabulary import build_backend, check_fits, is_id

LONG_TEXT = 10_000  # letters from which on a text is encoded as a batch
# Byte-level vocabularies write a byte as the letter with its number, or if it has none as one from 256 on.
PLAIN_BYTES = (*range(33, 127), *range(161, 173), *range(174, 256))
OTHER_BYTES = [byte for byte in range(256) if byte not in PLAIN_BYTES]
BYTE_OF = {chr(byte): byte for byte in PLAIN_BYTES} | {chr(256 + i): b for i, b in enumerate(OTHER_BYTES)}


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """The special ids that decoding needs, as the checkpoint's files declare them."""

    mask: int
    eos: int | None
    pad: int | None
    bos: int | None
    ends: tuple[int, ...]  # all end tokens: end of text first, then end of turn


class Tokenizer:
    """A checkpoint's tokenizer, special ids and chat template."""

    def __init__(
        self, backend: tokenizers.Tokenizer, special: SpecialIds, template: ChatTemplate | None, origin: str
    ) -> None:
        self.special = special
        self.origin = origin  # name of this checkpoint in error messages
        self._backend = backend
        self._template = template

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """Read the tokenizer of a checkpoint folder."""
        files = CheckpointFiles.read(Path(path))
        backend = build_backend(files)
        template = chat_template(files)
        turn_end = None if template is None else _turn_end(backend, template)
        return cls(backend, _special_ids(files, backend, turn_end), template, str(path))

    def __getstate__(self) -> dict[str, object]:
        """Leave out `_letters`, because a copy of it would recognise special tokens again."""
        return {name: value for name, value in vars(self).items() if name != "_letters"}

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` works."""
        return self._template is not None

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template, or None if there is none."""
        return None if self._template is None else self._template.source

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Encode a text. Special tokens in it are recognised, but added only with `add_special`."""
        return _encoded(self._backend, _checked_text(text), add_special=add_special).ids

    def encode_text(self, text: str) -> list[int]:
        """Encode a text literally. Where it spells a special token, encode its letters instead."""
        ids = self.encode(text)
        return ids if self._marks.isdisjoint(ids) else _encoded(self._letters, text).ids

    def encode_batch(self, texts: Sequence[str], *, add_special: bool = False) -> list[list[int]]:
        """Encode each text, without padding."""
        if isinstance(texts, str):
            raise FieldError("texts", texts, "must be a list of strings", "use encode for a single text")
        checked = [_checked_text(text) for text in texts]
        return [
            encoding.ids for encoding in self._backend.encode_batch(checked, add_special_tokens=add_special)
        ]

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Decode token ids; unknown ids, such as the tail of a padded vocabulary, decode to nothing."""
        ids = list(token_ids)
        try:
            return self._backend.decode(ids, skip_special_tokens=skip_special)
        except OverflowError as error:
            outside = min(ids) if min(ids) < 0 else max(ids)
            raise FieldError("token_ids", outside, "must be between 0 and 2**32 - 1") from error

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token spelled as in the vocabulary, or None if it is unknown."""
        return self._backend.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        """Return a token as the vocabulary spells it, or None if the id is unknown."""
        return self._backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes that a token adds to a text, or None if it is special, unknown or undecodable."""
        spelled, added = self.id_to_token(token_id), self._added.get(token_id)
        if spelled is None or (added is not None and added.special):
            return None
        if added is None and self._byte_level:
            return bytes(BYTE_OF[letter] for letter in spelled)
        text = self.decode([token_id])
        return None if "\ufffd" in text else text.encode()

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Render a conversation with the checkpoint's chat template."""
        if self._template is None:
            raise FieldError(
                "messages",
                messages,
                f"cannot be rendered, because {self.origin} has no chat template (neither "
                "chat_template.jinja nor chat_template in tokenizer_config.json)",
                "pass a plain prompt, or use an instruction-tuned checkpoint",
            )
        conversation = checked_messages(messages)
        self._template.check_nothing_dropped(conversation)
        return self._template.render(conversation, add_generation_prompt)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        special_tokens: bool = False,
    ) -> list[int]:
        """Encode a conversation. Some templates always add the generation prompt.

        Only the template writes special tokens, so a content that spells one cannot end its turn or begin
        another one. With `special_tokens`, contents may hold special tokens too.
        """
        conversation = checked_messages(messages)
        render = partial(self.render_chat, add_generation_prompt=add_generation_prompt)
        if special_tokens or not self._hold_marks(conversation):
            return self.encode(render(conversation))
        seam = _unused_letter(conversation)
        apart = [{**turn, "content": self._take_apart(turn["content"], seam)} for turn in conversation]
        return self._encode_with_seams(render(apart), seam)

    def _hold_marks(self, messages: Sequence[Message]) -> bool:
        """Return whether a content spells a special token; raise if a role or a name does."""
        for index, message in enumerate(messages):
            for key in ("role", "name"):
                if not self._marks.isdisjoint(self.encode(message.get(key, ""))):
                    problem = "must not hold special tokens"
                    raise FieldError(f"messages[{index}].{key}", message[key], problem)
        return any(not self._marks.isdisjoint(self.encode(message["content"])) for message in messages)

    def _take_apart(self, text: str, seam: str) -> str:
        """Put a seam inside each special token that a text spells, so that it is not recognised."""
        encoding = _encoded(self._backend, text)
        for token, (start, end) in reversed(list(zip(encoding.ids, encoding.offsets, strict=True))):
            if token in self._marks:
                spelled = text[start:end]
                middle = start + len(spelled) - len(spelled.lstrip()) + 1  # after its first letter
                text = text[:middle] + seam + text[middle:]
        return text

    def _encode_with_seams(self, text: str, seam: str) -> list[int]:
        """Encode a rendered conversation. Its special tokens stay, the rest becomes letters without seams."""
        encoding, ids, at = _encoded(self._backend, text), list[int](), 0
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self._marks:
                ids += [*_encoded(self._letters, text[at:start].replace(seam, "")).ids, token]
                at = end
        return ids + _encoded(self._letters, text[at:].replace(seam, "")).ids

    @cached_property
    def _added(self) -> dict[int, tokenizers.AddedToken]:
        return self._backend.get_added_tokens_decoder()

    @cached_property
    def _byte_level(self) -> bool:
        """Whether each letter of the vocabulary stands for a byte."""
        if not isinstance(self._backend.decoder, tokenizers.decoders.ByteLevel):
            return False
        words = self._backend.get_vocab(with_added_tokens=False)
        return all(BYTE_OF.keys() >= set(word) or words[word] in self._added for word in words)

    @cached_property
    def longest_token(self) -> int:
        """Number of letters of the longest token."""
        return max(map(len, self._backend.get_vocab()))

    @cached_property
    def _marks(self) -> frozenset[int]:
        """The tokens that a text must not spell: special, mask, end and chat template tokens."""
        template = self.chat_template or ""
        named = {self.special.mask, *self.special.ends}
        return frozenset(
            token
            for token, added in self._backend.get_added_tokens_decoder().items()
            if added.special or token in named or added.content in template
        )

    @cached_property
    def _letters(self) -> tokenizers.Tokenizer:
        """The same tokenizer, but without recognising special tokens in a text."""
        specification = json.loads(self._backend.to_str())
        for added in specification["added_tokens"]:
            added["special"] = added["id"] in self._marks
        backend = tokenizers.Tokenizer.from_str(json.dumps(specification))
        backend.encode_special_tokens = True
        return backend


def _special_ids(files: CheckpointFiles, backend: tokenizers.Tokenizer, turn_end: int | None) -> SpecialIds:
    """Look up special ids in config.json, then generation_config.json, then the tokenizer."""
    named = {key: backend.token_to_id(text) for key, text in files.named_tokens().items()}

    def candidates(name: str) -> list[int]:
        own = named.get(f"{name}_token")
        return _configured_ids(files, f"{name}_token_id") + ([] if own is None else [own])

    def first(ids: list[int]) -> int | None:
        return ids[0] if ids else None

    spelled = (backend.token_to_id(text) for text in MASKS)
    mask = first([*candidates("mask"), *(token for token in spelled if token is not None)])
    if mask is None:
        raise ValueError(
            f"{files.folder} names no mask token (mask_token_id in config.json or mask_token in "
            "tokenizer_config.json); only masked models can be decoded"
        )
    ends = candidates("eos") + ([] if turn_end is None else [turn_end])
    # Dream's config.json repeats the end token as bos; only the tokenizer names the real one
    bos = named.get("bos_token", first(candidates("bos")))
    return SpecialIds(
        mask, first(candidates("eos")), first(candidates("pad")), bos, tuple(dict.fromkeys(ends))
    )


def _configured_ids(files: CheckpointFiles, field: str) -> list[int]:
    """Return the ids that config.json and generation_config.json give for a field."""
    found: list[int] = []
    sources = {"config.json": files.config, "generation_config.json": files.generation_config}
    for source, values in sources.items():
        value = values.get(field)
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is None:
                continue
            if not is_id(token_id):
                raise FieldError(field, token_id, "must be a token id", where=f"{files.folder}/{source}")
            check_fits(files, token_id, field)
            found.append(token_id)
    return found


def _turn_end(backend: tokenizers.Tokenizer, template: ChatTemplate) -> int | None:
    """Return the added token that the template puts after an answer, or None if it puts none."""
    messages = [{"role": "user", "content": probe(0)}, {"role": "assistant", "content": probe(1)}]
    _, _, after = template.render(messages, add_generation_prompt=False).partition(probe(1))
    ids = backend.encode(after.lstrip(), add_special_tokens=False).ids
    return ids[0] if ids and ids[0] in backend.get_added_tokens_decoder() else None


def _encoded(backend: tokenizers.Tokenizer, text: str, *, add_special: bool = False) -> tokenizers.Encoding:
    """Encode a text. Encode a long one as a batch, which lets other threads run meanwhile."""
    if len(text) < LONG_TEXT:
        return backend.encode(text, add_special_tokens=add_special)
    [encoding] = backend.encode_batch([text], add_special_tokens=add_special)
    return encoding


def _unused_letter(messages: Sequence[Message]) -> str:
    """Return a private-use letter that is in no message."""
    used = set[str]().union(*(value for message in messages for value in message.values()))
    return next(letter for letter in map(chr, range(0xF0000, 0xFFFFD)) if letter not in used)


def _checked_text(text: object) -> str:
    if not isinstance(text, str):
        raise FieldError("text", text, "must be a string")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        lone = text[error.start]
        problem = f"must not hold a lone surrogate, which is not a character (position {error.start})"
        raise FieldError("text", lone, problem, "remove it") from error
    return text
