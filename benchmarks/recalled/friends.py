"""Two friends' world: long chit-chat in dated meetings, asked about in the third person."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from benchmarks.recalled.world import Asked, Said, World

PAIRS = (
    *(("Maren", "Tobias"), ("Priya", "Owen"), ("Soledad", "Ruth"), ("Kenji", "Abigail")),
    *(("Yusuf", "Helena"), ("Dorothea", "Marcus")),
)
# (what the speaker says about themselves, the other's reaction, the question)
EVENTS = (
    (
        "Last weekend I finally ran that charity race for the shelter, my legs still hurt!",
        "Wow, so proud of you! How much came together?",
        "When did {name} take part in a run for a good cause?",
    ),
    (
        "We signed the papers for the house yesterday. It has a big yard for the dogs.",
        "Congrats! The dogs will love it.",
        "What did {name} buy, and why is it good for the pets?",
    ),
    (
        "My grandma gave me this necklace, it stands for love and where we come from.",
        "That's such a sweet keepsake.",
        "What does the present from {name}'s grandmother symbolise?",
    ),
    (
        "I got laid off from the bank last month, so I'm thinking of opening a dance studio.",
        "Sorry about the bank, but the studio sounds like you!",
        "What business does {name} consider starting after losing the job?",
    ),
    (
        "Been learning the violin since January, my neighbours are very patient, haha.",
        "Haha, they must be angels.",
        "Which instrument is {name} practising?",
    ),
    (
        "The kids painted a sunset with palm trees last week and hung it over the sofa.",
        "Aw, kids' art is the best.",
        "What did {name}'s children make a picture of?",
    ),
    (
        "Three years ago I left Sweden, and honestly I still miss the long evenings.",
        "I can imagine, summers there are magic.",
        "Which country did {name} move away from?",
    ),
    (
        "I'm volunteering at the hospice on Thursdays, reading to people.",
        "You have a big heart.",
        "Where does {name} help out every week?",
    ),
    (
        "We camped by the lake two weeks back and saw the meteor shower.",
        "Under the stars! Magical.",
        "What did {name} watch in the sky while sleeping in a tent?",
    ),
    (
        "My therapist suggested journaling and it has really calmed me down.",
        "So glad it helps.",
        "What did {name} begin to write to feel less anxious?",
    ),
    (
        "I adopted a kitten from the rescue, she's called Pepper.",
        "Pepper! Send pictures!",
        "What is the name of {name}'s cat?",
    ),
    (
        "Yesterday my pottery class fired my first bowl, black and white with dots.",
        "It looks gorgeous, the pattern is fun.",
        "What did {name} make in the ceramics course?",
    ),
    (
        "I passed the nursing exam on the second try!!",
        "Yesss! All that studying paid off.",
        "How many attempts did {name} need to pass the test?",
    ),
    (
        "We're expecting a baby girl in autumn, we haven't told my parents yet.",
        "Oh my, that's the best news!",
        "What family news has {name} kept from the parents so far?",
    ),
    (
        "The doctor says my blood pressure is too high, so no more salty snacks for me.",
        "Take care of yourself, okay?",
        "Why did {name} change eating habits?",
    ),
    (
        "I'm reading a biography of a lighthouse keeper, can't put it down.",
        "Ooh, adding it to my list.",
        "What book is {name} into?",
    ),
)
BANTER = (
    "Hey! How have you been?",
    "Pretty good, thanks! Busy week though. You?",
    "Same here, work and family, you know how it goes.",
    "Tell me about it. What's new with the family?",
    "Everybody is fine, the kids are growing so fast.",
    "That's great to hear! Family is everything.",
    "Totally. Did you do anything fun lately?",
    "Not much, just a walk in the park and some cooking.",
    "Cooking is so relaxing. What did you make?",
    "Pasta, as always, haha. It turned out okay.",
    "Yum! You should give me the recipe some day.",
    "Sure thing. Any plans for the summer?",
    "We might go to the beach or the mountains, not sure yet.",
    "Nature always helps to clear the head.",
    "So true. It's important to take time for yourself.",
    "Thanks for your support, it means a lot to me.",
    "Always! You inspire me, really.",
    "Let's meet soon and catch up properly.",
    "Definitely! Take care and talk soon!",
    "Here is a picture from the weekend, what do you think?",
    "Wow, that looks amazing! Where was it taken?",
    "Near the old bridge, the light was perfect that evening.",
    "I'd love to run or hike there one day.",
    "My friend bought a house nearby, lovely area.",
    "Music always gets me through the day.",
    "Work has been stressful, my job never ends.",
    "My dog ate my shoe again, can you believe it?",
    "Haha, pets are such a joy, though.",
    "I read something about that in a book once.",
    "Art really brings people together.",
)


def generate(size: int, questions: int, seed: int = 11) -> World:
    """About ``size`` messages: each pair of friends meets some dozen times in a year."""
    chance = random.Random(seed)
    start = datetime(2025, 2, 3, 18, 0, tzinfo=UTC)
    said: list[Said] = []
    asked: list[Asked] = []
    pairs = max(1, min(len(PAIRS), size // 300))
    for number, pair in enumerate(PAIRS[:pairs]):
        meetings = max(size // pairs // 22, 1)
        told = [(name, event) for name in pair for event in EVENTS]
        chance.shuffle(told)
        told = told[: max(questions // pairs, 1)]
        for meeting in range(meetings):
            at = start + timedelta(days=360) * meeting / meetings
            at += timedelta(hours=chance.randint(0, 60))
            lines = [(pair[i % 2], chance.choice(BANTER)) for i in range(chance.randint(14, 22))]
            share = -(-len(told) // (meetings - meeting))
            for name, (words, reaction, question) in told[:share]:
                other = pair[1 - pair.index(name)]
                place = chance.randrange(1, len(lines))
                lines[place:place] = [(name, words), (other, reaction)]
                asked.append(Asked(question.format(name=name), "friends", (f"{name}: {words}",)))
            told = told[share:]
            for step, (name, words) in enumerate(lines):
                speaker = "user" if name == pair[0] else "assistant"
                moment = at + timedelta(minutes=step)
                said.append(Said(f"import:pair{number}", speaker, moment, f"{name}: {words}"))
    said.sort(key=lambda one: one.at)
    chance.shuffle(asked)
    return World("friends", tuple(said), tuple(asked[:questions]), start + timedelta(days=380))
