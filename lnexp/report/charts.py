"""The three charts, empty, and the colours of outcomes and curves on a light and on a dark page.

Bokeh draws; the page's script fills the charts from its data, run by run. Where a value goes that a
logarithm cannot show is decided in charts.js.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from bokeh.embed import json_item
from bokeh.models import (
    BasicTicker,
    BoxAnnotation,
    ColorBar,
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    LinearColorMapper,
    Plot,
    Range1d,
    TapTool,
)
from bokeh.palettes import Viridis256
from bokeh.plotting import figure
from bokeh.resources import Resources
from matplotlib.colors import to_hex, to_rgb

from lnexp.figures.style import OUTCOME_COLOURS, contrast, ink_on, palette

LIGHT, DARK = "#ffffff", "#14181d"  # behind the curves, as in style.css
SEEN = 3.0  # the least contrast of a line
FONT = "13px"


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


@cache
def library() -> str:
    """BokehJS's core bundle. No widgets, no tables: those are the page's own."""
    script = Resources(mode="inline", components=["bokeh"], log_level="error").js_raw
    assert not any("</script" in part for part in script)
    return "\n".join(script)


@cache  # Bokeh numbers its models one after the other: once, so that a page stays the same
def charts() -> dict[str, Any]:
    """Chart -> what BokehJS draws it from."""
    plots = {"loss": _loss(), "layers": _layers(), "heat": _heat()}
    return {name: json_item(plot, f"chart-{name}") for name, plot in plots.items()}  # type: ignore


def _loss() -> Plot:
    plot = _figure("step", "loss (nats)", 380)
    lines = _source("lines", "xs", "ys", "colour", "dash", "width", "alpha", "run", "words", "i")
    drawn = plot.multi_line(
        "xs", "ys", source=lines, line_color="colour", line_dash="dash", line_width="width",
        line_alpha="alpha",
    )  # fmt: skip
    drawn.nonselection_glyph = drawn.selection_glyph = drawn.glyph
    marks = _source("marks", "x", "y", "colour", "ink", "marker", "run", "words", "text", "i")
    ends = plot.scatter(
        "x", "y", source=marks, marker="marker", size=10, line_color="ink", fill_color="colour"
    )
    ends.nonselection_glyph = ends.selection_glyph = ends.glyph
    counts = _source("counts", "x", "y", "text")
    several = plot.text("x", "y", "text", source=counts, y_offset=-7, text_align="center")
    several.glyph.text_font_size = "11px"
    levels = _source("levels", "xs", "ys")
    plot.multi_line(
        "xs", "ys", source=levels, line_dash="dotted", line_color="#888888", line_width=1.5
    )
    _hover(plot, drawn, "loss-line", [("run", "@run"), ("", "@words"), ("step", "$data_x{0}")])
    _hover(plot, ends, "loss-mark", [("run", "@run"), ("", "@words"), ("", "@text")])
    plot.add_tools(TapTool(renderers=[drawn, ends]))
    return plot


def _layers() -> Plot:
    plot = _figure("block", "gradient norm", 380)
    others = _source("others", "xs", "ys", "run")
    plot.multi_line("xs", "ys", source=others, line_color="#888888", line_alpha=0.8, line_width=1)
    line = _source("line", "xs", "ys")
    plot.multi_line("xs", "ys", source=line, line_color="#0072B2", line_width=2.5)
    dots = _source("dots", "x", "y", "marker", "colour", "where", "text", "run", "size", "ink")
    drawn = plot.scatter(
        "x", "y", source=dots, marker="marker", size="size", fill_color="colour", line_color="ink"
    )
    tips = [("", "@where"), ("gradient norm", "@text"), ("run", "@run")]
    _hover(plot, drawn, "layers-dot", tips)
    return plot


def _heat() -> Plot:
    plot = _figure("step", "block", 420)
    sides = ("left", "right", "bottom", "top")
    source = _source("cells", *sides, "colour", "where", "steps", "text")
    drawn = plot.quad(
        "left", "right", "top", "bottom", source=source, fill_color="colour", line_color="colour"
    )
    # On their own: a hatch that varies by cell makes a canvas for each, tens of thousands of them.
    plot.quad(
        "left", "right", "top", "bottom", source=_source("zeros", *sides), fill_color=None,
        line_color=None, hatch_pattern="right_diagonal_line", hatch_color="#444444", hatch_scale=9,
    )  # fmt: skip
    tips = [("", "@where"), ("step", "@steps"), ("gradient norm", "@text")]
    _hover(plot, drawn, "heat-cell", tips)
    mapper = LinearColorMapper(palette=Viridis256, low=-6, high=0, name="heat-mapper")
    bar = ColorBar(
        color_mapper=mapper,
        title="log10 of the norm",
        orientation="horizontal",
        height=10,
        title_text_font_size=FONT,
        major_label_text_font_size=FONT,
        background_fill_color=None,
        name="heat-bar",
    )
    plot.add_layout(bar, "below")
    plot.xgrid.visible = plot.ygrid.visible = False
    return plot


def _figure(x: str, y: str, height: int) -> Any:
    """Nothing drags or scrolls it: on a phone the page must move."""
    plot = figure(
        height=height,
        sizing_mode="stretch_width",
        tools="box_zoom,pan,wheel_zoom,reset,save",
        toolbar_location="above",
        x_axis_label=x,
        y_axis_label=y,
        active_drag=None,
        active_scroll=None,
        x_range=Range1d(start=0, end=1),
        y_range=Range1d(start=0, end=1),
    )
    plot.toolbar.logo = None
    plot.toolbar.autohide = False
    plot.background_fill_color = plot.border_fill_color = None
    plot.yaxis.ticker = FixedTicker(ticks=[])
    plot.xaxis.ticker = FixedTicker(ticks=[]) if x == "block" else BasicTicker(min_interval=1)
    for axis in (*plot.xaxis, *plot.yaxis):
        axis.axis_label_text_font_size = axis.major_label_text_font_size = FONT
        axis.axis_label_text_font_style = "normal"
        axis.minor_tick_line_color = None
    for side in ("zero", "broken"):  # the places that are not to scale
        band = BoxAnnotation(fill_color="#888888", fill_alpha=0.15, name=side, visible=False)
        plot.add_layout(band)
    return plot


def _source(name: str, *columns: str) -> ColumnDataSource:
    return ColumnDataSource({column: [] for column in columns}, name=name)


def _hover(plot: Any, renderer: Any, name: str, tips: list[tuple[str, str]]) -> None:
    """User text in a tooltip is shown letter by letter: `@run` is escaped by Bokeh."""
    plot.add_tools(HoverTool(renderers=[renderer], tooltips=tips, name=name))
