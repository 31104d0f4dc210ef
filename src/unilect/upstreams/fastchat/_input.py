"""Prompts, inputs and images in a FastChat worker's format."""

from unilect.core.errors import InvalidRequest
from unilect.core.requests import ImagePart, Message, Prompt


def text_of(prompt: Prompt, param: str) -> str:
    """
    A prompt, which must be text: a worker does not accept token ids, and has no endpoint to detokenize them.

    Raises:
        InvalidRequest: The prompt is a list of token ids.
    """
    if isinstance(prompt, str):
        return prompt
    raise InvalidRequest(
        f"`{param}` has token ids, and this model's server accepts texts only. Send the text "
        "(with LangChain: `check_embedding_ctx_length=False`).",
        param=param,
    )


def check_images(messages: list[Message]) -> None:
    """
    Check that images are `data:` URLs: a worker would fetch any other URL.

    Raises:
        InvalidRequest: An image is another URL.
    """
    for number, message in enumerate(messages):
        for part in message.content if isinstance(message.content, list) else ():
            if isinstance(part, ImagePart) and not part.image_url.url.startswith("data:image/"):
                where = f"messages[{number}].content"
                raise InvalidRequest(
                    f"`{where}`: an image must be a `data:image/...;base64,` URL; URLs are not fetched.",
                    param=where,
                )
