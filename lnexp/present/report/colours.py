"""The colours of outcomes and of curves, on a light and on a dark page."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import to_hex, to_rgb

from lnexp.present.style import OUTCOME_COLOURS, contrast, ink_on, palette

LIGHT, DARK = "#ffffff", "#14181d"  # behind the curves, as in style.css
SEEN = 3.0  # the least contrast of a line


def readable(colour: str, ground: str) -> str:
    """The colour, mixed with black or white until it stands out from the ground."""
    own, ink = to_rgb(colour), to_rgb(ink_on(ground))
    for share in np.linspace(0, 1, 21):
        red, green, blue = ((1 - share) * a + share * b for a, b in zip(own, ink, strict=True))
        mixed = to_hex((red, green, blue))
        if contrast(mixed, ground) >= SEEN:
            return mixed
    return ink_on(ground)


def curve_colours(values: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Of each value the colour on a light and on a dark page."""
    return {v: (readable(c, LIGHT), readable(c, DARK)) for v, c in palette(values).items()}


def outcome_css() -> str:
    """A class for each outcome: its colour, and the ink that reads on it."""
    return "\n".join(
        f".o-{name} {{ background: {colour}; color: {ink_on(colour)}; }}"
        for name, colour in OUTCOME_COLOURS.items()
    )
