"""The end of a run, defined once for both halves."""

from math import ceil


def end_window(count: int) -> int:
    """How many steps End is the median of: the last 10 %, at least 10, or what there is."""
    return min(count, max(10, ceil(count / 10)))
