"""Generated stories: every answer again by reading the sentences, and their numbers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from jobs.studies.question_worlds import (
    ANIMALS,
    KINDS,
    PEOPLE,
    PLACES,
    TASKS,
    THINGS,
    Story,
    number_stories,
    write_stories,
)
from recbench_spark.errors import ConfigError

WALKS = {"strolls", "stroll", "hurries", "reaches", "enters"}
TAKES = {"takes", "shoulders"}
LEAVES = {"leaves", "parts"}


def find_place(sentences: list[list[str]], person: str) -> str:
    """The place of the last sentence in which a person walks."""
    walks = [words for words in sentences if person in words and WALKS & set(words)]
    (place,) = set(PLACES) & set(walks[-1])
    return place


def answer_slowly(story: Story) -> str:
    """Read a story as a person does: from the question back to the facts."""
    sentences = [sentence.split() for sentence in story.sentences]
    question = story.question.split()
    if question[0] == "whom":
        (kind,) = [words[-1] for words in sentences if words[0] == question[-1]]
        (dreaded,) = [words[-1] for words in sentences if words[1] == kind]
        return dreaded
    if question[-1] in THINGS:
        last = max(n for n, words in enumerate(sentences) if question[-1] in words)
        person = sentences[last][0]
        is_left = bool(LEAVES & set(sentences[last]))
        return find_place(sentences[:last] if is_left else sentences, person)
    place = find_place(sentences, question[-1])
    if question[0] == "which":
        return place
    (named,) = set(PLACES) & set(question)
    return "yes" if place == named else "no"


@pytest.mark.parametrize("task", TASKS)
def test_answers_follow_from_the_sentences(task: int) -> None:
    stories = write_stories(task, 400, 3)
    assert [story.answer for story in stories] == [answer_slowly(story) for story in stories]


def test_people_take_what_is_near_and_leave_what_they_carry() -> None:
    for story in write_stories(2, 400, 3):
        carrier, place = dict[str, str](), dict[str, str]()
        for n, sentence in enumerate(story.sentences):
            words = sentence.split()
            thing = words[-1] if words[-1] in THINGS else words[-2]
            if thing not in THINGS:
                continue
            here = find_place([line.split() for line in story.sentences[:n]], words[0])
            if TAKES & set(words):
                assert thing not in carrier and place.get(thing, here) == here
                carrier[thing] = words[0]
            else:
                assert carrier.pop(thing) == words[0]
                place[thing] = here


@pytest.mark.parametrize("task", TASKS)
def test_no_answer_is_much_more_frequent(task: int) -> None:
    stories = write_stories(task, 1000, 4)
    counts = Counter(story.answer for story in stories)
    expected = {6: {"yes", "no"}, 15: set(KINDS)}.get(task, set(PLACES))
    assert set(counts) == expected
    assert max(counts.values()) < 1.25 * 1000 / len(expected)
    lengths = {len(story.sentences) for story in stories}
    longest = {2: 25, 15: 8}.get(task, 10)
    assert max(lengths) <= longest and len(lengths) == {2: 11, 15: 1}.get(task, 9)


def test_a_story_depends_on_seed_task_and_number_alone() -> None:
    for task in TASKS:
        many = write_stories(task, 20, 3)
        assert many[:7] == write_stories(task, 7, 3) and many != write_stories(task, 20, 4)
    assert write_stories(1, 5, 3) != write_stories(6, 5, 3)


def test_numbers_say_what_the_stories_say() -> None:
    stories = [story for task in TASKS for story in write_stories(task, 30, 3)]
    world = number_stories(stories)
    texts = [" ".join(world.words[token] for token in entry) for entry in world.entries]
    assert texts[0] == "" and len(set(texts)) == len(texts) and world.words[0] == ""
    assert set(world.words) > {*PEOPLE, *PLACES, *THINGS, *KINDS, *ANIMALS}
    for row, story in enumerate(stories):
        assert tuple(texts[entry] for entry in world.memory[row][::-1] if entry) == story.sentences
        assert texts[world.query[row]] == story.question
        assert world.words[world.answer[row]] == story.answer
    some = world.select(np.array([3, 1]))
    assert some.answer.tolist() == [world.answer[3], world.answer[1]] and some.words == world.words


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="no task 3"):
        write_stories(3, 1, 1)
    with pytest.raises(ConfigError, match="0 stories"):
        write_stories(1, 0, 1)
