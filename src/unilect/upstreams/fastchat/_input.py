"""What a FastChat worker takes as a prompt, an input and an image."""

from unilect.errors import InvalidRequest
from unilect.requests import ImagePart, Message, Prompt


def text_of(prompt: Prompt, param: str) -> str:
    """
    A prompt, which must be a text: a worker takes no token ids, and nobody here knows its tokens.

    Raises:
        InvalidRequest: It is a list of ids.
    """
    if isinstance(prompt, str):
        return prompt
    raise InvalidRequest(
        f"`{param}` holds token ids, and this model's server reads texts only. Send the text "
        "(with LangChain: `check_embedding_ctx_length=False`).",
        param=param,
    )


def check_images(messages: list[Message]) -> None:
    """
    Images are handed over, never fetched: a worker would call any URL that it is given.

    Raises:
        InvalidRequest: One is a URL of another server.
    """
    for number, message in enumerate(messages):
        for part in message.content if isinstance(message.content, list) else ():
            if isinstance(part, ImagePart) and not part.image_url.url.startswith("data:image/"):
                where = f"messages[{number}].content"
                raise InvalidRequest(
                    f"`{where}`: an image must be a `data:image/...;base64,` URL; nothing is fetched.",
                    param=where,
                )
