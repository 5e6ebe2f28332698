"""The two halves meet only at files; who may import whom."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lnexp"

# Part -> parts of lnexp that it may import. The open modules are free of torch and pandas.
OPEN = {
    "errors", "lines", "console", "files", "rows", "yamlfile", "yamlwords", "yamldump", "config",
    "settings", "complaints", "foreign", "rules", "naming", "overrides", "draft", "sweep", "seeds",
    "shipped", "claimspec", "claimparse", "claimlog", "labrows", "layerrows", "proberow", "ends",
    "options", "__version__",
}  # fmt: skip
ALLOWED = {
    "markov": set(),
    "data": OPEN | {"markov"},
    "model": OPEN,
    "measure": OPEN | {"model"},
    "train": OPEN | {"data", "model", "measure"},
    "runs": OPEN | {"data", "model", "measure", "train"},
    "attach": OPEN | {"measure", "runs"},
    "adapters": OPEN | {"attach"},
    "sample": OPEN | {"model", "runs"},
    "lab": OPEN | {"data", "model", "measure", "train", "runs", "analysis"},
    "analysis": OPEN,
    "present": OPEN | {"analysis"},
    "exchange": OPEN | {"analysis"},
    "progress": OPEN | {"runs"},
    "commands": OPEN
    | {"data", "model", "measure", "train", "runs", "lab", "analysis", "present", "progress"}
    | {"exchange"},
    "clilab": OPEN | {"commands"},
    "cliothers": OPEN | {"commands"},
    "cli": OPEN | {"commands", "sample", "clilab", "cliothers"},
}
WRITING = {
    "data", "markov", "model", "measure", "train", "runs", "lab", "sample", "progress", "attach",
    "adapters",
}  # fmt: skip
READING = {"analysis", "present", "exchange"}


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> set[str]:
    """Modules that a file imports anywhere, 'lnexp.x' for our own."""
    package = ["lnexp", *path.relative_to(PACKAGE).parts[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "lnexp":
                found |= {f"lnexp.{alias.name}" for alias in node.names}
            else:
                found.add(module)
    return found


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    own = part(path)
    used = {name.split(".")[1] for name in imports(path) if name.startswith("lnexp.")}
    assert used - {own} <= ALLOWED.get(own, OPEN)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_halves_keep_to_their_libraries(path):
    roots = {name.split(".")[0] for name in imports(path)}
    if part(path) not in WRITING | {"commands"}:
        assert "torch" not in roots
    if part(path) not in READING | {"commands"}:
        assert not roots & {"pandas", "matplotlib"}
    if path.parent != PACKAGE / "present" / "report":
        assert not roots & {"bokeh", "jinja2"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_one_idea_a_file(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300


@pytest.mark.parametrize(
    "module, absent",
    [
        ("lnexp.cli", {"torch", "pandas", "matplotlib", "pydantic", "bokeh", "jinja2"}),
        ("lnexp.config.sweep", {"torch", "pandas", "matplotlib"}),
        ("lnexp.commands.read", {"torch", "matplotlib", "bokeh"}),
        ("lnexp.commands.report", {"torch", "matplotlib", "bokeh"}),
        ("lnexp.report.page", {"torch"}),
        ("lnexp.figures.plots", {"torch"}),
        ("lnexp.commands.exchange", {"torch", "matplotlib"}),
        ("lnexp.commands.exchange", {"torch", "matplotlib"}),
        ("lnexp.exchange.logs", {"torch", "pandas"}),
        ("lnexp.terminal.summary", {"torch"}),
        ("lnexp.train.loop", {"pandas", "matplotlib"}),
        ("lnexp.runs.execute", {"pandas", "matplotlib"}),
    ],
)
def test_importing_a_half_never_loads_the_other(module, absent):
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not absent & set(loaded)
