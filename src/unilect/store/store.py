"""The store of a server: its database, and what is kept there."""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from unilect.config.store import (
    MEMORY,
    SQLITE,
    StoreConfig,
    check_place,
    default_url,
    location,
    sqlite_path,
)
from unilect.core.errors import ConfigError
from unilect.runtime.tasks import close_each
from unilect.store.database import Database
from unilect.store.keys import KeyStore
from unilect.store.ledger import Ledger
from unilect.store.model_events import ModelEventStore
from unilect.store.responses import ResponseStore

log = logging.getLogger("unilect")
_DAY_S = 86_400.0


class Store:
    """
    A store; nothing is opened before its first use.

    Args:
        config: The table `[store]`.
        environment: Says where a user's data is; without a folder for it the database is in memory, and the log tells so.
        clock: Seconds since 1970, for all that is kept.
        is_permanent: What is kept has to outlive this process: there is no database in memory.

    Attributes:
        database: For all that is kept.
        answers: Stored responses and conversations; None where none are to be stored.
        keys: The API keys; None where those of the store let nobody in.
        ledger: What was used.
        events: What has happened to models.

    Raises:
        ConfigError: The URL is not that of a database that can be used, or there is no such folder, or it is in memory and has to last.
    """

    def __init__(
        self,
        config: StoreConfig,
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.time,
        *,
        is_permanent: bool = False,
    ) -> None:
        check_place(config)
        default = default_url(environment)
        if is_permanent and location(config, environment) == MEMORY:
            why = "there is neither HOME nor XDG_DATA_HOME" if config.url is None else "`url` in [store] is sqlite://"  # fmt: skip
            raise ConfigError(
                f"the store is in memory, and gone when this command ends: {why}. Name the file of a server's configuration with --config, "
                "whose [store] has a `url` that lasts."
            )
        if config.url is None and default is None and config.responses:
            log.warning(
                "Responses are stored in memory, and are gone when the server stops: there is neither HOME nor XDG_DATA_HOME. "
                "Set `url` in [store]."
            )
        self.database = Database(
            config.url or default or SQLITE,
            is_default=config.url is None,
            is_permanent=is_permanent,
        )
        self._data = Path(sqlite_path(default) or "").parent if default is not None else None
        self.keys = KeyStore(self.database, clock) if config.keys else None
        self.ledger = Ledger(self.database, max_age_s=config.ledger_days * _DAY_S, clock=clock)
        self.events = ModelEventStore(self.database, config.url is not None, clock)
        self.answers: ResponseStore | None = None
        if config.responses:
            self.answers = ResponseStore(
                self.database,
                max_age_s=config.max_age_days * _DAY_S,
                max_bytes=config.max_size_mib * 1024**2,
                max_count=config.max_count,
                clock=clock,
            )

    @property
    def journals(self) -> Path | None:
        """
        Stem of the paths of the journals of this database's servers: beside its file, or in the folder of the user's data.

        None where there is no such folder, or where the database is in memory, which no journal outlives.
        """
        if not self.database.is_server:
            return self.database.file
        if self._data is None:
            return None
        digest = hashlib.sha256(self.database.name.encode()).hexdigest()
        return self._data / f"postgresql-{digest[:12]}"

    async def aclose(self) -> None:
        """End what goes on in the background, and close the database. Idempotent."""
        parts = (self.ledger, self.answers, self.database)
        await close_each(*(part.aclose for part in parts if part is not None))
