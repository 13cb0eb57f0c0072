"""Guard the checks: a result compared with a literal must not bring its own comparison."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

GUARD = "the guard of the sandbox"  # placeholder constant, replaced by the guard in the compiled code
WITHOUT_NAMES = (
    *(ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.expr_context),
    *(ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator),
)
COMPARING = ("eq", "ne", "lt", "le", "gt", "ge", "contains")
CALCULATING = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
METHODS = tuple(
    f"__{name}__"
    for name in (*COMPARING, *CALCULATING, *(f"r{name}" for name in CALCULATING), "abs", "round")
)
PLAIN = frozenset(
    map(id, (int, float, str, bool, bytes, complex, type(None)))
)  # a class may lie about its hash
Guard = Callable[[Any], Any]
class_bases = type.__dict__["__mro__"].__get__  # a metaclass cannot override these
class_names = type.__dict__["__dict__"].__get__


def compile_check(source: str, name: str, guard: Guard) -> CodeType:
    """Compile a check so that the other side of every literal passes through the guard."""
    tree = ast.fix_missing_locations(_Guarding().visit(ast.parse(source, name)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns that a constant is called
        return _with_guard(compile(tree, name, "exec", dont_inherit=True, optimize=0), guard)


def make_guard(trusted: Iterable[ModuleType]) -> Guard:
    """Make a function that returns its argument; it raises if comparing it would run program code."""
    known = frozenset(id(vars(module)) for module in trusted)

    def is_ours(method: Any, name: str) -> bool:
        if type(method) in (WrapperDescriptorType, MethodDescriptorType):
            return bool(method.__name__ == name)
        return method is None or (type(method) is FunctionType and id(method.__globals__) in known)

    def guard(value: Any) -> Any:
        waiting, seen = [value], {id(value)}
        while waiting:
            item = waiting.pop()
            kind = type(item)
            if id(kind) in PLAIN:
                continue
            for name in METHODS:
                method = _method(kind, name)
                if method is not _MISSING and not is_ours(method, name):
                    raise AssertionError(f"a result that brings its own {name} was compared with a literal")
            for part in _parts(item, kind):
                if id(type(part)) not in PLAIN and id(part) not in seen:
                    seen.add(id(part))
                    waiting.append(part)
        return value

    return guard


_MISSING = object()


def _method(kind: type, name: str) -> Any:
    for base in class_bases(kind):
        names = class_names(base)
        if name in names:
            return names[name]
    return _MISSING


def _parts(item: Any, kind: type) -> Iterable[Any]:
    for container in (list, tuple, set, frozenset):
        if issubclass(kind, container):
            return container.__iter__(item)
    if issubclass(kind, dict):
        return [part for pair in dict.items(item) for part in pair]
    return ()


class _Guarding(ast.NodeTransformer):
    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        self.generic_visit(node)
        node.left, *node.comparators = _guarded([node.left, *node.comparators])
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.BinOp:
        self.generic_visit(node)
        node.left, node.right = _guarded([node.left, node.right])
        return node


def _guarded(sides: list[ast.expr]) -> list[ast.expr]:
    literal = [_has_no_names(side) for side in sides]
    if not any(literal):
        return sides
    return [
        side if plain else ast.Call(ast.Constant(GUARD), [side], [])
        for side, plain in zip(sides, literal, strict=True)
    ]


def _has_no_names(side: ast.expr) -> bool:
    return all(isinstance(part, WITHOUT_NAMES) for part in ast.walk(side))


def _with_guard(code: CodeType, guard: Guard) -> CodeType:
    """Insert the guard as a constant, so that no name refers to it."""

    def replaced(constant: Any) -> Any:
        if isinstance(constant, CodeType):
            return _with_guard(constant, guard)
        return guard if isinstance(constant, str) and constant == GUARD else constant

    return code.replace(co_consts=tuple(map(replaced, code.co_consts)))
