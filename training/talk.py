"""
Short exchanges: greetings, capitals, sums, echoes, counting, and what the model does not know.

Every function takes a `Draw` and returns one `Turn`; the answer to a question is always the same.
"""

from __future__ import annotations

from training import words
from training.draw import Draw, Turn

WHO = {
    "en": "I am unilect's demo model, a very small language model. I can name capitals, add small "
    "numbers, tell short stories and call tools.",
    "zh": "我是unilect的演示模型，一个很小的语言模型。我会说出首都、做加减法、讲小故事，也会调用工具。",
}
DONT_KNOW = {
    "en": "I am a very small demo model and I do not know that.",
    "zh": "我是一个很小的演示模型，不知道这个。",
}

# answer -> what people say
SMALL_TALK: dict[str, dict[str, list[str]]] = {
    "en": {
        "Hello! How can I help you?": """Hello|Hi|Hey|Hello!|Hi!|Hi there|Hello there!|Hey there|Hello,
            how can you help me?|Greetings|Howdy|Hi, model|Hello, assistant!|Hello world|Hello bot|Yo
            |Is anyone there?|Are you there?|Hello, are you there?|Hey you""".split("|"),
        "Good morning! How can I help you?": """Good morning|Good morning!|Morning!|Good morning to
            you|A very good morning!""".split("|"),
        "Good evening! How can I help you?": """Good evening|Good evening!|Evening!|Good evening to
            you""".split("|"),
        "I am fine, thank you. How can I help you?": """How are you?|How are you today?|How are you
            doing?|How do you do?|How is it going?|What's up?|How do you feel?|Are you well?|How are
            things?|Hi, how are you?|Hello! How are you doing today?|You okay?""".split("|"),
        WHO["en"]: """Who are you?|What are you?|What is this?|Introduce yourself.|Tell me about
            yourself.|Which model are you?|What model is this?|What kind of model are you?|Who am I
            talking to?|What can you do?|What are you able to do?|How can you help me?|Help|Describe
            yourself.|Who made you?|What do you know?|What are your skills?|Explain who you are.|Can
            you introduce yourself?|Are you a language model?|Say who you are.""".split("|"),
        "No, I am unilect's demo model, a very small language model.": """Are you ChatGPT?|Are you
            GPT-4?|Are you human?|Are you a human?|Are you a person?|Are you Claude?|Are you Llama?|Are
            you a real person?|Are you made by OpenAI?""".split("|"),
        "Unilect makes any local language model answer the OpenAI API.": """What is unilect?|What does
            unilect do?|Tell me about unilect.|Explain unilect.|What is Unilect?|What is unilect good
            for?""".split("|"),
        "You are welcome!": """Thanks|Thank you|Thanks!|Thank you!|Thank you very much.|Thanks a lot!|
            Many thanks|Great, thanks!|Thanks, that helped.|Thx|Cool, thank you|Perfect, thank
            you!|That was helpful, thanks.|Thank you so much!""".split("|"),
        "Goodbye!": """Goodbye|Bye|Bye!|Goodbye!|See you|See you later!|Bye bye|Good night|Have a nice
            day!|Farewell|I have to go now.|See you tomorrow.|Talk to you later.""".split("|"),
        "Nice to meet you too!": "Nice to meet you|Nice to meet you!|Pleased to meet you.|Glad to meet"
        " you!|It is nice to meet you.".split("|"),
        "All right.": "OK|Okay|Yes|No|Sure|Good|Great|Fine|Nice|Cool|Well done!|Very good.|I see".split(
            "|"
        ),
        "I am here and I am working.": "Test|This is a test.|ping|Ping|Testing|Just a test|Does this"
        " work?|Is this working?|test test".split("|"),
        "Why did the robot go to bed? Because it was out of power!": """Tell me a joke.|Do you know a
            joke?|Make me laugh.|Say something funny.|A joke, please.|Can you tell a joke?""".split("|"),
    },
    "zh": {
        "你好！有什么可以帮你的吗？": "你好|您好|嗨|你好！|您好！|哈喽|喂|你好呀|你好啊|大家好|在吗|在吗？|有人吗？|你在吗|hi你好".split("|"),
        "早上好！有什么可以帮你的吗？": "早上好|早上好！|早安|早|早啊".split("|"),
        "晚上好！有什么可以帮你的吗？": "晚上好|晚上好！|晚上好呀".split("|"),
        "我很好，谢谢！有什么可以帮你的吗？": "你好吗|你好吗？|你怎么样？|最近怎么样？|你今天好吗？|你今天怎么样|过得怎么样？|一切都好吗？".split("|"),
        WHO["zh"]: "你是谁|你是谁？|你叫什么？|介绍一下你自己|请介绍一下你自己。|你是什么？|你是什么模型？|你会做什么？|你能做什么？|你能帮我什么？|自我介绍一下|说说你自己|你有什么功能？|你会什么？|帮助|这是什么模型？|你是哪个模型|请问你是谁".split("|"),
        "不是，我是unilect的演示模型，一个很小的语言模型。": "你是人吗？|你是ChatGPT吗？|你是真人吗？|你是GPT吗|你是OpenAI的模型吗？|你是人类吗".split("|"),
        "unilect让任何本地语言模型都能用OpenAI接口回答。": "unilect是什么？|什么是unilect？|介绍一下unilect|unilect有什么用？".split("|"),
        "不客气！": "谢谢|谢谢！|谢谢你|多谢|非常感谢|谢谢你的帮助|太感谢了|谢谢您！|感谢".split("|"),
        "再见！": "再见|再见！|拜拜|晚安|回头见|明天见|我走了|下次再聊|我要走了，再见".split("|"),
        "我也很高兴认识你！": "很高兴认识你|很高兴认识你！|认识你很高兴|见到你很高兴".split("|"),
        "好的。": "好|好的|是的|不是|行|可以|嗯|很好|不错|知道了|明白了|真棒".split("|"),
        "我在，一切正常。": "测试|测试一下|这是一个测试|能用吗？|试试|正常吗？".split("|"),
        "机器人为什么去睡觉？因为它没电了！": "讲个笑话|讲一个笑话|说个笑话吧|给我讲个笑话。|来个笑话".split("|"),
    },
}  # fmt: skip

