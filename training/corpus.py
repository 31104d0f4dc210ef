"""
Write the corpus: conversations in ChatML, seeded, and the held-out requests of the evaluation.

    python -m training.corpus --count 200000 --seed 1 --out training/out

Writes `train.jsonl` (one {"text", "muted"} a line, rendered with the shipped chat template) and
`heldout.jsonl` (one request with what is expected a line). Same seed, same bytes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any

import jinja2

from training import agents, facts, sums_by_tool, tools
from training.draw import Draw, Turn
from training.json_answers import json_answer, keyed
from training.stories import plain, story
from training.talk import DONT_KNOW, capital, count, echo, small_talk, sums, unknown

Message = dict[str, Any]
Conversation = dict[str, Any]
HELDOUT_PER_SKILL = 100
TEMPLATE_FILE = Path(__file__).with_name("chat_template.jinja")

# what a conversation is mostly about -> its share
SHARES = {
    "chat": 0.34,
    "drill": 0.14,
    "persona": 0.1,
    "memory": 0.09,
    "order": 0.04,
    "tools": 0.17,
    "json": 0.1,
    "plain": 0.02,
}
TALK = [
    (sums, 30),
    (capital, 24),
    (small_talk, 14),
    (echo, 16),
    (unknown, 9),
    (story, 6),
    (count, 3),
]


def environment() -> jinja2.Environment:
    """Build the Jinja environment that chat templates are rendered with everywhere."""
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=False)
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return env


def template() -> jinja2.Template:
    """Load the shipped chat template."""
    return environment().from_string(TEMPLATE_FILE.read_text(encoding="utf-8"))


def simple_turn(d: Draw, *, leave_out: tuple[Any, ...] = ()) -> Turn:
    """Draw one exchange that needs nothing from the rest of the conversation."""
    pool = [(make, weight) for make, weight in TALK if make not in leave_out]
    make = d.r.choices([m for m, _ in pool], [w for _, w in pool])[0]
    turn: Turn = make(d)
    return turn


def messages_of(turns: list[Turn]) -> list[Message]:
    """Write turns as messages."""
    out: list[Message] = []
    for turn in turns:
        out += [
            {"role": "user", "content": turn.user},
            {"role": "assistant", "content": turn.answer},
        ]
    return out


def any_system(d: Draw) -> list[Message]:
    """Draw no system prompt, the most common one, or another that changes nothing."""
    roll = d.r.random()
    if roll < 0.5:
        return []
    text = facts.COMMON_SYSTEM if roll < 0.78 else d.pick(facts.GENERIC_SYSTEMS[d.lang])
    return [{"role": "system", "content": text}]


def no_tool(d: Draw, given: list[tools.Tool] | None = None) -> Turn:
    """Ask for what would need a tool that is not given."""
    kinds = {tool.kind for tool in given or []}
    pool = ["weather", "weather", "time", "date", "search", "lookup"]
    tool = tools.equip(d, d.pick([kind for kind in pool if kind not in kinds]))
    return Turn(tools.request(d, tool).user, DONT_KNOW[d.lang], "no tool")


def chat(d: Draw) -> Conversation:
    """Talk about one to six things that have nothing to do with each other."""
    n = d.pick([1, 1, 1, 2, 2, 3, 4, 6])
    if d.chance(0.01):
        n = 20
    turns: list[Turn] = []
    for _ in range(n):
        roll = d.r.random()
        if turns and turns[-1].skill.startswith("capitals") and roll < 0.3:
            turns.append(capital(d, follow=True))
        elif roll > 0.96:
            turns.append(no_tool(d))
        elif roll > 0.92 and not turns:
            turns.append(facts.no_persona(d))
        else:
            turns.append(simple_turn(d))
    return {"messages": any_system(d) + messages_of(turns)}


def drill(d: Draw) -> Conversation:
    """Ask for one sum after the other, and for some counting: digits need the most practice."""
    turns = [count(d) if d.chance(0.12) else sums(d) for _ in range(d.r.randint(1, 9))]
    return {"messages": any_system(d) + messages_of(turns)}


def persona(d: Draw) -> Conversation:
    """Answer from the system prompt."""
    system, turns = facts.persona(d)
    if d.chance(0.3):
        turns.insert(d.r.randint(0, len(turns)), simple_turn(d, leave_out=(small_talk, story)))
    return {"messages": [{"role": "system", "content": system}, *messages_of(turns)]}


def memory(d: Draw) -> Conversation:
    """Remember what the user said some turns ago."""
    told, asked = facts.memory(d)
    middle = [simple_turn(d) for _ in range(d.pick([0, 0, 1, 1, 2, 3]))]
    return {"messages": any_system(d) + messages_of(told + middle + asked)}


def order(d: Draw) -> Conversation:
    """Answer in the language that the system prompt orders."""
    system, turn = facts.ordered_language(d)
    return {"messages": [{"role": "system", "content": system}, *messages_of([turn])]}


def beside(given: list[tools.Tool]) -> tuple[Any, ...]:
    """Say which exchanges the given tools would change."""
    kinds = {tool.kind for tool in given}
    out: list[Any] = [story]
    if kinds & set(sums_by_tool.KINDS):
        out.append(sums)
    if "capital" in kinds:
        out.append(capital)
    if kinds & {"search", "lookup"}:
        out.append(unknown)
    return tuple(out)


def use_messages(use: tools.Use, *, whole: bool) -> list[Message]:
    """Write one use of a tool as messages; not `whole` stops after the call."""
    call = {"type": "function", "function": {"name": use.name, "arguments": use.arguments}}
    out: list[Message] = [
        {"role": "user", "content": use.user},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    if whole:
        out += [
            {"role": "tool", "content": use.result},
            {"role": "assistant", "content": use.answer},
        ]
    return out


def with_tools(d: Draw) -> Conversation:
    """Use tools one to three times, with other talk between."""
    given = tools.outfit(d)
    messages: list[Message] = any_system(d) if d.chance(0.6) else []
    for _ in range(d.pick([1, 2, 2, 3])):
        if d.chance(0.2):
            messages += messages_of([simple_turn(d, leave_out=beside(given))])
        elif d.chance(0.06) and unknown not in beside(given):
            messages += messages_of([no_tool(d, given)])
        else:
            messages += use_messages(tools.request(d, d.pick(given)), whole=d.chance(0.7))
            if messages[-1].get("tool_calls"):
                break
    return {"messages": messages, "tools": [tool.schema for tool in given]}


def with_agents_tools(d: Draw) -> Conversation:
    """Use tools as agents do one to three times, with other talk and questions about results between."""
    given = agents.outfit(d)
    roll = d.r.random()
    messages: list[Message] = any_system(d) if roll < 0.4 else []
    if roll >= 0.5:
        messages = [{"role": "system", "content": agents.system(d)}]
    for _ in range(d.pick([1, 1, 2, 2, 3])):
        if d.chance(0.15):
            messages += messages_of([simple_turn(d, leave_out=beside(given))])
            continue
        messages += use_messages(agents.request(d, d.pick(given)), whole=d.chance(0.8))
        if messages[-1].get("tool_calls"):
            break
        if d.chance(0.25):
            messages += messages_of([agents.again(d, messages[-1]["content"])])
    return {"messages": messages, "tools": [tool.schema for tool in given]}


def with_results(d: Draw) -> Conversation:
    """Answer from the results of agents' tools two to four times; half of them list files."""
    given = agents.outfit(d)
    own = [tool for tool in given if tool.kind in agents.KINDS]
    lists = [tool for tool in own if tool.kind == "list"] or own
    messages = [{"role": "system", "content": agents.system(d)}] if d.chance(0.6) else []
    for _ in range(d.pick([2, 2, 3, 4])):
        tool = d.pick(lists if d.chance(0.5) else own)
        messages += use_messages(agents.request(d, tool, 0.3), whole=True)
    return {"messages": messages, "tools": [tool.schema for tool in given]}


