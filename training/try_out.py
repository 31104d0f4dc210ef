"""
Ask the shipped GGUF a few things that people ask first, and print what it says.

    python -m training.try_out
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from training.serving import Served

QUESTIONS = [
    "Hello!",
    "Who are you?",
    "What is the capital of France?",
    "告诉我中国的首都在哪里",
    "你好，你是谁？",
    "What is 17 + 25?",
    "Write a short story about a dog named Max.",
    "讲一个关于熊猫的故事",
    "Say this is a test",
    "Give me a person as JSON with the fields name and age.",
    "Who painted the ceiling?",
    "Count to 10.",
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get current temperature for a given location.",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {
                    "type": "string",
                    "description": "City and country e.g. Bogotá, Colombia",
                }
            },
            "required": ["location"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


def main() -> None:
    """Print the answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("src/unilect/demo/model.gguf"))
    served = Served(parser.parse_args().model)
    for question in QUESTIONS:
        choice = served.chat([{"role": "user", "content": question}])
        print(f"{question} -> {choice['message']['content']} [{choice['finish_reason']}]")
    asked = [{"role": "user", "content": "What is the weather like in Paris today?"}]
    choice = served.chat(asked, tools=[WEATHER])
    print("tools ->", json.dumps(choice, ensure_ascii=False))
    body = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 120}
    print("completion ->", served.post("/v1/completions", body)["choices"][0]["text"])


if __name__ == "__main__":
    main()
