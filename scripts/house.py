"""The house in numbers: modules, callers, names, circles, what a reader opens, places to edit.

    .venv/bin/python scripts/house.py [TREE]

TREE: a checkout of lnexp (default: this one), so that two can be compared. A path is what is really
called: files of which a function runs, and the lines of these functions, until the first row is
written (`lnexp run`), the words are printed (`lnexp explain`) or three steps are watched.
"""

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent.parent
LONGEST = 450

# What a new one of a kind is like: the literal that names it stands in so many files.
NEW = {
    "placement": ("keel", "b2t"),
    "norm": ("scalenorm", "dyt"),
    "init": ("xavier",),
    "setting": ("train.z_loss", "z_loss", "train.flush_denormal", "flush_denormal"),
}

TRACE = """
import inspect, json, sys
from concurrent.futures import Future
from pathlib import Path
seen, lines = set(), {}
def called(frame, event, _):
    code = frame.f_code
    if event == "call" and code not in seen:
        seen.add(code)
        function = code.co_flags & inspect.CO_OPTIMIZED  # no module and no class in its making
        if "/lnexp/" in code.co_filename and function:
            numbers = [n for _, _, n in code.co_lines() if n]
            lines.setdefault(code.co_filename, set()).update(range(min(numbers), max(numbers) + 1))
def report():
    sys.setprofile(None)
    whole = sum(len(Path(name).read_text("utf-8").splitlines()) for name in lines)
    print("HOUSE", json.dumps([len(lines), sum(map(len, lines.values())), whole]))
    print(*sorted(lines), sep="\\n", file=sys.stderr)
    sys.stdout.flush()
class NoPool:
    def __init__(self, **_): pass
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def stop(self): pass
    def schedule(self, work, args):
        future = Future()
        future.set_result(work(*args))
        return future
"""
RUN = """
import os
import lnexp.cli, lnexp.runs.local, lnexp.runs.rundir
lnexp.runs.local.ProcessPool = NoPool
write = lnexp.runs.rundir.RunDir.write
def first(self, record):
    write(self, record)
    report()
    os._exit(0)
lnexp.runs.rundir.RunDir.write = first
sys.argv = ["lnexp", "run", "quickstart", "-j", "1", "-o", sys.argv[1]]
sys.setprofile(called)
lnexp.cli.main()
"""
TRAIN = """
import lnexp.cli, lnexp.runs.local
lnexp.runs.local.ProcessPool = NoPool
sys.argv = ["lnexp", "run", "quickstart", "-j", "1", "-o", sys.argv[1], "-s", "seeds=[0]",
            "-s", "train.steps=25", "-s", "model.depth=[2]", "-s", "model.residual=[true]"]
lnexp.cli.main()
"""
EXPLAIN = """
import lnexp.cli
run = next(Path(sys.argv[1]).glob("*/runs/*"))
sys.argv = ["lnexp", "explain", str(run)]
sys.setprofile(called)
try:
    lnexp.cli.main()
except SystemExit:
    pass
report()
"""
WATCH = """
import torch, lnexp
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters())
x = torch.ones(2, 4)
sys.setprofile(called)
with lnexp.watch(model, optimizer, out=sys.argv[1] + "/watched") as w:
    for _ in range(3):
        loss = model(x).square().mean()
        loss.backward()
        w.step(loss)
        optimizer.step()
        optimizer.zero_grad()
report()
"""


