"""The colleague's world: one long working chat in three languages, asked about afterwards.

Written when the ranking was finished, and not looked at for it.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from benchmarks.recalled.world import Asked, Said, World

# (the owner's words, the assistant's, the question, which of the two is the evidence)
MATTERS = (
    (
        "Our accountant changed: from now on send the receipts to Ms Lindqvist at Fjordtal.",
        "I will send them to her.",
        "Who handles our bookkeeping these days?",
        0,
    ),
    (
        "The van failed its inspection because of the rear brakes.",
        "The garage on Dock Road has a slot on Tuesday.",
        "Why did the van not pass?",
        0,
    ),
    (
        "Summarise what the three roofers offered.",
        "Halden asks 18,400 with slate, Brix 15,900 with tiles, Moor 14,200 without scaffolding.",
        "Which roofer was cheapest and what was missing from the offer?",
        1,
    ),
    (
        "I agreed with Selma that she takes the early shift while I do the school run.",
        "Shift plan updated.",
        "What arrangement do I have with Selma?",
        0,
    ),
    (
        "Never book me into a room above the second floor, I get dizzy.",
        "Understood, low floors only.",
        "Which hotel rooms should be avoided for me?",
        0,
    ),
    (
        "The customer in Tromsø refused the delivery, two of the panels were cracked.",
        "I opened a claim with the carrier, number TR-88213.",
        "What is the claim number for the broken panels?",
        1,
    ),
    (
        "What did the lawyer write about the boundary?",
        "Mr Castellan says the hedge is ours and the fence belongs to the Petersens.",
        "To whom does the fence belong according to the lawyer?",
        1,
    ),
    (
        "Let's pay the apprentices on the 25th instead of the last day of the month.",
        "Standing orders moved to the 25th.",
        "On which day do the trainees get their wages?",
        0,
    ),
    (
        "The server room was at 41 degrees tonight, the second fan is dead.",
        "I ordered a fan of type NF-A20.",
        "What was broken when it got too hot at the servers?",
        0,
    ),
    (
        "My mother comes home from the rehab clinic on Friday, she needs a shower stool.",
        "The medical shop on Linden Square lends them.",
        "What does my mum need after her stay in rehab?",
        0,
    ),
    (
        "I told Bruno we would not renew the lease of the warehouse, the roof is hopeless.",
        "I noted the end: 30 September.",
        "Why are we giving up the warehouse?",
        0,
    ),
    (
        "Who won the table tennis at the summer party?",
        "Ayşe beat Lorenz 21 to 18 in the final.",
        "Who was the winner of our ping-pong final?",
        1,
    ),
    (
        "Die Wärmepumpe wird erst im Oktober geliefert, der Hersteller hat zu wenig Kompressoren.",
        "Ich habe den Installateur auf Oktober verschoben.",
        "Warum verspätet sich die Lieferung der Wärmepumpe?",
        0,
    ),
    (
        "Der Vermieter erlaubt einen Hund, aber keine Katze.",
        "Gut, dann bleibt es beim Hund.",
        "Welche Haustiere sind laut Vermieter erlaubt?",
        0,
    ),
    (
        "Für die Feier haben wir den Saal im Löwen gemietet, vierzig Plätze.",
        "Die Anzahlung ist überwiesen.",
        "Welchen Raum haben wir für das Fest gemietet?",
        0,
    ),
    (
        "搬家公司报价太高，我们自己租一辆货车。",
        "好的，我查一下租车行。",
        "我们为什么自己租货车？",
        0,
    ),
    ("周三的体检结果出来了，血糖偏高，要少吃甜食。", "我会提醒你。", "体检发现了什么问题？", 0),
    ("孩子的钢琴老师换成了王老师，每周四下午。", "已经更新日程。", "钢琴课是哪一天？", 0),
    (
        "引っ越しの見積もりは田中運輸が一番安かったです。",
        "では田中運輸に頼みますか。",
        "引っ越しはどの会社が安かったですか",
        0,
    ),
    (
        "歯医者の予約は木曜の三時に変わりました。",
        "予定を直しました。",
        "歯医者の予約はいつですか",
        0,
    ),
)
DAILY = (
    ("Good morning, what is on today?", "Two calls, and the delivery at noon."),
    ("Draft a reply to the customer about the panels.", "Here is a draft; shall I send it?"),
    ("Move the call with {name} to {hour}.", "Moved."),
    ("How is the weather for the site visit?", "Dry until the afternoon."),
    ("Send {name} the plan of the warehouse.", "Sent."),
    ("What does a van of that size need per 100 km?", "About nine litres."),
    ("Order toner and two boxes of paper.", "Ordered, {hour} o'clock tomorrow."),
    ("Check the invoices of this month.", "Three are open, all from {name}."),
    ("Is the server back up?", "Yes, since {hour}."),
    ("Remind me of the school run at {hour}.", "I will."),
    ("Wie spät kommt {name}?", "Gegen {hour} Uhr."),
    ("Schreib {name}, dass wir später kommen.", "Erledigt."),
    ("帮我给{name}回个邮件。", "已发送。"),
    ("{name}さんにメールを送って。", "送りました。"),
    ("Translate the offer for {name}.", "Done, it is in the folder."),
    ("Who called while I was out?", "{name}, twice; no message."),
)
NAMES = (
    "Selma",
    "Bruno",
    "Ayşe",
    "Lorenz",
    "Petersen",
    "Halden",
    "Moor",
    "Castellan",
    "王",
    "田中",
)


def generate(size: int, questions: int, seed: int = 17) -> World:
    """About ``size`` messages of one session in a year, each matter once, in random places."""
    chance = random.Random(seed)
    start = datetime(2025, 3, 3, 7, 0, tzinfo=UTC)
    turns = max(size // 2, len(MATTERS))
    places = dict(zip(chance.sample(range(turns), len(MATTERS)), MATTERS, strict=True))
    said: list[Said] = []
    asked: list[Asked] = []
    for turn in range(turns):
        at = start + timedelta(days=380) * turn / turns
        if turn in places:
            words, answer, question, which = places[turn]
            asked.append(Asked(question, "colleague", ((words, answer)[which],)))
        else:
            slots = {"name": chance.choice(NAMES), "hour": str(chance.randint(7, 19))}
            words, answer = (text.format(**slots) for text in chance.choice(DAILY))
        said.append(Said("telegram:42", "user", at, words))
        said.append(Said("telegram:42", "assistant", at + timedelta(seconds=15), answer))
    chance.shuffle(asked)
    return World("colleague", tuple(said), tuple(asked[:questions]), start + timedelta(days=390))
