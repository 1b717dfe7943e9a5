"""The prompts that outputs are compared on. Every text here was written for this file.

They are chosen to differ in what may go wrong: length against blocks of 16 and chunks of 16, 64 and
512; scripts whose characters take several tokens; runs of spaces; repetition, where a wrong
position shows late; and shared openings, where a prefix cache can mix answers up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["raw", "chat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt. A chat goes through the model's template and may end at its end of turn;
    a raw one is text alone and runs to its full length, end of sequence ignored."""

    name: str
    kind: Kind
    text: str = ""
    messages: tuple[tuple[str, str], ...] = ()
    """(role, content) of a chat."""
    num_tokens: int | None = None
    """Keep only so many of the text's first tokens; None: all."""

    def as_chat(self) -> list[dict[str, str]]:
        return [{"role": role, "content": content} for role, content in self.messages]


def raw(name: str, text: str, *, num_tokens: int | None = None) -> Prompt:
    return Prompt(name=name, kind="raw", text=text, num_tokens=num_tokens)


def ask(name: str, question: str, *, system: str | None = None) -> Prompt:
    opening = (("system", system),) if system is not None else ()
    return Prompt(name=name, kind="chat", messages=(*opening, ("user", question)))


def talk(name: str, *turns: tuple[str, str]) -> Prompt:
    return Prompt(name=name, kind="chat", messages=turns)


def diary(days: int) -> str:
    """Prose that goes on for as long as asked, each day a little different."""
    weather = ("rain", "a pale sun", "fog over the harbour", "the first frost", "a warm wind")
    work = ("mended the nets", "painted the keel", "counted the sacks", "wrote to my sister")
    guests = ("the miller", "two students", "nobody", "a surveyor from the coast", "old Ines")
    return "\n".join(
        f"Day {day}. There was {weather[day % 5]} when I woke. I {work[day % 4]} until noon, then "
        f"{guests[day % 5]} came by and we spoke of the {day % 7 + 2} boats still out at sea."
        for day in range(1, days + 1)
    )


def server_log(lines: int) -> str:
    levels = ("INFO", "INFO", "WARN", "INFO", "ERROR", "DEBUG")
    events = ("request accepted", "queue drained", "retry scheduled", "disk at {n}%", "timeout")
    return "\n".join(
        f"2031-04-{line % 28 + 1:02d}T{line * 7 % 24:02d}:{line * 13 % 60:02d}:00Z "
        f"{levels[line % 6]} node-{line * 5 % 11} {events[line % 5].format(n=line * 3 % 100)} "
        f"id={line * 7919 % 65536:04x}"
        for line in range(lines)
    )


def inventory(rows: int) -> str:
    things = ("rope", "lantern", "chisel", "barrel", "copper wire", "sail cloth", "compass")
    body = "\n".join(
        f"{row + 1}\t{things[row % 7]}\t{row * 17 % 90 + 3}\t{row * 31 % 400 / 10:.2f}"
        for row in range(rows)
    )
    return f"id\tname\tcount\tprice\n{body}\n"


def python_module(functions: int) -> str:
    verbs = ("scale", "shift", "clamp", "blend")
    body = "\n\n".join(
        f"def {verbs[i % 4]}_{i}(values: list[float], amount: float = {i}.5) -> list[float]:\n"
        f'    """{verbs[i % 4].title()} every value by the amount."""\n'
        f"    return [value {'*+-/'[i % 4]} (amount + {i + 1}) for value in values]"
        for i in range(functions)
    )
    return f"import math\n\n\n{body}\n\n\ndef main() -> None:\n"


_STEWARD = (
    "You are the steward of a small mountain library. You answer in plain sentences, you never "
    "invent a title, and you say so when you do not know. The library opens at nine and closes at "
    "six, and on market days it stays open until eight. Members may borrow four books for three "
    "weeks; atlases and bound newspapers stay in the reading room."
)
"""A shared opening of several blocks: two prompts that differ only behind it."""

