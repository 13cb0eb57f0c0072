"""The stages of small programs: their words, code and meaning.

In code, {v} stands for the whole value and {x} for one element of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["keep", "each", "whole", "end"]
Result = Literal["", "int", "str", "bool"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: `keep` filters, `each` maps, `whole` rebuilds the value, `end` gives the result."""

    kind: Kind
    says: tuple[str, ...]
    code: tuple[str, ...]
    apply: Callable[[Any], Any]
    result: Result = ""  # result type of an end stage; "" keeps the type
    adds: str = ""  # what a loop adds to its total instead, such as {x} or 1
    loose: bool = False  # the code needs brackets before another operator or a method

    @property
    def key(self) -> str:
        """Identify the stage independently of its wording."""
        return self.code[0]


Family = Callable[[Any], Stage]  # makes the stage of a constant, or of words that stand for one


def _end(
    says: tuple[str, ...], code: str, result: Callable[[Any], Any], gives: Result = "int", adds: str = ""
) -> Stage:
    return Stage("end", says, (code,), result, gives, adds)


def _keep(
    says: tuple[str, ...], code: tuple[str, ...], test: Callable[[Any], Any], join: bool = False
) -> Stage:
    if join:
        return Stage("keep", says, code, lambda v: "".join(x for x in v if test(x)))
    return Stage("keep", says, code, lambda v: [x for x in v if test(x)])


def _each(says: tuple[str, ...], code: tuple[str, ...], change: Callable[[Any], Any]) -> Stage:
    return Stage("each", says, code, lambda v: [change(x) for x in v])


def _whole(
    says: tuple[str, ...], code: tuple[str, ...], change: Callable[[Any], Any], loose: bool = False
) -> Stage:
    return Stage("whole", says, code, change, loose=loose)


NUMBER_STAGES: tuple[Stage, ...] = (
    _keep(("keep only the even numbers", "drop the odd numbers"), ("{x} % 2 == 0",), lambda x: x % 2 == 0),
    _keep(
        ("keep only the odd numbers", "drop the even numbers"),
        ("{x} % 2 == 1", "{x} % 2 != 0"),
        lambda x: x % 2,
    ),
    _keep(
        ("keep only the positive numbers", "drop numbers that are not positive"),
        ("{x} > 0",),
        lambda x: x > 0,
    ),
    _keep(("keep only the negative numbers",), ("{x} < 0",), lambda x: x < 0),
    _each(
        ("square each number", "replace each number by its square"),
        ("{x} * {x}", "{x} ** 2"),
        lambda x: x * x,
    ),
    _each(("negate each number", "flip the sign of each number"), ("-{x}",), lambda x: -x),
    _each(("take the absolute value of each number",), ("abs({x})",), abs),
    _whole(("sort the numbers", "put the numbers in order"), ("sorted({v})",), sorted),
    _whole(
        ("sort the numbers from large to small", "sort in descending order"),
        ("sorted({v}, reverse=True)", "sorted({v})[::-1]"),
        lambda v: sorted(v, reverse=True),
    ),
    _whole(
        ("reverse the list", "reverse the order"), ("{v}[::-1]", "list(reversed({v}))"), lambda v: v[::-1]
    ),
    _whole(("take every second number",), ("{v}[::2]",), lambda v: v[::2]),
    _whole(
        ("remove duplicates", "drop repeated numbers"),
        ("list(dict.fromkeys({v}))",),
        lambda v: list(dict.fromkeys(v)),
    ),
)

NUMBER_FAMILIES: tuple[Family, ...] = (
    lambda k: _keep(
        (f"keep the numbers greater than {k}", f"keep numbers above {k}"), (f"{{x}} > {k}",), lambda x: x > k
    ),
    lambda k: _keep(
        (f"keep the numbers less than {k}", f"keep numbers below {k}"), (f"{{x}} < {k}",), lambda x: x < k
    ),
    lambda k: _keep((f"keep the numbers divisible by {k}",), (f"{{x}} % {k} == 0",), lambda x: x % k == 0),
    lambda k: _each(
        (f"add {k} to each number", f"increase each number by {k}"), (f"{{x}} + {k}",), lambda x: x + k
    ),
    lambda k: _each((f"subtract {k} from each number",), (f"{{x}} - {k}",), lambda x: x - k),
    lambda k: _each(
        (f"multiply each number by {k}", f"scale each number by {k}"), (f"{{x}} * {k}",), lambda x: x * k
    ),
)

