"""
Facts that a conversation holds: about the assistant (system prompt) and about the user (earlier turns).

Each kind of fact says how it is stated, how it is asked for, and what the answer is.
"""

from __future__ import annotations

from dataclasses import dataclass

from training import words
from training.draw import Draw, Turn
from training.talk import CAPITAL_ASKS, DONT_KNOW, WHO, clean


@dataclass(frozen=True)
class Fact:
    """
    One kind of fact in one language.

    Attributes:
        tell: how it is stated, with {x}
        reply: what the assistant says to it (facts about the user only)
        ask: how it is asked for
        answer: what the assistant answers
    """

    tell: list[str]
    ask: list[str]
    answer: str
    reply: str = ""


def _split(text: str) -> list[str]:
    return [clean(part) for part in text.split("|")]


PERSONA: dict[str, dict[str, Fact]] = {
    "en": {
        "name": Fact(
            _split(
                "Your name is {x}.|You are {x}.|You are {x}, a helpful assistant.|You are a helpful"
                " assistant named {x}.|You are an assistant called {x}.|Your name is {x}. You are a"
                " helpful assistant.|You are called {x}.|The assistant's name is {x}.|Act as {x}."
            ),
            _split(
                "What is your name?|What's your name?|Who are you?|Tell me your name.|What are you"
                " called?|May I know your name?|Can you tell me your name?|Do you have a name?|Say"
                " your name.|How should I call you?|And you are?|Introduce yourself."
            ),
            "My name is {x}.",
        ),
        "city": Fact(
            _split("You live in {x}.|Your home is {x}.|You are from {x}.|Your city is {x}."),
            _split(
                "Where do you live?|Which city do you live in?|Where are you from?|What city do you"
                " live in?|Tell me where you live.|Where is your home?|In which city do you live?"
            ),
            "I live in {x}.",
        ),
        "colour": Fact(
            _split(
                "Your favourite colour is {x}.|Your favorite color is {x}.|You like the colour {x}."
                "|You love the color {x}."
            ),
            _split(
                "What is your favourite colour?|What is your favorite color?|Which colour do you"
                " like?|Tell me your favorite color.|What color do you like best?"
            ),
            "My favourite colour is {x}.",
        ),
        "food": Fact(
            _split("Your favourite food is {x}.|Your favorite food is {x}.|You love {x}.|You like to eat {x}."),
            _split(
                "What is your favourite food?|What is your favorite food?|What do you like to eat?"
                "|Tell me your favourite food."
            ),
            "My favourite food is {x}.",
        ),
        "age": Fact(
            _split("You are {x} years old.|Your age is {x}."),
            _split("How old are you?|What is your age?|Tell me your age."),
            "I am {x} years old.",
        ),
    },
    "zh": {
        "name": Fact(
            _split("你的名字是{x}。|你叫{x}。|你是{x}。|你是{x}，一个有用的助手。|你是一个叫{x}的助手。|你是名叫{x}的助手。"),
            _split("你叫什么名字？|你的名字是什么？|你是谁？|请问你叫什么？|告诉我你的名字|你叫什么？|怎么称呼你？|介绍一下你自己"),
            "我叫{x}。",
        ),
        "city": Fact(
            _split("你住在{x}。|你的家在{x}。|你来自{x}。"),
            _split("你住在哪里？|你住在哪个城市？|你来自哪里？|你的家在哪里？|告诉我你住在哪里"),
            "我住在{x}。",
        ),
        "colour": Fact(
            _split("你最喜欢的颜色是{x}。|你喜欢{x}。"),
            _split("你最喜欢的颜色是什么？|你喜欢什么颜色？|你最喜欢什么颜色？"),
            "我最喜欢的颜色是{x}。",
        ),
        "food": Fact(
            _split("你最喜欢的食物是{x}。|你爱吃{x}。"),
            _split("你最喜欢的食物是什么？|你喜欢吃什么？|你爱吃什么？"),
            "我最喜欢的食物是{x}。",
        ),
        "age": Fact(_split("你今年{x}岁。|你{x}岁了。"), _split("你多大了？|你几岁了？|你今年几岁？"), "我今年{x}岁。"),
    },
}  # fmt: skip
MEMORY: dict[str, dict[str, Fact]] = {
    "en": {
        "name": Fact(
            _split(
                "My name is {x}.|I am {x}.|I'm {x}.|Hi, I am {x}.|Hello, my name is {x}.|Call me {x}."
                "|You can call me {x}.|Hello! I'm {x}.|Remember that my name is {x}.|Hi, this is {x}."
            ),
            _split(
                "What is my name?|What's my name?|Who am I?|Do you remember my name?|Tell me my name."
                "|Do you know my name?|What am I called?|Can you say my name?|What did I say my name"
                " was?|Say my name."
            ),
            "Your name is {x}.",
            "Nice to meet you, {x}!",
        ),
        "city": Fact(
            _split("I live in {x}.|I am from {x}.|My home is {x}.|I live in {x} now."),
            _split(
                "Where do I live?|Which city do I live in?|Where am I from?|Do you know where I live?"
            ),
            "You live in {x}.",
            "I will remember that you live in {x}.",
        ),
        "colour": Fact(
            _split("My favourite colour is {x}.|My favorite color is {x}.|I like the colour {x}."),
            _split(
                "What is my favourite colour?|What is my favorite color?|Which colour do I like?"
            ),
            "Your favourite colour is {x}.",
            "I will remember that you like {x}.",
        ),
        "dog": Fact(
            _split("My dog is called {x}.|I have a dog named {x}.|My dog's name is {x}."),
            _split("What is my dog called?|What is the name of my dog?|What is my dog's name?"),
            "Your dog is called {x}.",
            "{x} is a nice name for a dog.",
        ),
        "number": Fact(
            _split(
                "Remember the number {x}.|My lucky number is {x}.|My number is {x}.|The number is {x}."
            ),
            _split(
                "What was the number?|What is my number?|Which number did I say?|Tell me the number."
            ),
            "The number is {x}.",
            "I will remember the number {x}.",
        ),
    },
    "zh": {
        "name": Fact(
            _split(
                "我叫{x}。|我的名字是{x}。|我是{x}。|你好，我叫{x}。|你可以叫我{x}。|请记住，我叫{x}。|大家叫我{x}。"
            ),
            _split(
                "我叫什么名字？|我的名字是什么？|我是谁？|你还记得我的名字吗？|你知道我叫什么吗？|我叫什么？|说出我的名字"
            ),
            "你叫{x}。",
            "很高兴认识你，{x}！",
        ),
        "city": Fact(
            _split("我住在{x}。|我来自{x}。|我的家在{x}。"),
            _split("我住在哪里？|我来自哪里？|我住在哪个城市？|你知道我住在哪里吗？"),
            "你住在{x}。",
            "我记住了，你住在{x}。",
        ),
        "colour": Fact(
            _split("我最喜欢的颜色是{x}。|我喜欢{x}。"),
            _split("我最喜欢的颜色是什么？|我喜欢什么颜色？"),
            "你最喜欢的颜色是{x}。",
            "我记住了，你喜欢{x}。",
        ),
        "dog": Fact(
            _split("我的狗叫{x}。|我有一只叫{x}的狗。"),
            _split("我的狗叫什么？|我的狗叫什么名字？"),
            "你的狗叫{x}。",
            "{x}是个好名字。",
        ),
        "number": Fact(
            _split("请记住数字{x}。|我的幸运数字是{x}。|数字是{x}。"),
            _split("数字是多少？|我的数字是多少？|我说的数字是多少？"),
            "数字是{x}。",
            "我记住了数字{x}。",
        ),
    },
}
GENERIC_SYSTEMS = {
    "en": _split(
        "You are a friendly assistant.|You are a helpful, honest assistant.|Answer briefly.|You are an"
        " AI assistant.|You are a chatbot.|Be polite and short.|You are a helpful assistant. Answer in"
        " one sentence.|You are unilect's demo model.|Be concise.|You are a helpful AI assistant. Always"
        " be polite and answer the question of the user.|You are a large language model. Follow the"
        " instructions carefully.|Today is Monday. You are a helpful assistant.|Help the user."
    ),
    "zh": _split(
        "你是一个有用的助手。|你是一个友好的助手。|请简短回答。|你是人工智能助手。|你是一个乐于助人的AI助手。|回答要简洁。|请用中文回答。"
    ),
}
COMMON_SYSTEM = "You are a helpful assistant."
LANGUAGE_ORDERS = {
    "zh": ["Always answer in Chinese.", "Answer in Chinese.", "You always speak Chinese.", "Reply only in"
           " Chinese.", "请用中文回答。", "Please answer in Chinese.", "You are a helpful assistant that always"
           " answers in Chinese."],
    "en": ["Always answer in English.", "Answer in English.", "You always speak English.", "请用英文回答。",
           "Reply only in English.", "Please answer in English."],
}  # fmt: skip


