"""The child of a transformers model that is given one chat template after another; see `templated`."""

from typing import Any

import msgspec

from unilect.engines.process import child
from unilect.engines.transformers.child import Child
from unilect.engines.transformers.words.prompt_builder import PromptBuilder
from unilect.wire import frames


class TemplatedChild(Child):
    """A child with one operation more: `template` replaces its chat template, and returns what the engine is told at a start."""

    async def _value(self, call: frames.Call) -> Any:
        if call.operation != "template":
            return await super()._value(call)
        model, text = self._model, msgspec.msgpack.decode(call.body, type=str)
        self._reader = PromptBuilder(
            model.tokenizer, text, self._context, model.stop_ids, model.size
        )
        return self._describe()


if __name__ == "__main__":
    child.run(lambda settings: TemplatedChild(settings).start(settings["socket_path"]))