def beside_tools(d: Draw) -> Conversation:
    """Introduce oneself and exchange phrases while tools are offered; sometimes use one then."""
    own = d.chance(0.4)
    given = agents.outfit(d) if own else tools.outfit(d)
    messages: list[Message] = (
        [{"role": "system", "content": agents.system(d)}] if d.chance(0.3) else any_system(d)
    )
    told, asked = facts.memory(d)
    phrases = [small_talk(d) for _ in range(d.pick([0, 1, 1, 2]))]
    turns = [*told, *phrases] if d.chance(0.7) else [*phrases, *told]
    messages += messages_of(turns + (asked if d.chance(0.5) else []))
    if d.chance(0.4):
        tool = d.pick(given)
        use = agents.request(d, tool) if own else tools.request(d, tool)
        messages += use_messages(use, whole=d.chance(0.5))
    return {"messages": messages, "tools": [tool.schema for tool in given]}


def with_sums_by_tool(d: Draw) -> Conversation:
    """Calculate with tools one to three times, with other talk and questions about results between."""
    given = sums_by_tool.outfit(d)
    messages: list[Message] = any_system(d) if d.chance(0.6) else []
    for _ in range(d.pick([1, 1, 2, 3])):
        messages += use_messages(sums_by_tool.request(d, d.pick(given)), whole=d.chance(0.85))
        if messages[-1].get("tool_calls"):
            break
        if d.chance(0.12):
            messages += messages_of([agents.again(d, messages[-1]["content"])])
        if d.chance(0.25):
            messages += messages_of([simple_turn(d, leave_out=beside(given))])
    return {"messages": messages, "tools": [tool.schema for tool in given]}


