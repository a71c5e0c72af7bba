"""The text encoder: its mask, its pooling and its vocabulary."""

import torch
from torch.testing import assert_close

from vitcli.core.objectives.clip.spec import ClipSpec
from vitcli.core.objectives.clip.text_encoder import TextEncoder
from vitcli.core.objectives.clip.tokens import END, PAD, tokenize

WORDS = ["a", "cat", "dog", "of", "photo"]


def encoder(**fields) -> TextEncoder:
    made = TextEncoder(ClipSpec(**fields), len(WORDS)).double()
    made.initialise(0)
    if not made.reads_bytes:
        made.set_vocabulary(WORDS)
    return made.eval()


def test_padding_after_the_end_has_no_effect():
    text = encoder()
    tokens = tokenize(["a photo of a cat"], text.encoder(), text.length)
    assert (tokens == PAD).any()
    garbage = torch.where(tokens == PAD, 5, tokens)
    assert_close(text(garbage), text(tokens), rtol=0, atol=0)
    other = tokenize(["a photo of a dog"], text.encoder(), text.length)
    assert not torch.allclose(text(other), text(tokens)), "the control"


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


def test_the_vocabulary_is_saved_with_the_weights():
    text = encoder()
    other = TextEncoder(ClipSpec(), len(WORDS)).double()
    other.load_state_dict(text.state_dict())
    assert other.words() == WORDS
    tokens = tokenize(["a cat"], other.encoder(), other.length)
    assert_close(other.eval()(tokens), text(tokens), rtol=0, atol=0)
