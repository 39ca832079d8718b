"""The model card of a draft: what it is for, how it was made, what it achieves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foredraft.distill.evaluation import DraftWorth
from foredraft.models import CATALOGUE, LoadedModel

CARD_NAME = "README.md"


@dataclass(frozen=True)
class CardFacts:
    """What the card says besides the numbers."""

    target: LoadedModel
    kind: str
    """"model" or "eagle3"."""
    command: str
    """As it was typed."""
    seed: int
    data: str
    """One sentence on the training data."""
    training: str
    """One sentence on the loss and the steps."""


def write_card(folder: Path, facts: CardFacts, worths: Sequence[DraftWorth]) -> Path:
    """Write the card beside the weights."""
    licence = licence_of(facts.target)
    title = "EAGLE-3 head" if facts.kind == "eagle3" else "Draft model"
    name = facts.target.name
    front = ["---", *([f"license: {licence.lower()}"] if licence else []), f"base_model: {name}",
             "tags:", "- speculative-decoding", "---"]  # fmt: skip
    body = [
        f"# {title} for {name}",
        "",
        f"Drafts tokens for {name} in speculative decoding; the text stays the target's own.",
        "",
        "```console",
        f'$ foredraft generate "..." --target {name} --draft {folder}',
        "```",
        "",
        "## How it was made",
        "",
        f"- Command: `{facts.command}`",
        f"- Seed: {facts.seed}",
        f"- Data: {facts.data}",
        f"- Training: {facts.training}",
        "",
        "## Acceptance on held-out prompts",
        "",
        *worth_table(worths),
        "",
        "The speedup is computed from the acceptance and from step costs measured on the same machine.",
        "",
        "## Licence",
        "",
        (
            f"{licence}, as the target's: its weights and its text went into this draft."
            if licence
            else "That of the target, whose weights and text went into this draft."
        ),
    ]
    path = folder / CARD_NAME
    path.write_text("\n".join([*front, "", *body]) + "\n", encoding="utf-8")
    return path


def worth_table(worths: Sequence[DraftWorth]) -> list[str]:
    """Lines of a Markdown table, one row for each temperature."""
    rows = [
        "| temperature | accepted at position 1, 2, ... | draft length | mean accepted length | draft cost "
        "| expected speedup |",
        "|---|---|---|---|---|---|",
    ]
    for worth in worths:
        best = worth.best_num_draft_tokens
        if best is None:
            continue
        rates = " ".join(f"{rate:.2f}" for rate in worth.acceptance_per_position)
        rows.append(
            f"| {worth.temperature:g} | {rates} | {best} | {worth.mean_accepted_length[best - 1]:.2f} "
            f"| {worth.draft_cost:.3f} | {worth.speedup[best - 1]:.2f}x |"
        )
    return rows


def licence_of(target: LoadedModel) -> str | None:
    """The target's licence: from the catalogue, or from the front matter of its own card."""
    if target.name in CATALOGUE:
        return CATALOGUE[target.name].licence
    card: Any = target.source / CARD_NAME if target.source is not None else None
    if card is None or not card.is_file():
        return None
    lines = card.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or lines[0].strip() != "---":
        return None
    for line in lines[1:]:
        if line.strip() == "---":
            break
        key, _, value = line.partition(":")
        if key.strip() == "license":
            return value.strip() or None
    return None