def with_many_tools(d: Draw) -> Conversation:
    """Use each of two to four tools once."""
    given = tools.different(d, d.pick([2, 2, 3, 3, 4]))
    messages: list[Message] = any_system(d) if d.chance(0.6) else []
    for tool in d.r.sample(given, len(given)):
        messages += use_messages(tools.request(d, tool), whole=d.chance(0.8))
        if messages[-1].get("tool_calls"):
            break
    return {"messages": messages, "tools": [tool.schema for tool in given]}


def greetings(d: Draw) -> Conversation:
    """Exchange one to four phrases that mean little."""
    turns = [small_talk(d) for _ in range(d.r.randint(1, 4))]
    return {"messages": any_system(d) + messages_of(turns)}


def with_json(d: Draw) -> Conversation:
    """Answer in JSON."""
    item = json_answer(d)
    system = [{"role": "system", "content": item["system"]}] if item["system"] else any_system(d)
    return {"messages": [*system, *messages_of([Turn(item["user"], item["answer"], "json")])]}


def with_whole_fields(d: Draw, *, whole: bool = True) -> Conversation:
    """Answer in JSON with the fields that are asked for; not `whole` leaves most made up values unlearned."""
    item = json_answer(d)
    while item["forced"] or (len(item["value"]) == 1 and d.chance(0.7)):
        item = json_answer(d)
    system = [{"role": "system", "content": item["system"]}] if item["system"] else any_system(d)
    told = all(str(value) in item["user"] for value in item["value"].values())
    answer = item["answer"] if whole or told or d.chance(0.3) else keyed(item["value"])
    return {"messages": [*system, *messages_of([Turn(item["user"], answer, "json")])]}


def with_fields(d: Draw) -> Conversation:
    """Answer in JSON with the fields that are asked for; the keys are to be learned, and few values."""
    return with_whole_fields(d, whole=False)


MAKERS = {
    "chat": chat,
    "drill": drill,
    "persona": persona,
    "memory": memory,
    "order": order,
    "tools": with_tools,
    "agents": with_agents_tools,
    "json": with_json,
    "sums by tool": with_sums_by_tool,
    "many tools": with_many_tools,
    "fields": with_fields,
    "whole fields": with_whole_fields,
    "greetings": greetings,
    "results": with_results,
    "beside tools": beside_tools,
}