_RAW = (
    raw("one-token", "Hello", num_tokens=1),
    raw("two-tokens", "The sea was calm", num_tokens=2),
    raw("short-sentence", "The capital of France is"),
    raw("question", "Why does ice float on water?"),
    raw("fifteen-tokens", diary(2), num_tokens=15),
    raw("sixteen-tokens", diary(2), num_tokens=16),
    raw("seventeen-tokens", diary(2), num_tokens=17),
    raw("one-chunk-of-64", server_log(6), num_tokens=64),
    raw("one-past-64", server_log(6), num_tokens=65),
    raw("counting", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"),
    raw("alphabet", "A is for anchor, B is for bridge, C is for candle, D is for"),
    raw("repeated-word", "tick " * 40),
    raw("repeated-line", "The bell rings once.\n" * 24),
    raw("alternating", "left right " * 60),
    raw("spaces", "   name     :      Ada\n      town  :   \n\n\n        trade :  "),
    raw("tabs-and-blank-lines", "\t\tif open:\n\n\n\t\t\tenter()\n\n\n\t\telse:\n\n"),
    raw("only-newlines", "\n\n\n\n\n\n\n\n"),
    raw("punctuation", "?!... --- ((( [[[ {{{ <<< ;;; ::: \"\"\" ''' ``` ~~~ ### $$$ %%% &&&"),
    raw("python", "def fibonacci(n):\n    if n < 2:\n        return n\n    return"),
    raw("c-code", "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n"),
    raw("sql", "SELECT town, COUNT(*) AS members\nFROM readers\nWHERE joined >= '2030-01-01'\n"),
    raw("json", '{"ship": "Marlin", "crew": [{"name": "Ines", "rank": "captain"}, {"name":'),
    raw("html", "<!DOCTYPE html>\n<html>\n<head>\n  <title>Harbour times</title>\n</head>\n<body>"),
    raw("chinese", "春天来了，河边的柳树发出新芽。孩子们在田野里放风筝，老人坐在门前"),
    raw("japanese", "山の上の小さな図書館は、朝九時に開きます。今日は"),
    raw("korean", "바닷가 마을의 아침은 조용합니다. 어부들은 그물을 손질하고"),
    raw("arabic", "في صباح يوم بارد خرج الصياد إلى البحر ومعه شبكة قديمة"),
    raw("russian", "Зимним утром над рекой стоял туман, и лодка медленно плыла к берегу."),
    raw("hindi", "गाँव के बाहर एक पुराना कुआँ है, जहाँ बच्चे शाम को खेलते हैं और"),
    raw("greek-and-hebrew", "Η θάλασσα είναι ήσυχη σήμερα. הים שקט היום."),
    raw("emoji", "Weather today: ☀️🌤️⛅🌧️ Mood: 😀😅🥲 Flags: 🇫🇷🇯🇵 Family: 👩‍👩‍👧‍👦 Next:"),
    raw(
        "mixed-scripts",
        "Menu: café ☕ 3€ / 寿司 900円 / борщ 250₽ / falafel فلافل 4€ / naan नान ₹60 /",
    ),
    raw("accents", "Dès l'aube, à l'heure où l'été s'éveille, le garçon naïf mangeait des pâtés"),
    raw("math", "Let f(x) = 3x^2 - 4x + 1. Then f'(x) = 6x - 4, and f'(x) = 0 when x ="),
    raw("list", "Things to pack for a week at sea:\n- warm socks\n- a lamp\n- two maps\n-"),
    raw("table-of-300", inventory(24), num_tokens=300),
    raw("code-of-500", python_module(14), num_tokens=500),
    raw("exactly-512", diary(14), num_tokens=512),
    raw("one-past-512", diary(14), num_tokens=513),
    raw("log-of-1000", server_log(40), num_tokens=1000),
    raw("diary-of-1500", diary(40), num_tokens=1500),
)

_CHAT = (
    ask("chat-greeting", "Hi! Who are you?"),
    ask("chat-one-word", "Answer with one word: what colour is grass?"),
    ask("chat-sum", "What is 2 + 2? Reply with the number only."),
    ask("chat-yes", "Say yes."),
    ask("chat-explain", "Explain in two sentences why the sky is blue."),
    ask("chat-list", "List five fruits, one on each line, without numbers."),
    ask("chat-code", "Write a Python function that reverses a string."),
    ask("chat-spanish", "Traduce al inglés: «El gato duerme sobre la silla.»"),
    ask("chat-chinese", "请用一句话介绍一下月亮。"),
    ask("chat-emoji", "Describe this face in three words: 🥳"),
    ask("chat-steward-hours", "When do you close on market days?", system=_STEWARD),
    ask("chat-steward-loans", "May I take an atlas home for a week?", system=_STEWARD),
    ask("chat-empty-system", "Name one planet.", system=""),
    talk(
        "chat-turns",
        ("user", "My boat is called Marlin."),
        ("assistant", "That is a fine name for a boat."),
        ("user", "Where would you sail her first?"),
        ("assistant", "Along the coast, close to shore, until I knew her."),
        ("user", "What is my boat called?"),
    ),
    ask("chat-summary", f"Summarise this diary in one sentence.\n\n{diary(16)}"),
    ask("chat-log-question", f"Which node reported an error first?\n\n{server_log(30)}"),
)

PROMPTS: tuple[Prompt, ...] = _RAW + _CHAT

SMALL_COVER = (
    "one-token",
    "sixteen-tokens",
    "seventeen-tokens",
    "one-past-64",
    "repeated-word",
    "chinese",
    "emoji",
    "python",
    "chat-sum",
    "chat-explain",
    "chat-steward-hours",
    "chat-steward-loans",
)
"""The dozen that every run of the tests uses: short, and of every sort."""
