"""
Short stories that stay with who they are about, in English and in Chinese.

A story is put together from small sentences of our own; it names its subject in most of them.
"""

from __future__ import annotations

from training import words
from training.draw import Draw, Turn

PLACES = """in a green forest|by the sea|in a small town|on a quiet farm|near a big lake|in an old
house|on a high hill|in a sunny garden|at the edge of the desert|in a busy city|under a tall
tree|on a little island""".replace("\n", " ").split("|")
MOODS = "kind brave happy curious clever quiet cheerful gentle tiny funny lonely sleepy".split()
WANTS = """to find a new friend|to see the moon|to learn a song|to help somebody|to visit the
sea|to find a red ball|to build a warm home|to win a race|to make a cake|to climb the hill|to fly a
kite|to see the snow""".replace("\n", " ").split("|")
TROUBLES = """it began to rain|the wind blew very hard|the path was lost in the fog|night came and it
was dark|a big stone lay in the way|the bridge was broken|everybody was asleep|there was a strange
noise|the way was very long|nobody knew the answer""".replace("\n", " ").split("|")
HELPERS = (
    "an old owl|a little bird|a friendly frog|a wise turtle|a small mouse|a shy rabbit|a kind \
farmer|a merry bee|a white cat|a young deer".split("|")
)
HELPS = """showed the right way|brought a bright lamp|shared some bread|sang a soft song|gave good
advice|carried a warm blanket|told a funny joke|held out a hand""".replace("\n", " ").split("|")
ENDS = """From that day on, {S} was never alone again.|That night, {S} slept with a smile.|{S} went
home and told everybody the story.|In the end, {S} was very happy.|And {S} never forgot that
day.|Since then, {S} laughs every morning.""".replace("\n", " ").split("|")
STORY_ASKS = """Write a short story about {t}.|Tell me a story about {t}.|Write a story about {t}.|Tell
me a short story about {t}.|Can you tell me a story about {t}?|Make up a story about {t}.|I want to hear
a story about {t}.|Please write a short story about {t}.|A short story about {t}, please.|Write a little
story about {t}.|Write a tiny story about {t}.|Tell me a bedtime story about {t}.|Write a one-sentence bedtime story
about {t}.|Tell me a three sentence bedtime story about {t}.|Story about {t}""".replace("\n", " ").split("|")
ANY_ASKS = ["Tell me a story.", "Write a short story.", "Can you tell me a story?", "I want a story.",
            "Write a story.", "Please tell me a short story."]  # fmt: skip

PLACES_ZH = (
    "森林里|海边|小镇上|农场里|湖边|老房子里|高山上|花园里|大城市里|小岛上|大树下|沙漠边".split("|")
)
MOODS_ZH = "善良的|勇敢的|快乐的|好奇的|聪明的|安静的|温柔的|可爱的|孤单的|爱睡觉的".split("|")
WANTS_ZH = "找一个新朋友|去看月亮|学一首歌|帮助别人|去看大海|找到红色的球|建一个温暖的家|赢得比赛|做一个蛋糕|爬上山顶|放风筝|去看雪".split("|")  # fmt: skip
TROUBLES_ZH = "突然下起了雨|风刮得很大|大雾遮住了路|天黑了|一块大石头挡住了路|桥断了|大家都睡着了|传来奇怪的声音|路很远很远".split(
    "|"
)
HELPERS_ZH = "老猫头鹰|小鸟|友好的青蛙|聪明的乌龟|小老鼠|害羞的兔子|善良的农夫|快乐的蜜蜂".split(
    "|"
)
HELPS_ZH = (
    "指了正确的路|带来了一盏灯|分享了面包|唱了一首歌|出了好主意|送来了毯子|讲了一个笑话".split("|")
)
ENDS_ZH = "从那以后，{S}再也不孤单了。|那天晚上，{S}笑着睡着了。|{S}回家把故事讲给大家听。|最后，{S}非常高兴。|{S}永远忘不了那一天。".split(
    "|"
)
ASKS_ZH = "写一个关于{t}的故事|讲一个关于{t}的故事|给我讲一个{t}的故事。|写一个{t}的小故事。|请写一个关于{t}的短故事。|讲个{t}的故事吧|我想听{t}的故事|编一个关于{t}的故事".split("|")  # fmt: skip
ANY_ZH = ["讲个故事", "给我讲一个故事。", "写一个小故事", "请讲一个故事。", "写一个短故事。"]


