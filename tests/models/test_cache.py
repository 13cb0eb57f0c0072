"""The block caches: both families, batches, refreshes, refusals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.raises import raises_field
from unmask.decoding.cache import BlockCache, Recompute
from unmask.decoding.canvas import Canvas
from unmask.decoding.plan import plan
from unmask.decoding.result import Result
from unmask.decoding.result import decode as decoded
from unmask.models import build
from unmask.models.trunk import Trunk
from unmask.samplers import make_sampler

from .goldens import TOLERANCE, left_pad

BLOCKS = (slice(8, 14), slice(14, 20))


def canvas(model: Trunk, lengths: tuple[int, ...] = (8, 5, 1)) -> tuple[Tensor, Tensor]:
    """Left-padded prompts of up to 8 tokens before 12 masks: tokens and attend, [B, 20]."""
    generator = torch.Generator().manual_seed(0)
    masks = torch.full((12,), model.info.mask_id)
    prompts = [torch.randint(480, (length,), generator=generator) for length in lengths]
    return left_pad([torch.cat((prompt, masks)) for prompt in prompts], model.info.pad_id)


def decode(model: Trunk, tokens: Tensor, attend: Tensor | None, cache: BlockCache | None) -> Iterator[Tensor]:
    """Fill each block from its left, two columns per forward; yields the logits of every forward."""
    tokens = tokens.clone()
    for block in BLOCKS:
        if cache is not None:
            cache.start_block(block)
        for column in range(block.start, block.stop, 2):
            logits = model(tokens, attend, block, cache)
            here = column - block.start
            tokens[:, column : column + 2] = logits[:, here : here + 2].argmax(-1)
            yield logits.clone()


@pytest.mark.parametrize("recompute", ["suffix", "block"])
def test_a_cache_that_refreshes_every_step_changes_nothing(family: Trunk, recompute: Recompute) -> None:
    tokens, attend = canvas(family)
    cached = decode(family, tokens, attend, BlockCache(recompute, refresh_every=1))
    assert all(map(torch.equal, cached, decode(family, tokens, attend, None)))


@pytest.mark.parametrize("recompute", ["suffix", "block"])
@pytest.mark.parametrize("refresh_every", [None, 2])
def test_a_cached_batch_gives_what_its_rows_give_alone(
    family: Trunk, recompute: Recompute, refresh_every: int | None
) -> None:
    tokens, attend = canvas(family)
    together = list(decode(family, tokens, attend, BlockCache(recompute, refresh_every=refresh_every)))
    for row in range(len(tokens)):
        cut = int((~attend[row]).sum())
        shifted = [slice(block.start - cut, block.stop - cut) for block in BLOCKS]
        cache = BlockCache(recompute, refresh_every=refresh_every)
        line = tokens[row : row + 1, cut:].clone()
        logits = iter(together)
        for block in shifted:
            cache.start_block(block)
            for column in range(0, 6, 2):
                alone = family(line, None, block, cache)
                torch.testing.assert_close(next(logits)[row : row + 1], alone, atol=TOLERANCE, rtol=0.0)
                line[:, block.start + column : block.start + column + 2] = alone[
                    :, column : column + 2
                ].argmax(-1)


@pytest.mark.parametrize("recompute", ["suffix", "block"])
def test_a_model_of_one_layer_cannot_tell_the_cache(family: Trunk, recompute: Recompute) -> None:
    """Its keys and values depend on their own column alone, so a frozen column is never out of date."""
    torch.manual_seed(0)
    model = build({**family.config, "n_layers": 1, "num_hidden_layers": 1}).requires_grad_(False)
    tokens, attend = canvas(model)
    pairs = zip(
        decode(model, tokens, attend, BlockCache(recompute)), decode(model, tokens, attend, None), strict=True
    )
    for cached, fresh in pairs:
        torch.testing.assert_close(cached, fresh, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("recompute", ["suffix", "block"])
def test_an_unchanged_canvas_gives_the_same_logits_from_the_cache(
    family: Trunk, recompute: Recompute
) -> None:
    tokens, attend = canvas(family)
    cache = BlockCache(recompute)
    cache.start_block(BLOCKS[0])
    first, second = (family(tokens, attend, BLOCKS[0], cache) for _ in range(2))
    torch.testing.assert_close(first, second, atol=1e-5, rtol=0.0)


def ran(cache: BlockCache, need: slice, forwards: int) -> list[slice]:
    """The columns that successive forwards run on a canvas of 20."""
    columns = []
    for _ in range(forwards):
        columns.append(cache.columns(need, 20))
        cache.ran(columns[-1])
    return columns


def test_the_prefix_cache_runs_the_block_and_all_after_it() -> None:
    cache = BlockCache("suffix")
    cache.start_block(slice(8, 12))
    assert ran(cache, slice(8, 12), 3) == [slice(0, 20), slice(8, 20), slice(8, 20)]


def test_the_dual_cache_runs_the_block_only() -> None:
    cache = BlockCache("block")
    cache.start_block(slice(8, 12))
    assert ran(cache, slice(8, 12), 3) == [slice(0, 20), slice(8, 12), slice(8, 12)]


def test_a_shifted_model_gets_the_column_before_the_block() -> None:
    cache = BlockCache("block")
    cache.start_block(slice(8, 12))
    assert ran(cache, slice(7, 12), 2) == [slice(0, 20), slice(7, 12)]


def test_every_nth_forward_and_every_new_block_refreshes() -> None:
    cache = BlockCache("block", refresh_every=2)
    cache.start_block(slice(8, 12))
    assert ran(cache, slice(8, 12), 4) == [slice(0, 20), slice(8, 12), slice(0, 20), slice(8, 12)]
    cache.start_block(slice(12, 16))
    assert ran(cache, slice(12, 16), 2) == [slice(0, 20), slice(12, 16)]


@pytest.mark.parametrize("recompute", ["suffix", "block"])
def test_asking_for_the_columns_changes_nothing(recompute: Recompute) -> None:
    for refresh_every in (None, 1, 2, 3):
        cache = BlockCache(recompute, refresh_every=refresh_every)
        for block in BLOCKS:
            cache.start_block(block)
            for _ in range(4):
                columns = cache.columns(block, 20)
                assert cache.columns(block, 20) == columns
                cache.ran(columns)


def test_the_prefix_cache_serves_a_window_that_spans_blocks() -> None:
    cache = BlockCache("suffix")
    cache.start_block(slice(12, 16))
    assert ran(cache, slice(8, 20), 2) == [slice(0, 20), slice(8, 20)]


def test_the_dual_cache_refuses_a_window_outside_its_block() -> None:
    cache = BlockCache("block")
    cache.start_block(slice(8, 12))
    cache.ran(cache.columns(slice(8, 20), 20))
    with pytest.raises(
        ValueError, match="columns 8 to 20 reach outside the block 8 to 12; use cache=None or"
    ):
        cache.columns(slice(8, 20), 20)


def test_a_forward_before_any_block_is_refused() -> None:
    with pytest.raises(ValueError, match="call start_block"):
        BlockCache().columns(slice(0, 4), 20)


def test_a_canvas_that_changed_its_length_is_refused() -> None:
    cache = BlockCache()
    cache.start_block(slice(8, 12))
    cache.ran(cache.columns(slice(8, 12), 20))
    with pytest.raises(ValueError, match="had 20 columns and now has 24"):
        cache.columns(slice(8, 12), 24)


def test_a_batch_that_lost_rows_is_refused(family: Trunk) -> None:
    tokens, attend = canvas(family)
    cache = BlockCache()
    cache.start_block(BLOCKS[0])
    family(tokens, attend, BLOCKS[0], cache)
    with pytest.raises(ValueError, match="holds 3 rows and the batch has 2"):
        family(tokens[:2], attend[:2], BLOCKS[0], cache)


def test_settings_that_mean_nothing_are_refused() -> None:
    with raises_field("recompute", "prefix"):
        BlockCache("prefix")  # type: ignore[arg-type]
    with raises_field("refresh_every", 0):
        BlockCache(refresh_every=0)


@pytest.mark.parametrize("recompute", ["suffix", "block"])
@pytest.mark.parametrize("name", ["less", "threshold", "base"])
def test_rows_that_ended_leave_a_cached_batch_at_the_next_block(
    family: Trunk, recompute: Recompute, name: str
) -> None:
    tokens, attend = canvas(family)
    tokens[1, 8] = family.info.eos_ids[0]  # this text ends at once
    sampler, cut = make_sampler(name), plan(8, 12, steps=12, block_length=6)

    def run(tokens: Tensor, attend: Tensor) -> Result:
        start = Canvas(tokens, attend, 8, family.info.mask_id)
        return decoded(family, start, sampler, cut, cache=BlockCache(recompute))

    ran: list[int] = []
    hook = family.embed.register_forward_pre_hook(lambda _, given: ran.append(len(given[0])))
    together = run(tokens, attend)
    hook.remove()
    assert set(ran) == {2}
    for row in (0, 2):
        alone = run(tokens[row : row + 1], attend[row : row + 1])
        assert torch.equal(together.tokens[row], alone.tokens[0])
        assert together.forwards[row] == alone.forwards[0]
