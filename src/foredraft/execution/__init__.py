"""Running a model: rows of tokens in, logits out, over a KV cache that can be rolled back."""

from foredraft.execution.prefix_rows import PrefixRows
from foredraft.execution.reference import ReferenceRunner
from foredraft.execution.runner import ModelRunner, RowInput, StepOutput
from foredraft.execution.self_check import check_rollback

__all__ = ["ModelRunner", "PrefixRows", "ReferenceRunner", "RowInput", "StepOutput", "check_rollback"]
