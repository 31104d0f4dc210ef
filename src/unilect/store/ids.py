"""
The ids of responses and of their items.

1. An id begins with the time, so that rows which are stored one after the other are neighbours in every index. A page of an index then takes many rows
   before it is written, where random ids have a page each.
2. An item has the id of its response in its own. So it is found without an index of items.
3. 128 bits of an id are random: nobody can guess it.
"""

import os
import time

_RESPONSE = "resp_"
_OWN_LENGTH = 12 + 32  # digits of the time in ms, and of 128 bits
#: The first number of an item of an output; those of an input are below.
OUTPUT = 0x8000


def response_id() -> str:
    """Make a new id of a response."""
    return f"{_RESPONSE}{time.time_ns() // 1_000_000:012x}{os.urandom(16).hex()}"


def item_id(response: str, prefix: str, number: int) -> str:
    """
    Make the id of an item of a response.

    Args:
        response: The id of the response, as `response_id` makes it.
        prefix: Tells what the item is, such as `msg`.
        number: Of no other item of this response; from `OUTPUT` on for its output.
    """
    return f"{prefix}_{response[5:]}{number:04x}"


def home_of(item: str) -> str:
    """Read the id of the response out of that of an item; where a client has made it, it may be anything. Empty where there is none."""
    own = item.partition("_")[2][:_OWN_LENGTH]
    return _RESPONSE + own if len(own) == _OWN_LENGTH else ""
