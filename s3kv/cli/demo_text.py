"""The demo's prompt: a harbour's day book, made by recipe, the same on every machine.

Written for the demo so that it is nobody's text; varied enough that neither the tokenizer nor the
model sees one sentence over and over.
"""

from __future__ import annotations

import random

_SHIPS = [
    "Amaryllis",
    "Borealis",
    "Calliope",
    "Drifter",
    "Evenstar",
    "Fulmar",
    "Gannet",
    "Halcyon",
    "Ibis",
    "Juniper",
    "Kestrel",
    "Lodestar",
    "Meridian",
    "Nightjar",
    "Osprey",
    "Petrel",
    "Quillon",
    "Rosewater",
    "Sandpiper",
    "Tamarind",
]
_PORTS = [
    "Aldmouth",
    "Brackwater",
    "Cinder Quay",
    "Dunholm",
    "Easterhaven",
    "Fallow Point",
    "Greywick",
    "Hollin Sound",
    "Innisgar",
    "Kelderby",
    "Long Ferry",
    "Marrowby",
    "Norrstrand",
    "Oxley Roads",
    "Pellport",
]
_PEOPLE = [
    "Ada",
    "Bram",
    "Celia",
    "Dorian",
    "Elspeth",
    "Fenn",
    "Greta",
    "Hugo",
    "Imre",
    "Jory",
    "Katrin",
    "Lorne",
    "Mabel",
    "Nils",
    "Odette",
    "Piers",
]
_ROLES = [
    "harbour master",
    "pilot",
    "cooper",
    "tally clerk",
    "lamp keeper",
    "sailmaker",
    "customs officer",
    "night watch",
]
_GOODS = [
    "barrels of salted herring",
    "crates of window glass",
    "sacks of rye",
    "coils of hemp rope",
    "chests of black tea",
    "bolts of undyed wool",
    "casks of lamp oil",
    "bundles of cedar planks",
    "jars of preserved lemons",
    "boxes of brass fittings",
    "bales of cork",
    "drums of pine tar",
]
_WEATHER = [
    "a thin fog that lifted before noon",
    "steady rain from the west",
    "a hard frost on the moorings",
    "bright sun and hardly any wind",
    "a rising gale by the evening",
    "low cloud and a confused swell",
    "a dry wind that smelled of heather",
    "snow that did not lie",
]
_TROUBLES = [
    "a torn foresail",
    "a leaking bilge pump",
    "a cracked rudder pin",
    "two men down with fever",
    "a quarrel over the tally",
    "an anchor fouled in the old cable",
    "a lantern that would not hold oil",
    "a permit with the wrong seal",
]
_SENTENCES = (
    "{person}, the {role}, wrote that the {ship} came in from {port} with {count} {goods}.",
    "The {ship} lay at berth {berth} until the {hour}th hour because of {trouble}.",
    "We counted {count} {goods} in the north shed and {small} more on the quay, all dry.",
    "{person} set aside {small} silver marks because of {trouble} and asked for a receipt.",
    "By evening the {ship} was cleared for {port}, drawing {small} feet at the stern.",
    "A letter from {port} says that {goods} are scarce there and that the price has doubled.",
    "{person} and {other} shifted {count} {goods} from the {ship} to the {second} by lamplight.",
    "The {role} of {port} has sent word that berth {berth} must be dredged before the spring tide.",
    "Nobody could say why the {ship} carried {small} {goods} that no bill of lading named.",
    "It was {person} who noticed that the mark on the {goods} belonged to a house in {port}.",
)
QUESTION = (
    "Write a short note to the harbour company that says what kind of goods pass through the "
    "harbour and what kind of troubles the ships report."
)


def _sentence(draw: random.Random, form: str) -> str:
    ship, second = draw.sample(_SHIPS, 2)
    person, other = draw.sample(_PEOPLE, 2)
    return form.format(
        ship=ship,
        second=second,
        person=person,
        other=other,
        port=draw.choice(_PORTS),
        role=draw.choice(_ROLES),
        goods=draw.choice(_GOODS),
        trouble=draw.choice(_TROUBLES),
        count=draw.randrange(12, 400),
        small=draw.randrange(2, 40),
        berth=draw.randrange(1, 15),
        hour=draw.randrange(6, 20),
    )


def day_book(day_count: int, seed: int = 1) -> str:
    """Entries of `day_count` days, about 100 tokens each for a small English tokenizer."""
    draw = random.Random(seed)
    days = []
    for day in range(1, day_count + 1):
        opening = f"Day {day}. The weather was {draw.choice(_WEATHER)}."
        days.append(
            " ".join([opening, *(_sentence(draw, form) for form in draw.sample(_SENTENCES, 4))])
        )
    return "\n".join(days)


def chat_prompt(day_count: int, seed: int = 1) -> str:
    """The day book and a question about it, in SmolLM2's chat form."""
    book = day_book(day_count, seed)
    return (
        f"<|im_start|>user\nThis is the day book of a harbour.\n\n{book}\n\n{QUESTION}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