NUMBER_SLICES: tuple[Family, ...] = (
    lambda k: _whole((f"take the first {k} numbers",), (f"{{v}}[:{k}]",), lambda v: v[:k]),
    lambda k: _whole(
        (f"drop the first {k} numbers", f"skip {k} numbers"), (f"{{v}}[{k}:]",), lambda v: v[k:]
    ),
)

NUMBER_ENDS: tuple[Stage, ...] = (
    _end(("return the sum", "return their sum"), "sum({v})", sum, adds="{x}"),
    _end(("return the count", "return how many there are"), "len({v})", len, adds="1"),
    _end(
        ("return the largest one, or 0 if there is none",), "max({v}, default=0)", lambda v: max(v, default=0)
    ),
    _end(
        ("return the smallest one, or 0 if there is none",),
        "min({v}, default=0)",
        lambda v: min(v, default=0),
    ),
)

TEXT_STAGES: tuple[Stage, ...] = (
    _keep(("keep only the vowels",), ("{x} in 'aeiou'",), lambda x: x in "aeiou", join=True),
    _keep(
        ("remove the vowels", "drop all vowels"),
        ("{x} not in 'aeiou'",),
        lambda x: x not in "aeiou",
        join=True,
    ),
    _keep(("keep only the letters",), ("{x}.isalpha()",), str.isalpha, join=True),
    _keep(("keep only the digits",), ("{x}.isdigit()",), str.isdigit, join=True),
    _whole(("remove the spaces", "drop all spaces"), ("{v}.replace(' ', '')",), lambda v: v.replace(" ", "")),
    _whole(("make it upper case", "change it to upper case"), ("{v}.upper()",), str.upper),
    _whole(("make it lower case", "change it to lower case"), ("{v}.lower()",), str.lower),
    _whole(("reverse it", "turn it around"), ("{v}[::-1]", "''.join(reversed({v}))"), lambda v: v[::-1]),
    _whole(("take every second letter",), ("{v}[::2]",), lambda v: v[::2]),
)

TEXT_SLICES: tuple[Family, ...] = (
    lambda k: _whole(
        (f"take the first {k} letters", f"keep the first {k} letters"), (f"{{v}}[:{k}]",), lambda v: v[:k]
    ),
    lambda k: _whole(
        (f"drop the first {k} letters", f"skip {k} letters"), (f"{{v}}[{k}:]",), lambda v: v[k:]
    ),
)

TEXT_FAMILIES: tuple[Family, ...] = (
    lambda k: _whole((f"repeat it {k} times",), (f"{{v}} * {k}",), lambda v: v * k, loose=True),
)

LETTER_FAMILIES: tuple[Family, ...] = (
    lambda c: _keep(
        (f"remove the letter {c}", f"drop every {c}"), (f"{{x}} != '{c}'",), lambda x: x != c, join=True
    ),
    lambda c: _whole(
        (f"put {c} at the end", f"append {c}"), (f"{{v}} + '{c}'",), lambda v: v + c, loose=True
    ),
    lambda c: _whole((f"put {c} in front",), (f"'{c}' + {{v}}",), lambda v: c + v, loose=True),
    lambda c: _whole(
        (f"replace each space by {c}",), (f"{{v}}.replace(' ', '{c}')",), lambda v: v.replace(" ", c)
    ),
)

TEXT_ENDS: tuple[Stage, ...] = (
    _end(("return the length", "return its length"), "len({v})", len, adds="1"),
    _end(
        ("return the number of vowels", "return how many vowels it has"),
        "sum({x} in 'aeiou' for {x} in {v})",
        lambda v: sum(x in "aeiou" for x in v),
        adds="{x} in 'aeiou'",
    ),
)

