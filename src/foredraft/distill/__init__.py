"""Drafts made for a target: on-policy data, distillation, and what the draft is expected to gain.

The modules import PyTorch; nothing is imported here, so that options are checked before it is loaded.
"""
