"""lnexp explain: one run in words, from its files alone, without torch."""

from pathlib import Path

from rich.console import Console

from ..analysis.explain import explain as explain_run
from ..analysis.load import find_run


def explain(path: Path, as_json: bool) -> None:
    from ..present import explain as present

    explanation = explain_run(find_run(path))
    if as_json:
        print(present.as_json(explanation), end="")
    else:
        Console(highlight=False).print(present.in_words(explanation))
