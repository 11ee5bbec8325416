"""The owner's world: a year of short chats in several channels and languages, and HISTORY.md."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from benchmarks.recalled.world import Asked, Said, World

_PEOPLE = "Anna Boris Chiara Daniel Elif Farid Greta Hiro Ines Jonas Katja Luca Mei Nora"
_CITIES = "Lisbon Kraków Ghent Turin Leeds Porto Aarhus Graz Split Tallinn Nantes Bergen"
_BRANDS = "Velmar Oskine Tandor Breva Kolfin Mirago Sundal Pexton Ardent Quillo"
_ROOMS = "kitchen bathroom attic cellar garage study hallway nursery"
_MONTHS = "January February March April May June July August September October November December"
PEOPLE, CITIES, BRANDS, ROOMS, MONTHS = (
    names.split() for names in (_PEOPLE, _CITIES, _BRANDS, _ROOMS, _MONTHS)
)

# (what is said, what is answered, the question asked later, kind)
FACTS = (
    (
        "The boiler in the {room} is leaking again. Shall we repair it or replace it?",
        "We compared both: a repair for {n}0 euros, or a new {brand} for {n}00. You settled on the "
        "{brand}, since the repair would only hold a year.",
        "What was decided about the heating problem in the {room}?",
        "decision",
    ),
    (
        "{person} recommended a dentist on Mill Lane, Dr {brand}. Put that down.",
        "Noted: Dr {brand}, Mill Lane.",
        "Which dentist did {person} suggest?",
        "fact",
    ),
    (
        "I can't stand coriander, {person} put it in everything last night.",
        "Understood, no coriander in recipes from now on.",
        "Which herb should be avoided when cooking for me, the one {person} used?",
        "preference",
    ),
    (
        "For the trip to {city} I'd rather sleep in a small family hotel than in a chain.",
        "Then the guesthouse by the river fits: booked as reference {brand}-{n}.",
        "What kind of accommodation do I prefer in {city}, and what is the booking reference?",
        "preference",
    ),
    (
        "{person}'s birthday is on the {d}th of {month}; she collects old maps.",
        "I have put the {d}th of {month} into the calendar, with maps as an idea for a present.",
        "What could I give {person} as a gift?",
        "fact",
    ),
    (
        "The password of the guest wifi is now {brand}-{n}-otter, tell {person} when she asks.",
        "Kept. I will pass it on when {person} asks.",
        "What is the passphrase that {person} needs for the internet?",
        "identifier",
    ),
    (
        "The build fails in /srv/{brand}/deploy.sh at line {n}, exit code 7.",
        "The cause was the missing variable {brand}_TOKEN; after setting it the job went through.",
        "Why did deploy.sh of {brand} break at line {n}?",
        "identifier",
    ),
    (
        "I paid invoice {n}-{brand} twice, they owe me {n} euros.",
        "I drafted a mail to {brand} asking for the refund of {n} euros.",
        "How much does {brand} have to give back because of the double payment?",
        "fact",
    ),
    (
        "{person} moved from {city} to {city2} for the new position at {brand}.",
        "Good to know; I changed the address book accordingly.",
        "Where does {person} live now and who employs her?",
        "update",
    ),
    (
        "My physiotherapist says three sets of heel drops every morning, because of the tendon.",
        "I can remind you at 7:30 each day. The tendon usually needs {n} days.",
        "Which exercises was I told to do for my injured foot?",
        "fact",
    ),
    (
        "We looked at the flat on {brand} Street: four rooms, too noisy because of the tram.",
        "So {brand} Street is off the list; the reason was the noise.",
        "Why did we turn down the apartment on {brand} Street?",
        "decision",
    ),
    (
        "The landlord wants to raise the rent from {month}, {n}0 more a month.",
        "By law he must announce it three months ahead; his letter came late, so it does not hold.",
        "What did the owner of our flat want to increase in {month}?",
        "temporal",
    ),
    (
        "Sold the old {brand} bike to {person} today, she gave me {n} in cash.",
        "Congratulations. Shall I take it off the insurance list?",
        "To whom did I sell my bicycle, the {brand}?",
        "fact",
    ),
    (
        "Use PostgreSQL for the {brand} project after all, SQLite locks up under the importer.",
        "Switched. Rejected were SQLite (locking) and MySQL (nobody knows it).",
        "Which database did we pick for {brand} and what were the rejected options?",
        "decision",
    ),
    (
        "{person} is allergic to walnuts, it ended in the emergency room last year.",
        "That is serious: noted for every menu with {person}.",
        "What must not be in the food when {person} comes for dinner?",
        "preference",
    ),
    (
        "Flight to {city}: {brand} Air at 6:40 on the {d}th of {month}, seat {d}C.",
        "Checked in. The train at 4:55 gets you there in time.",
        "When does my plane to {city} leave?",
        "temporal",
    ),
    (
        "The vet said {person}'s cat needs half a tablet of Metacam each evening.",
        "Half a tablet, each evening, with food.",
        "What dose of medicine does the pet of {person} get?",
        "fact",
    ),
    (
        "I finished the novel by {brand}, the ending was a disappointment.",
        "Then perhaps the short stories are more to your taste.",
        "How did I like the book by {brand}?",
        "preference",
    ),
)
CHINESE = (
    (
        "我把备用钥匙放在{room}的蓝色盒子里了。",
        "好的，记住了：蓝色盒子。",
        "备用钥匙在哪里？{room}",
    ),
    (
        "{person}下个月要去{city}出差，住在河边的酒店。",
        "需要我订票吗？",
        "{person}出差住在什么地方？",
    ),
    (
        "医生说我不能吃海鲜，因为{brand}过敏测试是阳性。",
        "以后菜单里不放海鲜。",
        "{brand}测试之后我不能吃什么？",
    ),
    ("我们决定不买{brand}的空调，太吵了。", "明白，改选静音的那款。", "为什么没有买{brand}空调？"),
)
JAPANESE = (
    (
        "{person}さんの猫の名前はタマです。",
        "かわいい名前ですね。",
        "{person}さんの猫の名前は何ですか？",
    ),
    (
        "来月の会議は{city}の支社で行うことになりました。",
        "予定に入れました。",
        "{city}で何を行いますか？",
    ),
    (
        "{brand}の契約は解約しました。料金が高すぎたので。",
        "了解しました。",
        "なぜ{brand}を解約したのですか？",
    ),
    (
        "パスポートは{room}の引き出しにしまいました。",
        "覚えておきます。",
        "{room}に何をしまいましたか？",
    ),
)
CHAT = (
    ("What's the weather in {city} tomorrow?", "Mild, some rain in the afternoon."),
    ("Remind me to call {person} at {d}.", "I will."),
    ("How much is the {brand} in the shop on the corner?", "They ask {n} euros."),
    ("Can you summarise the mail from {person}?", "She asks whether {month} suits you."),
    ("Did {person} write about the {room}?", "Not yet."),
    ("Put milk, bread and apples on the list for {person}.", "Done."),
    ("Is the {brand} still under warranty?", "Until {month}, by the papers."),
    ("Book a table for {d} in {city}.", "Booked at eight."),
    ("The {room} needs new paint some day.", "Shall I look for colours?"),
    ("What is {n} times {d}?", "I make it {n}{d}, roughly."),
    ("{person} says hello from {city}.", "Greetings back!"),
    ("Any news about {brand}?", "Only the quarterly figures."),
    ("Translate 'see you in {month}' for {person}.", "Bis dann im {month}."),
    ("The deploy of {brand} is green again.", "Good."),
    ("I went for a walk near the {room} door shop in {city}.", "Sounds nice."),
    ("今天{city}的天气怎么样？", "多云，有点冷。"),
    ("{person}さんに電話するのを忘れないで。", "わかりました。"),
)


def generate(size: int, questions: int, seed: int = 7) -> World:
    """``size`` messages over 14 months before the asking, and up to ``questions`` questions."""
    chance = random.Random(seed)
    now = datetime(2026, 9, 1, 9, 0, tzinfo=UTC)
    said: list[Said] = []
    asked: list[Asked] = []
    used: set[str] = set()
    span = timedelta(days=425)
    turns = size // 2
    spots = set(chance.sample(range(turns), min(questions, turns // 3)))
    at = now - span
    left = 0
    session = ""
    for turn in range(turns):
        at += span / turns * chance.uniform(0.5, 1.5)
        if left == 0:
            left = chance.randint(2, 9)
            session = chance.choice(("telegram:42", "cli:direct", "telegram:-100:7", f"cli:{turn}"))
        left -= 1
        facts = _slots(chance)
        if turn in spots:
            words, answer, question, kind = _fact(chance)
            text, reply, asking = (one.format(**facts) for one in (words, answer, question))
            if asking in used:
                continue
            used.add(asking)
            evidence = (text, reply) if kind == "decision" else (text,)
            if chance.random() < 0.15:
                said.append(Said("", "", at, f"{text} {reply}"))
            else:
                said.append(Said(session, "user", at, text))
                said.append(Said(session, "assistant", at + timedelta(seconds=20), reply))
            if kind == "temporal" and chance.random() < 0.5:
                asking = f"{asking} We spoke of it in {MONTHS[at.month - 1]}."
            asked.append(Asked(asking, kind, evidence))
        else:
            text, reply = (one.format(**facts) for one in chance.choice(CHAT))
            said.append(Said(session, "user", at, text))
            said.append(Said(session, "assistant", at + timedelta(seconds=20), reply))
    return World("owner", tuple(said), tuple(asked), now)


def _fact(chance: random.Random) -> tuple[str, str, str, str]:
    draw = chance.random()
    if draw < 0.12:
        return (*chance.choice(CHINESE), "chinese")
    if draw < 0.24:
        return (*chance.choice(JAPANESE), "japanese")
    return chance.choice(FACTS)


def _slots(chance: random.Random) -> dict[str, str]:
    city, other = chance.sample(CITIES, 2)
    return {
        "person": chance.choice(PEOPLE),
        "city": city,
        "city2": other,
        "brand": chance.choice(BRANDS) + chance.choice(("", "", "", "o", "ix", "ta")),
        "room": chance.choice(ROOMS),
        "month": chance.choice(MONTHS),
        "n": str(chance.randint(11, 979)),
        "d": str(chance.randint(4, 20)),
    }
