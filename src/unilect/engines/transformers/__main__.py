"""The program of the child: it has its settings before torch and transformers are there, and imports them without the garbage collector."""

import gc
from typing import Any

from unilect.engines.process import child


def serve(settings: dict[str, Any]) -> dict[str, Any]:
    """Load the model of the settings and serve it; what the engine is told."""
    gc.disable()  # it would look at the 600,000 objects of these libraries again and again, and find next to nothing
    try:
        from unilect.engines.transformers.child import Child
    finally:
        gc.freeze()  # they stay: an answer is never kept waiting while they are looked at
        gc.enable()
    return Child(settings).start(settings["socket_path"])


if __name__ == "__main__":
    child.run(serve)
