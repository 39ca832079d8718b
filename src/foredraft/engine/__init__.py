"""The loop of draft, verify and commit, and what it keeps for each request."""

from foredraft.engine.controller import DraftLengthController, FixedDraftLength
from foredraft.engine.engine import DEFAULT_MAX_BATCH_SIZE, DEFAULT_VERIFY_BATCH_SIZE, Engine
from foredraft.engine.sequence import FinishReason, Request, Sequence, TokenListener, TokenLogprobs
from foredraft.engine.statistics import SpeculationStats
from foredraft.engine.verification import Verdict, verify

__all__ = [
    "DEFAULT_MAX_BATCH_SIZE",
    "DEFAULT_VERIFY_BATCH_SIZE",
    "DraftLengthController",
    "Engine",
    "FinishReason",
    "FixedDraftLength",
    "Request",
    "Sequence",
    "SpeculationStats",
    "TokenListener",
    "TokenLogprobs",
    "Verdict",
    "verify",
]
