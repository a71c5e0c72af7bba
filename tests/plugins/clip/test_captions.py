"""Captions: what they name, as tokens, and their encoder."""

import pytest
import torch
from torch.testing import assert_close

from vitcli.core.data.augment import scale_and_shift, standardize
from vitcli.plugins.clip import captions, changes
from vitcli.plugins.clip.model import TextEncoder
from vitcli.plugins.clip.spec import ClipSpec
from vitcli.plugins.clip.tokens import (
    END,
    NUM_SPECIAL,
    PAD,
    START,
    UNKNOWN,
    from_table,
    read_texts,
    split_words,
    to_table,
    tokenize,
    word_encoder,
)

NAMES = tuple(word for group in captions.CIFAR10.values() for word in group.split())


def words(variants) -> set[str]:
    return {word for row in variants for text in row for word in split_words(text)}


@pytest.mark.parametrize("kind", captions.KINDS)
def test_no_prompt_is_a_training_caption_and_all_its_words_are_trained(kind):
    book = captions.KINDS[kind].book(NAMES)
    trained = {text for row in book.train for text in row}
    prompts = [*book.held_out, *book.group_prompts]
    assert not trained & {text for row in prompts for text in row}
    assert words(prompts) <= words(book.train)
    assert {len(row) for row in book.train} == {len(book.train[0])}
    assert {len(row) for row in prompts} == {len(book.held_out[0])}


def test_each_class_lacks_one_transformation_whose_word_other_classes_have():
    book, count = captions.change_captions(NAMES), len(changes.CHANGES)
    for k, (trained, held) in enumerate(zip(book.subjects, book.unseen, strict=True)):
        assert sorted([*trained, held]) == list(range(count * k, count * (k + 1)))
        assert held % count != 0, "unchanged images are always trained"
        same = [s for row in book.subjects for s in row if s % count == held % count]
        assert len(same) >= len(NAMES) - 2, "the word is trained with most other classes"
    subject = count * 3 + list(changes.CHANGES).index("grey")
    assert all(" grey " in f" {text} " and NAMES[3] in text for text in book.train[subject])


def test_superclasses_of_known_data_sets():
    for table in (captions.CIFAR10, captions.CIFAR100, captions.SHAPES):
        members = [name for row in table.values() for name in row.split()]
        assert len({*members}) == len(members)
        assert len(captions.superclasses_of(members)) == len(members)
        captions.superclass_captions(members)
    assert len(captions.CIFAR100) == 20
    assert {len(row.split()) for row in captions.CIFAR100.values()} == {5}
    with pytest.raises(ValueError, match="superclasses are known for the classes of cifar10"):
        captions.superclass_captions(("cat", "dog"))


@pytest.fixture
def levels():
    return torch.rand(5, 3, 8, 8, dtype=torch.float64)


def test_blur_is_the_mean_of_a_box(levels):
    found = changes.blur(levels)
    assert_close(found[:, :, 3, 4], levels[:, :, 1:6, 2:7].mean((2, 3)))
    corner = levels[:, :, [0, 0, 0, 1, 2]][..., [0, 0, 0, 1, 2]].mean((2, 3))
    assert_close(found[:, :, 0, 0], corner)


def test_contrast_scales_around_the_mean(levels):
    found = changes.contrast(levels, 0.5)
    assert_close(found.mean((1, 2, 3)), levels.mean((1, 2, 3)))
    assert_close(found.std((1, 2, 3)), levels.std((1, 2, 3)) / 2)
    high = changes.CHANGES["high_contrast"][1](levels)
    assert high.std() > levels.std()
    assert 0 <= high.min() < high.max() <= 1


def test_small_and_crop_are_half_the_side(levels):
    found = changes.small(levels)
    assert_close(found[:, :, 2, 2], levels[:, :, :2, :2].mean((2, 3)))
    assert_close(found[:, :, 0, 0], levels.mean((2, 3)))
    inside = torch.zeros(1, 1, 8, 8)
    inside[:, :, 2:6, 2:6] = 1
    assert (changes.crop(inside) == 1).all()


def test_each_image_of_a_batch_has_its_own_transformation(levels):
    pixels = (levels * 255).round().to(torch.uint8)
    scale, shift = scale_and_shift(torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.4]))
    images = standardize(pixels, scale, shift)
    names = list(changes.CHANGES)
    which = torch.tensor([names.index(n) for n in ("none", "grey", "blur", "small", "crop")])
    found = changes.change(images, which, scale, shift)
    for i, place in enumerate(which.tolist()):
        wanted = changes.CHANGES[names[place]][1](pixels[i : i + 1] / 255)
        assert_close((found[i : i + 1] + shift) / (255 * scale), wanted.float(), atol=1e-5, rtol=0)
    assert not torch.equal(changes.change(images, which.flip(0), scale, shift), found)


WORDS = ["a", "cat", "dog", "of", "photo"]


def encoder(**fields) -> TextEncoder:
    made = TextEncoder(ClipSpec(**fields), len(WORDS)).double()
    made.initialise(0)
    if not made.reads_bytes:
        made.set_vocabulary(WORDS)
    return made.eval()


def test_a_token_sees_no_later_token():
    text = encoder()
    one, two = tokenize(["a photo of a cat", "a photo a of dog"], text.encoder(), text.length)
    states = []
    hook = text.blocks.register_forward_hook(lambda *args: states.append(args[-1]))
    text(torch.stack([one, two]))
    hook.remove()
    first, second = states[0]
    same = int((one == two).int().cumprod(0).sum())  # length of the common start
    assert same == 3
    assert_close(first[:same], second[:same], rtol=0, atol=1e-12)
    assert not torch.allclose(first[same:], second[same:])


def test_the_features_are_those_of_the_end_token():
    text = encoder()
    tokens = tokenize(["a cat", "a photo of a dog"], text.encoder(), text.length)
    states = text.norm(text.blocks(text.token_embed(tokens) + text.pos_embed()))
    ends = [row.tolist().index(END) for row in tokens]
    assert ends == [3, 6]
    assert_close(text(tokens), torch.stack([states[i, end] for i, end in enumerate(ends)]))


TOKEN_WORDS = ["a", "cat", "é"]


def test_captions_start_end_and_are_padded_or_cut():
    found = tokenize(["a Cat", "a cat a cat a", "the dog"], word_encoder(TOKEN_WORDS), 6)
    a, cat = NUM_SPECIAL, NUM_SPECIAL + 1
    assert found.tolist() == [
        [START, a, cat, END, PAD, PAD],
        [START, a, cat, a, cat, END],
        [START, UNKNOWN, UNKNOWN, END, PAD, PAD],
    ]
    assert split_words("A cat, isn't it?") == ["a", "cat", ",", "isn", "'", "t", "it", "?"]
    assert split_words("é" * 40) == ["é" * 16], "cut at a whole character"


def test_a_vocabulary_survives_its_table_and_captions_are_read_back():
    table = to_table(TOKEN_WORDS, 5)
    assert table.shape == (5, 32)
    assert from_table(table) == TOKEN_WORDS
    assert from_table(to_table([], 0)) == []
    assert from_table(torch.full((1, 32), 255, dtype=torch.uint8)), "damaged, but no exception"
    rows = torch.tensor([[97, 10, 98, 0], [195, 169, 0, 0]], dtype=torch.uint8)
    assert read_texts(rows) == [["a", "b"], ["é"]]
