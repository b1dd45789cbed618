"""A table of scores, printed with its first and last rows."""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cascadice.influence.tables import as_frame
from cascadice.influence.uncertainty import decimals
from cascadice.names import lookup

if TYPE_CHECKING:
    import pandas

SHOWN = 4  # rows that are printed of each end of a table


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """A small table: columns of equal length, in the order in which they are shown."""

    question: str
    columns: dict[str, NDArray[Any]]
    caution: str = ""
    """why the order of the rows means little, if so"""

    def __len__(self) -> int:
        return len(self.columns["influence"])

    def __getitem__(self, column: str) -> NDArray[Any]:
        return lookup(self.columns, column, "column")

    def to_pandas(self) -> "pandas.DataFrame":
        """As a data frame; `attrs` has the `question` that the numbers answer and, if there is one, a `caution`."""
        frame = as_frame(self.columns)
        frame.attrs.update({"question": self.question} | ({"caution": self.caution} if self.caution else {}))
        return frame

    def _shown(self) -> list[list[str]]:
        """The cells of the first and the last rows, as text; all of them, if they are few."""
        few = len(self) <= 2 * SHOWN
        places = [*range(len(self))] if few else [*range(SHOWN), *range(len(self) - SHOWN, len(self))]
        digits = decimals(self.columns["influence"])
        rows = [[_text(column[place], digits) for column in self.columns.values()] for place in places]
        between = [] if few else [["…"] * len(self.columns)]
        return [*rows[:SHOWN], *between, *rows[SHOWN:]]

    def __repr__(self) -> str:
        lines = [list(self.columns), *self._shown()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = ("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
        return "\n".join([*(text.rstrip() for text in texts), *([self.caution] if self.caution else [])])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self._shown())
        return f"<p>{escape(self.question)}</p><table><tr>{head}</tr>{body}</table>{paragraph(self.caution)}"


def _text(cell: Any, digits: int) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return "none" if np.isnan(cell) else f"{cell:+.{digits}f}"


def paragraph(text: str) -> str:
    """A paragraph of HTML, or nothing if there is no text."""
    return f"<p>{escape(text)}</p>" if text else ""