class House:
    """The modules of a package and which imports which."""

    def __init__(self, tree: Path) -> None:
        self.package = tree / "lnexp"
        self.files = {self.name(p): p for p in sorted(self.package.rglob("*.py"))}
        self.trees = {name: ast.parse(p.read_text("utf-8")) for name, p in self.files.items()}
        self.imports = {name: self.imported(name) - {name} for name in self.files}
        self.modules = [name for name, p in self.files.items() if p.name != "__init__.py"]

    def name(self, path: Path) -> str:
        parts = path.relative_to(self.package.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def imported(self, name: str) -> set[str]:
        """Modules of the package that it imports anywhere, inside functions too."""
        return self.libraries(name) & self.files.keys()

    def libraries(self, name: str) -> set[str]:
        """All that it imports anywhere."""
        inside = self.files[name].name == "__init__.py"
        package = name.split(".") if inside else name.split(".")[:-1]
        names = set()
        for node in ast.walk(self.trees[name]):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join([*base, *filter(None, [node.module])])
                whole = {alias.name: f"{module}.{alias.name}" for alias in node.names}
                names |= {one if one in self.files else module for one in whole.values()}
        return names

    def callers(self, name: str) -> list[str]:
        return [other for other, names in self.imports.items() if name in names]

    def circles(self) -> list[list[str]]:
        """Modules that import one another, whatever the way between them; the package's own face,
        which looks up its public names when they are asked for, apart."""
        reach: dict[str, set[str]] = {}
        for name in self.modules:
            reach[name], todo = set(), [name]
            while todo:
                new = self.imports[todo.pop()] - reach[name] - {"lnexp"}
                reach[name] |= new
                todo += new
        rings = {
            tuple(sorted(o for o in reach[name] if name in reach[o]))
            for name in reach
            if name in reach[name]
        }
        return [list(ring) for ring in sorted(rings)]

    def twice(self) -> dict[str, int]:
        """File names in more than one room."""
        counts = Counter(name.rpartition(".")[2] for name in self.modules)
        return {name: n for name, n in sorted(counts.items()) if n > 1}

    def classes_twice(self) -> dict[str, int]:
        counts = Counter(
            node.name
            for tree in self.trees.values()
            for node in tree.body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        )
        return {name: n for name, n in sorted(counts.items()) if n > 1}

    def lines(self, name: str) -> int:
        return len(self.files[name].read_text("utf-8").splitlines())

    def holding(self, literals: tuple[str, ...]) -> list[str]:
        """Files that write such a name down: as text, or as the name of a setting's field."""
        return [
            name
            for name, tree in self.trees.items()
            if any(
                (isinstance(node, ast.Constant) and node.value in literals)
                or (isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") in literals)
                for node in ast.walk(tree)
            )
        ]


def path_of(tree: Path, code: str, folder: str) -> str:
    """'44 files, 2100 lines'."""
    env = {**os.environ, "PYTHONPATH": str(tree), "LNEXP_DEBUG": "1"}
    words = [sys.executable, "-c", TRACE + code, folder]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    marked = [line for line in done.stdout.splitlines() if line.startswith("HOUSE")]
    if not marked:
        return "" if code is TRAIN else f"not measured: {done.stderr.strip()[-200:]}"
    files, lines, whole = json.loads(marked[0].removeprefix("HOUSE "))
    return f"{files} files of {whole} lines; {lines} in the functions called"


def main() -> None:
    tree = Path(sys.argv[1]).resolve() if sys.argv[1:] else HERE
    house = House(tree)
    one = sorted(name for name in house.modules if len(house.callers(name)) == 1)
    print(f"modules                  {len(house.modules)}")
    print(f"of one caller            {len(one)}")
    print(f"file names twice         {len(house.twice())}: {house.twice()}")
    print(f"class names twice        {len(house.classes_twice())}: {house.classes_twice()}")
    print(f"circles                  {len(house.circles())} {house.circles() or ''}")
    print(f"lines                    {sum(map(house.lines, house.files))}")
    long = [name for name in house.modules if house.lines(name) > LONGEST]
    print(f"files above {LONGEST} lines    {len(long)} {long or ''}")
    short = [name for name in house.modules if house.lines(name) < 40]
    print(f"files below 40 lines     {len(short)}: {', '.join(short)}")
    with TemporaryDirectory() as folder:
        print(f"run to the first row     {path_of(tree, RUN, folder)}")
    with TemporaryDirectory() as folder:
        path_of(tree, TRAIN, folder)
        print(f"explain                  {path_of(tree, EXPLAIN, folder)}")
        print(f"watch, three steps       {path_of(tree, WATCH, folder)}")
    for kind, literals in NEW.items():
        names = [house.holding((literal,)) for literal in literals]
        print(f"a {kind} is written in  {' / '.join(map(str, map(len, names)))} files: {names}")
    print("one caller:", ", ".join(one))


if __name__ == "__main__":
    main()
