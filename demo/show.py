"""How a scene reports: what was asked, what came back, and what that proves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

__all__ = ["Scene", "Stage", "cut"]


def cut(text: str, width: int = 300) -> str:
    """Shorten a text in its middle."""
    text = text.strip()
    half = width // 2
    return text if len(text) <= width else f"{text[:half].rstrip()} … {text[-half:].lstrip()}"


@dataclass
class Scene:
    """One scene of the demo.

    Attributes:
        title: What it is about.
        rows: Questions and answers.
        proofs: What it claims, and whether that was seen.
        exchanges: Requests with their answers: one to trace, and one to show next to it.
        model: Directory of the checkpoint that was asked; ``None`` for the demo's own.
    """

    title: str
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    proofs: list[tuple[str, bool]] = field(default_factory=list)
    exchanges: list[tuple[Any, Any]] = field(default_factory=list)
    model: Path | None = None

    def row(self, asked: str, how: str, came: str) -> None:
        """Add an exchange: the request, what was attached to it, and the answer."""
        self.rows.append((asked, how, came))

    def proves(self, claim: str, *, seen: bool) -> None:
        """Add a claim, and whether this run shows it."""
        self.proofs.append((claim, seen))

    def traces(self, request: Any, answer: Any) -> None:
        """Keep a request and its answer for a trace."""
        self.exchanges.append((request, answer))

    @property
    def holds(self) -> bool:
        """Whether the scene has claims and this run shows all of them."""
        return bool(self.proofs) and all(seen for _, seen in self.proofs)


class Stage:
    """Prints the scenes as they come and keeps their verdicts."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.scenes: list[Scene] = []

    def say(self, text: str) -> None:
        """Print one line between scenes."""
        self.console.print(Text(text, style="dim"))

    def play(self, scene: Scene) -> None:
        """Print a scene."""
        self.scenes.append(scene)
        table = Table(
            title=f"{len(self.scenes)}. {scene.title}",
            title_style="bold",
            title_justify="left",
            show_lines=True,
            expand=True,
        )
        table.add_column("asked", ratio=3)
        table.add_column("processor", ratio=3)
        table.add_column("came back", ratio=6)
        for row in scene.rows:
            table.add_row(*(Text(cell) for cell in row))
        self.console.print()
        self.console.print(table)
        for claim, seen in scene.proofs:
            mark = Text("✓ ", style="bold green") if seen else Text("✗ ", style="bold red")
            self.console.print(mark.append(claim, style="default"))

    def verdict(self) -> bool:
        """Print the result of all scenes; return whether every scene showed what it claims."""
        failed = [scene.title for scene in self.scenes if not scene.holds]
        self.console.print()
        if failed:
            self.console.print(Text(f"FAILED: {'; '.join(failed)}", style="bold red"))
        else:
            count = sum(len(scene.proofs) for scene in self.scenes)
            self.console.print(
                Text(f"OK: {len(self.scenes)} scenes, {count} claims, all seen", "bold green")
            )
        return not failed
