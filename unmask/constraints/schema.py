"""Check that a JSON schema has only keywords that the compiler enforces exactly."""

from __future__ import annotations

import json
import re
from typing import Any

from unmask.errors import FieldError

FIELD = "json_schema"
MAX_PARTS = 1000
DEPTH = 2  # nesting of lists and objects in a value whose schema leaves them open
WORDS = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
    "$schema", "$id", "$comment", "$defs", "definitions",
}  # fmt: skip
KEYWORDS = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": set[str](),
    "number": set[str](),
    "boolean": set[str](),
    "null": set[str](),
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}
_DAY = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"  # every month has 28 days
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
FORMATS = {
    "date": _DAY,
    "time": _TIME,
    "date-time": f"{_DAY}T{_TIME}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
}


def check_schema(schema: object) -> Any:
    """Return what the compiler needs of the schema. Raise on what it would not enforce exactly.

    Return None if the schema refers to itself, which no regular language can express.
    """
    checker = _Checker(schema)
    checked = checker.node(schema, FIELD, ("#",))
    return None if checker.recursive else checked


def refers(schema: object) -> bool:
    """Whether a checked schema still has a reference, which must be to itself."""
    if isinstance(schema, dict):
        return isinstance(schema.get("$ref"), str) or any(map(refers, schema.values()))
    return isinstance(schema, list) and any(map(refers, schema))


def closed(schema: Any) -> Any:
    """Return a schema whose objects have only the properties that it names, unless it allows others."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(value, dict):
            found[key] = {name: closed(part) for name, part in value.items()}
        else:
            found[key] = value if key in ("enum", "const") else closed(value)
    if isinstance(schema.get("properties"), dict):
        found.setdefault("additionalProperties", False)
    return found


def anything(depth: int) -> dict[str, Any]:
    """Return the schema of any JSON value whose lists and objects are nested at most this deep."""
    kinds: list[dict[str, Any]] = [{"type": kind} for kind in ("string", "number", "boolean", "null")]
    if depth:
        inside = anything(depth - 1)
        kinds += [{"type": "array", "items": inside}, {"type": "object", "additionalProperties": inside}]
    return {"anyOf": kinds}


class _Checker:
    """Checks the parts of one schema, and expands each reference."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._parts = 0
        self.recursive = False

    def node(self, schema: object, path: str, refs: tuple[str, ...]) -> dict[str, Any]:
        self._parts += 1
        if self._parts > MAX_PARTS:
            problem = f"is too large: it must have at most {MAX_PARTS} parts, with each $ref written out"
            raise FieldError(FIELD, self._root, problem)
        if not isinstance(schema, dict):
            raise FieldError(path, schema, "must be a JSON object")
        words = {name: value for name, value in schema.items() if name not in WORDS}
        for name in ("$ref", "anyOf", "enum", "const"):
            if name in words:
                return getattr(self, f"_{name.strip('$')}")(words, path, refs)  # type: ignore[no-any-return]
        kinds = words.pop("type", None)
        if isinstance(kinds, list) and kinds:
            return {"anyOf": [self._typed(kind, words, path, refs, shared=True) for kind in kinds]}
        return self._typed(kinds, words, path, refs)

    def _ref(self, words: dict[str, Any], path: str, refs: tuple[str, ...]) -> dict[str, Any]:
        _alone(words, "$ref", path)
        target = words["$ref"]
        if not isinstance(target, str) or not target.startswith("#"):
            raise FieldError(f"{path}.$ref", target, "must point into the schema, such as #/$defs/name")
        if target in refs:
            self.recursive = True
            return {}
        part = self._root
        for key in target.removeprefix("#").strip("/").split("/") if target != "#" else ():
            key = key.replace("~1", "/").replace("~0", "~")
            if not isinstance(part, dict) or key not in part:
                raise FieldError(f"{path}.$ref", target, "must point to a part of the schema")
            part = part[key]
        return self.node(part, path, (*refs, target))

    def _anyOf(self, words: dict[str, Any], path: str, refs: tuple[str, ...]) -> dict[str, Any]:
        _alone(words, "anyOf", path)
        branches = words["anyOf"]
        if not isinstance(branches, list) or not branches:
            raise FieldError(f"{path}.anyOf", branches, "must be a list of schemas")
        parts = [self.node(part, f"{path}.anyOf[{i}]", refs) for i, part in enumerate(branches)]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}

    def _enum(self, words: dict[str, Any], path: str, refs: tuple[str, ...]) -> dict[str, Any]:
        values = words["enum"]
        if not isinstance(values, list) or not values:
            raise FieldError(f"{path}.enum", values, "must be a list of values")
        return self._values(words, "enum", values, path)

    def _const(self, words: dict[str, Any], path: str, refs: tuple[str, ...]) -> dict[str, Any]:
        return self._values(words, "const", [words["const"]], path)

    def _values(self, words: dict[str, Any], name: str, values: list[Any], path: str) -> dict[str, Any]:
        kind = words.pop("type", None)
        _alone(words, name, path)
        for value in values:
            if kind is not None and not _has_type(value, kind):
                raise FieldError(f"{path}.{name}", value, f"must hold values of the type {kind}")
            _check_names(value, f"{path}.{name}")
        return {"enum": values}

    def _typed(
        self, kind: Any, words: dict[str, Any], path: str, refs: tuple[str, ...], *, shared: bool = False
    ) -> dict[str, Any]:
        """Return a part with one type. `shared` means that the words belong to several types."""
        if kind is None and "properties" in words:
            kind = "object"
        if not isinstance(kind, str) or kind not in KEYWORDS:
            remedy = f"write a type ({', '.join(KEYWORDS)}), enum, const, anyOf or $ref"
            raise FieldError(path, kind, "must say what it allows", remedy)
        known = set[str]().union(*KEYWORDS.values()) if shared else KEYWORDS[kind]
        for name in sorted(words.keys() - known):
            raise _unsupported(f"{path}.{name}", words[name])
        words = {name: value for name, value in words.items() if name in KEYWORDS[kind]}
        if kind in ("array", "object", "string"):
            words = getattr(self, f"_{kind}")(words, path, refs)
        return {"type": kind, **words}

    def _string(self, words: dict[str, Any], path: str, refs: tuple[str, ...]) -> dict[str, Any]:
        low, high = (_count(words, name, path) for name in ("minLength", "maxLength"))
        if low is not None and high is not None and low > high:
            raise FieldError(f"{path}.minLength", low, f"must be at most maxLength, {high}")
        if ("pattern" in words or "format" in words) and len(words) > 1:
            raise FieldError(path, words, "must have either a pattern, a format or lengths")
        if "format" in words:
            if words["format"] not in FORMATS:
                problem = f"must be one of {', '.join(FORMATS)}"
                raise FieldError(f"{path}.format", words["format"], problem, "write a pattern")
            return {"pattern": f"^({FORMATS[words['format']]})$"}
        if "pattern" in words:
            pattern = words["pattern"]
            if not isinstance(pattern, str) or pattern[:1] != "^" or pattern[-1:] != "$":
                raise FieldError(f"{path}.pattern", pattern, "must be anchored: ^...$")
            return {"pattern": f"^({pattern[1:-1]})$"}
        return words

    def _array(self, words: dict[str, Any], path: str, refs: tuple[str, ...]) -> dict[str, Any]:
        low, high = (_count(words, name, path) for name in ("minItems", "maxItems"))
        if low is not None and high is not None and low > high:
            raise FieldError(f"{path}.minItems", low, f"must be at most maxItems, {high}")
        items = self.node(words["items"], f"{path}.items", refs) if "items" in words else anything(DEPTH - 1)
        return {**words, "items": items}

    def _object(self, words: dict[str, Any], path: str, refs: tuple[str, ...]) -> dict[str, Any]:
        properties, required = words.get("properties"), words.get("required", [])
        extra = words.get("additionalProperties")
        if properties is None:
            if required:
                raise FieldError(f"{path}.required", required, "must name properties of the schema")
            if isinstance(extra, dict):
                return {"additionalProperties": self.node(extra, f"{path}.additionalProperties", refs)}
            if extra is False:
                return {"properties": {}, "additionalProperties": False}
            return {"additionalProperties": anything(DEPTH - 1)}
        if not isinstance(properties, dict):
            raise FieldError(f"{path}.properties", properties, "must be a JSON object")
        if not isinstance(required, list) or any(name not in properties for name in required):
            raise FieldError(f"{path}.required", required, "must name properties of the schema")
        parts = {
            _spelled(name): self.node(part, f"{path}.properties.{name}", refs)
            for name, part in properties.items()
        }
        required = [_spelled(name) for name in required]
        return {"properties": parts, "required": required, "additionalProperties": False}


