"""The tokens that fit each column, against all texts that a tiny canvas can become."""

from __future__ import annotations

import re

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.constraints.letters import END, MASK, completions, writer
from unmask import LESS, Choice, GenerationConfig, Regex, blank
from unmask.text.constrain import constrain

MODEL = writer("a", "b", "ab", "ba")
PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "ab", "[ab]", ".", ""]),
    lambda part: st.one_of(
        st.tuples(part, part).map(lambda two: f"{two[0]}{two[1]}"),
        st.tuples(part, part).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        part.map(lambda one: f"(?:{one})*"),
        part.map(lambda one: f"(?:{one}){{1,2}}?"),
    ),
    max_leaves=4,
)
TOKENS = st.sampled_from([MASK] * 6 + [END, 2, 3, 4, 5])


def texts(tokens, pattern, closed=None):
    """The canvases that this one can become and whose text matches."""
    for full in completions(tokens, MODEL, closed):
        text = MODEL.tokenizer.decode(full[: full.index(END)] if END in full else full)
        if re.fullmatch(pattern, text):
            yield full


def canvas_of(rows):
    canvas = blank([[2]] * len(rows), len(rows[0]), mask_id=MASK, pad_id=0)
    canvas.tokens[:, 1:] = torch.tensor(rows)
    return canvas


def language(canvas, config, *, least=0):
    """The bans of a canvas that may already hold tokens."""
    empty = canvas_of([[MASK] * (canvas.tokens.shape[1] - 1)] * len(canvas.tokens))
    options = GenerationConfig(min_new_tokens=least).options(MODEL.info)
    return constrain(options.bans(MODEL.info, empty), MODEL, empty, config, LESS())


def tokens_that_fit(canvas, bans, window):
    logits = torch.zeros(len(canvas.tokens), window.stop - window.start, MODEL.vocab_size)
    banned = bans.focus(canvas, window).on(canvas, window).apply(logits)
    return [[set(column.isfinite().nonzero()[:, 0].tolist()) for column in row] for row in banned]


@settings(max_examples=40)
@given(PATTERNS, st.lists(TOKENS, min_size=1, max_size=4), st.integers(0, 2), st.data())
def test_a_token_is_allowed_where_some_text_of_the_language_has_it(pattern, tokens, least, data):
    length, closed = len(tokens), [column < least for column in range(len(tokens))]
    if not any(texts([MASK] * length, pattern, closed)):
        return  # refused before the first forward: see below
    canvas = canvas_of([tokens])
    first = data.draw(st.integers(0, length - 1))
    last = data.draw(st.integers(first + 1, length))
    config = GenerationConfig(constraint=Regex(pattern), max_new_tokens=length)
    bans = language(canvas, config, least=min(least, length))
    [found] = tokens_that_fit(canvas, bans, slice(1 + first, 1 + last))
    for column in range(first, last):
        free = [*tokens[:column], MASK, *tokens[column + 1 :]]
        assert found[column - first] == {full[column] for full in texts(free, pattern, closed)}


def test_rows_of_a_batch_have_languages_of_their_own():
    patterns = ["a*", None, "(ab)+", "b?"]
    constraints = [None if pattern is None else Regex(pattern) for pattern in patterns]
    canvas = canvas_of([[MASK] * 3] * 4)
    bans = language(canvas, GenerationConfig(constraint=constraints, max_new_tokens=3))
    together = tokens_that_fit(canvas, bans, slice(1, 4))
    for row, constraint in enumerate(constraints):
        alone = canvas_of([[MASK] * 3])
        own = language(alone, GenerationConfig(constraint=constraint, max_new_tokens=3))
        assert tokens_that_fit(alone, own, slice(1, 4)) == [together[row]]
        assert tokens_that_fit(canvas, bans, slice(1, 4))[row] == together[row]
    assert together[1] == [set(range(1, MODEL.vocab_size))] * 3


def test_a_text_holds_no_stop_string():
    config = GenerationConfig(constraint=Regex("[ab]*"), stop=("aab", "bb"), max_new_tokens=4)
    canvas = canvas_of([[2, MASK, MASK, MASK]])
    [found] = tokens_that_fit(canvas, language(canvas, config), slice(1, 5))
    assert found[1] == {END, 2, 3, 5}  # "aab" would be a, ab
    assert 3 not in found[2] or found[2] >= {END}


def test_choices_need_no_escapes():
    for option in ("a.b|c*", "x\ny", "ü$", "\\d"):
        model = writer(option, "a")
        canvas = blank([[2]], 1, mask_id=MASK, pad_id=0)
        bans = constrain(
            GenerationConfig().options(model.info).bans(model.info, canvas),
            model,
            canvas,
            GenerationConfig(constraint=Choice((option,)), max_new_tokens=1),
            LESS(),
        )
        logits = torch.zeros(1, 1, model.vocab_size)
        window = slice(1, 2)
        fits = bans.focus(canvas, window).on(canvas, window).apply(logits)[0, 0].isfinite()
        assert fits.nonzero()[:, 0].tolist() == [2]
