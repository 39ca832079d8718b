"""Drafters: one method a file, all behind one protocol."""

from foredraft.drafters.base import EMPTY_PROPOSAL, DraftContext, Drafter, Proposal
from foredraft.drafters.draft_model import ModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.drafters.suffix_automaton import SuffixAutomatonDrafter
from foredraft.drafters.suffix_index import SuffixIndex
from foredraft.drafters.suffix_index_drafter import SuffixIndexDrafter

__all__ = [
    "EMPTY_PROPOSAL",
    "DraftContext",
    "Drafter",
    "ModelDrafter",
    "NgramDrafter",
    "Proposal",
    "SuffixAutomatonDrafter",
    "SuffixIndex",
    "SuffixIndexDrafter",
]