def _spelled(name: str) -> str:
    """Escape a name for use between quotes, because the compiler does not escape names."""
    return json.dumps(name, ensure_ascii=False)[1:-1]


def _check_names(value: object, path: str) -> None:
    """Raise if an object in a value has a name with other characters, which the compiler would misread."""
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    for name in value if isinstance(value, dict) else ():
        if not re.fullmatch("[A-Za-z0-9_ -]*", name):
            remedy = "write the object with properties"
            raise FieldError(
                path, name, "must hold objects with plain names: letters, digits, _ and -", remedy
            )
    for part in parts:
        _check_names(part, path)


def _alone(words: dict[str, Any], name: str, path: str) -> None:
    for other in sorted(words.keys() - {name}):
        raise _unsupported(f"{path}.{other}", words[other], f"beside {name}")


def _unsupported(path: str, value: object, where: str = "") -> FieldError:
    problem = f"is not supported in a constraint {where}".rstrip()
    return FieldError(path, value, problem, "leave it out, and check the answer yourself")


def _count(words: dict[str, Any], name: str, path: str) -> int | None:
    value = words.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise FieldError(f"{path}.{name}", value, "must be a whole number >= 0")
    return value


def _has_type(value: object, kind: object) -> bool:
    kinds = kind if isinstance(kind, list) else [kind]
    names = {
        bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}, str: {"string"},
        type(None): {"null"}, list: {"array"}, dict: {"object"},
    }  # fmt: skip
    return not names.get(type(value), set()).isdisjoint(kinds)
