"""Words and sentences for made-up passages. None of the names is a real one that a model could know about."""

from __future__ import annotations

from random import Random


def _listed(text: str) -> tuple[str, ...]:
    return tuple(words.strip() for words in text.split(","))


PLACES = _listed(
    "Aldermoor, Brinwick, Calderby, Dunmarsh, Elsingham, Farrowdale, Gorsefield, Harlowen, Inchmere, Jarrowby, "
    "Kelderton, Larkhaven, Merrowick, Nethercombe, Ostlerby, Penhallow, Quernford, Redmarsh, Saltersby, Thornwick, "
    "Umberfield, Varleigh, Westerlow, Yarrowby, Ashcombe, Birkenholt, Coldmere, Drayholm, Eskerdale, Fenwicken, "
    "Greyholt, Hollinbeck"
)
PEOPLE = _listed(
    "Mira Holt, Tobin Varga, Selma Lindqvist, Anders Okafor, Ilka Brandt, Ruben Sorel, Petra Castell, Oskar Nyberg, "
    "Nadia Farrow, Felix Quist, Greta Adler, Milo Moreau, Tessa Janssen, Hugo Petrov, Lena Roth, Bruno Silva"
)
PRODUCTS = _listed(
    "Kestrel, Marlin, Osprey, Badger, Heron, Lynx, Otter, Plover, Raven, Stoat, Tern, Weasel, Curlew, Falcon, "
    "Gannet, Ibex"
)
NUMBERS = _listed("zero, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve")

_SUBJECTS = _listed(
    "the committee, a visitor, the gardener, one of the neighbours, the old clerk, a travelling merchant, the choir, "
    "the night watch, a group of students, the baker"
)
_VERBS = _listed(
    "talked about, wrote a letter about, complained about, was pleased with, forgot, painted, photographed, asked for, "
    "made a drawing of, laughed at"
)
_OBJECTS = _listed(
    "the weather, the new curtains, a broken umbrella, the market stalls, the smell of fresh bread, a lost glove, "
    "the long queue, the garden fence, an old song, the morning fog"
)
_TIMES = _listed(
    "on Monday, before lunch, late in the evening, as usual, for a while, after the rain, in spring, twice"
)


def filler(random: Random) -> str:
    """A sentence without numbers or names."""
    subject, verb = random.choice(_SUBJECTS), random.choice(_VERBS)
    return f"{subject.capitalize()} {verb} {random.choice(_OBJECTS)} {random.choice(_TIMES)}."
