"""
Conversations with tools: read the schema, call the right one, answer from its result.

A `Kind` is one thing a tool can do; `equip` turns it into a schema in one of many styles and
`request` asks for it. Half of the kinds are invented on the spot, so that the schema must be read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from training import words
from training.draw import Draw
from training.talk import TOPICS_EN, TOPICS_ZH


@dataclass
class Tool:
    """
    One tool as given to the model, and how to use it.

    Attributes:
        schema: the OpenAI function object (name, description, parameters)
        kind: what it does
        params: our name of each parameter -> its name in the schema
        noun: what a lookup looks up, in English and Chinese
    """

    schema: dict[str, Any]
    kind: str
    params: dict[str, str]
    noun: tuple[str, str] = ("", "")


@dataclass
class Use:
    """One use of a tool: the request, the right call, a result and the answer to it."""

    user: str
    name: str
    arguments: dict[str, Any]
    result: str
    answer: str
    skill: str = "tool call"
    must: list[str] = field(default_factory=list)


# kind -> (names, descriptions, {our parameter: (names, description, type)})
Param = tuple[list[str], str, str]
KINDS: dict[str, tuple[list[str], list[str], dict[str, Param]]] = {
    "weather": (
        ["get_weather", "get_weather", "get_current_weather", "weather", "fetch_weather", "getWeather"],
        ["Get the current weather in a city.", "Get the weather", "Returns the weather of a place.",
         "Get current temperature for a given location.", "Weather of a city", "查询天气"],
        {"city": (["city", "city", "location", "place", "town"], "The name of the city", "string")},
    ),
    "time": (
        ["get_time", "get_time", "get_current_time", "time_in", "current_time", "getTime"],
        ["Get the current time in a city.", "Get the time", "Tells the time of a place.", "查询时间"],
        {"city": (["city", "city", "location", "place", "timezone"], "The name of the city", "string")},
    ),
    "add": (
        ["add", "add", "add_numbers", "sum", "plus", "calculate_sum"],
        ["Add two numbers.", "Adds two integers", "Return the sum of two numbers.", "两个数相加"],
        {"a": (["a", "a", "x", "first"], "The first number", "integer"),
         "b": (["b", "b", "y", "second"], "The second number", "integer")},
    ),
    "capital": (
        ["get_capital", "get_capital", "capital_of", "find_capital", "lookup_capital"],
        ["Get the capital of a country.", "Returns the capital city", "Find a country's capital.", "查询首都"],
        {"country": (["country", "country", "name", "nation"], "The country", "string")},
    ),
    "search": (
        ["search", "search", "web_search", "search_web", "find", "google"],
        ["Search the web.", "Search for something", "Look up information on the internet.", "搜索"],
        {"query": (["query", "query", "q", "text", "keywords"], "What to search for", "string")},
    ),
    "music": (
        ["play_music", "play_song", "play"],
        ["Play a song.", "Plays music", "播放音乐"],
        {"song": (["song", "title", "track"], "The song", "string")},
    ),
    "timer": (
        ["set_timer", "start_timer", "timer"],
        ["Set a timer.", "Start a timer of some minutes", "设置计时器"],
        {"minutes": (["minutes", "duration", "min"], "How many minutes", "integer")},
    ),
    "message": (
        ["send_message", "send_mail", "send_email", "message"],
        ["Send a message to a person.", "Send a text", "发送消息"],
        {"to": (["to", "recipient", "person"], "Who gets it", "string"),
         "text": (["text", "message", "body"], "What to send", "string")},
    ),
    "switch": (
        ["turn_on", "switch_on", "turn_on_device", "enable"],
        ["Turn on a device.", "Switches something on", "打开设备"],
        {"device": (["device", "name", "what"], "The device", "string")},
    ),
    "order": (
        ["order", "buy", "order_item", "purchase"],
        ["Order something in the shop.", "Buy an item", "下订单"],
        {"item": (["item", "product", "what"], "The item", "string"),
         "amount": (["amount", "quantity", "count"], "How many", "integer")},
    ),
    "date": (
        ["get_date", "today", "current_date", "get_today"],
        ["Get today's date.", "Returns the date", "查询日期"],
        {},
    ),
}  # fmt: skip
NOUNS = {
    "price": "价格", "address": "地址", "email": "邮箱", "birthday": "生日", "owner": "主人",
    "size": "大小", "weight": "重量", "status": "状态", "height": "高度", "speed": "速度",
    "score": "分数", "rating": "评分", "author": "作者", "stock": "库存", "level": "等级",
    "language": "语言", "phone": "电话", "age": "年龄", "balance": "余额", "model": "型号",
}  # fmt: skip
DEVICES = {
    "lamp": "灯",
    "radio": "收音机",
    "heating": "暖气",
    "television": "电视",
    "fan": "风扇",
    "oven": "烤箱",
}
REQUESTS: dict[str, dict[str, list[str]]] = {
    "en": {
        "weather": ["What is the weather in {city}?", "What's the weather like in {city}?", "How is the"
                    " weather in {city}?", "Weather in {city}?", "Is it sunny in {city}?", "Tell me the"
                    " weather in {city}.", "What is the temperature in {city}?", "Is it raining in {city}"
                    " today?", "How warm is it in {city}?", "What is the weather in {city} today?", "Get the"
                    " weather for {city}.", "Do I need an umbrella in {city}?", "What is the weather like in {city} today?", "What's the weather in"
                    " {city} right now?", "How cold is it in {city}?"],
        "time": ["What time is it in {city}?", "What is the time in {city}?", "Tell me the time in {city}.",
                 "Current time in {city}?", "How late is it in {city}?", "Can you tell me the time in {city}?"],
        "add": ["What is {a} + {b}?", "Add {a} and {b}.", "What is {a} plus {b}?", "{a} + {b}", "Calculate"
                " {a} + {b}.", "What is the sum of {a} and {b}?", "Use the tool to add {a} and {b}."],
        "capital": ["What is the capital of {country}?", "Tell me the capital of {country}.", "Which city is"
                    " the capital of {country}?", "Capital of {country}?", "Find the capital of {country}."],
        "search": ["Search for {query}.", "Search the web for {query}.", "Look up {query}.", "Find something"
                   " about {query}.", "Please search for {query}", "Google {query}", "Search {query}"],
        "music": ["Play {song}.", "Play the song {song}.", "I want to hear {song}.", "Please play {song}"],
        "timer": ["Set a timer for {minutes} minutes.", "Start a timer of {minutes} minutes.", "Timer:"
                  " {minutes} minutes", "Wake me in {minutes} minutes."],
        "message": ["Send {to} the message: {text}", "Tell {to}: {text}", "Write to {to}: {text}", "Send a"
                    " message to {to}: {text}"],
        "switch": ["Turn on the {device}.", "Switch on the {device}.", "Please turn the {device} on.",
                   "Can you turn on the {device}?"],
        "order": ["Order {amount} {item}.", "Buy {amount} {item}.", "I want to order {amount} {item}.",
                  "Please buy {amount} {item}"],
        "date": ["What is the date today?", "What day is it?", "Which date is it?", "Tell me today's date."],
        "lookup": ["What is the {noun} of {x}?", "Get the {noun} of {x}.", "Find the {noun} of {x}.", "Look up"
                   " the {noun} of {x}.", "Tell me the {noun} of {x}.", "{noun} of {x}?", "I need the {noun}"
                   " of {x}.", "What's the {noun} for {x}?"],
    },
    "zh": {
        "weather": ["{city}的天气怎么样？", "{city}今天天气如何？", "{city}天气怎么样", "查一下{city}的天气",
                    "告诉我{city}的天气", "{city}现在多少度？", "今天{city}下雨吗？", "请问{city}的天气怎么样？", "{city}冷吗？"],
        "time": ["{city}现在几点？", "{city}几点了？", "{city}现在是什么时间？", "告诉我{city}的时间", "查一下{city}的时间"],
        "add": ["{a}加{b}等于多少？", "{a}+{b}等于多少？", "计算{a}+{b}", "{a} + {b} = ?"],
        "capital": ["{country}的首都是哪里？", "{country}的首都是什么？", "告诉我{country}的首都", "查一下{country}的首都"],
        "search": ["搜索{query}", "搜一下{query}", "帮我搜索{query}", "请搜索{query}", "在网上查一下{query}"],
        "music": ["播放{song}", "放一首{song}", "我想听{song}", "请播放{song}"],
        "timer": ["设置{minutes}分钟的计时器", "计时{minutes}分钟", "{minutes}分钟后叫我"],
        "message": ["给{to}发消息：{text}", "告诉{to}：{text}", "发消息给{to}：{text}"],
        "switch": ["打开{device}", "请打开{device}", "把{device}打开"],
        "order": ["订购{amount}个{item}", "买{amount}个{item}", "我要买{amount}个{item}"],
        "date": ["今天几号？", "今天是什么日期？", "今天是几月几号？"],
        "lookup": ["{x}的{noun}是什么？", "查一下{x}的{noun}", "告诉我{x}的{noun}", "查询{x}的{noun}", "我要{x}的{noun}"],
    },
}  # fmt: skip


EXAMPLES = {"city": ["City and country e.g. Oslo, Norway", "The city and state, e.g. Boston, MA"]}


def _parameters(d: Draw, params: dict[str, Param], named: dict[str, str]) -> dict[str, Any]:
    """Write the JSON Schema of the parameters in one of several styles."""
    described, titled = d.chance(0.5), d.chance(0.1)
    properties: dict[str, Any] = {}
    for ours, (_, about, type_) in params.items():
        entry: dict[str, Any] = {"type": type_ if type_ == "string" or d.chance(0.8) else "number"}
        if described:
            entry["description"] = d.pick([about, about, about.lower(), *EXAMPLES.get(ours, [])])
        if titled:
            entry = {"title": named[ours].capitalize(), **entry}
        properties[named[ours]] = entry
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if d.chance(0.85):
        schema["required"] = list(properties)
    if d.chance(0.15):
        schema["additionalProperties"] = False
    if d.chance(0.1):
        keys = list(schema)
        d.r.shuffle(keys)
        schema = {k: schema[k] for k in keys}
    return schema


def equip(d: Draw, kind: str) -> Tool:
    """Make a tool of this kind; kind "lookup" invents one."""
    if kind == "lookup":
        noun = d.pick(NOUNS) if d.chance(0.6) else d.synthetic().lower()
        pair = (noun, NOUNS.get(noun, noun))
        name = d.pick(
            ["get_{}", "get_{}", "find_{}", "lookup_{}", "{}_of", "{}_lookup", "fetch_{}", "{}"]
        )
        about = d.pick(
            ["Get the {} of something.", "Returns the {}", "Look up the {}.", "Find a {}", "{}"]
        )
        names = ["name", "item", "id", "key", "person", "target", "product", "user", "thing", "object",
                 "subject", "company", "file", "term", "input"]  # fmt: skip
        params: dict[str, Param] = {
            "x": ([*names, d.synthetic(2, 2).lower()], "What it is about", "string")
        }
        names_, abouts = [name.format(noun)], [about.format(noun)]
    else:
        pair = ("", "")
        names_, abouts, params = KINDS[kind]
    named = {ours: d.pick(spec[0]) for ours, spec in params.items()}
    function: dict[str, Any] = {"name": d.pick(names_)}
    if d.chance(0.85):
        function["description"] = d.pick(abouts)
    function["parameters"] = _parameters(d, params, named)
    if kind == "weather" and d.chance(0.3):
        unit = {"type": "string", "enum": ["celsius", "fahrenheit"]}
        function["parameters"]["properties"]["unit"] = unit
        named["unit"] = "unit"
    return Tool(function, kind, named, pair)


def outfit(d: Draw) -> list[Tool]:
    """Give one to three tools of different kinds and names."""
    kinds = [*KINDS, "weather", "weather", "time", "add", "capital", "search", *["lookup"] * 9]
    tools: list[Tool] = []
    for kind in d.r.sample(kinds, d.pick([1, 1, 2, 2, 2, 3])):
        tool = equip(d, kind)
        if kind != "lookup" and any(t.kind == kind for t in tools):
            continue
        if all(t.schema["name"] != tool.schema["name"] and t.noun != (tool.noun if tool.noun[0] else None)
               for t in tools):  # fmt: skip
            tools.append(tool)
    return tools


def _phrase(d: Draw) -> str:
    pool = TOPICS_ZH if d.lang == "zh" else [*TOPICS_EN, *words.THINGS, *words.ANIMALS]
    parts = [
        d.synthetic() if d.chance(0.2) else str(d.pick(pool)).replace("-", " ")
        for _ in range(d.r.randint(1, 3))
    ]
    return ("" if d.lang == "zh" else " ").join(parts)


def values(d: Draw, kind: str) -> dict[str, Any]:
    """Draw the arguments of a call, from our side of the split."""

    def make() -> tuple[tuple[object, ...], dict[str, Any]]:
        zh = d.lang == "zh"
        found: dict[str, Any] = {}
        if kind in ("weather", "time"):
            found = {"city": d.city()}
            return ("any", d.r.random()), found
        if kind == "add":
            found = {"a": d.r.randint(0, 999), "b": d.r.randint(0, 999)}
        elif kind == "capital":
            row = d.pick(words.COUNTRIES)
            found = {"country": row[2] if zh else row[0].removeprefix("the ")}
        elif kind == "timer":
            found = {"minutes": d.r.randint(1, 120)}
        elif kind == "message":
            found = {"to": d.name(), "text": _phrase(d)}
        elif kind == "switch":
            known = d.pick(DEVICES.values() if zh else DEVICES)
            found = {"device": known if d.chance(0.5) else d.synthetic(2, 2).lower()}
        elif kind == "order":
            pool = list(words.FOODS.values()) if zh else [f"{t}s" for t in words.THINGS]
            found = {"item": d.pick(pool), "amount": d.r.randint(2, 40)}
        elif kind == "date":
            return ("any", d.r.random()), {}
        elif kind == "lookup":
            found = {"x": d.pick([d.name, d.synthetic, lambda: _phrase(d), d.city])()}
        else:
            found = {"query" if kind == "search" else "song": _phrase(d)}
        return ("call", kind, *found.values()), found

    result: dict[str, Any] = d.until(make)
    return result


def _result(d: Draw, tool: Tool, v: dict[str, Any]) -> tuple[str, str]:
    """Make up what the tool answers, and what the assistant says then."""
    zh, kind = d.lang == "zh", tool.kind
    if kind == "weather":
        return _weather_result(d, v["city"])
    if kind == "time":
        clock = f"{d.r.randint(0, 23)}:{d.r.randint(0, 59):02d}"
        key = d.pick(["time", "time", "current_time", "local_time"])
        text = (
            clock
            if d.chance(0.3)
            else json.dumps(
                d.pick([{key: clock}, {"city": v["city"], key: clock}]), ensure_ascii=False
            )
        )
        return text, f"{v['city']}现在是{clock}。" if zh else f"It is {clock} in {v['city']}."
    if kind == "add":
        total = str(v["a"] + v["b"])
        text = (
            total if d.chance(0.5) else json.dumps({d.pick(["result", "sum", "value"]): int(total)})
        )
        return text, f"{v['a']} + {v['b']} = {total}" + ("。" if zh else ".")
    if kind == "capital":
        row = next(
            r for r in words.COUNTRIES if v["country"] in (r[2], r[0], r[0].removeprefix("the "))
        )
        city = row[3] if zh else row[1]
        text = (
            city
            if d.chance(0.4)
            else json.dumps({d.pick(["capital", "city", "result"]): city}, ensure_ascii=False)
        )
        return text, f"{row[2]}的首都是{city}。" if zh else f"The capital of {row[0]} is {city}."
    if kind == "date":
        date = f"{d.r.randint(1990, 2040)}-{d.r.randint(1, 12):02d}-{d.r.randint(1, 28):02d}"
        text = date if d.chance(0.5) else json.dumps({"date": date})
        return text, f"今天是{date}。" if zh else f"Today is {date}."
    if kind in ("search", "lookup"):
        found = _phrase(d) if d.chance(0.6) else str(d.r.randint(1, 999))
        key = d.pick(["result", "value", "answer", tool.noun[0] or "text"])
        text = found if d.chance(0.5) else json.dumps({key: found}, ensure_ascii=False)
        if kind == "search":
            return text, f"我找到了：{found}。" if zh else f"I found this: {found}."
        noun = tool.noun[1] if zh else tool.noun[0]
        return text, f"{v['x']}的{noun}是{found}。" if zh else f"The {noun} of {v['x']} is {found}."
    text = d.pick(
        ["ok", "done", "OK", '{"ok": true}', '{"status": "ok"}', '{"success": true}', "null"]
    )
    return text, "好的，完成了。" if zh else "Done."


def _weather_result(d: Draw, city: str) -> tuple[str, str]:
    zh = d.lang == "zh"
    warm, sky = d.r.randint(-9, 39), d.pick(words.CONDITIONS)
    sky_zh = words.CONDITIONS[sky]
    shown: str = sky_zh if zh and d.chance(0.5) else sky
    both = f"{city}现在{warm}度，{sky_zh}。" if zh else f"It is {warm} degrees and {sky} in {city}."
    if d.chance(0.2):
        text = d.pick([f"{warm} degrees, {shown}", f"{warm}C, {shown}", f"{shown}, {warm} degrees", f"{shown} {warm}°C",
                       f"It is {shown}, {warm} degrees."])  # fmt: skip
        return text, both
    t = {d.pick(["temperature", "temperature", "temp_c", "temp", "degrees"]): warm}
    c = {d.pick(["condition", "condition", "weather", "conditions", "sky", "description"]): shown}
    name = {d.pick(["city", "location"]): city}
    roll = d.r.random()
    if roll < 0.12:
        return json.dumps({**name, **t}, ensure_ascii=False), (
            f"{city}现在{warm}度。" if zh else f"It is {warm} degrees in {city}."
        )
    if roll < 0.24:
        return json.dumps(
            c, ensure_ascii=False
        ), f"{city}现在{sky_zh}。" if zh else f"It is {sky} in {city}."
    extra = {"humidity": d.r.randint(20, 99)} if d.chance(0.1) else {}
    full = d.pick([{**t, **c}, {**c, **t}, {**name, **t, **c}, {**t, **extra, **c}])
    return json.dumps(full, ensure_ascii=False), both


def request(d: Draw, tool: Tool) -> Use:
    """Ask for what the tool does."""
    v = values(d, tool.kind)
    lang = d.lang
    ask = {k: str(x) for k, x in v.items()}
    if tool.kind == "lookup":
        ask["noun"] = tool.noun[1 if lang == "zh" else 0]
    if tool.kind == "capital" and lang == "en":
        row = next(r for r in words.COUNTRIES if r[0].removeprefix("the ") == v["country"])
        ask["country"] = row[0]
    user = d.ask(REQUESTS[lang][tool.kind], prefix=tool.kind != "message", **ask)
    arguments = {tool.params[k]: x for k, x in v.items()}
    if "unit" in tool.params and d.chance(0.4):
        unit = d.pick(["celsius", "fahrenheit"])
        said = {"celsius": "摄氏度", "fahrenheit": "华氏度"}[unit] if lang == "zh" else unit
        user = user.rstrip() + (f"用{said}" if lang == "zh" else f" In {unit}, please.")
        arguments["unit"] = unit
    result, answer = _result(d, tool, v)
    return Use(user, tool.schema["name"], arguments, result, answer)
