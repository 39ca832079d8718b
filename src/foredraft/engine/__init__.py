"""The loop of draft, verify and commit, and what it keeps for each request."""

from foredraft.engine.adaptive import AdaptiveDraftLength, Beliefs
from foredraft.engine.controller import DraftLengthController, FixedDraftLength
from foredraft.engine.costs import StepCosts, measure_step_costs
from foredraft.engine.engine import DEFAULT_MAX_BATCH_SIZE, DEFAULT_VERIFY_BATCH_SIZE, Engine
from foredraft.engine.sequence import FinishReason, Request, Sequence, TokenListener, TokenLogprobs
from foredraft.engine.statistics import SpeculationStats
from foredraft.engine.verification import Verdict, verify

__all__ = [
    "DEFAULT_MAX_BATCH_SIZE",
    "DEFAULT_VERIFY_BATCH_SIZE",
    "AdaptiveDraftLength",
    "Beliefs",
    "DraftLengthController",
    "Engine",
    "FinishReason",
    "FixedDraftLength",
    "Request",
    "Sequence",
    "SpeculationStats",
    "StepCosts",
    "TokenListener",
    "TokenLogprobs",
    "Verdict",
    "measure_step_costs",
    "verify",
]
