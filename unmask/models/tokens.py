"""Text to token ids and back, by a checkpoint's own files. Knows nothing of models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

import tokenizers
from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

JsonObject = dict[str, Any]
Message = Mapping[str, str]

MESSAGE_KEYS = ("role", "content", "name")
QWEN2_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "DreamTokenizer")
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """The ids that steer decoding, as the checkpoint's files declare them."""

    mask: int
    eos: int | None
    pad: int | None
    bos: int | None
    ends: tuple[int, ...]  # every id that ends a text: end of text first, then end of turn


class Tokenizer:
    """A checkpoint's tokenizer, special ids and chat template."""

    def __init__(
        self, backend: tokenizers.Tokenizer, special: SpecialIds, template: ChatTemplate | None, origin: str
    ) -> None:
        self.special = special
        self.origin = origin  # what error sentences call this checkpoint
        self._backend = backend
        self._template = template

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of the checkpoint in a local folder."""
        files = CheckpointFiles.read(Path(path))
        backend = _build_backend(files)
        template = _chat_template(files)
        turn_end = None if template is None else _turn_end(backend, template)
        return cls(backend, _special_ids(files, backend, turn_end), template, str(path))

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can be used."""
        return self._template is not None

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Token ids of a text; special tokens written in it are recognised, none are added unless asked."""
        return self._backend.encode(_checked_text(text), add_special_tokens=add_special).ids

    def encode_batch(self, texts: Sequence[str], *, add_special: bool = False) -> list[list[int]]:
        """Token ids of every text, without padding."""
        if isinstance(texts, str):
            raise ValueError("texts must be a list of strings, got one string; use encode for a single text")
        checked = [_checked_text(text) for text in texts]
        return [
            encoding.ids for encoding in self._backend.encode_batch(checked, add_special_tokens=add_special)
        ]

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of token ids; ids that no file names, such as a padded vocabulary's tail, have no text."""
        ids = list(token_ids)
        try:
            return self._backend.decode(ids, skip_special_tokens=skip_special)
        except OverflowError as error:
            raise ValueError(
                f"token ids must be between 0 and 2**32 - 1, got {min(ids)} to {max(ids)}"
            ) from error

    def stream(self, *, skip_special: bool = True) -> TextStream:
        """A decoder that is fed ids as they become final."""
        return TextStream(self, skip_special)

    def token_to_id(self, token: str) -> int | None:
        """Id of a token as the vocabulary spells it, None for an unknown one."""
        return self._backend.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's spelling of an id, None for an unknown one; `piece` is the readable form."""
        return self._backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None

    def piece(self, token_id: int) -> str:
        """One token as a live view may print it: line breaks and control characters are escaped."""
        text = self.decode([token_id], skip_special=False) or f"<{token_id}>"
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The conversation as the checkpoint's chat template writes it."""
        if self._template is None:
            raise ValueError(
                f"{self.origin} has no chat template (neither chat_template.jinja nor chat_template in "
                "tokenizer_config.json); pass a plain prompt, or use an instruction-tuned checkpoint"
            )
        conversation = _checked_messages(messages)
        self._template.check_nothing_dropped(conversation)
        return self._template.render(conversation, add_generation_prompt)

    def chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation; a template may ask for the answer even when it is not told to."""
        return self.encode(self.render_chat(messages, add_generation_prompt=add_generation_prompt))


class TextStream:
    """Text of a growing token sequence, held back where a character is still incomplete."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._ids: list[int] = []
        self._sent = 0  # characters handed out

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these ids complete, possibly empty."""
        self._ids.extend(token_ids)
        return self._hand_out(self._text().rstrip(REPLACEMENT))  # the next bytes may still complete it

    def finish(self) -> str:
        """What was held back, as the last call; bytes that made no character are replacement characters."""
        return self._hand_out(self._text())

    def _text(self) -> str:
        return self._tokenizer.decode(self._ids, skip_special=self._skip_special)

    def _hand_out(self, text: str) -> str:
        new = text[self._sent :]
        self._sent += len(new)
        return new


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The small JSON files of a checkpoint folder; an absent one reads as empty."""

    folder: Path
    config: JsonObject
    generation_config: JsonObject
    tokenizer_config: JsonObject
    added_tokens: JsonObject
    special_tokens_map: JsonObject

    @classmethod
    def read(cls, folder: Path) -> CheckpointFiles:
        """The files of a folder that must exist."""
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder; pass the folder of a downloaded checkpoint")
        return cls(
            folder,
            config=_read_object(folder / "config.json"),
            generation_config=_read_object(folder / "generation_config.json"),
            tokenizer_config=_read_object(folder / "tokenizer_config.json"),
            added_tokens=_read_object(folder / "added_tokens.json"),
            special_tokens_map=_read_object(folder / "special_tokens_map.json"),
        )

    def named_tokens(self) -> dict[str, str]:
        """bos_token, eos_token and the like, with their text; templates receive them under these names."""
        merged = self.special_tokens_map | {k: v for k, v in self.tokenizer_config.items() if v is not None}
        texts = {key: _token_text(value) for key, value in merged.items() if key.endswith("_token")}
        return {key: text for key, text in texts.items() if text is not None}

    def special_tokens(self) -> set[str]:
        """The text of every token that the files call special without giving its id."""
        special = set(self.named_tokens().values())
        for source in (self.special_tokens_map, self.tokenizer_config):
            for key in ("additional_special_tokens", "extra_special_tokens"):
                more = source.get(key) or []
                texts = map(_token_text, more.values() if isinstance(more, dict) else more)
                special.update(text for text in texts if text is not None)
        return special


