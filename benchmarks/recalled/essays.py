"""The essays' world: short requests with long answers, facts let fall in passing."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from benchmarks.recalled.world import Asked, Said, World

# (a request in which a fact is let fall, its topic, the question)
ASIDES = (
    (
        "Can you suggest routes for my commute? By the way, it takes me 45 minutes by tram.",
        "commute",
        "How long is my daily commute to work?",
    ),
    (
        "I need tips to keep basil alive. I started my herb garden on the balcony three weeks ago.",
        "plants",
        "When did I begin growing herbs?",
    ),
    (
        "Which lens suits portraits? I shoot with a Fujinon body that my sister handed down to me.",
        "photography",
        "From whom did I get my camera?",
    ),
    (
        "Help me plan meals. I've been a pescatarian since my honeymoon in Crete.",
        "cooking",
        "Since when have I not eaten meat?",
    ),
    (
        "How do I clean suede? My sneakers got ruined at the Harborlight festival on Saturday.",
        "cleaning",
        "Which concert event damaged my shoes?",
    ),
    (
        "Explain index funds. I've put 6,400 into the blue-chip fund of Larkspur so far.",
        "investing",
        "How much money have I invested with Larkspur?",
    ),
    (
        "What's a good warm-up? I just joined the rowing club at Eastmere, we train at dawn.",
        "fitness",
        "Which sports club have I become a member of?",
    ),
    (
        "Ideas for a toast, please. My cousin Rafael marries at the vineyard in Ostrava in June.",
        "speeches",
        "Where is the wedding of my relative going to be?",
    ),
    (
        "Recommend podcasts for long drives. I picked up the Tavria last Friday, 38,000 km on it.",
        "podcasts",
        "What mileage did my car have when I bought it?",
    ),
    (
        "How do I train recall? Our spaniel Biscuit was adopted from the Brookfield shelter.",
        "dogs",
        "What breed is my dog and where is he from?",
    ),
    (
        "Compare project tools. At Nimbrel I lead a team of five since the reorganisation.",
        "productivity",
        "How many people report to me?",
    ),
    (
        "Give me a study plan. I have to hand in the thesis on coastal erosion by mid November.",
        "studying",
        "What is the subject of my dissertation?",
    ),
    (
        "What can I do against jet lag? I came back from Wellington only two days ago.",
        "sleep",
        "Which city did I return from after a long flight?",
    ),
    (
        "Which vitamins help nails? I stopped biting mine with the bitter polish from Corvia.",
        "health",
        "What helped me to give up the habit of chewing my fingernails?",
    ),
    (
        "How should I store film? I found twelve undeveloped rolls in my grandfather's desk.",
        "archiving",
        "What did I discover among my granddad's things?",
    ),
    (
        "Suggest a board game for four. We got tired of Granary Kings after the holidays.",
        "games",
        "Which game do we not want to play any more?",
    ),
    (
        "How do I ask for a raise? My salary has been 52,000 since I moved to audit.",
        "career",
        "What do I earn, and in which part of the company?",
    ),
    (
        "Tell me how to fix a dripping tap; the landlord, Mr Oduya, never answers his phone.",
        "repairs",
        "What is the name of the person we rent from?",
    ),
)
OPENINGS = (
    "Can you give me advice on {topic}?",
    "What should a beginner know about {topic}?",
    "List the most common mistakes in {topic}.",
    "How has {topic} changed over the years?",
    "Which books on {topic} are worth my time?",
    "Write a short introduction to {topic}.",
)
_TOPICS = (
    "commute plants photography cooking cleaning investing fitness speeches podcasts dogs "
    "productivity studying sleep health archiving games career repairs camping chess astronomy "
    "budgeting knitting history languages cycling coffee insulation negotiation painting"
)
TOPICS = _TOPICS.split()
SENTENCES = (
    "When it comes to {topic}, starting small is usually the better choice.",
    "Many people who work on {topic} find that a fixed time of the day helps.",
    "It is worth comparing several options before you spend money on {topic}.",
    "A club or a course near your home can give you company and feedback.",
    "Keep notes of what you tried, how long it took and what you would change.",
    "In the first three weeks you should not expect to see much of a difference.",
    "Ask a friend, a colleague or your family to look at it with fresh eyes.",
    "If your budget is small, used equipment is often good enough.",
    "Good light, clean tools and enough sleep matter more than expensive gear.",
    "Be patient with yourself; setbacks in {topic} are part of learning.",
    "On Saturday or Sunday you could plan the meals, the drive and the shopping.",
    "Your landlord, your company or your doctor may have rules about {topic}.",
    "For long flights or drives, prepare a list so that nothing is forgotten.",
    "Finally, celebrate what you have achieved, however small it may seem.",
    "Some swear by a schedule, others by a daily habit; both can work for {topic}.",
    "A camera, a notebook or an app helps to see progress in {topic}.",
)


def generate(size: int, questions: int, seed: int = 13) -> World:
    """About ``size`` messages in sessions of their own; each fact is let fall once."""
    chance = random.Random(seed)
    start = datetime(2025, 4, 1, 8, 0, tzinfo=UTC)
    count = max(size // 6, len(ASIDES))
    said: list[Said] = []
    asked: list[Asked] = []
    places = chance.sample(range(count), len(ASIDES))
    told = dict(zip(places, ASIDES, strict=True))
    for number in range(count):
        at = start + timedelta(days=400) * number / count
        session = f"telegram:{9000 + number}"
        topic = chance.choice(TOPICS)
        exchanges = [(chance.choice(OPENINGS).format(topic=topic), topic) for _ in range(3)]
        if number in told:
            words, topic, question = told[number]
            exchanges[chance.randrange(3)] = (words, topic)
            asked.append(Asked(question, "essays", (words,)))
        for step, (words, subject) in enumerate(exchanges):
            moment = at + timedelta(minutes=4 * step)
            said.append(Said(session, "user", moment, words))
            answer = _essay(chance, subject)
            said.append(Said(session, "assistant", moment + timedelta(seconds=40), answer))
    chance.shuffle(asked)
    return World("essays", tuple(said), tuple(asked[:questions]), start + timedelta(days=410))


def _essay(chance: random.Random, topic: str) -> str:
    lines = [
        f"{number}. {chance.choice(SENTENCES).format(topic=topic)} "
        f"{chance.choice(SENTENCES).format(topic=topic)}"
        for number in range(1, chance.randint(7, 13))
    ]
    return "\n".join([f"Here are some thoughts on {topic}:", *lines])
