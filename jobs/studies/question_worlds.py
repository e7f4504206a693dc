"""Generate short stories with a question each.

They follow five bAbI tasks (Weston et al. 2015). The sentences and the words are our own. Task 1: people
walk between places, and one fact answers where a person is. Task 2: people also carry things, and where a
thing is follows from two facts: who took or left it, and where that person was. Task 6: as task 1, with
yes or no. Task 12: as task 1, and people walk in pairs. Task 15: each kind of animal dreads another, each
animal has a kind, and whom it dreads follows. Every story has one question, at its end. Seed, task and
number decide a story.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.errors import ConfigError

PEOPLE = ("Ilse", "Bruno", "Wanda", "Kofi")
PLACES = ("mill", "harbour", "orchard", "library", "stable", "bakery")
THINGS = ("lantern", "violin", "basket")
KINDS = ("heron", "newt", "marten", "beetle")
ANIMALS = ("Pip", "Zora", "Mungo", "Tilda")

ONE_WALKS = ("{} strolls to the {}", "{} hurries into the {}", "{} reaches the {}")
TWO_WALK = ("{} and {} stroll to the {}", "{} together with {} enters the {}")
TAKES = ("{} takes along the {}", "{} shoulders the {}")
LEAVES = ("{} leaves the {} behind", "{} parts with the {}")
YES, NO = "yes", "no"

SHORTEST, LONGEST = 2, 10
"""Fewest and most sentences in tasks 1, 6 and 12."""

SHORTEST_CARRIED, LONGEST_CARRIED = 6, 16
"""Fewest and most sentences in task 2.

A story without a taken thing goes on.
"""

WALK_SHARE = 0.5
"""Share of walks in task 2, where taking or leaving is possible."""

Draw = np.random.Generator
Numbers = npt.NDArray[np.int64]


class Story(NamedTuple):
    """A text with a question and its answer.

    Attributes:
        sentences: sentences in their order, words separated by blanks.
        question: question after the last sentence.
        answer: its answer, a single word.
    """

    sentences: tuple[str, ...]
    question: str
    answer: str


def pick(draw: Draw, names: Sequence[str]) -> str:
    """Pick one of the names, each with equal probability."""
    return names[int(draw.integers(len(names)))]


def write_walks(draw: Draw, in_pairs: bool = False) -> tuple[list[str], dict[str, str]]:
    """Write sentences on people who walk.

    The last place of each one comes along.
    """
    sentences, place_p = [], dict[str, str]()
    for _ in range(int(draw.integers(SHORTEST, LONGEST + 1))):
        place = pick(draw, PLACES)
        people = [PEOPLE[n] for n in draw.permutation(len(PEOPLE))[: 2 if in_pairs else 1]]
        sentences.append(pick(draw, TWO_WALK if in_pairs else ONE_WALKS).format(*people, place))
        place_p |= dict.fromkeys(people, place)
    return sentences, place_p


def write_place_story(draw: Draw, in_pairs: bool = False) -> Story:
    """Write a story for task 1, or for task 12."""
    sentences, place_p = write_walks(draw, in_pairs)
    person = pick(draw, sorted(place_p))
    return Story(tuple(sentences), f"which place has {person}", place_p[person])


def write_yes_no_story(draw: Draw) -> Story:
    """Write a story for task 6; half are answered yes."""
    sentences, place_p = write_walks(draw)
    person = pick(draw, sorted(place_p))
    is_true = bool(draw.integers(2))
    place = place_p[person]
    if not is_true:
        place = pick(draw, [other for other in PLACES if other != place])
    return Story(tuple(sentences), f"has the {place} got {person}", YES if is_true else NO)


class _Carried:
    """People with places, and things with carriers or places."""

    def __init__(self, draw: Draw) -> None:
        self.draw, self.sentences = draw, list[str]()
        self.place_p, self.place_t, self.carrier_t = dict[str, str](), dict[str, str](), dict[str, str]()

    def add_sentence(self) -> None:
        person = pick(self.draw, PEOPLE)
        choices = self._list_choices(person)
        if not choices or self.draw.random() < WALK_SHARE:
            self._walk(person)
            return
        thing = pick(self.draw, choices)
        if self.carrier_t.get(thing) == person:
            del self.carrier_t[thing]
            self.place_t[thing] = self.place_p[person]
            self.sentences.append(pick(self.draw, LEAVES).format(person, thing))
        else:
            self.carrier_t[thing] = person
            self.sentences.append(pick(self.draw, TAKES).format(person, thing))

    def _list_choices(self, person: str) -> list[str]:
        """List the things a person carries or can take.

        Nobody carries these, and they are nowhere else.
        """
        place = self.place_p.get(person)
        if place is None:
            return []
        carried = [thing for thing, carrier in self.carrier_t.items() if carrier == person]
        free = [thing for thing in THINGS if thing not in self.carrier_t]
        return sorted(carried + [thing for thing in free if self.place_t.get(thing, place) == place])

    def _walk(self, person: str) -> None:
        place = pick(self.draw, [other for other in PLACES if other != self.place_p.get(person)])
        self.place_p[person] = place
        self.sentences.append(pick(self.draw, ONE_WALKS).format(person, place))

    def find_place(self, thing: str) -> str:
        carrier = self.carrier_t.get(thing)
        return self.place_t[thing] if carrier is None else self.place_p[carrier]


def write_thing_story(draw: Draw) -> Story:
    """Write a story for task 2."""
    world, least = _Carried(draw), int(draw.integers(SHORTEST_CARRIED, LONGEST_CARRIED + 1))
    while len(world.sentences) < least or not (world.carrier_t or world.place_t):
        world.add_sentence()
    thing = pick(draw, sorted({*world.carrier_t, *world.place_t}))
    return Story(tuple(world.sentences), f"which place has the {thing}", world.find_place(thing))


def write_kind_story(draw: Draw) -> Story:
    """Write a story for task 15."""
    turn = draw.integers(1, len(KINDS), len(KINDS))
    dreaded_k = {kind: KINDS[(n + int(turn[n])) % len(KINDS)] for n, kind in enumerate(KINDS)}
    kind_a = {animal: pick(draw, KINDS) for animal in ANIMALS}
    sentences = [f"any {kind} dreads every {other}" for kind, other in dreaded_k.items()]
    sentences += [f"{animal} was born a {kind}" for animal, kind in kind_a.items()]
    animal = pick(draw, ANIMALS)
    order = draw.permutation(len(sentences))
    return Story(tuple(sentences[n] for n in order), f"whom dreads {animal}", dreaded_k[kind_a[animal]])


WRITERS: dict[int, Callable[[Draw], Story]] = {
    1: write_place_story,
    2: write_thing_story,
    6: write_yes_no_story,
    12: partial(write_place_story, in_pairs=True),
    15: write_kind_story,
}
"""Each task's writer."""

