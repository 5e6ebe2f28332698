"""A table of texts, laid out for a terminal of any width or for LaTeX."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
        "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
        "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Column:
    head: str
    cells: list[str]
    number: bool = False  # aligned right
    rank: int = 0  # where there is no room, the column of the highest rank goes first; 0 stays
    wraps: bool = False  # between words; a number or a name never does
    readable: int = 0  # wrapped text is not squeezed below this while others can go

    @property
    def least(self) -> int:
        """The longest word, or the longest text: a narrower column would cut it.

        A head may always break between words.
        """
        texts = [self.head, *self.cells] if self.wraps else [self.head]
        words = [word for text in texts for word in text.split()]
        longest = max(map(cell_len, words if self.wraps else [*words, *self.cells]), default=0)
        return max(longest, min(self.readable, self.most))

    @property
    def most(self) -> int:
        return max(cell_len(text) for text in (self.head, *self.cells))


@dataclass(frozen=True)
class Sheet:
    """A title, columns of texts and lines below. Texts are never read as markup.

    `narrow` holds the same in less room, for where not all columns fit.
    """

    title: str
    columns: list[Column]
    below: list[str] = field(default_factory=list)
    whole: str = "--csv"  # the option that prints every column
    narrow: list[Column] = field(default_factory=list)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width
        wanted, columns = self.laid(room)
        yield Text(self.title, style="bold")
        if needed(columns) > room:  # a number that breaks in two reads as another number
            yield from self._listed()
            return
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
        for column, width in zip(columns, widths(columns, room), strict=True):
            table.add_column(
                Text(column.head),
                width=width,
                justify="right" if column.number else "left",
                overflow="fold",
            )
        for row in zip(*(column.cells for column in columns), strict=True):
            table.add_row(*map(Text, row))
        yield table
        left_out = [column.head for column in wanted if column not in columns]
        if left_out:
            yield Text(f"No room for: {', '.join(left_out)} ({self.whole} has all).", style="dim")
        yield from (Text(text, style="dim") for text in self.below)
        yield Text()

    def laid(self, room: int) -> tuple[list[Column], list[Column]]:
        """All columns of the form that is shown, and those of them that fit side by side."""
        wanted = self.narrow if self.narrow and needed(self.columns) > room else self.columns
        return wanted, fitting(wanted, room)

    def _listed(self) -> Iterator[Text]:
        """Every cell on a line of its own, as `head: text`, for a terminal too narrow for rows."""
        for row in zip(*(column.cells for column in self.columns), strict=True):
            for column, text in zip(self.columns, row, strict=True):
                yield Text(f"{column.head}: {text}")
            yield Text()
        yield from (Text(text, style="dim") for text in self.below)
        yield Text()

    def tex(self) -> str:
        """A tabular environment (booktabs)."""
        kinds = "".join("r" if column.number else "l" for column in self.columns)
        rows = zip(*(column.cells for column in self.columns), strict=True)
        lines = [
            *(f"% {text}" for text in (self.title, *self.below)),
            rf"\begin{{tabular}}{{{kinds}}}",
            r"\toprule",
            _tex_row(column.head for column in self.columns),
            r"\midrule",
            *map(_tex_row, rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return "\n".join(lines) + "\n"


def _tex_row(texts: Iterable[str]) -> str:
    return " & ".join(text.translate(TEX) for text in texts) + r" \\"


def fitting(columns: list[Column], room: int) -> list[Column]:
    """The columns that fit side by side."""
    shown = list(columns)
    while needed(shown) > room:
        spare = max(shown, key=lambda column: column.rank)
        if spare.rank == 0:
            break
        shown.remove(spare)
    return shown


def needed(columns: list[Column]) -> int:
    return sum(column.least + 1 for column in columns) - 1


def widths(columns: list[Column], room: int) -> list[int]:
    """Each column its least; the rest so that as many columns as can be need not wrap."""
    letters = [column.least for column in columns]
    spare = room - needed(columns)
    for i in sorted(range(len(columns)), key=lambda i: columns[i].most - letters[i]):
        more = max(0, min(spare, columns[i].most - letters[i]))
        letters[i] += more
        spare -= more
    return letters


def display(*parts: RenderableType) -> None:
    """On standard output, as wide as the terminal."""
    console = Console(highlight=False)
    for part in parts:
        console.print(part)


def significant(value: float | None, digits: int = 3, empty: str = "-") -> str:
    """So many digits, or a power of ten; `empty` where it was not measured."""
    return empty if value is None else f"{value:.{digits}g}"