def _read_object(path: Path) -> JsonObject:
    """The object in a JSON file, empty where there is no file."""
    if not path.exists():
        return {}
    try:
        value = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}; download it again")
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); download it again") from error


def _token_text(value: object) -> str | None:
    """The text of a token that a file gives as a string or as an object with its flags."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


def _build_backend(files: CheckpointFiles) -> tokenizers.Tokenizer:
    """The `tokenizers` object, with every added token at exactly the id that the files give."""
    specification = _specification(files)
    ids = _vocabulary_ids(specification["model"]["vocab"], files.folder)
    specification["added_tokens"] = _added_tokens(specification, files, ids)
    # the library numbers added tokens itself unless the vocabulary already has them
    specification["model"]["vocab"] = ids
    largest = max(ids, key=ids.__getitem__)
    _check_fits(files, ids[largest], largest)
    try:
        return tokenizers.Tokenizer.from_buffer(json.dumps(specification).encode())
    except ValueError as error:
        raise ValueError(f"the tokenizer files of {files.folder} do not fit together: {error}") from error


def _specification(files: CheckpointFiles) -> JsonObject:
    """The tokenizer in the JSON form of the `tokenizers` library, from whichever files there are."""
    published = files.folder / "tokenizer.json"
    if published.exists():
        specification = _read_object(published)
        if not isinstance(specification.get("model"), dict) or "vocab" not in specification["model"]:
            raise ValueError(f"{published} has no model.vocab; download it again")
        # texts are encoded whole: limits belong to the caller
        return specification | {"truncation": None, "padding": None}
    vocabulary, merges = files.folder / "vocab.json", files.folder / "merges.txt"
    if not vocabulary.exists() or not merges.exists():
        raise ValueError(
            f"{files.folder} has no tokenizer: expected tokenizer.json, or vocab.json and merges.txt"
        )
    declared = files.tokenizer_config.get("tokenizer_class")
    if declared is not None and declared not in QWEN2_CLASSES:
        raise ValueError(
            f"tokenizer_class is {declared!r}, but vocab.json and merges.txt are read by Qwen2's rules only "
            f"({', '.join(QWEN2_CLASSES)}); save a tokenizer.json for {files.folder}"
        )
    lines = _read_text(merges).split("\n")
    rules = [line for line in lines if line.strip() and not line.startswith("#version")]
    return _qwen2_specification(_read_object(vocabulary), rules)


def _qwen2_specification(vocabulary: JsonObject, merges: list[str]) -> JsonObject:
    """Byte-level BPE as Qwen2 does it: NFC, its own split, no space put in front."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN2_SPLIT}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }


def _vocabulary_ids(vocabulary: object, folder: Path) -> dict[str, int]:
    """Token to id, every id a number of its own."""
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise ValueError(f"the vocabulary of {folder} must map tokens to ids, as BPE and WordPiece do")
    if not all(_is_id(token_id) for token_id in vocabulary.values()):
        raise ValueError(f"the vocabulary of {folder} has ids that are no numbers; download it again")
    if len(set(vocabulary.values())) < len(vocabulary):
        raise ValueError(f"the vocabulary of {folder} gives one id to two tokens; download it again")
    return dict(vocabulary)