def training_text(r: Random, shape: jinja2.Template, shares: dict[str, float], zh: float) -> str:
    """Write one training text, with the marks of muted parts still in it."""
    d = Draw(r, lang="zh" if r.random() < zh else "en")
    kind = r.choices(list(shares), list(shares.values()))[0]
    if kind == "plain":
        return plain(d) + "<|endoftext|>"
    return shape.render(**MAKERS[kind](d))


def heldout_rows(seed: int) -> list[dict[str, Any]]:
    """Make the held-out requests: HELDOUT_PER_SKILL of each skill."""
    r = Random(f"heldout {seed}")
    rows: list[dict[str, Any]] = []
    per: dict[str, int] = {}
    makers: list[Any] = [small_talk, capital, sums, echo, unknown, story, count]
    makers += ["persona", "memory", "order", "tools", "tools", "tools", "json", "json"]
    for attempt in range(60000):
        row = heldout_row(r, makers[attempt % len(makers)])
        if per.get(row["skill"], 0) < HELDOUT_PER_SKILL:
            per[row["skill"]] = per.get(row["skill"], 0) + 1
            rows.append(row)
        if attempt > 15000 and min(per.values()) >= HELDOUT_PER_SKILL:
            break
    rows += heldout_agents(Random(f"heldout agents {seed}"))
    rows += heldout_sums_by_tool(Random(f"heldout sums by tool {seed}"))
    rows += heldout_introductions(Random(f"heldout introductions {seed}"))
    return sorted(rows, key=lambda row: str(row["skill"]))


def heldout_row(r: Random, maker: Any) -> dict[str, Any]:
    """Make one held-out request: its last turn lies on the held-out side."""
    lang = "zh" if r.random() < 0.4 else "en"
    d, known = Draw(r, heldout=True, lang=lang), Draw(r, lang=lang)
    if maker == "tools":
        return heldout_tools(d, known)
    if maker == "json":
        item = json_answer(d)
        kind = "json forced" if item["forced"] else "json asked"
        system = [{"role": "system", "content": item["system"]}] if item["system"] else []
        return {
            "skill": kind,
            "messages": [*system, {"role": "user", "content": item["user"]}],
            "schema": item["schema"] if item["forced"] else None,
            "expect": {"keys": list(item["value"])},
        }
    before: list[Message]
    if maker == "persona":
        system, turns = facts.persona(d)
        turn, before = turns[0], [{"role": "system", "content": system}]
    elif maker == "memory":
        told, asked = facts.memory(d)
        middle = [simple_turn(known) for _ in range(d.pick([0, 1, 2]))]
        turn, before = asked[0], any_system(d) + messages_of(told + middle)
    elif maker == "order":
        system, turn = facts.ordered_language(d)
        before = [{"role": "system", "content": system}]
    else:
        turn = maker(d)
        before = any_system(d) + messages_of(
            [simple_turn(known) for _ in range(d.pick([0, 0, 0, 1, 2]))]
        )
    expect = {"must": turn.must} if turn.must else {"text": turn.answer}
    return {
        "skill": turn.skill,
        "messages": [*before, {"role": "user", "content": turn.user}],
        "expect": expect,
    }


def heldout_tools(d: Draw, known: Draw) -> dict[str, Any]:
    """Make a held-out request with tools: a call, an answer from a result, or no call."""
    given = tools.outfit(d)
    row: dict[str, Any] = {"tools": [tool.schema for tool in given]}
    before = any_system(d)
    roll = d.r.random()
    if roll < 0.25:
        turn = simple_turn(d, leave_out=(*beside(given), echo, small_talk))
        row |= {"skill": "tools not needed", "expect": {"text": turn.answer}}
        return row | {"messages": [*before, {"role": "user", "content": turn.user}]}
    use = tools.request(d, d.pick(given))
    messages = use_messages(use, whole=True)
    if roll < 0.65:
        row |= {
            "skill": f"tool call {d.lang}",
            "expect": {"call": {"name": use.name, "arguments": use.arguments}},
        }
        return row | {"messages": before + messages[:1]}
    row |= {"skill": "tool result", "expect": {"text": use.answer}}
    return row | {"messages": before + messages[:3]}