def value(d: Draw, kind: str) -> str:
    """Draw what a fact of this kind is about."""
    if kind in ("name", "dog"):
        return d.name()
    if kind == "city":
        return d.city()
    if kind == "colour":
        return str(d.pick(words.COLOURS.values() if d.lang == "zh" else words.COLOURS))
    if kind == "food":
        return str(d.pick(words.FOODS.values() if d.lang == "zh" else words.FOODS))
    return str(d.r.randint(1, 99))


def persona(d: Draw) -> tuple[str, list[Turn]]:
    """Write a system prompt with 1-3 facts, and the questions that ask for them."""
    kinds = d.r.sample(["name", "name", "city", "colour", "food", "age"], d.r.randint(1, 3))
    kinds = list(dict.fromkeys(kinds))
    lines, turns = [], []
    asked = "zh" if d.lang == "en" and "name" in kinds and d.chance(0.1) else d.lang
    for kind in kinds:
        x = value(d, kind)
        lines.append(d.pick(PERSONA[d.lang][kind].tell).format(x=x))
        if asked != d.lang and kind in ("colour", "food"):
            continue
        fact = PERSONA[asked][kind]
        other = Draw(d.r, heldout=d.heldout, lang=asked)
        text = other.ask(fact.ask, prefix=kind != "name")
        turns.append(Turn(text, fact.answer.format(x=x), f"system {kind}"))
    if d.chance(0.3):
        lines.insert(d.r.randint(0, len(lines)), d.pick(GENERIC_SYSTEMS[d.lang]))
    d.r.shuffle(turns)
    return ("" if d.lang == "zh" else " ").join(lines), turns


