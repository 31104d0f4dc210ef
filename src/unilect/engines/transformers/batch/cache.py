"""
The KV cache of the running batch: one block of memory per layer, written in place.

Rows are right-aligned: all of them write their next token into the same column, and a row that is shorter begins further to the
right. A row that joins is copied in, one that leaves is replaced by the last; when the columns run out, all rows move to the left
as far as the longest allows, or the block grows. So a token costs one write for each layer, where transformers' own cache copies
everything it holds.

Source: https://huggingface.co/docs/transformers/kv_cache (the interface of a cache)
"""

import math
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer

#: keys and values of one row, layer by layer, each (n_heads, n_tokens, n_dimensions)
RowStates: TypeAlias = list[tuple[Tensor, Tensor]]
_FIRST_COLUMNS = 256


class BatchKVCache(Cache):
    """
    The cache of a running batch; the model sees it as any other.

    Attributes:
        starts: For each row the column where it begins.
        end: The column that is written next.
        expected_rows: As many are about to be in it: to make room for all at once saves copying what is there.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.layers: list[_BatchKVLayer]
        self.starts: list[int] = []
        self.end = 0
        self.rows = self.expected_rows = 0

    @property
    def first(self) -> int:
        """The first column that any row uses."""
        return min(self.starts, default=self.end)

    def length(self, row: int) -> int:
        """Count the tokens of a row."""
        return self.end - self.starts[row]

    def mask(self, device: torch.device) -> Tensor:
        """Make the attention mask for the next token: (n_rows, n_columns) int64."""
        columns = torch.arange(self.first, self.end + 1, device=device)
        starts = torch.tensor(self.starts, device=device)[:, None]
        return (columns[None] >= starts).long()

    def advance(self) -> None:
        """The column has been written."""
        self.end += 1

    def join(self, states: RowStates) -> None:
        """Add a row that holds these keys and values."""
        length = states[0][0].shape[1]
        if not self.layers:
            self.layers = [_BatchKVLayer(self, keys, values) for keys, values in states]
        if self.rows == 0:
            self.end = length
        self._make_room(self.rows + 1, length)
        if length > self.end:
            self._shift(length - self.end)
        for layer, (keys, values) in zip(self.layers, states, strict=True):
            # masked columns count for nothing, unless somebody has left something that is no number there
            layer.keys[self.rows, :, : self.end - length] = 0
            layer.values[self.rows, :, : self.end - length] = 0
            layer.keys[self.rows, :, self.end - length : self.end] = keys
            layer.values[self.rows, :, self.end - length : self.end] = values
        self.starts.append(self.end - length)
        self.rows += 1

    def leave(self, row: int) -> None:
        """Take a row out; the last one takes its place."""
        last = self.rows - 1
        if row != last:
            self.copy(last, row)
        self.starts.pop()
        self.rows = last

    def copy(self, source: int, target: int, shared: int = 0) -> None:
        """Make one row what another is; so many of their first tokens are the same already."""
        if source == target:
            return
        # what is masked is copied too, unless the rows begin together: the other may have left something that is no number
        columns = slice(self.starts[source] + shared if shared else 0, self.end)
        for layer in self.layers:
            layer.keys[target, :, columns] = layer.keys[source, :, columns]
            layer.values[target, :, columns] = layer.values[source, :, columns]
        self.starts[target] = self.starts[source]

    def states(self, row: int) -> RowStates:
        """A copy of what a row holds."""
        columns = slice(self.starts[row], self.end)
        return [
            (layer.keys[row, :, columns].clone(), layer.values[row, :, columns].clone())
            for layer in self.layers
        ]

    def make_column(self) -> None:
        """Have a column for the next token."""
        if self.layers:
            self._make_room(self.rows)

    def _make_room(self, rows: int, length: int = 0) -> None:
        """
        Have a column behind the rows, and behind as many tokens: rows move to the left, or what is too small grows.

        Where memory runs out midway some is larger than the rest, and nothing is lost.
        """
        have_rows, _, have_columns, _ = self.layers[-1].values.shape  # the last to grow
        if max(length, self.end) >= have_columns and self.first > 0:
            self._shift(-self.first)
        columns = max(length, self.end) + 1
        if rows <= have_rows and columns <= have_columns:
            return
        new_rows = have_rows
        if rows > have_rows:
            new_rows = max(rows, self.expected_rows, have_rows * 2)
        new_columns = have_columns if columns <= have_columns else max(columns, have_columns * 2)
        for layer in self.layers:
            layer.keys = _larger(layer.keys, new_rows, new_columns)
            layer.values = _larger(layer.values, new_rows, new_columns)

    def _shift(self, columns: int) -> None:
        """Move all rows to the right, or to the left where it is negative."""
        old, new = slice(self.first, self.end), slice(self.first + columns, self.end + columns)
        moved = [each for layer in self.layers for each in (layer.keys, layer.values)]
        # what has to be in memory twice is so before anything moves: where there is none, all is as it was
        spare = moved[0].new_empty(max(each[: self.rows, :, old].numel() for each in moved))
        for each in moved:
            held = each[: self.rows, :, old]
            copy = spare[: held.numel()].view(held.shape)
            copy.copy_(held)
            each[: self.rows, :, new] = copy
        self.starts = [start + columns for start in self.starts]
        self.end += columns


class _BatchKVLayer(CacheLayerMixin):
    """One layer of a batch's cache."""

    is_sliding = False
    is_initialized = True

    def __init__(self, cache: BatchKVCache, keys: Tensor, values: Tensor) -> None:
        self._cache = cache
        self.keys = _zeros(keys, 1, keys.shape[0], _FIRST_COLUMNS, keys.shape[2])
        self.values = _zeros(values, 1, values.shape[0], _FIRST_COLUMNS, values.shape[2])

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """It is made with its first row."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one token for each row; see `CacheLayerMixin`."""
        cache = self._cache
        self.keys[: cache.rows, :, cache.end] = key_states[:, :, 0]
        self.values[: cache.rows, :, cache.end] = value_states[:, :, 0]
        columns = slice(cache.first, cache.end + 1)
        return self.keys[: cache.rows, :, columns], self.values[: cache.rows, :, columns]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of keys that a query sees, and where they begin."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """The number of columns before the next token."""
        return self._cache.end - self._cache.first

    def get_max_length(self) -> int:
        """There is no limit but memory."""
        return -1


def _larger(old: Tensor, rows: int, columns: int) -> Tensor:
    if old.shape[0] >= rows and old.shape[2] >= columns:
        return old
    rows, columns = max(rows, old.shape[0]), max(columns, old.shape[2])
    new = _zeros(old, rows, old.shape[1], columns, old.shape[3])
    new[: old.shape[0], :, : old.shape[2]] = old
    return new


def _zeros(like: Tensor, *shape: int) -> Tensor:
    """Zeros of a tensor's type; those of a processor take memory and time only where they are written, unlike torch's."""
    count = math.prod(shape)
    if like.device.type != "cpu" or not count:
        return like.new_zeros(shape)
    data = numpy.zeros(count * like.element_size(), numpy.uint8)
    return torch.from_numpy(data).view(like.dtype).view(shape)


def side_by_side(rows: list[RowStates | None]) -> tuple[DynamicCache, list[int]]:
    """
    A cache for reading prompts, whose rows begin with what is known of them, right-aligned.

    Returns:
        The cache, and the length of each row in it. A row of None knows nothing.
    """
    cache = DynamicCache()
    lengths = [0 if row is None else row[0][0].shape[1] for row in rows]
    known = next((row for row in rows if row is not None), None)
    if known is None:
        return cache, lengths
    columns = max(lengths)
    for number, (keys, values) in enumerate(known):
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys = keys.new_zeros(len(rows), keys.shape[0], columns, keys.shape[2])
        layer.values = values.new_zeros(len(rows), values.shape[0], columns, values.shape[2])
        for place, row in enumerate(rows):
            if row is not None:
                layer.keys[place, :, columns - lengths[place] :] = row[number][0]
                layer.values[place, :, columns - lengths[place] :] = row[number][1]
        cache.layers.append(layer)
    return cache, lengths


def states_of(cache: DynamicCache, row: int, pieces: list[slice]) -> RowStates:
    """Concatenate the states of a row in these columns."""

    def cut(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[row, :, piece] for piece in pieces], dim=1)

    return [(cut(layer.keys), cut(layer.values)) for layer in cache.layers]
