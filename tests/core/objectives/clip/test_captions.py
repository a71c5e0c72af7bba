"""Generated captions: what they name and what is held out."""

from collections import Counter

import pytest

from vitcli.core.objectives.clip import changes
from vitcli.core.objectives.clip.captions import (
    CHANGES,
    HELD_OUT,
    KINDS,
    TEMPLATES,
    change_captions,
    fill,
    most_frequent,
    phrase,
    superclass_captions,
)
from vitcli.core.objectives.clip.superclasses import CIFAR10, CIFAR100, SHAPES, superclasses_of
from vitcli.core.objectives.clip.tokens import split_words

NAMES = tuple(word for group in CIFAR10.values() for word in group.split())


def words(variants) -> set[str]:
    return {word for row in variants for text in row for word in split_words(text)}


@pytest.mark.parametrize("kind", KINDS)
def test_no_prompt_is_a_training_caption_and_all_its_words_are_trained(kind):
    book = KINDS[kind].book(NAMES)
    trained = {text for row in book.train for text in row}
    prompts = [*book.held_out, *book.group_prompts]
    assert not trained & {text for row in prompts for text in row}
    assert words(prompts) <= words(book.train)
    assert {len(row) for row in book.train} == {len(book.train[0])}
    assert {len(row) for row in prompts} == {len(book.held_out[0])}


def test_templates_differ_and_have_articles():
    assert len({*TEMPLATES, *HELD_OUT}) == len(TEMPLATES) + len(HELD_OUT)
    assert fill("a photo of {a}", "airplane") == "a photo of an airplane"
    assert fill("the {n}", "Aquarium_Fish") == "the aquarium fish"


def test_each_class_lacks_one_transformation_whose_word_other_classes_have():
    book, count = change_captions(NAMES), len(CHANGES)
    assert list(CHANGES) == list(changes.CHANGES)
    for k, (trained, held) in enumerate(zip(book.subjects, book.unseen, strict=True)):
        assert sorted([*trained, held]) == list(range(count * k, count * (k + 1)))
        assert held % count != 0, "unchanged images are always trained"
        same = [s for row in book.subjects for s in row if s % count == held % count]
        assert len(same) >= len(NAMES) - 2, "the word is trained with most other classes"
    subject = count * 3 + list(CHANGES).index("grey")
    assert all(" grey " in f" {text} " and NAMES[3] in text for text in book.train[subject])


def test_relatives_are_named_and_every_class_is_named_by_another_one():
    book = superclass_captions(NAMES)
    by_others: Counter[str] = Counter()
    for name, row in zip(NAMES, book.train, strict=True):
        found = Counter(word for text in row for word in split_words(text) if word in NAMES)
        assert found.pop(name) >= 4
        group = superclasses_of(NAMES)[NAMES.index(name)]
        assert all(other in CIFAR10[group].split() for other in found), "relatives only"
        by_others.update(found)
    assert {*by_others} == {*NAMES}
    assert book.group_names == ("animal", "vehicle")


def test_superclasses_of_known_data_sets():
    for table in (CIFAR10, CIFAR100, SHAPES):
        members = [name for row in table.values() for name in row.split()]
        assert len({*members}) == len(members)
        assert len(superclasses_of(members)) == len(members)
        superclass_captions(members)
    assert len(CIFAR100) == 20
    assert {len(row.split()) for row in CIFAR100.values()} == {5}
    with pytest.raises(ValueError, match="superclasses are known for the classes of cifar10"):
        superclass_captions(("cat", "dog"))


def test_the_most_frequent_words_are_kept_whatever_their_order():
    found = ["dog", "cat", "cat", "ant", "dog", "bee"]
    assert most_frequent(found, 3) == most_frequent(reversed(found), 3) == ["ant", "cat", "dog"]
    assert phrase("pickup_truck") == "pickup truck"
