"""The batch handed to llama.cpp: checked here first, as a bad one can end the process there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specframe.backends.llama.library import Library
from specframe.backends.llama.status import BATCH_CODES, check, failure, present
from specframe.core.errors import ConfigError
from specframe.core.ports import BatchEntry


class Batch:
    """A ``llama_batch_ext`` that is filled anew for every decode.

    Args:
        library: the native library.
        context: ``struct llama_context *`` the batch is for, borrowed.
        n_vocab: token ids are below this.
        n_seq: sequence ids are below this.
        n_ctx: positions are below this.
        n_tokens_max: most tokens.
        n_rows_max: most logits rows.
        n_past: says how many tokens the memory of a sequence holds.
    """

    def __init__(
        self,
        library: Library,
        context: Any,
        *,
        n_vocab: int,
        n_seq: int,
        n_ctx: int,
        n_tokens_max: int,
        n_rows_max: int,
        n_past: Callable[[int], int],
    ) -> None:
        lib = library.lib
        self.handle: Any = present(
            lib.llama_batch_ext_init(context), op="creating a batch", meaning="there is not enough memory"
        )
        self.entries: tuple[BatchEntry, ...] = ()
        self._n_vocab, self._n_seq, self._n_ctx = n_vocab, n_seq, n_ctx
        self._n_tokens_max, self._n_rows_max = n_tokens_max, n_rows_max
        self._n_past = n_past
        self._pos = library.ffi.new("llama_pos[1]")
        self._clear, self._add = lib.llama_batch_ext_clear, lib.llama_batch_ext_add_token
        self._set_pos, self._set_output = lib.llama_batch_ext_set_pos, lib.llama_batch_ext_set_output_logits
        self._free = lib.llama_batch_ext_free

    def fill(self, entries: Sequence[BatchEntry]) -> int:
        """Put ``entries`` into the batch, in their order; returns the number of logits rows asked for.

        Raises:
            ConfigError: an entry asks for something impossible; nothing native was touched.
            BackendError: llama.cpp refused a token.
        """
        n_rows = self._checked(entries)
        handle, pos = self.handle, self._pos
        add, set_pos, set_output = self._add, self._set_pos, self._set_output
        self._clear(handle)
        index = 0
        for entry in entries:
            seq, position = entry.seq, entry.pos
            first_row = index + len(entry.tokens) - entry.n_outputs
            for token in entry.tokens:
                code = add(handle, seq, token)
                if code != index:
                    check(code, op="adding a token to the batch", meanings=BATCH_CODES, index=index, token=token)
                pos[0] = position
                # Entries start without output.
                if not set_pos(handle, index, pos) or (index >= first_row and not set_output(handle, index, True)):
                    raise failure("setting up a batch entry", meaning="there is no such entry", index=index, seq=seq)
                index += 1
                position += 1
        self.entries = tuple(entries)
        return n_rows

    def free(self) -> None:
        """Release the native batch; before the context."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._free(handle)

    def _checked(self, entries: Sequence[BatchEntry]) -> int:
        n_tokens = n_rows = 0
        seen: list[int] = []
        for entry in entries:
            seq, tokens, n_outputs = entry.seq, entry.tokens, entry.n_outputs
            n = len(tokens)
            if not 0 <= seq < self._n_seq or seq in seen:
                raise self._bad_sequence(seq, seen)
            if not 0 <= n_outputs <= n or n == 0:
                msg = f"sequence {seq}: {n_outputs} logits rows of {n} tokens are asked for; give 1 token or more"
                raise ConfigError(msg)
            if min(tokens) < 0 or max(tokens) >= self._n_vocab:
                bad = next(token for token in tokens if not 0 <= token < self._n_vocab)
                msg = f"sequence {seq}: token {bad} is outside the vocabulary of {self._n_vocab} tokens"
                raise ConfigError(msg)
            held = self._n_past(seq)
            if entry.pos != held:
                msg = f"sequence {seq}: the batch starts at position {entry.pos}, but the memory holds {held} tokens"
                raise ConfigError(msg)
            if held + n > self._n_ctx:
                msg = (
                    f"sequence {seq}: {held} tokens are there and {n} more do not fit into n_ctx {self._n_ctx}; "
                    "raise n_ctx or shorten the prompt"
                )
                raise ConfigError(msg)
            seen.append(seq)
            n_tokens += n
            n_rows += n_outputs
        self._check_size(n_tokens, n_rows)
        return n_rows

    def _check_size(self, n_tokens: int, n_rows: int) -> None:
        if not 0 < n_tokens <= self._n_tokens_max:
            if n_tokens == 0:
                msg = "the batch is empty; give at least one entry"
            else:
                msg = f"the batch has {n_tokens} tokens and n_batch is {self._n_tokens_max}; raise n_batch or split it"
            raise ConfigError(msg)
        if n_rows > self._n_rows_max:
            msg = (
                f"the batch asks for {n_rows} logits rows, more than n_outputs_max ({self._n_rows_max}); "
                "raise it or ask for fewer"
            )
            raise ConfigError(msg)

    def _bad_sequence(self, seq: int, seen: Sequence[int]) -> ConfigError:
        if seq in seen:
            return ConfigError(f"sequence {seq} is in the batch twice; put its tokens into one entry")
        return ConfigError(f"sequence {seq} does not exist; there are {self._n_seq} (n_seq), numbered from 0")
