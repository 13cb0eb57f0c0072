"""The canvas: padding, pins, commits, and where a text ends."""

from __future__ import annotations

import torch

from unmask import Canvas, blank

M, E = 0, 1  # mask and end token


def canvas(*rows: list[int], start: int = 1) -> Canvas:
    return Canvas(torch.tensor(rows), None, start, M)


def test_prompts_are_left_padded_so_that_every_row_generates_from_the_same_column():
    made = blank([[5, 6, 7], [8]], 2, mask_id=M, pad_id=9)
    assert made.tokens.tolist() == [[5, 6, 7, M, M], [9, 9, 8, M, M]]
    assert made.attend.tolist() == [[True] * 5, [False, False, True, True, True]]
    assert (made.start, made.mask_id) == (3, M)


def test_prompts_of_one_length_need_no_attention_mask():
    assert blank([[5, 6], [7, 8]], 3, mask_id=M, pad_id=9).attend is None


def test_pins_write_tokens_at_offsets_of_the_generation_of_every_row():
    made = blank([[5, 6], [7]], 3, mask_id=M, pad_id=9, pins={0: 4, 2: 3})
    assert made.tokens.tolist() == [[5, 6, 4, M, 3], [9, 7, 4, M, 3]]


def test_masked_looks_at_the_window_only():
    assert canvas([5, M, 6, M, M]).masked(slice(2, 4)).tolist() == [[False, True]]


def test_commit_writes_where_it_is_told_and_leaves_the_old_canvas_alone():
    before = canvas([5, M, M, M])
    after = before.commit(slice(1, 4), torch.tensor([[True, False, True]]), torch.tensor([[7, 8, 9]]))
    assert after.tokens.tolist() == [[5, 7, M, 9]]
    assert before.tokens.tolist() == [[5, M, M, M]]
    assert (after.start, after.mask_id, after.attend) == (1, M, None)


def test_a_text_has_ended_when_no_mask_is_left_of_its_first_end_token():
    rows = canvas([5, 6, E, M], [5, M, E, M], [5, E, M, M], [5, 6, 7, M], [5, 6, 7, E])
    assert rows.finished((E,)).tolist() == [True, False, True, False, True]


def test_an_end_token_in_the_prompt_or_the_padding_ends_nothing():
    assert canvas([E, E, M, 6], start=2).finished((E,)).tolist() == [False]


def test_any_of_several_end_tokens_ends_a_text_and_none_ends_nothing():
    rows = canvas([5, E, M], [5, 2, M], [5, 3, M])
    assert rows.finished((E, 2)).tolist() == [True, True, False]
    assert rows.finished(()).tolist() == [False, False, False]


def test_close_fills_the_masks_behind_the_end_and_no_others():
    rows = canvas([5, 6, E, M, 7, M], [5, M, E, M, 7, M], [5, 6, 7, M, M, M])
    closed = rows.close((E, 2))
    assert closed.tokens.tolist() == [[5, 6, E, E, 7, E], [5, M, E, M, 7, M], [5, 6, 7, M, M, M]]
    assert rows.close(()).tokens.tolist() == rows.tokens.tolist()


def test_close_leaves_the_prompt_alone():
    assert canvas([E, M, E, M], start=2).close((E,)).tokens.tolist() == [[E, M, E, E]]
