"""Captions as tokens, and vocabularies as tensors."""

import torch

from vitcli.core.objectives.clip.tokens import (
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

WORDS = ["a", "cat", "é"]


def test_captions_start_end_and_are_padded_or_cut():
    found = tokenize(["a Cat", "a cat a cat a", "the dog"], word_encoder(WORDS), 6)
    a, cat = NUM_SPECIAL, NUM_SPECIAL + 1
    assert found.tolist() == [
        [START, a, cat, END, PAD, PAD],
        [START, a, cat, a, cat, END],
        [START, UNKNOWN, UNKNOWN, END, PAD, PAD],
    ]


def test_words_are_lower_case_and_punctuation_is_a_word():
    assert split_words("A cat, isn't it?") == ["a", "cat", ",", "isn", "'", "t", "it", "?"]
    assert split_words("é" * 40) == ["é" * 16], "cut at a whole character"


def test_a_vocabulary_survives_its_table():
    table = to_table(WORDS, 5)
    assert table.shape == (5, 32)
    assert from_table(table) == WORDS
    assert from_table(to_table([], 0)) == []
    assert from_table(torch.full((1, 32), 255, dtype=torch.uint8)), "damaged, but no exception"


def test_captions_of_images_are_read_back():
    rows = torch.tensor([[97, 10, 98, 0], [195, 169, 0, 0]], dtype=torch.uint8)
    assert read_texts(rows) == [["a", "b"], ["é"]]