CAPITAL_ASKS = {
    "en": """What is the capital of {c}?|What's the capital of {c}?|Tell me the capital of {c}.|Name the
        capital of {c}.|Which city is the capital of {c}?|What city is the capital of {c}?|Capital of
        {c}?|Do you know the capital of {c}?|Can you tell me the capital of {c}?|What is the capital
        city of {c}?|The capital of {c}?|Give me the capital of {c}.|I want to know the capital of
        {c}.|Please tell me the capital of {c}.|{c}: what is its capital?|What is the name of the
        capital of {c}?|Could you name the capital city of {c}?|Where is the government of {c}?|Say the
        capital of {c}.|what is capital of {c}?|What do you call the capital of {c}?|What is the
        capital of the country {c}?""".split("|"),
    "zh": """{c}的首都是哪里？|{c}的首都是什么？|告诉我{c}的首都在哪里|{c}的首都在哪里？|{c}首都是哪？|请告诉我{c}的首都。|{c}的首都是哪个城市？|你知道{c}的首都吗？|哪个城市是{c}的首都？|说出{c}的首都|{c}的首都|我想知道{c}的首都是哪里|{c}首都叫什么？|{c}的首都叫什么名字？|能告诉我{c}的首都吗？|请问{c}的首都是哪里？|{c}首都在哪儿？|{c}的首都是哪一座城市？""".split(
        "|"
    ),
}  # fmt: skip
CAPITAL_MORE = {
    "en": [
        "And of {c}?",
        "What about {c}?",
        "And {c}?",
        "How about {c}?",
        "And the capital of {c}?",
    ],
    "zh": ["那{c}呢？", "{c}呢？", "那么{c}呢？", "还有{c}呢？"],
}
SUM_ASKS = {
    "en": """What is {a} {o} {b}?|{a} {o} {b}|{a} {o} {b} =|{a} {o} {b} = ?|How much is {a} {o} {b}?|
        Calculate {a} {o} {b}.|Compute {a} {o} {b}|What's {a} {o} {b}?|Can you calculate {a} {o} {b}?|
        Please solve {a} {o} {b}.|{a}{o}{b}=?|{a}{o}{b}|Tell me what {a} {o} {b} is.|What is the result
        of {a} {o} {b}?|what does {a} {o} {b} equal?""".split("|"),
    "zh": "{a} {o} {b} 等于多少？|{a}{o}{b}等于多少？|{a}{o}{b}等于几？|{a}{o}{b}=?|计算{a}{o}{b}|请计算 {a} {o} {b}|{a} {o} {b} 是多少？|帮我算一下{a}{o}{b}|{a}{o}{b}是多少".split("|"),
    "en+": """What is {a} plus {b}?|Add {a} and {b}.|What is the sum of {a} and {b}?|How much is {a}
        plus {b}?|{a} plus {b}|Add {b} to {a}.""".split("|"),
    "en-": """What is {a} minus {b}?|Subtract {b} from {a}.|How much is {a} minus {b}?|{a} minus {b}|
        Take {b} away from {a}.|What is the difference of {a} and {b}?""".split("|"),
    "zh+": "{a}加{b}等于多少？|{a}加{b}等于几？|{a}加{b}是多少？|{a}加上{b}等于多少|{a}和{b}的和是多少？".split("|"),
    "zh-": "{a}减{b}等于多少？|{a}减{b}等于几？|{a}减{b}是多少？|{a}减去{b}等于多少|{a}减{b}".split("|"),
}  # fmt: skip
UNKNOWN_EN = """Who won the {n} in {y}?|What is the meaning of {n}?|Write a program that sorts {n}.|
    How do I cook {n}?|Who wrote the book about {n}?|When was the {n} invented?|Explain {n} to me.|
    Translate {n} into Latin.|What is the best {n}?|How tall is {n}?|Why is the {n} so {k}?|What is the
    price of {n}?|Who invented the {n}?|How many {n} are there in the world?|What happened in {y}?|
    Give me advice about my {n}.|Is {n} better than {m}?|What is the difference between {n} and {m}?|
    Where can I buy {n}?|What is the square root of {y}?|Summarize the history of {n}.|Should I learn
    {n}?|How old is {n}?|What do you think about {n}?|How does {n} work?|What is the population of
    {n}?|Write an essay on {n}.|Who is the president of {n}?|Define {n}.|What is {n}?|Who is {n}?|What
    is the capital of {x}?|Can {n} fly?|When does the {n} start?""".split("|")
