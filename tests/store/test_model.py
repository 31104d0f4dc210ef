"""The store against a model of it in memory: any sequence of calls has the same results."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from support.backends.engine import THOROUGH
from support.servers.postgresql import PostgreSQL
from unilect.store.database import Database
from unilect.store.records import Item, StoredResponse
from unilect.store.responses import ResponseStore

AGE_S = 100.0
owners = st.sampled_from(["a", "b"])
AHEAD_S = AGE_S / 100  # ancestors are kept for so much longer
#: Of some the ids of the items tell the response, of others they do not.
names = st.sampled_from(
    [*(f"r{number}" for number in range(3)), *(f"resp_{number:044x}" for number in range(3))]
)
rooms = st.sampled_from(["c0", "c1", "c2"])
statuses = st.sampled_from(["queued", "in_progress", "completed", "failed"])
item_names = [
    *(f"i{number}" for number in range(6)),
    *(f"msg_{number:044x}0001" for number in range(4)),
]
items = st.lists(
    st.builds(Item, st.sampled_from(item_names), st.binary(max_size=5)),
    max_size=4,
    unique_by=lambda item: item.id,
)


class Model:
    """What a store holds: responses and conversations by owner and id, each with the time of its last use."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.responses: dict[tuple[str, str], tuple[StoredResponse, float]] = {}
        self.kept: dict[tuple[str, str], float] = {}  # until when the ancestors of each are
        self.rooms: dict[tuple[str, str], tuple[bytes, float, dict[str, bytes], float]] = {}

    def response(self, owner: str, id: str) -> StoredResponse | None:
        """A response that has not expired."""
        found, used = self.responses.get((owner, id), (None, 0.0))
        return found if used > self.now - AGE_S else None

    def room(self, owner: str, id: str) -> tuple[bytes, float, dict[str, bytes], float] | None:
        """A conversation that has not expired."""
        found = self.rooms.get((owner, id))
        return found if found is not None and found[3] > self.now - AGE_S else None

    def chain(self, owner: str, id: str | None) -> list[StoredResponse] | None:
        """A response after its ancestors; as many as there are responses, where it bites its tail."""
        found: list[StoredResponse] = []
        while id is not None:
            response = self.response(owner, id)
            if response is None:
                return None
            if len(found) > len(self.responses):
                return found
            found.insert(0, response)
            id = response.parent
        return found

    def append(self, owner: str, id: str | None, new: list[Item]) -> bool:
        """Add items to a conversation."""
        if id is None or (room := self.room(owner, id)) is None:
            return False
        for item in new:
            room[2][item.id] = item.body
        self.rooms[owner, id] = (*room[:3], self.now)
        return True

    def keep(self, owner: str, id: str | None) -> float:
        """A response and its ancestors live on; until when they are kept."""
        if id is None or (one := self.response(owner, id)) is None:
            return 0.0
        if (until := self.kept[owner, id]) >= self.now:
            self.responses[owner, id] = (one, until)
            return until
        until = self.now + AHEAD_S
        while id is not None and (one := self.response(owner, id)) is not None:
            if self.kept[owner, id] == until:
                break
            self.responses[owner, id], self.kept[owner, id] = (one, until), until
            id = one.parent
        return until

    def latest(self, owner: str) -> dict[str, set[bytes]]:
        """The bodies of all items by their ids, as they may be found."""
        found: dict[str, set[bytes]] = {}
        for of, id in self.responses:
            if of == owner and (one := self.response(owner, id)) is not None:
                for item in (*one.input, *one.output):
                    found.setdefault(item.id, set()).add(item.body)
        for of, id in self.rooms:
            if of == owner and (room := self.room(owner, id)) is not None:
                for name, body in room[2].items():
                    found.setdefault(name, set()).add(body)
        return found