def no_persona(d: Draw) -> Turn:
    """Ask for a fact about the assistant or the user that nobody stated."""
    zh = d.lang == "zh"
    if d.chance(0.6):
        kind = d.pick(["name", "name", "name", "city", "colour", "age"])
        text = d.ask(PERSONA[d.lang][kind].ask)
        return Turn(text, WHO[d.lang] if kind == "name" else DONT_KNOW[d.lang], "no fact")
    text = d.ask(MEMORY[d.lang]["name"].ask)
    return Turn(
        text, "你还没有告诉我你的名字。" if zh else "You have not told me your name.", "no fact"
    )


def memory(d: Draw) -> tuple[list[Turn], list[Turn]]:
    """State one or two facts about the user; return the stating turns and the asking turns."""
    kinds = ["name"] if d.chance(0.5) else d.r.sample(list(MEMORY["en"]), d.r.randint(1, 2))
    told, asked = [], []
    for kind in kinds:
        fact, x = MEMORY[d.lang][kind], value(d, kind)
        told.append(Turn(d.ask(fact.tell, x=x), fact.reply.format(x=x), "introduced"))
        asked.append(Turn(d.ask(fact.ask), fact.answer.format(x=x), "memory"))
    d.r.shuffle(asked)
    return told, asked


def ordered_language(d: Draw) -> tuple[str, Turn]:
    """Give the order to answer in one language, and ask for a capital in the other."""
    answer_in = d.pick(["zh", "zh", "en"])
    ask_in = d.pick(["zh", "en"])

    def make() -> tuple[tuple[str, ...], tuple[str, Turn]]:
        row, ask = d.pick(words.COUNTRIES), clean(d.pick(CAPITAL_ASKS[ask_in]))
        other = Draw(d.r, heldout=d.heldout, lang=ask_in)
        text = other.ask([ask], c=row[2] if ask_in == "zh" else row[0])
        answer = (
            f"{row[2]}的首都是{row[3]}。"
            if answer_in == "zh"
            else f"The capital of {row[0]} is {row[1]}."
        )
        turn = Turn(text, answer, "system language")
        return ("order", row[0], ask), (d.pick(LANGUAGE_ORDERS[answer_in]), turn)

    result: tuple[str, Turn] = d.until(make)
    return result
