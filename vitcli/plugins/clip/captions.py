"""Generated captions: prompt templates filled with the words of a class.

A subject is what a caption names: a class, or a transformation and a class. Every subject has the
same number of variants, so that tensors can hold them. The superclasses of CIFAR-100 are its own
"coarse" labels: Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/learning-features-2009-TR.pdf
Axes: S subjects, V variants.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from vitcli.plugins.clip.changes import CHANGES

Variants = tuple[tuple[str, ...], ...]
"""Captions (S, V)."""

TEMPLATES = (
    *("a photo of {a}", "a picture of {a}", "an image of {a}", "this is {a}", "{a}"),
    *("a photo that shows {a}", "this image shows {a}", "there is {a} in this picture"),
    *("we see {a} here", "one {n}", "this {n}", "the photo of the {n}", "look at this {n}"),
    *("an image of one {n}", "the {n} in this picture"),
)
"""Templates of training captions. {n} is the name of a class, {a} the name with an article."""
HELD_OUT = (
    *("a picture that shows {a}", "this is an image of one {n}", "there is {a} in the photo"),
    *("we see a picture of the {n}", "look at the {n} in this image"),
)
"""Templates that no training caption has. All their words occur in ``TEMPLATES``."""

CHANGE_TEMPLATES = (
    *("a {t} photo of {a}", "a {t} picture of {a}", "this {t} image shows {a}"),
    *("the photo of {a} is {t}", "{a}, {t}", "this is a {t} image of {a}"),
)
CHANGE_HELD_OUT = ("this {t} picture shows {a}", "the image of {a} is {t}", "a {t} image of {a}")

CLASS_FORMS = ("a photo of {a}", "{a}", "this image shows {a}, which is {g}", "{a} is {g}")
GROUP_FORMS = ("a photo of {g}", "this picture shows {g}", "an image of {g}", "{g}")
RELATIVE_FORMS = ("a photo of {o} or {a}", "{a} or {o}", "{g} similar to {o}")
NUM_RELATIVES = 12
"""Variants of a class that name a relative, {o}: another class of its superclass."""
FORM_HELD_OUT = ("a picture of {w}", "this image shows {w}", "this is {w}")
"""Prompts of ``superclasses``, where {w} is a class or a superclass with its article."""


@dataclass(frozen=True, kw_only=True)
class CaptionBook:
    """Training captions and held-out captions of every subject, and the subjects of a class."""

    train: Variants
    held_out: Variants
    subjects: tuple[tuple[int, ...], ...]
    """For each class the subjects that its training images may have, all equally many."""
    unseen: tuple[int, ...] = ()
    """For each class the subject that no training image has; empty without such subjects."""
    plain: tuple[int, ...]
    """For each class the subject of an image that is not changed."""
    groups: tuple[int, ...] = ()
    """For each class its superclass; empty without superclasses."""
    group_prompts: Variants = ()
    """Prompts of every superclass, which no training caption equals."""


def phrase(name: str) -> str:
    """Return the words of a class: ``aquarium_fish`` -> ``aquarium fish``."""
    return " ".join(name.replace("_", " ").lower().split())


def with_article(name: str) -> str:
    return f"{'an' if name[:1] in 'aeiou' else 'a'} {name}"


def fill(template: str, name: str, **words: str) -> str:
    return template.format(n=phrase(name), a=with_article(phrase(name)), **words)


def fill_all(templates: Sequence[str], names: Iterable[str], **words: str) -> Variants:
    """Return the caption of every name in every template: (S, V)."""
    return tuple(tuple(fill(each, name, **words) for each in templates) for name in names)


class_prompts = partial(fill_all, HELD_OUT)
"""The held-out captions of classes."""
change_prompts = partial(fill_all, CHANGE_HELD_OUT, t=CHANGES["none"][0])
"""The held-out captions of classes without a transformation."""


def class_captions(names: Sequence[str]) -> CaptionBook:
    return CaptionBook(
        train=fill_all(TEMPLATES, names),
        held_out=class_prompts(names),
        subjects=tuple((i,) for i in range(len(names))),
        plain=tuple(range(len(names))),
    )


def change_captions(names: Sequence[str]) -> CaptionBook:
    """Return captions that name a transformation and the class.

    Subject T k + t is class k with transformation t. Class k is never trained with transformation
    1 + k mod (T - 1): words of both are trained, but not together.
    """
    count = len(CHANGES)
    held = [1 + k % (count - 1) for k in range(len(names))]

    def variants(templates: Sequence[str]) -> Variants:
        return tuple(
            tuple(fill(each, name, t=word) for each in templates)
            for name in names
            for word, _ in CHANGES.values()
        )

    return CaptionBook(
        train=variants(CHANGE_TEMPLATES),
        held_out=variants(CHANGE_HELD_OUT),
        subjects=tuple(
            tuple(count * k + t for t in range(count) if t != held[k]) for k in range(len(names))
        ),
        unseen=tuple(count * k + t for k, t in enumerate(held)),
        plain=tuple(count * k for k in range(len(names))),
    )


def superclass_captions(names: Sequence[str]) -> CaptionBook:
    groups = superclasses_of(names)
    if groups is None:
        raise ValueError(
            "task.captions: superclasses are known for the classes of cifar10, cifar100 and shapes"
            " only; take templates"
        )
    group_names = tuple(dict.fromkeys(groups))
    return CaptionBook(
        train=tuple(_class_variants(name, names, groups) for name in names),
        held_out=superclass_prompts(names),
        subjects=tuple((i,) for i in range(len(names))),
        plain=tuple(range(len(names))),
        groups=tuple(group_names.index(group) for group in groups),
        group_prompts=superclass_prompts(group_names),
    )


def _class_variants(name: str, names: Sequence[str], groups: Sequence[str]) -> tuple[str, ...]:
    group = groups[list(names).index(name)]
    others = [n for n, g in zip(names, groups, strict=True) if g == group and n != name]
    words = {"g": with_article(group)}
    relatives = [with_article(phrase(others[i % len(others)])) for i in range(NUM_RELATIVES)]
    forms = [RELATIVE_FORMS[i % len(RELATIVE_FORMS)] for i in range(NUM_RELATIVES)]
    return (
        *(fill(form, name, **words) for form in (*CLASS_FORMS, *GROUP_FORMS)),
        *(fill(f, name, o=o, **words) for f, o in zip(forms, relatives, strict=True)),
    )


def superclass_prompts(names: Sequence[str]) -> Variants:
    things = [with_article(phrase(name)) for name in names]
    return tuple(tuple(form.format(w=thing) for form in FORM_HELD_OUT) for thing in things)


@dataclass(frozen=True)
class CaptionKind:
    """A value of ``task.captions``: its captions for class names, and prompts for any names."""

    book: Callable[[Sequence[str]], CaptionBook]
    prompts: Callable[[Sequence[str]], Variants]


KINDS = {
    "templates": CaptionKind(class_captions, class_prompts),
    "transformations": CaptionKind(change_captions, change_prompts),
    "superclasses": CaptionKind(superclass_captions, superclass_prompts),
    "folder": CaptionKind(class_captions, class_prompts),
}
"""With captions from a folder, the templates are prompts only."""


def most_frequent(words: Iterable[str], limit: int) -> list[str]:
    """Return up to ``limit`` different words, sorted. The most frequent words are kept."""
    ranked = sorted(Counter(words).items(), key=lambda pair: (-pair[1], pair[0]))
    return sorted(word for word, _ in ranked[:limit])


CIFAR10 = {
    "animal": "bird cat deer dog frog horse",
    "vehicle": "airplane automobile ship truck",
}
CIFAR100 = {
    "aquatic mammal": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flower": "orchid poppy rose sunflower tulip",
    "food container": "bottle bowl can cup plate",
    "fruit or vegetable": "apple mushroom orange pear sweet_pepper",
    "electrical device": "clock keyboard lamp telephone television",
    "piece of furniture": "bed chair couch table wardrobe",
    "insect": "bee beetle butterfly caterpillar cockroach",
    "large carnivore": "bear leopard lion tiger wolf",
    "large outdoor building": "bridge castle house road skyscraper",
    "large outdoor scene": "cloud forest mountain plain sea",
    "large herbivore or omnivore": "camel cattle chimpanzee elephant kangaroo",
    "medium-sized mammal": "fox porcupine possum raccoon skunk",
    "invertebrate": "crab lobster snail spider worm",
    "person": "baby boy girl man woman",
    "reptile": "crocodile dinosaur lizard snake turtle",
    "small mammal": "hamster mouse rabbit shrew squirrel",
    "tree": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicle": "bicycle bus motorcycle pickup_truck train",
    "machine": "lawn_mower rocket streetcar tank tractor",
}
SHAPES = {
    "triangle with a stick": "tree broom",
    "pair of discs": "snowman bulb",
    "pair of boxes": "hat table",
    "box with two discs": "cart frog",
    "disc with a triangle": "pawn gnome",
}
"""The classes of a pair consist of the same parts."""


def superclasses_of(names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the superclass of each class; None if they are not known."""
    for table in (CIFAR10, CIFAR100, SHAPES):
        groups = {name: group for group, members in table.items() for name in members.split()}
        if {*groups} == {*names}:
            return tuple(groups[name] for name in names)
    return None