class Machine(RuleBasedStateMachine):
    """Calls of the store, and of its model."""

    def new_url(self) -> str:
        """The URL of a new database."""
        memory = "/dev/shm"  # where waiting for the disk costs nothing
        self.folder = TemporaryDirectory(
            prefix="unilect-store-", dir=memory if Path(memory).is_dir() else None
        )
        return f"sqlite:///{self.folder.name}/x.db"

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.loop = asyncio.new_event_loop()
        self.url = self.new_url()
        self.open()

    def open(self) -> None:
        """Open the store."""
        self.database = Database(self.url)
        self.answers = ResponseStore(self.database, max_age_s=AGE_S, clock=lambda: self.model.now)

    def do(self, call: Any) -> Any:
        """The result of a call."""
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        """Close everything."""
        self.do(self.answers.aclose())
        self.do(self.database.aclose())
        self.loop.close()
        if hasattr(self, "folder"):
            self.folder.cleanup()

    @rule()
    def restart(self) -> None:
        """Close the store, and open it again."""
        self.do(self.answers.aclose())
        self.do(self.database.aclose())
        self.open()

    @rule(seconds=st.sampled_from([1.0, AGE_S / 2, AGE_S]))
    def wait(self, seconds: float) -> None:
        """Time goes by."""
        self.model.now += seconds

    @rule()
    def sweep(self) -> None:
        """What has expired is deleted."""
        self.do(self.answers.sweep())

    @rule(
        owner=owners,
        id=names,
        status=statuses,
        body=st.binary(max_size=5),
        input=items,
        output=items,
        parent=st.none() | names,
        room=st.none() | rooms,
        events=st.none() | st.binary(max_size=5),
    )
    def put(
        self,
        owner: str,
        id: str,
        status: str,
        body: bytes,
        input: list[Item],
        output: list[Item],
        parent: str | None,
        room: str | None,
        events: bytes | None,
    ) -> None:
        """Store a response."""
        one = StoredResponse(id, owner, status, body, input, output, parent, room, 1.0, events)
        self.do(self.answers.save(one))
        kept = self.model.keep(owner, parent)
        self.model.responses[owner, id] = (one, self.model.now)
        self.model.kept[owner, id] = kept
        self.model.append(owner, room, [*input, *output])

    @rule(
        owner=owners,
        id=names,
        status=statuses,
        body=st.binary(max_size=5),
        output=items,
        events=st.none() | st.binary(max_size=5),
        only_if=st.lists(statuses, max_size=2),
    )
    def update(
        self,
        owner: str,
        id: str,
        status: str,
        body: bytes,
        output: list[Item],
        events: bytes | None,
        only_if: list[str],
    ) -> None:
        """Change a response."""
        changed = self.do(
            self.answers.update(
                owner, id, status=status, body=body, output=output, events=events, only_if=only_if
            )
        )
        one = self.model.response(owner, id)
        assert changed == (one is not None and (not only_if or one.status in only_if))
        if changed and one is not None:
            one.status, one.body, one.output = status, body, output
            one.events = one.events if events is None else events
            self.model.append(owner, one.conversation, output)

    @rule(owner=owners, id=names)
    def delete(self, owner: str, id: str) -> None:
        """Delete a response."""
        there = self.model.response(owner, id) is not None
        assert there == self.do(self.answers.delete(owner, id))
        if there:
            del self.model.responses[owner, id]

    @rule(owner=owners, id=rooms, metadata=st.binary(max_size=5), new=items)
    def create(self, owner: str, id: str, metadata: bytes, new: list[Item]) -> None:
        """Begin a conversation."""
        self.do(self.answers.create_conversation(owner, metadata, new, id))
        self.model.rooms[owner, id] = (metadata, self.model.now, {}, self.model.now)
        self.model.append(owner, id, new)

    @rule(owner=owners, id=rooms, metadata=st.binary(max_size=5))
    def rename(self, owner: str, id: str, metadata: bytes) -> None:
        """Give a conversation other metadata."""
        room = self.model.room(owner, id)
        assert (room is not None) == self.do(self.answers.update_conversation(owner, id, metadata))
        if room is not None:
            self.model.rooms[owner, id] = (metadata, room[1], room[2], self.model.now)

    @rule(owner=owners, id=rooms, new=items)
    def add(self, owner: str, id: str, new: list[Item]) -> None:
        """Add items to a conversation."""
        added = self.do(self.answers.add_items(owner, id, new))
        assert added == self.model.append(owner, id, new)

    @rule(owner=owners, id=rooms, item=st.sampled_from(item_names))
    def delete_item(self, owner: str, id: str, item: str) -> None:
        """Delete an item of a conversation."""
        room = self.model.room(owner, id)
        there = room is not None and item in room[2]
        assert there == self.do(self.answers.delete_item(owner, id, item))
        if room is not None and there:
            del room[2][item]
            self.model.rooms[owner, id] = (*room[:3], self.model.now)

    @rule(owner=owners, id=rooms)
    def delete_room(self, owner: str, id: str) -> None:
        """Delete a conversation."""
        there = self.model.room(owner, id) is not None
        assert there == self.do(self.answers.delete_conversation(owner, id))
        if there:
            del self.model.rooms[owner, id]

    @rule(owner=owners, id=names)
    def read_chain(self, owner: str, id: str) -> None:
        """Read a chain, without events."""
        expected = self.model.chain(owner, id)
        if expected is not None and len(expected) > len(self.model.responses):
            return  # it bites its tail, and is refused
        found = self.do(self.answers.chain(owner, id))
        if expected is None:
            assert found is None
        else:
            assert [(one.id, one.body, one.input, one.output) for one in expected] == [
                (one.id, one.body, one.input, one.output) for one in found
            ]

    @rule(owner=owners)
    def read_items(self, owner: str) -> None:
        """Find items by their ids."""
        expected = self.model.latest(owner)
        found = self.do(self.answers.items(owner, [*item_names, "none"]))
        assert expected.keys() == found.keys()
        assert all(found[id] in bodies for id, bodies in expected.items())

    @rule(owner=owners, id=rooms, limit=st.integers(1, 9), newest_first=st.booleans())
    def read_pages(self, owner: str, id: str, limit: int, newest_first: bool) -> None:
        """Read a conversation by pages."""
        room = self.model.room(owner, id)
        if room is None:
            assert self.do(self.answers.list_items(owner, id)) is None
            return
        expected = [Item(item, body) for item, body in room[2].items()]
        found, after, more = list[Item](), None, True
        while more:
            page, more = self.do(self.answers.list_items(owner, id, after, limit, newest_first))
            found += page
            after = page[-1].id if page else None
        assert (expected[::-1] if newest_first else expected) == found

    @invariant()
    def all_is_there(self) -> None:
        """Every response and every conversation is as the model has it."""
        for owner, id in list(self.model.responses):
            assert self.model.response(owner, id) == self.do(self.answers.get(owner, id))
        for owner, id in list(self.model.rooms):
            room = self.model.room(owner, id)
            expected = None if room is None else (room[0], room[1])
            assert expected == self.do(self.answers.conversation(owner, id))


FEW = settings(
    max_examples=25 if THOROUGH else 8,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.timeout(600)
def test_sqlite_is_as_the_model() -> None:
    """On SQLite any sequence of calls, restarts and waits has the results that the model has."""
    run_state_machine_as_test(Machine, settings=FEW)


@pytest.mark.timeout(600)
@pytest.mark.heavy
def test_postgresql_is_as_the_model(server_of_postgresql: PostgreSQL) -> None:
    """On PostgreSQL any sequence of calls, restarts and waits has the results that the model has."""

    class OnPostgreSQL(Machine):
        def new_url(self) -> str:
            return server_of_postgresql.new_database()

    run_state_machine_as_test(OnPostgreSQL, settings=FEW)