TASKS = tuple(WRITERS)


def write_stories(task: int, count: int, seed: int) -> list[Story]:
    """Write a task's stories.

    Raises:
        ConfigError: no such task, or no story.
    """
    if task not in WRITERS:
        raise ConfigError(f"no task {task}", f"known: {', '.join(map(str, TASKS))}")
    if count < 1:
        raise ConfigError(f"{count} stories: at least 1 is expected")
    return [WRITERS[task](np.random.default_rng((seed, task, number))) for number in range(count)]


class QuestionSet(NamedTuple):
    """Stories in numbers, ready for a network.

    Attributes:
        words: each token's word; token 0 is empty.
        entries: tokens of each distinct sentence and question; entry 0 is empty.
        memory: (q, n) entries of each story, the newest first, then 0.
        query: (q,) each question's entry.
        answer: (q,) each answer's token.
    """

    words: tuple[str, ...]
    entries: tuple[tuple[int, ...], ...]
    memory: Numbers
    query: Numbers
    answer: Numbers

    def select(self, rows: npt.NDArray[np.int64] | slice) -> QuestionSet:
        """Select some questions; the numbers stay."""
        return self._replace(memory=self.memory[rows], query=self.query[rows], answer=self.answer[rows])


def number_stories(stories: Sequence[Story]) -> QuestionSet:
    """Number the stories' words and sentences, by first use."""
    token_w, entry_s = {"": 0}, {"": 0}
    longest = max(len(story.sentences) for story in stories)
    memory = np.zeros((len(stories), longest), np.int64)
    query, answer = np.zeros((2, len(stories)), np.int64)
    for row, story in enumerate(stories):
        for column, sentence in enumerate(reversed(story.sentences)):
            memory[row, column] = entry_s.setdefault(sentence, len(entry_s))
        query[row] = entry_s.setdefault(story.question, len(entry_s))
        answer[row] = token_w.setdefault(story.answer, len(token_w))
    entries = tuple(
        tuple(token_w.setdefault(word, len(token_w)) for word in sentence.split()) for sentence in entry_s
    )
    return QuestionSet(tuple(token_w), entries, memory, query, answer)
