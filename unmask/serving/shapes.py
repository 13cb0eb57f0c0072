"""Limit the shapes that a compiled model meets: each is compiled and captured when it first occurs."""

from __future__ import annotations

LENGTHS_PER_DOUBLING = 4  # 512, 640, 768, 896, 1024, 1280, ...
MAX_COLUMNS = 4096  # of a forward; with more, an 8B model is no faster per column
FEW_COLUMNS = 512  # up to this, a forward takes little longer than loading the weights


def round_length(length: int, bucket: int) -> int:
    """Return the length to which a row is padded: a multiple of `bucket`, or of more for long rows."""
    doubling = 1 << (length - 1).bit_length()
    unit = max(bucket, doubling // 2 // LENGTHS_PER_DOUBLING)
    return -(-length // unit) * unit


def split_rows(count: int, length: int) -> list[int]:
    """Split rows of one length into forwards of 1, 2, 4, ... rows each.

    If the rows are short, the last forward may have any size, because filling it up costs little.
    """
    most = power_below(max(1, MAX_COLUMNS // length))
    sizes = [most] * (count // most)
    left = count % most
    while left:
        above = 1 << (left - 1).bit_length()
        size = left if above * length <= FEW_COLUMNS else power_below(left)
        sizes.append(size)
        left -= size
    return sizes


def power_below(number: int) -> int:
    """Return the largest power of two that is at most `number`."""
    return 1 << (number.bit_length() - 1)
