"""`foredraft models`, `foredraft pull` and `foredraft info`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from foredraft.cli import options
from foredraft.cli.output import note, write, write_json
from foredraft.errors import ForedraftError

if TYPE_CHECKING:
    from foredraft.models import LoadedModel

_RULES = ["token", "block", "seed-exact"]


def models(json_output: options.Json = False) -> None:
    """List the built-in models."""
    from foredraft.models.cache_folder import models_location
    from foredraft.models.catalogue import CATALOGUE
    from foredraft.models.pull import pulled

    rows: list[dict[str, Any]] = [
        {
            "name": entry.name,
            "title": entry.title,
            "licence": entry.licence,
            "bytes": entry.gguf_bytes,
            "path": str(path) if (path := pulled(entry)) else None,
        }
        for entry in CATALOGUE.values()
    ]
    if json_output:
        for row in rows:
            write_json(row)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "model", "licence", "size", "pulled", box=None)
    for row in rows:
        size = f"{row['bytes'] / 1e6:.0f} MB"
        table.add_row(row["name"], row["title"], row["licence"], size, "yes" if row["path"] else "no")
    Console().print(table)
    note(f"folder: {models_location()}")


def pull(name: Annotated[str, typer.Argument(help="Name of a built-in model.")]) -> None:
    """Fetch a built-in model; an interrupted fetch is resumed."""
    from foredraft.models.pull import pull as fetch

    write(f"{fetch(name, progress=True)}\n")


def info(
    model: Annotated[str, typer.Argument(help="Built-in name, hub id, folder or .gguf file.")],
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    attention: options.Attention = "auto",
    trust_remote_code: options.TrustRemoteCode = False,
    json_output: options.Json = False,
) -> None:
    """Show what a model is and whether it can speculate."""
    facts = _facts(model, dtype, device, attention, trust_remote_code)
    if json_output:
        write_json(facts)
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        write(f"{name.replace('_', ' '):{width}}  {_shown(value)}\n")


def _facts(model: str, dtype: str, device: str, attention: str, trust_remote_code: bool) -> dict[str, Any]:
    """Facts of a model that runs, or of one that is refused together with why."""
    from foredraft.models import load_config, load_model

    try:
        loaded = load_model(
            model, dtype=dtype, device=device, attention=attention, trust_remote_code=trust_remote_code
        )
    except ForedraftError as refusal:
        try:
            config = load_config(model, trust_remote_code=trust_remote_code)
        except ForedraftError:
            raise refusal from None
        return {**_shape(model, config), "can_speculate": False, "reason": str(refusal)}
    return _loaded_facts(model, loaded)


def _loaded_facts(model: str, loaded: LoadedModel) -> dict[str, Any]:
    from foredraft.execution import ReferenceRunner, check_rollback

    runner = ReferenceRunner(loaded.model, context_length=loaded.context_length)
    facts = {
        **_shape(model, loaded.model.config),
        "parameters": loaded.model.num_parameters(),
        "vocabulary": runner.vocab_size,
        "context_length": loaded.context_length,
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "device": str(loaded.device),
        "attention": loaded.attention,
        "tokenizer": loaded.tokenizer is not None,
        "chat_template": bool(getattr(loaded.tokenizer, "chat_template", None)),
        "eos_token_ids": list(loaded.eos_token_ids),
    }
    try:
        check_rollback(runner, loaded.model)
    except ForedraftError as refusal:
        return {**facts, "can_speculate": False, "reason": str(refusal)}
    facts["cache_bytes_per_token"] = runner.cache_bytes_per_token
    return {**facts, "can_speculate": True, "rules": _RULES, "trees": runner.supports_tree}


def _shape(model: str, config: Any) -> dict[str, Any]:
    text = config.get_text_config()
    return {
        "model": model,
        "architecture": config.model_type,
        "layers": getattr(text, "num_hidden_layers", None),
        "hidden_size": getattr(text, "hidden_size", None),
        "vocabulary": getattr(text, "vocab_size", None),
    }


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
