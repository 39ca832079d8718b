"""A training run on disk: a killed one goes on from its weights, optimizer and place as if never stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from foredraft.errors import ParameterError

CHECKPOINT_NAME = "checkpoint.pt"
LOG_NAME = "log.jsonl"


@dataclass(frozen=True)
class Place:
    """How far a run has come."""

    epoch: int = 0
    step: int = 0
    """Optimizer steps in this epoch."""
    total_steps: int = 0


def save_checkpoint(
    folder: Path,
    place: Place,
    settings: Mapping[str, Any],
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Replace the run's checkpoint; a kill while it is written leaves the one before."""
    path = folder / CHECKPOINT_NAME
    partial = path.with_suffix(".part")
    state: dict[str, Any] = {
        "place": asdict(place),
        "settings": json.dumps(settings, sort_keys=True),
        "trained": _trained(module),
        "optimizer": optimizer.state_dict(),
    }
    try:
        torch.save(state, partial)
        partial.replace(path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        raise ParameterError(f"the checkpoint cannot be written to {folder}: {error}") from None


def restore_checkpoint(
    folder: Path,
    settings: Mapping[str, Any],
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
) -> Place:
    """Put module and optimizer where the run stopped; the beginning if it never began.

    Raises:
        ParameterError: if the folder holds a run of other settings or data, or a broken checkpoint.
    """
    path = folder / CHECKPOINT_NAME
    if not path.exists():
        return Place()
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        found: dict[str, Any] = json.loads(state["settings"])
        place = Place(**state["place"])
    except Exception as error:  # a file that is no archive fails in many ways
        raise ParameterError(f"{path} cannot be read; delete it to begin again ({error!r:.100})") from None
    wanted: dict[str, Any] = json.loads(json.dumps(settings))
    different = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    if different:
        name = different[0]
        raise ParameterError(
            f"{folder} holds a run with {name}={found.get(name)!r}, not {wanted.get(name)!r}; "
            "choose the same settings or another folder"
        )
    _put_back(module, state["trained"])
    optimizer.load_state_dict(state["optimizer"])
    return place


class Log:
    """One JSON object a line; lines later than the checkpoint are dropped when the run goes on."""

    def __init__(self, folder: Path, place: Place) -> None:
        self._path = folder / LOG_NAME
        kept = [
            line
            for line in read_log(folder)
            if line["step"] <= place.total_steps and line.get("epoch", -1) < place.epoch
        ]
        self._path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record; it has the `step` it belongs to."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The records of a run; one cut short by a kill is left out."""
    path = folder / LOG_NAME
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def _trained(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    # Named parameters list a tied one once.
    return {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}


def _put_back(module: torch.nn.Module, trained: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(trained[name])
