"""What the commands print: tables for people, plain columns for pipes, one document for programs.

Rule upheld here: stdout carries the answer and nothing else, progress and refusals go to stderr
(with `--json` a refusal is the document as well). Names from a bucket are foreign text: they are
escaped before they reach a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from s3kv.cli.words import printable
from s3kv.errors import ConfigError

Document: TypeAlias = Mapping[str, object]
Form: TypeAlias = Literal["human", "json"]


@dataclass(frozen=True, slots=True)
class Column:
    """Heading of a column and the side its cells are aligned to."""

    title: str
    align: Literal["left", "right"] = "left"


def plain_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as aligned columns, two spaces apart, first line the titles; nothing is cut."""
    cells = [[column.title for column in columns], *([printable(c) for c in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]

    def padded(text: str, i: int) -> str:
        return text.rjust(widths[i]) if columns[i].align == "right" else text.ljust(widths[i])

    return ["  ".join(padded(text, i) for i, text in enumerate(row)).rstrip() for row in cells]


class Output:
    """Where one command prints. A terminal gets colour and boxes, a pipe does not."""

    def __init__(self, form: Form) -> None:
        """form: `json` prints documents only."""
        self.form = form

    def answer(self, document: Document, show: Callable[[], None]) -> None:
        """The one answer of a command: the document, or what `show` prints for people."""
        if self.form == "json":
            sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=True) + "\n")
        else:
            show()

    def event(self, document: Document, text: str) -> None:
        """One of many answers of a command that goes on: a document, or a text, on one line."""
        if self.form == "json":
            sys.stdout.write(json.dumps(document, ensure_ascii=True) + "\n")
        else:
            self.line(text)
        sys.stdout.flush()  # whoever reads a pipe reads along

    def refuse(self, message: str, document: Document) -> None:
        """Say in one line on stderr why there is no answer; as a document too if wanted."""
        sys.stderr.write(f"s3kv: {printable(message)}\n")
        self.answer(document, lambda: None)

    def refuse_input(self, error: ConfigError, exit_code: int) -> None:
        """The same for bad input."""
        told = {
            "field": error.field,
            "value": None if error.value is None else str(error.value),
            "says": error.problem,
            "remedy": error.remedy,
        }
        self.refuse(str(error), {"exit_code": exit_code, "error": told})

    def line(self, text: str = "", style: str = "") -> None:
        """One line of the answer. style: of a terminal, e.g. `bold`."""
        if not sys.stdout.isatty():
            sys.stdout.write(printable(text) + "\n")
            return
        from rich.console import Console
        from rich.text import Text

        Console().print(Text(printable(text), style=style))

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        """A table of the answer."""
        if not sys.stdout.isatty():
            sys.stdout.writelines(line + "\n" for line in plain_lines(columns, rows))
            return
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            table.add_column(column.title, justify=column.align, overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(cell), style=_style(cell)) for cell in row))
        Console().print(table)

    def pairs(self, title: str, pairs: Sequence[tuple[str, str]]) -> None:
        """A titled block of `name  value` lines."""
        self.line(title, "bold")
        width = max((len(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            self.line(f"  {name.ljust(width)}  {value}")

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[str], None]]:
        """A spinner on stderr while the block runs, if stderr is a terminal.

        Gives a function that replaces the text behind `what`.
        """
        if not sys.stderr.isatty():
            yield lambda text: None
            return
        from rich.console import Console
        from rich.markup import escape

        with Console(stderr=True).status(escape(what)) as status:
            yield lambda text: status.update(escape(f"{what} {printable(text)}"))

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Callable[[int, str], None]]:
        """A progress bar on stderr while the block runs, if stderr is a terminal.

        Gives a function that takes how much of total is done, and a text to show behind the bar.
        """
        if not sys.stderr.isatty():
            yield lambda done, text: None
            return
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress, TimeElapsedColumn

        columns = [*Progress.get_default_columns(), TimeElapsedColumn()]
        with Progress(
            *columns, "{task.fields[text]}", console=Console(stderr=True), transient=True
        ) as progress:
            task = progress.add_task(escape(what), total=total, text="")
            yield lambda done, text: progress.update(
                task, completed=done, text=escape(printable(text))
            )


def _style(cell: str) -> str:
    return {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}.get(
        cell, ""
    )
