"""Superclasses of known classes. Those of CIFAR-100 are its own "coarse" labels.

Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/learning-features-2009-TR.pdf
"""

from collections.abc import Sequence

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
