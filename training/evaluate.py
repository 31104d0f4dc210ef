"""
Ask the shipped GGUF the held-out requests, greedily, and print how many answers are right.

    python -m training.evaluate --heldout training/out/heldout.jsonl

Exits with 1 when a skill is below 90 percent. Every request goes through xllamacpp's own server
and its chat completions, with tools and response_format as a client sends them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from training.serving import Served

LEAST = 90.0  # percent


def body_of(row: dict[str, Any]) -> dict[str, Any]:
    """Write the parts of a chat completion request beside the messages."""
    body: dict[str, Any] = {}
    if row.get("tools"):
        body["tools"] = [{"type": "function", "function": schema} for schema in row["tools"]]
    if row.get("schema"):
        named = {"name": "answer", "schema": row["schema"]}
        body |= {
            "response_format": {"type": "json_schema", "json_schema": named},
            "max_tokens": 128,
        }
    return body


def raw_fields(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write messages as OpenAI clients send them: call ids, arguments as text."""
    out: list[dict[str, Any]] = []
    for message in messages:
        found = dict(message)
        if found.get("tool_calls"):
            call = found["tool_calls"][0]["function"]
            text = json.dumps(call["arguments"], ensure_ascii=False)
            call = {"name": call["name"], "arguments": text}
            found["tool_calls"] = [{"id": "call_1", "type": "function", "function": call}]
        if found["role"] == "tool":
            found["tool_call_id"] = "call_1"
        out.append(found)
    return out


def right(expect: dict[str, Any], choice: dict[str, Any]) -> bool:
    """Judge an answer: it must be complete, and what was expected."""
    message, text = choice["message"], choice["message"].get("content") or ""
    if "call" in expect:
        calls = message.get("tool_calls") or []
        if len(calls) != 1 or choice["finish_reason"] != "tool_calls":
            return False
        call = calls[0]["function"]
        found = {"name": call["name"], "arguments": json.loads(call["arguments"])}
        return bool(found == expect["call"])
    if choice["finish_reason"] != "stop" or message.get("tool_calls"):
        return False
    if "keys" in expect:
        try:
            return list(json.loads(text)) == expect["keys"]
        except (ValueError, TypeError):
            return False
    if "must" in expect:
        return all(part in text for part in expect["must"]) and len(text) > 40
    return bool(text == expect["text"])


def main() -> None:
    """Run the whole held-out set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("src/unilect/demo/model.gguf"))
    parser.add_argument("--heldout", type=Path, default=Path("training/out/heldout.jsonl"))
    parser.add_argument("--each", type=int, default=100, help="requests of each skill")
    parser.add_argument("--show", type=int, default=0, help="wrong answers to print of each skill")
    parser.add_argument("--skill", default="", help="only skills that begin so")
    args = parser.parse_args()
    served = Served(args.model)
    score: dict[str, list[bool]] = defaultdict(list)
    for line in args.heldout.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        skill = row["skill"]
        if len(score[skill]) >= args.each or not skill.startswith(args.skill):
            continue
        choice = served.chat(raw_fields(row["messages"]), **body_of(row))
        score[skill].append(right(row["expect"], choice))
        if not score[skill][-1] and score[skill].count(False) <= args.show:
            print(
                f"[{skill}] {row['messages'][-1]['content']!r} expected {row['expect']} got",
                json.dumps(choice, ensure_ascii=False),
            )
    failed = False
    print(f"{'skill':<27} {'right':>5} {'of':>5} {'percent':>8}")
    for skill, results in score.items():
        if not results:
            continue
        share = 100 * sum(results) / len(results)
        failed |= share < LEAST
        print(f"{skill:<27} {sum(results):>5} {len(results):>5} {share:>8.1f}")
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
