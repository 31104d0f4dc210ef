"""A server as clients need to know it, and the lines that a client needs of it."""

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from unilect.http.base_url import root_of
from unilect.web.connect.formats import DUMPS, Form
from unilect.web.connect.settings import Setting, merge

VARIABLE = "UNILECT_API_KEY"
#: What stands for the key where one is shown.
PLACEHOLDER = "YOUR_KEY"
MAX_MODELS = 20  # more fill no list that a person chooses from
#: The states of a model that answers nobody.
GONE = ("out", "failed")


class Model(NamedTuple):
    """
    A model, as clients need to know it.

    Attributes:
        name: Its name.
        context: Its context in tokens, if the server tells it.
        vision: It takes images.
    """

    name: str
    context: int | None = None
    vision: bool = False

    @property
    def output(self) -> int | None:
        """The part of the context that an answer may take; the rest is for the conversation."""
        return None if self.context is None else self.context // 4


class Server(NamedTuple):
    """
    A running server.

    Attributes:
        url: Its base URL for clients of OpenAI's API, with `/v1`.
        models: Its chat models; the chosen one is the first.
        needs_key: It asks for a key.
        key: What is put where only the key itself can be put; a placeholder where that is shown.
        exported: The environment has the key already.
        further: How many models it has that were not asked for.
    """

    url: str
    models: tuple[Model, ...]
    needs_key: bool
    key: str = PLACEHOLDER
    exported: bool = False
    further: int = 0

    @property
    def root(self) -> str:
        """Its URL without `/v1`, for clients of other APIs."""
        return root_of(self.url)

    @property
    def model(self) -> Model:
        """The chosen model."""
        return self.models[0]

    @property
    def is_near(self) -> bool:
        """Return True if its address works on this machine only."""
        return urlsplit(self.url).hostname in ("localhost", "127.0.0.1", "::1")


class File(NamedTuple):
    """
    A client's file, and what it must hold.

    Attributes:
        path: The file; `~` is the home directory.
        form: Its format.
        settings: Its settings.
        secret: A key is among them, so that nobody else may read the file.
    """

    path: str
    form: Form
    settings: Sequence[Setting]
    secret: bool = False

    @property
    def text(self) -> str:
        """The settings alone, as a file."""
        return DUMPS[self.form](merge(None, self.settings).data)


class Text(NamedTuple):
    """
    Lines that are no configuration file.

    Attributes:
        heading: Where they go.
        language: The language of the lines, as Markdown names it.
        text: The lines.
    """

    heading: str
    language: str
    text: str


class Lines(NamedTuple):
    """
    The lines that a client needs.

    Attributes:
        files: Its configuration files.
        texts: What is typed elsewhere.
        notes: What to know beside them, one sentence each.
    """

    files: tuple[File, ...] = ()
    texts: tuple[Text, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def blocks(self) -> list[Text]:
        """The files and the other texts, alike."""
        languages = {"dotenv": "sh"}
        files = [Text(one.path, languages.get(one.form, one.form), one.text) for one in self.files]
        return [*files, *self.texts]
