"""The pages, the schema and the shipped configs say what the code does."""

import json
import re
import runpy
from pathlib import Path

import pytest
import typer

from lnexp.cli import app
from lnexp.commands.configs import schema
from lnexp.config.names import experiments
from lnexp.config.schema import KEYS, Model
from lnexp.config.sweep import load_sweep
from lnexp.model import init
from lnexp.model.catalog import INITS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_and_image_is_there(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
    links = re.findall(r"\]\(([^)\s]+)[^)]*\)", text)
    local = [link.split("#")[0] for link in links if not re.match(r"\w+:|#", link)]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_the_gallery_has_each_kind_of_plot_small_and_described():
    from lnexp.figures.plots import PICTURES

    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\w+)$", page, flags=re.M) == list(PICTURES)
    images = re.findall(r"!\[([^\]]+)\]\((images/gallery/(\w+)\.png)\)", page)
    assert [kind for _, _, kind in images] == list(PICTURES)
    assert all(len(seen) > 100 for seen, _, _ in images)
    assert all(f"--kind {kind}" in page for kind in PICTURES)
    sizes = [(ROOT / "docs" / path).stat().st_size for _, path, _ in images]
    assert max(sizes) < 150_000 and sum(sizes) < 2_000_000


def test_every_command_in_the_readme_exists():
    code = re.findall(r"```.*?```|`[^`\n]*`", PAGES[0].read_text(encoding="utf-8"), flags=re.S)
    named = {word for piece in code for word in re.findall(r"\blnexp ([a-z]\w*)", piece)}
    assert {"run", "plan", "show"} <= named
    assert named - set(COMMANDS) == set()


@pytest.mark.parametrize(("name", "path"), experiments().items(), ids=list(experiments()))
def test_a_shipped_config_reads_and_opens_with_question_command_and_minutes(name, path):
    opening = re.match(r"(#.*\n)+", path.read_text(encoding="utf-8"))
    assert opening, "no comment at the top"
    assert opening[0].split("\n")[0].endswith("?")
    assert re.search(rf"#\s+lnexp (run|boundary) {re.escape(name)}\b", opening[0])
    assert re.search(r"\b(\d+|one|two|three|four|five|half a) minutes?\b", opening[0])
    assert load_sweep(path).points


def test_the_page_of_settings_is_what_the_settings_say_now():
    """When it is not: python scripts/settings.py"""
    page = runpy.run_path(str(ROOT / "scripts" / "settings.py"))["page"]()
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == page


def test_every_key_has_a_meaning_of_one_line():
    meanings = [field.description for field in KEYS.values()]
    assert all(0 < len(meaning) < 170 and "\n" not in meaning for meaning in meanings)


@pytest.mark.parametrize("name", INITS)
def test_the_page_gives_the_formula_that_an_init_draws_from(name):
    """Each formula, evaluated, is the scale of the draw."""
    fan_in, fan_out, depth = 48, 80, 9
    known = {"fan_in": fan_in, "fan_out": fan_out, "N": depth, "sqrt": lambda x: x**0.5}
    equation = INITS[name].equation.split(";")[0].replace("2N", "2 * N")
    formula = re.search(r"N\(0, (.*)\)$|\+-(.*?),", equation)
    assert formula
    weight = init.Weight("blocks.0.attn.wq", "matrix", None, fan_in, fan_out)  # type: ignore
    scale = init.DRAWS[name](weight, Model(depth=depth)).scale
    assert scale == pytest.approx(eval(formula[1] or formula[2], known))
    assert set(INITS) == set(init.DRAWS)


def test_the_schema_is_strict_json_and_explains_every_key():
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    whole = json.loads(schema(), parse_constant=refuse)
    said = {
        f"{section.lower()}.{leaf}": field["description"]
        for section, model in whole["$defs"].items()
        for leaf, field in model["properties"].items()
    }
    assert list(said) != [] and set(said) == set(KEYS)
    assert all(said[key].startswith(KEYS[key].description) for key in KEYS)
    assert said["train.clip"].endswith("default .inf: no limit")
