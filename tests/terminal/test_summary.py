import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from lnexp.config.schema import Model, RunConfig
from lnexp.results.cells import all_cells
from lnexp.results.load import load
from lnexp.rows import LayerRow
from lnexp.terminal.sheet import Column, Sheet, fitting, needed, widths
from lnexp.terminal.summary import as_csv, as_json, as_tex, figure, ratio, tables
from tests.results.folders import curve, step_rows, write_points, write_run

AXES = ("model.depth", "model.placement", "model.residual")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Pre-LN learned, Post-LN stalled by a vanished gradient, one run NaN, one failed, one not run.

    What a run is made of here comes from its numbers; nothing reads the names.
    """
    sweep = tmp_path_factory.mktemp("results") / "demo_50%"
    points = []
    for placement in ("pre", "post"):
        for seed in range(4):
            run = f"{placement}-layernorm-d24-w64-s{seed}-0123abcd"
            settings = dict(zip(AXES, (24, placement, True), strict=True))
            points.append((run, seed, settings))
            config = RunConfig(model=Model(depth=24, placement=placement))
            gap = np.full(200, -0.5 if placement == "pre" else 0.01)
            first = 0.5 if placement == "pre" else 3e-6
            layers = [
                LayerRow(0, 0, "attn", first, 1.0, 0.1),
                LayerRow(0, 23, "mlp", 1.0, 1.0, 0.2),
            ]
            loss, unigram = curve(gap, seed)
            status = {}
            if (placement, seed) == ("post", 1):
                loss[7], status = float("nan"), {"first_bad_step": 7}
            if (placement, seed) == ("post", 2):
                status = {"status": "failed", "error": "out of memory"}
            if (placement, seed) != ("post", 3):
                write_run(sweep, run, config, step_rows(loss, unigram), layers, **status)
    write_points(sweep, points, AXES, question="Where does [bold]Post-LN[/bold] stop?")
    (sweep / "runs" / "dropped-one").mkdir()
    return load(sweep)


def shown(table, width):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def sheets(results):
    """The table of cells and that of runs of the first sweep."""
    return tables(results).renderables[:2]


def words(text):
    return " ".join(text.split())


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_too_wide_and_no_verdict_is_cut(results, width):
    verdicts = ["learned", "nonfinite", "stalled", "failed", "pending"]
    for table in tables(results).renderables:
        text = shown(table, width)
        assert max(map(len, text.splitlines())) <= width
        assert not isinstance(table, Sheet) or all(verdict in text for verdict in verdicts)
        assert "…" not in text


def test_a_stalled_run_is_printed_with_its_horizon_and_its_cause(results):
    text = words(shown(sheets(results)[1], 200))
    assert "stalled: within 200 steps." in text and "stalled within" not in text
    assert "vanishing" in text and "3.0e-06" in text


def test_the_evidence_of_a_cause_stands_in_the_csv(results):
    assert "vanishing: first/last block gradient 3e-06, update 0.5" in as_csv(results.runs)


def test_names_in_brackets_are_text_not_markup(results):
    assert "Where does [bold]Post-LN[/bold] stop?" in words(shown(tables(results), 80))


def test_dropped_run_folders_are_named(results):
    assert "more: 1 folder (dropped-one)" in shown(tables(results), 80)


def test_many_dropped_folders_are_counted_below_their_own_sweep(tmp_path):
    for name in ("one", "two"):
        write_points(tmp_path / name, [(f"{name}-run", 0, {"model.depth": 1})])
    for i in range(5):
        (tmp_path / "one" / "runs" / f"old-{i}").mkdir(parents=True)
    text = words(shown(tables(load(tmp_path)), 200))
    assert text.count("Left out") == 1
    assert "no point of one any more: 5 folders (old-0, old-1, old-2, ...) two" in text


def test_cells_come_first_and_question_and_legend_once(results):
    text = words(shown(tables(results), 80))
    assert text.count("Where does") == text.count("gap: loss minus") == 1
    assert text.index("Where does") < text.index("3 of 4" if "3 of 4" in text else "2 of 4")
    assert text.index("P(failure)") < text.index("demo_50%: each run")


def test_at_80_columns_the_name_of_every_run_and_the_ratio_are_there(results):
    cells, runs = (shown(sheet, 80) for sheet in sheets(results))
    assert set(results.runs["run"]) <= set(runs.split())
    assert "first/" in cells and "3.0e-06" in cells
    assert "first/" in runs and "3.0e-06" in runs
    assert "No room for: loss" in runs


def test_without_a_text_no_h1_is_printed(tmp_path):
    write_points(tmp_path / "s", [("a", 0, {"model.depth": 1})])
    assert "H1" not in shown(tables(load(tmp_path)), 200)


def test_a_cell_says_how_many_of_its_runs_its_numbers_are_of(results):
    text = words(shown(sheets(results)[0], 250))
    assert "24 post true 3 of 4" not in text  # the failed run did not finish
    assert "24 post true 2 of 4" in text
    assert "1 nonfinite, 1 stalled within 200 steps, 1 failed, 1 pending" in text
    assert "1 of 4" in text
    assert "1.00 [0.34,1.00]" in text and "0.00 [0.00,0.49]" in text
    assert "3.250" in text and "2.722..2.764" in text


def test_columns_without_room_are_named(results):
    assert "No room for:" in shown(sheets(results)[0], 80)
    assert "No room for:" not in shown(sheets(results)[0], 200)


def test_json_is_strict_and_tells_nan_from_not_measured(results):
    def refuse(name):
        raise AssertionError(name)

    value = json.loads(as_json(results), parse_constant=refuse)
    bad, pending = value["runs"][5], value["runs"][7]
    assert (bad["verdict"], bad["first_bad_step"], bad["train.clip"]) == ("nonfinite", 7, "inf")
    assert (pending["status"], pending["end_loss"], pending["model.depth"]) == ("pending", None, 24)
    assert value["runs"][0]["train.betas"] == [0.9, 0.95]
    assert value["runs"][0]["model.residual"] is True
    assert [cell["runs"] for cell in value["cells"]] == [4, 4]
    assert [Path(folder).name for folder in value["dropped"]] == ["dropped-one"]


def test_csv_writes_nonfinite_numbers_out_and_leaves_the_unmeasured_empty(results):
    rows = list(csv.DictReader(io.StringIO(as_csv(results.runs))))
    assert len(rows) == 8
    assert (rows[0]["train.clip"], rows[7]["end_loss"]) == ("inf", "")
    assert float(rows[0]["end_gap"]) == results.runs["end_gap"][0]
    cells = list(csv.DictReader(io.StringIO(as_csv(all_cells(results.runs, results.axes)))))
    assert [row["p_failure"] for row in cells] == ["0.0", "1.0"]


def test_tex_escapes_what_latex_would_read_as_commands(results):
    text = as_tex(results)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert any("vanishing" in line for line in body)
    sheet = Sheet("t", [Column("a_b", [r"50% & {x}\y ~ ^ $ #"])])
    assert r"a\_b \\" in sheet.tex()
    assert (
        r"50\% \& \{x\}\textbackslash{}y \textasciitilde{} \textasciicircum{} \$ \# \\"
        in sheet.tex()
    )


def test_figures_keep_small_and_nonfinite_numbers_visible():
    assert [figure(v) for v in (3.21449, 0.0, 4e-5, 8.9e13, float("nan"), float("-inf"), None)] == [
        "3.214", "0.000", "4.0e-05", "8.9e+13", "nan", "-inf", "-",
    ]  # fmt: skip
    assert [ratio(v) for v in (3.1e-6, 0.5, 12.0, 0.0, float("inf"), None)] == [
        "3.1e-06", "0.50", "12.00", "0", "inf", "-",
    ]  # fmt: skip


def test_columns_get_their_longest_word_first_and_never_more_than_the_room():
    columns = [
        Column("a", ["one two three four"], wraps=True),
        Column("b", ["x"], rank=2),
        Column("c", ["optional"], rank=5),
    ]
    assert widths(columns, 100) == [18, 1, 8]
    assert widths(columns, 20) == [9, 1, 8]
    assert widths(columns, 16) == [5, 1, 8]
    assert [column.head for column in fitting(columns, 10)] == ["a", "b"]
    assert [column.head for column in fitting(columns, 3)] == ["a"]


@pytest.mark.parametrize("width", range(20, 61, 4))
def test_no_number_breaks_however_narrow_the_terminal(results, width):
    for sheet in sheets(results):
        text = shown(sheet, width)
        assert max(map(len, text.splitlines())) <= width
        _, fits = sheet.laid(width)
        columns = fits if needed(fits) <= width else sheet.columns
        numbers = [cell for column in columns if column.number for cell in column.cells]
        assert set(" ".join(numbers).split()) <= set(text.split())


def test_where_no_row_fits_every_cell_has_a_line_of_its_own(results):
    text = words(shown(sheets(results)[0], 30))
    assert "depth: 24 placement: post residual: true runs: 2 of 4" in text
    assert "P(failure): 1.00 [0.34,1.00]" in text and "gap range: " in text
    assert "No room for" not in text


def test_columns_left_out_are_told_apart_by_name(results):
    heads = [column.head for column in sheets(results)[0].columns]
    assert len(set(heads)) == len(heads)
    line = next(x for x in shown(sheets(results)[0], 60).split(").") if "No room for" in x)
    assert "loss range" in words(line) and "gap range" in words(line)


def test_a_question_cannot_act_on_the_terminal(tmp_path):
    write_points(tmp_path / "s", [("a", 0, {"model.depth": 1})], question="red \x1b[31m\u202e")
    assert r"s: red \x1b[31m\u202e" in shown(tables(load(tmp_path)), 80)
