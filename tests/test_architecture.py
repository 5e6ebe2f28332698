"""docs/architecture.md says which room may import which; the two halves meet only at files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import house  # noqa: E402

HOUSE = house.House(ROOT)
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
GROUND = {"messages", "files", "rows", "records", "seeds", "config", "model.catalog"}
CATALOG = "lnexp.model.catalog"


def rooms() -> dict[str, set[str]]:
    """Room -> rooms that it may import, as the page's table says."""
    table = PAGE.split("## Rooms")[1].split("## ")[0]
    rows = re.findall(r"^\| (\w+) \| [^|]+ \| *([^|]*?) *\|$", table, re.MULTILINE)
    rows = [row for row in rows if row != ("room", "imports")]
    every = {room for room, _ in rows}
    allowed = {}
    for room, names in rows:
        words = set(filter(None, names.split(", ")))
        if "everything but cli" in words:
            words = every - {"cli"}
        allowed[room] = words - {"ground"} | (GROUND if "ground" in words else set())
    return allowed


ROOMS = rooms()
FACES = {"lnexp", "lnexp.__main__"}  # the package's own face and door


def room(module: str) -> str:
    return "model.catalog" if module == CATALOG else module.split(".")[1]


MODULES = [name for name in HOUSE.files if name not in FACES]


@pytest.mark.parametrize("module", MODULES)
def test_a_room_imports_what_the_page_says(module):
    own = module.split(".")[1]
    used = {room(name) for name in HOUSE.imports[module] - FACES}
    allowed = ROOMS[own] | {own} | ({"model.catalog"} if "model" in ROOMS[own] | {own} else set())
    if module == CATALOG:
        allowed = GROUND - {"config"}
    assert used <= allowed


def test_every_room_is_on_the_page():
    assert {name.split(".")[1] for name in MODULES} == ROOMS.keys()


def roots(module: str) -> set[str]:
    return {name.split(".")[0] for name in HOUSE.libraries(module)}


@pytest.mark.parametrize("module", MODULES)
def test_torch_and_pandas_are_never_in_one_file(module):
    libraries = roots(module)
    assert "torch" not in libraries or not libraries & {"pandas", "matplotlib"}
    if room(module) != "report":
        assert not libraries & {"bokeh", "jinja2"}
    if room(module) in ROOMS["results"] | {"results", "figures", "report", "exchange", "claims"}:
        assert "torch" not in libraries


def test_no_module_imports_itself_by_way_of_others():
    assert HOUSE.circles() == []


@pytest.mark.parametrize("module", MODULES)
def test_a_file_stays_readable(module):
    assert HOUSE.lines(module) <= house.LONGEST


def test_few_names_stand_in_two_rooms():
    assert len(HOUSE.twice()) <= 8
    assert HOUSE.classes_twice() == {"WatchCallback": 2}  # one for each trainer


@pytest.mark.parametrize(
    "module, absent",
    [
        ("lnexp.cli", {"torch", "pandas", "matplotlib", "pydantic", "bokeh", "jinja2", "scipy"}),
        ("lnexp.config.sweep", {"torch", "pandas", "matplotlib", "scipy"}),
        ("lnexp.model.catalog", {"torch", "pandas", "pydantic"}),
        ("lnexp.commands.read", {"torch", "matplotlib", "bokeh", "scipy"}),
        ("lnexp.commands.report", {"torch", "matplotlib", "bokeh"}),
        ("lnexp.report.page", {"torch"}),
        ("lnexp.figures.plots", {"torch"}),
        ("lnexp.commands.exchange", {"torch", "matplotlib"}),
        ("lnexp.exchange.vocabulary", {"torch", "pandas"}),
        ("lnexp.terminal.summary", {"torch", "scipy"}),
        ("lnexp.train.loop", {"pandas", "matplotlib", "scipy"}),
        ("lnexp.runs.execute", {"pandas", "matplotlib", "scipy"}),
    ],
)
def test_importing_a_half_never_loads_the_other(module, absent):
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not absent & set(loaded)