def article(noun: str) -> str:
    """Put "a" or "an" in front of a noun."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def tell(d: Draw, noun: str, name: str) -> str:
    """Write an English story; with an empty name the subject is "the <noun>"."""
    s = name or f"the {noun}"
    cap = s[0].upper() + s[1:]
    mood, place, want = d.pick(MOODS), d.pick(PLACES), d.pick(WANTS)
    full = article(f"{mood} {noun}") + (f" named {name}" if name else "")
    parts = [
        d.pick([f"Once upon a time, there was {full}.", f"Once there was {full}.",
                f"There once was {full}.", f"One day, there was {full}."]),
        d.pick([f"{cap} lived {place} and wanted {want}.", f"{cap} lived {place}.",
                f"{cap} the {noun} lived {place}." if name else f"{cap} lived alone {place}."]),
    ]  # fmt: skip
    if d.chance(0.7):
        parts.append(f"One morning, {s} went out {want}, but {d.pick(TROUBLES)}.")
        if d.chance(0.8):
            help_ = f"{d.pick(HELPERS)} came and {d.pick(HELPS)}"
            parts.append(d.pick([f"Then {help_}.", f"{help_[0].upper()}{help_[1:]} for {s}."]))
    else:
        parts.append(f"Every day, {s} dreamed of one thing: {want}.")
    if d.chance(0.3):
        parts.append(f'"Thank you!" said {s}.')
    end = d.pick(ENDS).format(S=s)
    parts.append(end[0].upper() + end[1:])
    return " ".join(parts)


def tell_zh(d: Draw, noun: str, name: str) -> str:
    """Write a Chinese story; with an empty name the subject is the noun."""
    s = name or noun
    parts = [
        d.pick(["从前，", "很久以前，", "有一天，"])
        + f"{d.pick(PLACES_ZH)}有一{d.pick(['只', '位', '个'])}{d.pick(MOODS_ZH)}{noun}"
        + (f"，名叫{name}。" if name else "。"),
    ]
    want = d.pick(WANTS_ZH)
    parts.append(d.pick([f"{s}想{want}。", f"{s}最大的愿望就是{want}。"]))
    if d.chance(0.7):
        parts.append(f"一天早上，{s}出发了，可是{d.pick(TROUBLES_ZH)}。")
        parts.append(f"这时，{d.pick(HELPERS_ZH)}来了，给{s}{d.pick(HELPS_ZH)}。")
    else:
        parts.append(f"{s}每天都很努力。")
    parts.append(d.pick(ENDS_ZH).format(S=s))
    return "".join(parts)


def story(d: Draw) -> Turn:
    """Tell a story about the subject asked for, or about any."""
    zh = d.lang == "zh"
    nouns = list(words.ANIMALS_ZH) if zh else [*words.ANIMALS, *words.THINGS]
    noun = d.pick(nouns)
    if not d.heldout and d.chance(0.08):
        text = d.ask(ANY_ZH if zh else ANY_ASKS)
        return Turn(text, tell_zh(d, noun, "") if zh else tell(d, noun, d.name()), "stories")
    name = ""
    if d.chance(0.7):
        name = d.pick(words.PETS_ZH) if zh and d.chance(0.5) else d.name()
    elif not zh and d.chance(0.25):
        noun = d.synthetic().lower()

    def make() -> tuple[tuple[str, ...], str]:
        if not zh and not name and d.heldout is False and d.chance(0.1):
            return ("story", noun, ""), noun
        chosen = noun if d.chance(0.5) else d.pick(nouns)
        return ("story", chosen, name), chosen

    noun = d.until(make)
    if zh:
        topic = (
            d.pick([f"{noun}{name}", f"一只叫{name}的{noun}", f"名叫{name}的{noun}"])
            if name
            else noun
        )
        return Turn(
            d.ask(ASKS_ZH, t=topic), tell_zh(d, noun, name), "stories", [name or noun, noun]
        )
    topic = article(noun)
    if name:
        topic += d.pick(
            [f" named {name}", f" called {name}", f" named {name}", f" whose name is {name}"]
        )
    return Turn(d.ask(STORY_ASKS, t=topic), tell(d, noun, name), "stories", [name or noun, noun])


def plain(d: Draw) -> str:
    """Write plain text that no chat surrounds: a story, a few capitals, some sums."""
    kind = d.r.random()
    if kind < 0.7:
        if d.lang == "zh":
            return tell_zh(
                d, d.pick(words.ANIMALS_ZH), d.pick(words.PETS_ZH) if d.chance(0.5) else ""
            )
        return tell(d, d.pick([*words.ANIMALS, *words.THINGS]), d.name() if d.chance(0.7) else "")
    if kind < 0.9:
        rows = [d.pick(words.COUNTRIES) for _ in range(d.r.randint(1, 3))]
        if d.lang == "zh":
            return "".join(f"{row[2]}的首都是{row[3]}。" for row in rows)
        return " ".join(f"The capital of {row[0]} is {row[1]}." for row in rows)
    a, b = d.until(lambda: (("sum", a := d.r.randint(0, 9), "+", b := d.r.randint(0, 9)), (a, b)))
    return f"{a} + {b} = {a + b}."