def _added_tokens(specification: JsonObject, files: CheckpointFiles, ids: dict[str, int]) -> list[JsonObject]:
    """Every added token with its flags, ordered by id; puts them into `ids` and refuses a clash."""
    owners = {token_id: text for text, token_id in ids.items()}
    added: dict[str, JsonObject] = {}
    for source, token_id, token in _declared_tokens(specification, files):
        text = _token_text(token)
        if text is None or not isinstance(token, dict):
            raise ValueError(f"an added token in {source} has no text, but {token!r}; give it a content")
        if not _is_id(token_id):
            raise ValueError(f"added token {text!r} in {source} has the impossible id {token_id!r}")
        if ids.setdefault(text, token_id) != token_id:
            raise ValueError(f"token {text!r} is {token_id} in {source}, but {ids[text]} in another file")
        if owners.setdefault(token_id, text) != text:
            raise ValueError(f"id {token_id} is {text!r} in {source}, but {owners[token_id]!r} elsewhere")
        flags = {key: bool(token.get(key)) for key in TOKEN_FLAGS}
        added.setdefault(text, {"id": token_id, "content": text, **flags})
    for text in files.special_tokens():
        if text not in ids:
            raise ValueError(
                f"special token {text!r} has no id in {files.folder}: "
                "name it in added_tokens.json or in added_tokens_decoder of tokenizer_config.json"
            )
        added.setdefault(text, {"id": ids[text], "content": text, **dict.fromkeys(TOKEN_FLAGS, False)})
        added[text]["special"] = True
    return sorted(added.values(), key=lambda token: int(token["id"]))


def _declared_tokens(specification: JsonObject, files: CheckpointFiles) -> Iterator[tuple[str, Any, object]]:
    """File, id and description of every added token that comes with an id, the fullest description first."""
    for token in specification.get("added_tokens") or []:
        yield "tokenizer.json", token.get("id") if isinstance(token, dict) else None, token
    decoder = files.tokenizer_config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise ValueError(
            f"added_tokens_decoder in tokenizer_config.json must map ids to tokens, got {decoder!r}"
        )
    for key, token in decoder.items():
        yield "tokenizer_config.json", int(key) if key.isdecimal() else key, token
    special = files.special_tokens()
    for text, token_id in files.added_tokens.items():
        yield "added_tokens.json", token_id, {"content": text, "normalized": text not in special}


def _is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_fits(files: CheckpointFiles, token_id: int, what: str) -> None:
    """An error if config.json's vocabulary is too small for this id."""
    size = files.config.get("vocab_size")
    if isinstance(size, int) and token_id >= size:
        raise ValueError(
            f"{what!r} has id {token_id} in {files.folder}, but vocab_size in config.json is {size}"
        )


def _special_ids(files: CheckpointFiles, backend: tokenizers.Tokenizer, turn_end: int | None) -> SpecialIds:
    """What the files declare: config.json, then generation_config.json, then the tokenizer's own tokens."""
    named = {key: backend.token_to_id(text) for key, text in files.named_tokens().items()}

    def candidates(name: str) -> list[int]:
        own = named.get(f"{name}_token")
        return _configured_ids(files, f"{name}_token_id") + ([] if own is None else [own])

    def first(ids: list[int]) -> int | None:
        return ids[0] if ids else None

    mask = first(candidates("mask"))
    if mask is None:
        raise ValueError(
            f"{files.folder} names no mask token (mask_token_id in config.json or mask_token in "
            "tokenizer_config.json); only masked models can be decoded"
        )
    ends = candidates("eos") + ([] if turn_end is None else [turn_end])
    # Dream's config.json repeats the end token as bos; the token that its texts begin with is the tokenizer's
    bos = named.get("bos_token", first(candidates("bos")))
    return SpecialIds(
        mask, first(candidates("eos")), first(candidates("pad")), bos, tuple(dict.fromkeys(ends))
    )


def _configured_ids(files: CheckpointFiles, field: str) -> list[int]:
    """The ids that config.json and generation_config.json give for a field, one or several each."""
    found: list[int] = []
    sources = {"config.json": files.config, "generation_config.json": files.generation_config}
    for source, values in sources.items():
        value = values.get(field)
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is None:
                continue
            if not _is_id(token_id):
                raise ValueError(
                    f"{field} in {source} of {files.folder} must be a token id, got {token_id!r}"
                )
            _check_fits(files, token_id, field)
            found.append(token_id)
    return found


