"""The tree of errors that foredraft raises on purpose.

Every message is one line that a user can act on: what was wrong, and what would be right. The command
line prints that line and exits with `exit_code`; it never shows a traceback for one of these.
"""

from __future__ import annotations


class ForedraftError(Exception):
    """Root of the tree. Anything else that escapes foredraft is a bug."""

    exit_code = 2


class ParameterError(ForedraftError, ValueError):
    """A sampling or speculation parameter is out of range, unknown, or contradicts another."""


class PromptError(ForedraftError, ValueError):
    """A prompt is empty, too long for the target's context, or not text."""


class ModelError(ForedraftError):
    """A model cannot be found, read or run."""


class ModelNotFoundError(ModelError):
    """No model of that name: neither built in, nor a local path, nor known to the hub."""


class UnsupportedModelError(ModelError):
    """The model exists, but foredraft cannot run it without risking wrong text."""


class IncompatibleDraftError(ModelError):
    """The draft cannot propose tokens for this target (different tokenizers, for example)."""


class DownloadError(ModelError):
    """Fetching a model failed; what arrived is kept and the next attempt resumes."""


class ExecutionError(ForedraftError):
    """A model forward failed or gave unusable logits (NaN, or every token forbidden)."""

    exit_code = 1


class CertificateError(ForedraftError):
    """A losslessness check could not be run (it did not fail: it has no verdict)."""