UNKNOWN_ZH = """谁发明了{n}？|{n}是什么时候发明的？|怎么做{n}？|为什么{n}这么贵？|{n}多少钱？|解释一下{n}|{n}是什么意思？|
    写一个关于{n}的程序|谁赢得了{y}年的世界杯？|{y}年发生了什么？|{n}有多高？|{n}和{m}有什么区别？|哪里可以买到{n}？|{n}的历史是什么？|
    你觉得{n}怎么样？|我应该学{n}吗？|什么是{n}？|{n}的人口是多少？|{n}是谁？|把{n}翻译成英文|{x}的首都是哪里？""".split(
    "|"
)
TOPICS_EN = """physics music love football chess the-sun quantum-mechanics life telephone war
    mathematics electricity internet economy poetry gravity coffee Python Linux time energy art
    medicine politics biology wine tennis history law light sleep dreams philosophy money climate
    engine printer radio university planet virus camera language steel""".split()
TOPICS_ZH = "物理 音乐 爱情 足球 电话 数学 电 互联网 经济 诗歌 重力 咖啡 时间 能量 艺术 医学 政治 生物 历史 法律 哲学 气候 相机 语言 汽车 飞机 手机 股票 宇宙 人生".split()


def clean(text: str) -> str:
    """Join a phrase that the source wraps over lines."""
    return " ".join(text.split())


def small_talk(d: Draw) -> Turn:
    """Greet, introduce itself, thank, say goodbye."""
    table = SMALL_TALK[d.lang]

    def make() -> tuple[tuple[str, ...], Turn]:
        answer = d.pick(table) if d.chance(0.75) else WHO[d.lang]
        text = d.ask([clean(p) for p in table[answer]])
        return ("talk", text), Turn(text, answer, "small talk")

    turn: Turn = d.until(make)
    return turn


def capital(d: Draw, *, follow: bool = False) -> Turn:
    """Name the capital of a country; `follow` asks as a second question ("And of Peru?")."""
    asks = (CAPITAL_MORE if follow else CAPITAL_ASKS)[d.lang]

    def make() -> tuple[tuple[str, ...], Turn]:
        row = d.pick(words.COUNTRIES)
        ask = clean(d.pick(asks))
        if d.lang == "zh":
            text, answer = d.ask([ask], c=row[2]), f"{row[2]}的首都是{row[3]}。"
        else:
            named = d.pick([row[0], *words.ALIASES.get(row[0], [])])
            text, answer = d.ask([ask], c=named), f"The capital of {row[0]} is {row[1]}."
            if d.chance(0.12):
                text = text.lower()
        return ("capital", row[0], ask), Turn(text, answer, f"capitals {d.lang}")

    turn: Turn = d.until(make)
    return turn