def heldout_agents(r: Random) -> list[dict[str, Any]]:
    """Make the held-out requests of agents: a call, and an answer from its result."""
    rows: list[dict[str, Any]] = []
    for number in range(2 * HELDOUT_PER_SKILL):
        d = Draw(r, heldout=True, lang="zh" if r.random() < 0.3 else "en")
        given = agents.outfit(d)
        own = [tool for tool in given if tool.kind in agents.KINDS]
        use = agents.request(d, d.pick(own))
        before = [{"role": "system", "content": agents.system(d)}] if d.chance(0.6) else []
        messages = use_messages(use, whole=True)
        row: dict[str, Any] = {"tools": [tool.schema for tool in given]}
        if number % 2:
            row |= {"skill": "agent result", "expect": {"text": use.answer}}
            rows.append(row | {"messages": before + messages[:3]})
        else:
            call = {"name": use.name, "arguments": use.arguments}
            row |= {"skill": "agent call", "expect": {"call": call}}
            rows.append(row | {"messages": before + messages[:1]})
    return rows


def heldout_sums_by_tool(r: Random) -> list[dict[str, Any]]:
    """Make the held-out requests of sums by a tool: a call, and an answer from its result."""
    rows: list[dict[str, Any]] = []
    for number in range(2 * HELDOUT_PER_SKILL):
        d = Draw(r, heldout=True, lang="zh" if r.random() < 0.4 else "en")
        given = sums_by_tool.outfit(d)
        own = [tool for tool in given if tool.kind in sums_by_tool.KINDS]
        use = sums_by_tool.request(d, d.pick(own))
        messages = any_system(d) + use_messages(use, whole=True)[: 3 if number % 2 else 1]
        row: dict[str, Any] = {"tools": [tool.schema for tool in given], "messages": messages}
        if number % 2:
            row |= {"skill": "sum result", "expect": {"text": use.answer}}
        else:
            call = {"name": use.name, "arguments": use.arguments}
            row |= {"skill": "sum call", "expect": {"call": call}}
        rows.append(row)
    return rows


def heldout_introductions(r: Random) -> list[dict[str, Any]]:
    """Make the held-out requests in which somebody says a name while tools are offered; none is to be called."""
    rows: list[dict[str, Any]] = []
    for number in range(HELDOUT_PER_SKILL):
        d = Draw(r, heldout=True, lang="zh" if r.random() < 0.4 else "en")
        given = agents.outfit(d) if number % 2 else tools.outfit(d)
        fact, x = facts.MEMORY[d.lang]["name"], facts.value(d, "memory", "name")
        user = {"role": "user", "content": d.ask(fact.tell, x=x)}
        row = {"skill": "introductions beside tools", "expect": {"text": fact.reply.format(x=x)}}
        row |= {"tools": [tool.schema for tool in given]}
        rows.append(row | {"messages": [*any_system(d), user]})
    return rows


def write(out: Path, count: int, seed: int, shares: dict[str, float], zh: float) -> None:
    """Write `train.jsonl`: whole or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    shape, r, part = template(), Random(seed), out / "train.part"
    with part.open("w", encoding="utf-8") as file:
        for _ in range(count):
            file.write(json.dumps(training_text(r, shape, shares, zh), ensure_ascii=False) + "\n")
    part.replace(out / "train.jsonl")


def write_heldout(path: Path, seed: int) -> None:
    """Write the held-out requests."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps(row, ensure_ascii=False) + "\n" for row in heldout_rows(seed)]
    path.write_text("".join(rows), encoding="utf-8")


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("training/out"))
    parser.add_argument("--zh", type=float, default=0.38, help="share of Chinese")
    parser.add_argument("--share", nargs="*", default=[], help="e.g. json=0.3, instead of SHARES'")
    args = parser.parse_args()
    shares = SHARES | {k: float(v) for k, v in (item.split("=") for item in args.share)}
    write(args.out, args.count, args.seed, shares, args.zh)
    write_heldout(args.out / "heldout.jsonl", args.seed)


if __name__ == "__main__":
    main()
