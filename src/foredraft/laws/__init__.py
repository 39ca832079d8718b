"""Probability laws, noise and verification rules: pure functions of tensors."""

from foredraft.laws.matching import Match, match
from foredraft.laws.noise import NoiseStream, noise_key, uniform_scalar
from foredraft.laws.processing import LawProcessor, LogitsProcessor
from foredraft.laws.rejection import REJECTION_RULES, BlockRule, RejectionRule, TokenRule, residual
from foredraft.laws.sampling import sample, sample_one

__all__ = [
    "REJECTION_RULES",
    "BlockRule",
    "LawProcessor",
    "LogitsProcessor",
    "Match",
    "NoiseStream",
    "RejectionRule",
    "TokenRule",
    "match",
    "noise_key",
    "residual",
    "sample",
    "sample_one",
    "uniform_scalar",
]