LETTER_ENDS: tuple[Family, ...] = (
    lambda c: _end(
        (f"return how often {c} occurs", f"return the number of {c}"),
        f"{{v}}.count('{c}')",
        lambda v: v.count(c),
        adds=f"{{x}} == '{c}'",
    ),
)

WORD_STAGES: tuple[Stage, ...] = (
    _each(("make each word upper case",), ("{x}.upper()",), str.upper),
    _each(("reverse each word",), ("{x}[::-1]",), lambda x: x[::-1]),
    _each(("take the first letter of each word",), ("{x}[0]",), lambda x: x[0]),
    _each(("take the last letter of each word",), ("{x}[-1]",), lambda x: x[-1]),
    _whole(("sort the words", "put the words in order"), ("sorted({v})",), sorted),
    _whole(("reverse the order of the words",), ("{v}[::-1]", "list(reversed({v}))"), lambda v: v[::-1]),
)

WORD_FAMILIES: tuple[Family, ...] = (
    lambda k: _keep(
        (f"keep words longer than {k} letters", f"keep the words with more than {k} letters"),
        (f"len({{x}}) > {k}",),
        lambda x: len(x) > k,
    ),
    lambda k: _keep((f"keep words shorter than {k} letters",), (f"len({{x}}) < {k}",), lambda x: len(x) < k),
)

WORD_SLICES: tuple[Family, ...] = (
    lambda k: _whole((f"take the first {k} words",), (f"{{v}}[:{k}]",), lambda v: v[:k]),
    lambda k: _whole((f"drop the first {k} words", f"skip {k} words"), (f"{{v}}[{k}:]",), lambda v: v[k:]),
)

WORD_ENDS: tuple[Stage, ...] = (
    _end(("return the number of words", "return how many words there are"), "len({v})", len, adds="1"),
    _end(("return them joined by spaces",), "' '.join({v})", lambda v: " ".join(v), "str"),
    _end(("return them joined by dashes",), "'-'.join({v})", lambda v: "-".join(v), "str"),
    _end(("return them joined without spaces",), "''.join({v})", lambda v: "".join(v), "str"),
)

INTEGER_STAGES: tuple[Stage, ...] = (
    _whole(("square it", "multiply it by itself"), ("{v} ** 2", "pow({v}, 2)"), lambda v: v * v, loose=True),
    _whole(("negate it", "flip its sign"), ("-{v}",), lambda v: -v, loose=True),
    _whole(("take its absolute value",), ("abs({v})",), abs),
)

INTEGER_FAMILIES: tuple[Family, ...] = (
    lambda k: _whole((f"add {k}", f"increase it by {k}"), (f"{{v}} + {k}",), lambda v: v + k, loose=True),
    lambda k: _whole(
        (f"subtract {k}", f"decrease it by {k}"), (f"{{v}} - {k}",), lambda v: v - k, loose=True
    ),
    lambda k: _whole(
        (f"multiply it by {k}", f"multiply by {k}"), (f"{{v}} * {k}",), lambda v: v * k, loose=True
    ),
    lambda k: _whole((f"divide it by {k}, rounding down",), (f"{{v}} // {k}",), lambda v: v // k, loose=True),
    lambda k: _whole(
        (f"take the remainder modulo {k}", f"take it modulo {k}"),
        (f"{{v}} % {k}",),
        lambda v: v % k,
        loose=True,
    ),
    lambda k: _whole((f"raise it to at least {k}",), (f"max({{v}}, {k})",), lambda v: max(v, k)),
    lambda k: _whole((f"limit it to at most {k}",), (f"min({{v}}, {k})",), lambda v: min(v, k)),
)

INTEGER_ENDS: tuple[Stage, ...] = (
    _end(("return whether it is even",), "{v} % 2 == 0", lambda v: v % 2 == 0, "bool"),
    _end(("return it as a string",), "str({v})", str, "str"),
)

INTEGER_END_FAMILIES: tuple[Family, ...] = (
    lambda k: _end((f"return whether it is above {k}",), f"{{v}} > {k}", lambda v: v > k, "bool"),
)
