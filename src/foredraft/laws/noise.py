"""Counter-based randomness: every draw is a pure function of what it is for.

Noise is a hash of (seed, sample, stream, position, round, token id), never a generator whose state
depends on how many draws came before. So the same request gives the same text alone or in a batch, with
speculation on or off, and a token's noise does not move when top-k or top-p changes the support.

The hash is splitmix64 (Steele, Lea & Flood 2014), applied as a chain over the parts of the key, the seed
first, and once more for the token id.
"""

from __future__ import annotations

from enum import IntEnum

import torch

_GOLDEN_RATIO = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


class NoiseStream(IntEnum):
    """What a draw is for; draws of different streams are independent."""

    TARGET = 0
    """The token committed at a position. Each position is committed once, so no round is needed."""
    DRAFT = 1
    """A token drawn by a draft under a rejection rule; a position may be drafted again in a later round."""
    ACCEPT = 2
    """The uniform that decides whether a drafted token is accepted."""


def noise_key(seed: int, sample: int, stream: NoiseStream, position: int, round_index: int = 0) -> int:
    """64-bit key of one draw, as a signed integer that fits an int64 tensor.

    Args:
        seed: the request's seed.
        sample: index of the sample among the request's `n`.
        stream: what the draw is for.
        position: absolute position of the token in its sequence, prompt included.
        round_index: the verification round for DRAFT and ACCEPT. Without it a position drafted, rejected
            and drafted again would see the same noise twice, which a rule that looks at the whole block
            (block verification) turns into bias.
    """
    key = 0
    # The seed is hashed before the sample joins it: otherwise sample 1 of seed 0 would be sample 0 of seed 1.
    for part in (seed, sample, int(stream), position, round_index):
        key = _mix((key ^ (part & _MASK)) + _GOLDEN_RATIO)
    return key - (1 << 64) if key >> 63 else key


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def uniform(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Uniform noise, strictly between 0 and 1, of `keys` at `token_ids` (broadcast together).

    Args:
        keys: int64, from `noise_key`.
        token_ids: int64.

    Returns:
        float64, 52 random bits each.
    """
    # In place: for a whole vocabulary the temporaries would cost more than the arithmetic.
    bits = token_ids * _signed(_GOLDEN_RATIO) + keys
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        bits ^= _logical_shift(bits, shift)
        bits *= _signed(factor)
    bits ^= _logical_shift(bits, 31)
    # 52 bits, so that the offset of one half is exact and neither 0 nor 1 can occur.
    return _logical_shift(bits, 12).to(torch.float64).add_(0.5).mul_(2.0**-52)


def uniform_scalar(key: int) -> float:
    """The uniform of a draw that concerns no particular token (acceptance)."""
    return ((_mix(key & _MASK) >> 12) + 0.5) * 2.0**-52


def _logical_shift(bits: torch.Tensor, count: int) -> torch.Tensor:
    # torch shifts int64 arithmetically; clear the sign bits that it copies in.
    return (bits >> count).bitwise_and_((1 << (64 - count)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