def _turn_end(backend: tokenizers.Tokenizer, template: ChatTemplate) -> int | None:
    """The added token that the template writes right after an answer, if it writes one."""
    messages = [{"role": "user", "content": _probe(0)}, {"role": "assistant", "content": _probe(1)}]
    _, _, after = template.render(messages, add_generation_prompt=False).partition(_probe(1))
    ids = backend.encode(after.lstrip(), add_special_tokens=False).ids
    return ids[0] if ids and ids[0] in backend.get_added_tokens_decoder() else None


class ChatTemplate:
    """A checkpoint's chat template, compiled in a sandbox."""

    def __init__(self, source: str, tokens: Mapping[str, str], origin: str) -> None:
        self._tokens = tokens
        self._origin = origin
        try:
            self._template = _sandbox().from_string(source)
        except TemplateSyntaxError as error:
            raise ValueError(
                f"the chat template of {origin} is not valid, line {error.lineno}: {error}"
            ) from error

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """The conversation as one text."""
        try:
            return self._template.render(
                **self._tokens,
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except SecurityError as error:
            raise ValueError(
                f"the chat template of {self._origin} tries to leave its sandbox: {error}; "
                "do not trust this checkpoint, or replace its template"
            ) from error
        except (
            TemplateError,
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise ValueError(
                f"the chat template of {self._origin} fails on this conversation: {error}"
            ) from error

    def check_nothing_dropped(self, messages: Sequence[Message]) -> None:
        """An error if the template leaves a message out, as many do with roles they do not know."""
        probes = [{**message, "content": _probe(index)} for index, message in enumerate(messages)]
        rendered = self.render(probes, add_generation_prompt=True)
        for index, message in enumerate(messages):
            if _probe(index) not in rendered:
                raise ValueError(
                    f"the chat template of {self._origin} leaves out messages[{index}] (role "
                    f"{message['role']!r}); use a role that it knows, or put the text into a user message"
                )


def _probe(index: int) -> str:
    return f"probe{index}end"


def _chat_template(files: CheckpointFiles) -> ChatTemplate | None:
    """The compiled template of a checkpoint, None where it has none."""
    path = files.folder / "chat_template.jinja"
    source = _read_text(path) if path.exists() else files.tokenizer_config.get("chat_template")
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
    """The template named 'default', or the only one."""
    named = {e.get("name"): e.get("template") for e in entries if isinstance(e, dict)}
    if "default" not in named and len(named) != 1:
        names = ", ".join(map(str, named)) or "none"
        raise ValueError(f"chat_template of {folder} has no entry named 'default'; available: {names}")
    return named.get("default", next(iter(named.values())))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, except that a forbidden attribute is an error at once and not an empty value."""

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        raise SecurityError(f"it reads {attribute!r} of a {type(obj).__name__}")


class _GenerationBlock(Extension):
    """`{% generation %}` marks an answer for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _sandbox() -> ImmutableSandboxedEnvironment:
    """The environment that published chat templates are written for."""
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; Jinja's own filter escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _checked_text(text: object) -> str:
    if not isinstance(text, str):
        raise ValueError(f"text must be a string, got {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text has a lone surrogate at position {error.start}, which is no character; remove it"
        ) from error
    return text


def _checked_messages(messages: object) -> list[Message]:
    """The conversation, every message with a role and a content."""
    if not isinstance(messages, (list, tuple)):
        raise ValueError(
            f"messages must be a list of {{'role': ..., 'content': ...}}, got {type(messages).__name__}"
        )
    if not messages:
        raise ValueError("messages must have at least one message, got an empty list")
    for index, message in enumerate(messages):
        _check_message(f"messages[{index}]", message)
    return [dict(message) for message in messages]


def _check_message(where: str, message: object) -> None:
    if not isinstance(message, Mapping):
        raise ValueError(f"{where} must be {{'role': ..., 'content': ...}}, got {type(message).__name__}")
    unknown = [key for key in message if key not in MESSAGE_KEYS]
    if unknown:
        raise ValueError(f"{where} has the unknown key {unknown[0]!r}; known keys: {', '.join(MESSAGE_KEYS)}")
    for key in ("role", "content"):
        if key not in message:
            raise ValueError(f"{where} has no {key!r}; a message is {{'role': 'user', 'content': 'Hello'}}")
    for key, value in message.items():
        if not isinstance(value, str):
            raise ValueError(f"{where} must have a string as {key!r}, got {type(value).__name__}")
    if not message["role"].strip():
        raise ValueError(f"{where} has an empty role; use user, assistant or system")
