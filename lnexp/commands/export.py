"""lnexp export: results in the formats of other tools, from the CSVs alone."""

from importlib.util import find_spec
from pathlib import Path

from ..analysis.load import load
from ..console import say
from ..errors import UserError
from ..exchange.writers import WRITERS
from ..lines import one_line


def export(path: Path, to: str, out: Path | None) -> None:
    if to not in WRITERS:
        raise UserError(f"--to {to}: write one of {', '.join(WRITERS)}")
    writer = WRITERS[to]
    if writer.module and find_spec(writer.module) is None:
        raise UserError(
            f'export --to {to} needs {writer.module}: pip install "lnexp[{writer.extra}]"'
        )
    results = load(path)
    folder = out or path / "export" / to
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty; write another folder with -o, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    written = writer.write(results, folder)
    for note in results.notes:
        say(one_line(f"note: {note}"))
    for file in written:
        print(file)
