"""Where the figures of every epoch go besides the screen: a file of JSON lines, TensorBoard.

Only rank 0 writes: make the writers there. Figures are flat, such as {"epoch": 3, "loss": 0.71, "seconds": 4.2}.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

Figures = Mapping[str, float | int | None]


class FigureWriter(ABC):
    """Takes the figures of one epoch after the other."""

    @abstractmethod
    def write(self, figures: Figures, step: int) -> None:
        """Add one epoch's figures.

        Args:
          figures: by name; None is left out.
          step: global training step after the epoch.
        """

    @abstractmethod
    def close(self) -> None:
        """Everything written is on disk afterwards. A second call does nothing."""


class JsonLinesWriter(FigureWriter):
    """One JSON object per line, complete as soon as `write` returns; an existing file is continued.

    Args:
      path: the file; its directory must exist.
    Raises:
      OSError: it cannot be opened for writing.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 (close() closes it)

    def write(self, figures: Figures, step: int) -> None:
        """See FigureWriter."""
        kept = {name: value for name, value in figures.items() if value is not None}
        self._file.write(json.dumps({"step": step, **kept}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """See FigureWriter."""
        self._file.close()


class TensorBoardWriter(FigureWriter):
    """TensorBoard event files: one curve per figure over global steps.

    Args:
      directory: made when it is missing.
    Raises:
      RuntimeError: the package tensorboard is missing.
    """

    def __init__(self, directory: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise RuntimeError(
                f"TensorBoard's writer cannot be loaded ({error}); install it with "
                "pip install 'fastsample_dist[tensorboard]'."
            ) from error
        self._writer = SummaryWriter(str(directory))

    def write(self, figures: Figures, step: int) -> None:
        """See FigureWriter."""
        for name, value in figures.items():
            if value is not None and name != "epoch":
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """See FigureWriter."""
        self._writer.close()
