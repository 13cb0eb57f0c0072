"""Well-known programs, asked for by name. {f} is the name, {p} and {q} parameters, {r} and {i} variables."""

from __future__ import annotations

import random
from dataclasses import dataclass

from unmask.training.tasks.phrases import one, some

RECURSIVE_FACTORIAL = "if {p} <= 1:\n    return 1\nreturn {p} * {f}({p} - 1)"
LOOP_FACTORIAL = "{r} = 1\nfor {i} in range(2, {p} + 1):\n    {r} *= {i}\nreturn {r}"
RECURSIVE_FIBONACCI = "if {p} <= 1:\n    return {p}\nreturn {f}({p} - 1) + {f}({p} - 2)"
CASES_FIBONACCI = (
    "if {p} <= 0:\n    return 0\nelif {p} == 1:\n    return 1\nelse:\n    return {f}({p} - 1) + {f}({p} - 2)"
)
LOOP_PRIME = (
    "if {p} < 2:\n    return False\n"
    "for {i} in range(2, {p}):\n    if {p} % {i} == 0:\n        return False\nreturn True"
)
LOOP_FIBONACCI = "a, b = 0, 1\nfor {i} in range({p}):\n    a, b = b, a + b\nreturn a"


@dataclass(frozen=True, slots=True)
class Program:
    """A request, names and bodies of functions that fulfil it, and their expected results."""

    asks: tuple[str, ...]
    names: tuple[str, ...]
    parameters: tuple[str, ...]
    bodies: tuple[str, ...]
    tests: tuple[tuple[str, str], ...]


TEXTS, NUMBERS, LISTS = ("text", "s", "word"), ("n", "number", "num"), ("numbers", "values", "items")