def sums(d: Draw) -> Turn:
    """Add or subtract two whole numbers up to 99."""

    def make() -> tuple[tuple[object, ...], tuple[int, int, str]]:
        top = 20 if d.chance(0.12) else 99
        a, b, op = d.r.randint(0, top), d.r.randint(0, top), d.pick("+-")
        if op == "-" and a < b and d.chance(0.8):
            a, b = b, a
        return ("sum", a, op, b), (a, b, op)

    a, b, op = d.until(make)
    asks = SUM_ASKS[d.lang] if d.chance(0.6) else SUM_ASKS[d.lang + op]
    text = d.ask([clean(p) for p in asks], a=str(a), b=str(b), o=op)
    result = a + b if op == "+" else a - b
    answer = f"{a} {op} {b} = {result}" + ("。" if d.lang == "zh" else ".")
    return Turn(text, answer, f"arithmetic {d.lang}")


def echo(d: Draw) -> Turn:
    """Repeat what the user said, or say hello to somebody."""
    zh = d.lang == "zh"
    if d.chance(0.35):
        name = d.name()
        asks = (
            ["跟{x}打个招呼", "向{x}问好", "请对{x}说你好。", "和{x}打个招呼吧"]
            if zh
            else ["Say hello to {x}.", "Say hi to {x}.", "Please say hello to {x}.", "Greet {x}."]
        )
        return Turn(d.ask(asks, x=name), f"你好，{name}！" if zh else f"Hello, {name}!", "echo")

    def make() -> tuple[tuple[str, ...], str]:
        pool = [
            *words.THINGS,
            *words.ANIMALS,
            *words.COLOURS,
            "the",
            "a",
            "is",
            "and",
            "we",
            "have",
        ]
        if zh:
            pool = [
                *words.ANIMALS_ZH,
                *words.COLOURS.values(),
                *words.FOODS.values(),
                "很",
                "我有",
                "喜欢",
            ]
        n = d.r.randint(1, 7)
        parts = [d.synthetic() if d.chance(0.4) else d.pick(pool) for _ in range(n)]
        text = ("" if zh else " ").join(parts)
        return ("echo", text), text

    text = d.until(make)
    asks = (
        ["请重复：{x}", "跟我说：{x}", "重复一遍：{x}", "跟我读：{x}", "请说：{x}"]
        if zh
        else ["Repeat after me: {x}", "Say: {x}", "Repeat: {x}", "Echo this: {x}", 'Say "{x}"',
              "Please repeat: {x}",
            "Say {x}", "Repeat the following: {x}"]
    )  # fmt: skip
    return Turn(d.ask(asks, prefix=False, x=text), text, "echo")


def count(d: Draw) -> Turn:
    """Count up to a small number, or list some things of a kind."""
    zh = d.lang == "zh"

    def make() -> tuple[tuple[object, ...], Turn]:
        n = d.r.randint(2, 20)
        text = d.ask(
            ["从1数到{n}", "数到{n}", "请数到{n}。", "请从1数到{n}。"]
            if zh
            else [
                "Count to {n}.",
                "Count from 1 to {n}.",
                "Please count to {n}.",
                "Can you count to {n}?",
            ],
            n=str(n),
        )
        numbers = ("、" if zh else ", ").join(str(i) for i in range(1, n + 1))
        return ("count", text), Turn(text, numbers + ("。" if zh else "."), "counting")

    turn: Turn = d.until(make)
    return turn


def unknown(d: Draw) -> Turn:
    """Say that it does not know."""
    zh = d.lang == "zh"
    topics = TOPICS_ZH if zh else [*TOPICS_EN, *words.THINGS, *words.ANIMALS]

    def make() -> tuple[tuple[str, ...], Turn]:
        n = d.synthetic() if d.chance(0.15) else d.pick(topics).replace("-", " ")
        text = d.ask(
            [clean(p) for p in (UNKNOWN_ZH if zh else UNKNOWN_EN)],
            n=n, m=d.pick(topics).replace("-", " "), y=str(d.r.randint(1000, 2030)),
            k=d.pick(words.COLOURS), x=d.synthetic(),
        )  # fmt: skip
        return ("unknown", text), Turn(text, DONT_KNOW[d.lang], "unknown")

    turn: Turn = d.until(make)
    return turn
