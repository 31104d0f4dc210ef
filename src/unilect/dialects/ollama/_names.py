"""Models as Ollama has them: a model `x` is also `x:latest`, and stays loaded for as long as a request says."""

import math

from unilect.answers.service import Service
from unilect.api.backend import Backend
from unilect.core.errors import InvalidRequest, ModelNotFound
from unilect.models.model import Model

_LATEST = ":latest"


def find_model(service: Service, name: str | None) -> Model:
    """
    Return the model of a name.

    Raises:
        InvalidRequest: There is no name.
        ModelNotFound: There is no such model, in the words that clients look for.
    """
    if not name:
        raise InvalidRequest(
            "model is required; send the name of a model in `model`.", param="model"
        )
    spellings = (name, name.removesuffix(_LATEST), f"{name}{_LATEST}")
    known = next((one for one in spellings if one in service.registry), name)
    try:
        return service.model(known)
    except ModelNotFound as error:
        raise ModelNotFound(f"model '{name[:100]}' not found", param="model") from error


def with_tag(name: str) -> str:
    """Return a model's name with a tag."""
    return name if ":" in name.rpartition("/")[2] else f"{name}{_LATEST}"


async def load_model(service: Service, model: Model) -> None:
    """Load a model, unless it is loaded; errors as `Service.call`."""

    async def ask_nothing(model: Model, backend: Backend) -> None:
        """Ask a backend nothing but to be there."""

    await service.call(model.name, ask_nothing)


def set_keep_alive(model: Model, seconds: float | None) -> None:
    """Have a model stay loaded; None changes nothing."""
    if seconds is not None:
        model.set_keep_alive(None if math.isinf(seconds) else seconds)
