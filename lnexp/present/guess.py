"""What a gap is measured from: letter frequencies in lnexp's own runs; in watched and imported runs
the baseline that their user gave, or nothing. And the seed, which is known of own runs alone."""

import pandas as pd

from lnexp.analysis.table import column

LETTERS, GIVEN = "guessing by letter frequency", "the baseline that was given"


def seed_texts(runs: pd.DataFrame) -> list[str]:
    """'3', or '3/5' where the seed of the data differs; '' where it is not known."""
    pairs = zip(column(runs, "seed_init"), column(runs, "seed_data"), strict=True)
    return ["/".join(dict.fromkeys(str(s) for s in pair if not pd.isna(s))) for pair in pairs]


def others(runs: pd.DataFrame) -> bool:
    """Whether all of them are other people's loops."""
    return bool(len(runs)) and not any(seed_texts(runs))


def guess(runs: pd.DataFrame) -> str:
    """Whose loss a gap of 0 is."""
    return GIVEN if others(runs) else LETTERS


def gap_words(runs: pd.DataFrame) -> str:
    """What the gap of these runs is."""
    if all(seed_texts(runs)):
        return f"loss minus that of {LETTERS}"
    known = pd.concat([column(runs, "h1"), column(runs, "end_gap")]).notna().any()
    if not others(runs):
        return f"loss minus that of {LETTERS}, of watched and imported runs minus {GIVEN}"
    return f"loss minus {GIVEN}" if known else "none, since no baseline was given"


def level_words(runs: pd.DataFrame) -> str:
    """The name of the line at H1."""
    return GIVEN if others(runs) else f"{LETTERS} (H1)"


def as_good_as(runs: pd.DataFrame) -> dict[str, float]:
    """The line at a gap of 0, by its name."""
    return {f"as good as {GIVEN if others(runs) else 'letter frequencies'}": 0.0}
