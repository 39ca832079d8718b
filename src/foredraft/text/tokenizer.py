"""The one place where foredraft touches a transformers tokenizer: text to ids and back, without surprises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from foredraft.errors import PromptError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHAT_ROLES = ("system", "developer", "user", "assistant", "tool")


class TextTokenizer:
    """Adapter around a transformers tokenizer (5.x, fast or slow).

    The wrapped tokenizer must not gain tokens afterwards: which ids are special is read once, here.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        # Attributes are reached dynamically: their types differ between transformers 5.x versions.
        self._tokenizer: Any = tokenizer
        self._skipped_ids = _ids_left_out_by_decode(self._tokenizer)
        self._id_limit = max(self._vocabulary().values(), default=-1) + 1

    @property
    def bos_token_id(self) -> int | None:
        """Id of the beginning-of-sequence token; None where the tokenizer has none."""
        return cast("int | None", self._tokenizer.bos_token_id)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; a model may have more (padded) rows."""
        return len(self._tokenizer)

    @property
    def has_chat_template(self) -> bool:
        """True where `encode_chat` can be used."""
        return bool(getattr(self._tokenizer, "chat_template", None))

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt, with the special tokens that the tokenizer itself adds (BOS, for example).

        A text without ids of its own (an empty one) becomes BOS alone where the tokenizer has a BOS.

        Raises:
            PromptError: `text` is no Unicode text, or is empty and there is no BOS.
        """
        ids = self._ids(_checked_text(text, "the prompt"), add_special_tokens=True)
        if ids:
            return ids
        if self.bos_token_id is None:
            raise PromptError(
                "the prompt is empty and the tokenizer has no BOS token to start from; give at least one word"
            )
        return [self.bos_token_id]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation in the model's chat template, ending where the assistant is to answer.

        Args:
            messages: dictionaries with "role" (one of `CHAT_ROLES`) and "content" (text).

        Raises:
            PromptError: there is no chat template, a message is malformed (the line names its index), or the
                template itself refuses the conversation.
        """
        prompt = self._conversation(_checked_messages(messages), True)
        # The template writes BOS itself, so that the tokenizer must not add another.
        ids = self._ids(prompt, add_special_tokens=False)
        if not ids:
            raise PromptError("the chat template turned the conversation into an empty prompt")
        return ids

    def encode_user_turn(self) -> tuple[list[int], tuple[int, ...]]:
        """The chat template up to where the user's first message begins, and what ends the message.

        Returns:
            ids before the message, system message and BOS included; special ids (one or none) after it.

        Raises:
            PromptError: there is no chat template, or nothing in it precedes the message.
        """
        place = "USER-MESSAGE"
        before, _, after = self._conversation([{"role": "user", "content": place}], False).partition(place)
        ids = self._ids(before, add_special_tokens=False)
        if not ids:
            raise PromptError("the chat template has nothing before the user's message to start from")
        ends = self._ids(after, add_special_tokens=False)[:1]
        return ids, tuple(token_id for token_id in ends if not self.is_visible(token_id))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids; ids that the tokenizer does not know (padded rows of a model) give no text."""
        known = [int(token_id) for token_id in ids if self.token(token_id) is not None]
        text: str = self._tokenizer.decode(
            known, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def token(self, token_id: int) -> str | None:
        """The vocabulary entry of an id, in the tokenizer's own spelling; None where it has no such id."""
        if not 0 <= token_id < self._id_limit:
            return None
        return cast("str | None", self._tokenizer.convert_ids_to_tokens(int(token_id)))

    def is_visible(self, token_id: int, skip_special_tokens: bool = True) -> bool:
        """Whether `decode` hands this id to the tokenizer's decoder at all (its text may still be empty)."""
        if skip_special_tokens and token_id in self._skipped_ids:
            return False
        return self.token(token_id) is not None

    def same_vocabulary(self, other: TextTokenizer) -> bool:
        """Whether both map the same ids to the same strings; see `describe_difference`."""
        return not self.describe_difference(other)

    def describe_difference(self, other: TextTokenizer) -> str:
        """One line on how the vocabularies differ, "" where they do not.

        Added and special tokens are compared like all others. Ids beyond the shorter vocabulary are ignored:
        members of one model family pad their vocabularies to different sizes.
        """
        mine, theirs = self._vocabulary(), other._vocabulary()
        if mine == theirs and mine:
            return ""
        limit = min(max(mine.values(), default=-1), max(theirs.values(), default=-1)) + 1
        if limit == 0:
            return "one of the two vocabularies is empty"
        first, second = _entries_below(limit, mine), _entries_below(limit, theirs)
        different = [token_id for token_id in range(limit) if first[token_id] != second[token_id]]
        if not different:
            return ""
        token_id = different[0]
        return (
            f"{len(different)} of {limit} token ids differ; the first is {token_id}, "
            f"which is {_quoted(first[token_id])} in one and {_quoted(second[token_id])} in the other"
        )

    def _conversation(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        if not self.has_chat_template:
            raise PromptError("this tokenizer has no chat template; give the prompt as plain text instead")
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=add_generation_prompt, tokenize=False
            )
        except Exception as error:
            # A template is a program that comes with the model; it may fail in any way.
            reason = " ".join(str(error).split()) or type(error).__name__
            raise PromptError(f"the chat template refused the conversation: {reason}") from error
        return text

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        encoding = self._tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)
        return [int(token_id) for token_id in encoding["input_ids"]]

    def _vocabulary(self) -> dict[str, int]:
        return {**self._tokenizer.get_vocab(), **self._tokenizer.get_added_vocab()}


def _ids_left_out_by_decode(tokenizer: Any) -> frozenset[int]:
    """Ids that `decode(skip_special_tokens=True)` leaves out."""
    if not tokenizer.is_fast:
        return frozenset(tokenizer.all_special_ids)
    # The fast backend goes by its own flag, which may also be set on tokens without a role (<|im_start|>).
    return frozenset(token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special)


def _checked_text(text: object, what: str) -> str:
    if not isinstance(text, str):
        raise PromptError(f"{what} must be text, not {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"{what} is not valid Unicode text: character {error.start} is the lone surrogate "
            f"U+{ord(text[error.start]):04X}"
        ) from None
    return text


def _checked_messages(messages: object) -> list[dict[str, str]]:
    if not isinstance(messages, (list, tuple)):
        raise PromptError(f"messages must be a list of messages, not {type(messages).__name__}")
    if not messages:
        raise PromptError("the conversation is empty; give at least one message")
    return [_checked_message(message, f"message {index}") for index, message in enumerate(messages)]


def _checked_message(message: object, what: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise PromptError(
            f'{what} must be a dictionary with "role" and "content", not {type(message).__name__}'
        )
    fields = cast("Mapping[str, Any]", message)
    for key in ("role", "content"):
        if key not in fields:
            raise PromptError(f'{what} has no "{key}"')
    if fields["role"] not in CHAT_ROLES:
        raise PromptError(
            f"{what} has the unknown role {fields['role']!r}; known are {', '.join(CHAT_ROLES)}"
        )
    return {**fields, "content": _checked_text(fields["content"], f"the content of {what}")}


def _entries_below(limit: int, vocabulary: dict[str, int]) -> list[str | None]:
    entries: list[str | None] = [None] * limit
    for token, token_id in vocabulary.items():
        if token_id < limit:
            entries[token_id] = token
    return entries


def _quoted(token: str | None) -> str:
    return "absent" if token is None else repr(token)