PROGRAMS: tuple[Program, ...] = (
    Program(
        ("reverse a string", "reverse a given string"),
        ("reverse_string", "reverse"),
        TEXTS,
        (
            "return {p}[::-1]",
            "return ''.join(reversed({p}))",
            "{r} = ''\nfor {i} in {p}:\n    {r} = {i} + {r}\nreturn {r}",
        ),
        (("'abc'", "'cba'"), ("''", "''"), ("'x y'", "'y x'")),
    ),
    Program(
        (
            "calculate the factorial of a given number",
            "calculate the factorial of a number",
            "compute the factorial of n",
        ),
        ("factorial", "compute_factorial"),
        NUMBERS,
        (RECURSIVE_FACTORIAL, LOOP_FACTORIAL),
        (("0", "1"), ("1", "1"), ("5", "120"), ("7", "5040")),
    ),
    Program(
        (
            "calculate the Fibonacci of a given number",
            "calculate the Fibonacci of a number",
            "compute the Fibonacci number of n",
        ),
        ("fibonacci", "fib"),
        NUMBERS,
        (RECURSIVE_FIBONACCI, CASES_FIBONACCI, LOOP_FIBONACCI),
        (("0", "0"), ("1", "1"), ("2", "1"), ("10", "55")),
    ),
    Program(
        ("check if a number is prime", "check whether a given number is prime"),
        ("is_prime",),
        NUMBERS,
        (
            LOOP_PRIME,
            "return {p} > 1 and all({p} % {i} for {i} in range(2, {p}))",
        ),
        (("1", "False"), ("2", "True"), ("9", "False"), ("13", "True")),
    ),
    Program(
        ("check if a string is a palindrome", "check whether a given string is a palindrome"),
        ("is_palindrome", "palindrome"),
        TEXTS,
        ("return {p} == {p}[::-1]", "{r} = {p}[::-1]\nreturn {p} == {r}"),
        (("'abba'", "True"), ("'abc'", "False"), ("'x'", "True")),
    ),
    Program(
        ("count the vowels in a string", "count the vowels of a given string"),
        ("count_vowels",),
        TEXTS,
        (
            "return sum({i} in 'aeiou' for {i} in {p})",
            "{r} = 0\nfor {i} in {p}:\n    if {i} in 'aeiou':\n        {r} += 1\nreturn {r}",
        ),
        (("'stone'", "2"), ("''", "0"), ("'sky'", "0")),
    ),
    Program(
        ("find the largest number in a list", "find the maximum of a list"),
        ("find_max", "largest"),
        LISTS,
        (
            "return max({p})",
            "{r} = {p}[0]\nfor {i} in {p}:\n    if {i} > {r}:\n        {r} = {i}\nreturn {r}",
        ),
        (("[1, 5, 2]", "5"), ("[-3, -7]", "-3"), ("[4]", "4")),
    ),
    Program(
        ("find the smallest number in a list", "find the minimum of a list"),
        ("find_min", "smallest"),
        LISTS,
        (
            "return min({p})",
            "{r} = {p}[0]\nfor {i} in {p}:\n    if {i} < {r}:\n        {r} = {i}\nreturn {r}",
        ),
        (("[3, 1, 2]", "1"), ("[-3, -7]", "-7"), ("[4]", "4")),
    ),
    Program(
        ("find the sum of a list of numbers", "add up all the numbers in a list"),
        ("sum_list", "total"),
        LISTS,
        ("return sum({p})", "{r} = 0\nfor {i} in {p}:\n    {r} += {i}\nreturn {r}"),
        (("[1, 5, 2]", "8"), ("[]", "0"), ("[-3, 4]", "1")),
    ),
    Program(
        ("check if a number is even", "check whether a given number is even"),
        ("is_even",),
        NUMBERS,
        ("return {p} % 2 == 0", "if {p} % 2 == 0:\n    return True\nreturn False"),
        (("4", "True"), ("7", "False"), ("0", "True")),
    ),
    Program(
        ("find the sum of the digits of a number", "add up the digits of a number"),
        ("digit_sum", "sum_digits"),
        NUMBERS,
        (
            "return sum(int({i}) for {i} in str({p}))",
            "{r} = 0\nwhile {p} > 0:\n    {r} += {p} % 10\n    {p} //= 10\nreturn {r}",
        ),
        (("123", "6"), ("0", "0"), ("907", "16")),
    ),
    Program(
        ("count the words in a string", "count the words of a given string"),
        ("count_words",),
        TEXTS,
        ("return len({p}.split())", "{r} = {p}.split()\nreturn len({r})"),
        (("'one two'", "2"), ("''", "0"), ("'a b c'", "3")),
    ),
    Program(
        (
            "find the greatest common divisor of two numbers",
            "compute the greatest common divisor of two numbers",
        ),
        ("gcd", "find_gcd"),
        ("a, b", "m, n", "x, y"),
        (
            "while {q}:\n    {p}, {q} = {q}, {p} % {q}\nreturn {p}",
            "if {q} == 0:\n    return {p}\nreturn {f}({q}, {p} % {q})",
        ),
        (("12, 18", "6"), ("7, 3", "1"), ("10, 5", "5")),
    ),
)


def draw_program(rng: random.Random) -> tuple[Program, str, str]:
    """Draw a program, a request for it, and one way to write it."""
    program = one(rng, PROGRAMS)
    name, parameter = one(rng, program.names), one(rng, program.parameters)
    variable, index = some(rng, ("result", "total", "out", "answer"), 1)[0], one(rng, ("i", "x", "k", "c"))
    first, _, second = parameter.partition(", ")
    if index in (first, second):
        index = "j"
    if variable == name:
        variable = "out"
    text = one(rng, program.bodies)
    for mark, word in (("{p}", first), ("{q}", second), ("{r}", variable), ("{i}", index), ("{f}", name)):
        text = text.replace(mark, word)
    indented = "\n".join(f"    {line}" for line in text.split("\n"))
    return program, one(rng, program.asks), f"def {name}({parameter}):\n{indented}"
