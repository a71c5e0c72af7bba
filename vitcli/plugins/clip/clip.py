"""Contrastive training of images with captions, and zero-shot classification.

Axes: B batch, N images, K classes, V prompts of a class, E width of the joint space, L tokens of a
caption, U captions, M items among which a query finds its own.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.data.batches import Batch, EpochPlan, limit_images
from vitcli.core.data.policy import Size
from vitcli.core.data.source import DataSet, Images
from vitcli.core.metrics.classification import accuracy
from vitcli.core.objectives.objective import Outputs, Task
from vitcli.core.randomness import keyed_generator
from vitcli.core.ranks import gather
from vitcli.core.spec import ExperimentSpec
from vitcli.core.torch_use import without_autocast
from vitcli.plugins.clip import tokens as token
from vitcli.plugins.clip.captions import KINDS, CaptionBook, most_frequent, phrase
from vitcli.plugins.clip.changes import CHANGES, change
from vitcli.plugins.clip.model import ImageTextModel, caption_book, clip_spec
from vitcli.plugins.clip.spec import ClipSpec

AT_ONCE = 1024
"""Number of queries whose similarities are held at once."""


def distinct(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first place of each different number, sorted by number, and the place of its twin.

    (N,) -> (U,) places in ``numbers``, (N,) places in the first result.
    """
    values, twin = numbers.unique(return_inverse=True)
    place = torch.arange(len(numbers), device=numbers.device)
    first = torch.full_like(values, len(numbers)).scatter_reduce(0, twin, place, "amin")
    return first, twin


def ranks(queries: Tensor, items: Tensor, subject: Tensor, of_item: Tensor) -> Tensor:
    """Return how many items of other subjects precede the best item of a query's subject: (N,).

    Queries (N, E) and items (M, E) are unit vectors; a query's right items have its number. 0 means
    that only the right items are most similar. An item of another subject that is as similar as the
    best one precedes it, so vectors that are all equal retrieve nothing.
    """
    found = []
    for part, own in zip(queries.split(AT_ONCE), subject.split(AT_ONCE), strict=True):
        similar, is_own = part @ items.mT, own[:, None] == of_item  # (n, M)
        best = similar.masked_fill(~is_own, float("-inf")).amax(1, keepdim=True)
        found.append(((similar >= best) & ~is_own).sum(1))
    return torch.cat(found)


def recall(ranks: Tensor, count: int) -> float:
    return (ranks < count).double().mean().item()


LARGEST_SCALE = 100.0
"""Largest factor of the similarities."""
TEXTS_AT_ONCE = 512
RECALLS = (1, 5, 10)


class ContrastiveTask(Task):
    """Symmetric cross-entropy between images and captions in a batch.

    Captions, transformations and templates are functions of (seed, epoch, image). The module holds
    the vocabulary.

    Radford et al. 2021, https://arxiv.org/abs/2103.00020. Deviations: equal captions are targets of
    each other, and the scale is limited after each step instead of before.
    """

    encoder_name = "encoder"
    module: ImageTextModel
    make_module = ImageTextModel
    _read: tuple[Images, token.Captions] | None = None

    @classmethod
    def read_data(cls, module: nn.Module, spec: ExperimentSpec, data: DataSet) -> None:
        if clip_spec(spec).captions != "folder":
            return
        if "caption" not in data.train.extra:
            raise ValueError("task.captions: the folder has no captions.csv (columns file,caption)")
        text = cast(ImageTextModel, module).text
        if not text.reads_bytes:
            captions = (c for row in token.read_texts(data.train.extra["caption"]) for c in row)
            words = (word for caption in captions for word in token.split_words(caption))
            text.set_vocabulary(most_frequent(words, len(text.vocabulary)))

    @cached_property
    def book(self) -> CaptionBook:
        return caption_book(self.spec)

    @property
    def options(self) -> ClipSpec:
        return clip_spec(self.spec)

    @cached_property
    def trained(self) -> token.Captions:
        return token.Captions(self.book.train, self.module.text.tokenize)

    @cached_property
    def held_out(self) -> token.Captions:
        return token.Captions(self.book.held_out, self.module.text.tokenize)

    def _stored(self, images: Images) -> token.Captions:
        rows = token.read_texts(images.extra["caption"].cpu())
        return token.Captions(rows, self.module.text.tokenize, images.labels.device)

    @cached_property
    def _subjects(self) -> Tensor:  # (K, choices)
        return torch.tensor(self.book.subjects, device=self.trained.tokens.device)

    def _subject_of(self, labels: Tensor, choice: Tensor) -> Tensor:  # (B,) each
        return self._subjects[labels, choice % self._subjects.shape[1]]

    def check_data(self, data: DataSet) -> None:
        """Refuse transformations of grey images: one of them is "grey"."""
        if self.options.captions == "transformations" and data.in_chans == 1:
            raise ValueError("task.captions: 'transformations' needs images with colours")

    # Batches

    def draw_rows(self, epoch: int, num_images: int, size: Size, is_cuda: bool) -> EpochPlan:
        rows = super().draw_rows(epoch, num_images, size, is_cuda)
        for name in ("variant", "choice"):
            generator = keyed_generator(self.spec.seed, epoch, f"caption-{name}")
            draws = torch.randint(2**30, (num_images,), generator=generator)
            rows[f"caption.{name}"] = draws[rows["index"]]
        return rows

    def rows(self, data: DataSet, epoch: int) -> EpochPlan:
        """Return the rows of an epoch; an image of a held-out class is replaced by another one."""
        rows = super().rows(data, epoch)
        if not self.options.held_out_classes:
            return rows
        is_held = self._is_held(data.train.labels.cpu())
        kept = (~is_held).nonzero().flatten()
        generator = keyed_generator(self.spec.seed, epoch, "stand-in")
        others = kept[torch.randint(len(kept), (len(is_held),), generator=generator)]
        index = rows["index"]
        return rows | {"index": torch.where(is_held[index], others[index], index)}

    def _is_held(self, labels: Tensor) -> Tensor:
        names = self.spec.data.class_names or ()
        held = [names.index(name) for name in self.options.held_out_classes]
        return torch.isin(labels, torch.tensor(held, dtype=labels.dtype, device=labels.device))

    def make_batch(self, data: DataSet, rows: EpochPlan) -> Batch:
        """Return images (B, C, H, W), tokens (B, L), and the numbers of captions and subjects."""
        drawn = self.draw_captions(data, rows)
        images = super().make_batch(data, rows)["images"]
        if self.options.captions == "transformations":
            images = change(images, drawn.subject % len(CHANGES), *self._channels)
        return {"images": images, **drawn._asdict()}

    def draw_captions(self, data: DataSet, rows: EpochPlan) -> token.Drawn:
        index = rows["index"]
        if self.options.captions == "folder":
            if self._read is None or self._read[0] is not data.train:
                self._read = data.train, self._stored(data.train)
            drawn = self._read[1].draw(index, rows["caption.variant"])
            return drawn._replace(subject=drawn.caption)
        subject = self._subject_of(data.train.labels[index], rows["caption.choice"])
        return self.trained.draw(subject, rows["caption.variant"])

    # Training

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss, its floor for these captions, and the scale of the similarities."""
        found = *self.network(batch["images"], batch["tokens"]), batch["caption"], batch["subject"]
        images, texts, caption, subject = (gather(rows) for rows in found)
        scale = self.module.logit_scale.exp()
        with without_autocast(images.device):
            loss = contrastive_loss(images, texts, scale, caption)
        return {"loss": loss, "floor": loss_floor(subject), "scale": scale.detach()}

    @torch.no_grad()
    def after_step(self) -> None:
        """Limit the scale to 100, as in CLIP."""
        self.module.logit_scale.clamp_(max=math.log(LARGEST_SCALE))

    # Evaluation

    @torch.inference_mode()
    def embed_images(self, module: nn.Module, images: Images) -> Tensor:
        """Return the unit vectors (N, E) of a split."""
        model = cast(ImageTextModel, module)
        batches = self.eval_batches(images)
        return torch.cat([model.encode_images(batch["images"]) for batch in batches])

    @torch.inference_mode()
    def embed_tokens(self, module: nn.Module, tokens: Tensor) -> Tensor:
        """Return the unit vectors of captions: (n, L) -> (n, E)."""
        parts = tokens.to(self.module.logit_scale.device).split(TEXTS_AT_ONCE)
        return torch.cat([cast(ImageTextModel, module).encode_texts(part) for part in parts])

    def class_vectors(self, module: nn.Module, prompts: Sequence[Sequence[str]]) -> Tensor:
        """Return the unit vector (K, E) of each class from its prompts alone."""
        texts = [text for row in prompts for text in row]
        found = self.embed_tokens(module, cast(ImageTextModel, module).text.tokenize(texts))
        return ensemble(found.unflatten(0, (len(prompts), -1)))

    def zero_shot(
        self, module: nn.Module, images: Images, class_names: Sequence[str]
    ) -> tuple[Tensor, list[str]]:
        encode = cast(ImageTextModel, module).text.encoder()
        phrases = [*map(phrase, class_names)]
        for said in phrases:
            if {*encode(said)} <= {token.UNKNOWN}:
                raise ValueError(
                    f"no word of class {said!r} occurs in the captions of the training"
                )
        words = dict.fromkeys(word for said in phrases for word in token.split_words(said))
        unknown = [word for word in words if {*encode(word)} <= {token.UNKNOWN}]
        prompts = KINDS[self.options.captions].prompts(class_names)
        vectors = self.class_vectors(module.eval(), prompts)
        return self._scores(module, self.embed_images(module, images), vectors), unknown

    def _scores(self, module: nn.Module, images: Tensor, vectors: Tensor) -> Tensor:
        return cast(ImageTextModel, module).logit_scale.detach().exp() * images @ vectors.mT

    def outputs(self, module: nn.Module, images: Images) -> Outputs:
        """Return zero-shot logits, labels, ranks of retrieval, and what the levels need.

        The ranks (N,) are of captions for each image, and of images for the caption of each image;
        a caption that says the same in other words is right, too.
        ``logits`` (N, K) have prompts from held-out templates, ``trained_logits`` from those of the
        training.
        """
        was_training = module.training
        module.eval()
        part = limit_images(images, self.spec)
        found = self.embed_images(module, images)
        book, plain = self.book, self.book.plain
        outputs = {
            name: self._scores(module, found, self.class_vectors(module, [rows[s] for s in plain]))
            for name, rows in (("logits", book.held_out), ("trained_logits", book.train))
        }
        outputs["labels"] = part.labels
        drawn = self.captions_of(part)
        first, caption = distinct(drawn.caption)  # equal captions count once
        texts, subject = self.embed_tokens(module, drawn.tokens[first]), drawn.subject[first]
        outputs["caption_rank"] = ranks(found, texts, drawn.subject, subject)
        outputs["image_rank"] = ranks(texts, found, subject, drawn.subject)[caption]
        if book.unseen:
            outputs |= self._measure_pairs(module, part)
        if book.groups:
            vectors = self.class_vectors(module, book.group_prompts)
            outputs["group_logits"] = self._scores(module, found, vectors)
        module.train(was_training)
        return outputs

    def captions_of(self, images: Images) -> token.Drawn:
        """Return the first or a held-out caption of each image."""
        index = torch.arange(len(images), device=images.labels.device)
        if self.options.captions == "folder":
            drawn = self._stored(images).draw(index, torch.zeros_like(index))
            return drawn._replace(subject=drawn.caption)
        plain = torch.tensor(self.book.plain, device=index.device)
        return self.held_out.draw(plain[images.labels], index)

    @torch.inference_mode()
    def _measure_pairs(self, module: nn.Module, images: Images) -> Outputs:
        vectors = self.class_vectors(module, self.book.held_out)
        unseen = torch.tensor(self.book.unseen, device=images.labels.device)
        place = torch.arange(len(images), device=images.labels.device)
        wanted = {
            "seen": self._subject_of(images.labels, place),
            "unseen": unseen[images.labels],
        }
        outputs: Outputs = {}
        for name, subject in wanted.items():
            found, start = [], 0
            for batch in self.eval_batches(images):
                which = subject[start : start + len(batch["images"])] % len(CHANGES)
                start += len(which)
                changed = change(batch["images"], which, *self._channels)
                seen = cast(ImageTextModel, module).encode_images(changed)
                found.append((seen @ vectors.mT).argmax(1))
            outputs |= {f"{name}_subject": subject, f"{name}_found": torch.cat(found)}
        return outputs

    def measure(self, outputs: Outputs) -> dict[str, float]:
        """Return zero-shot accuracies, recall of retrieval and the levels, as shares.

        Level L0 is the accuracy with held-out templates. L1 (``transformations``) is measured on
        combinations of transformation and class that no training image had. L2 (``superclasses``)
        is measured on images of held-out classes.
        """
        if not all(t.isfinite().all() for t in outputs.values() if t.is_floating_point()):
            raise ValueError("a logit is infinite or NaN")
        labels = outputs["labels"]
        measured = {
            "zero_shot_accuracy": accuracy(outputs["logits"], labels),
            "trained_prompts_accuracy": accuracy(outputs["trained_logits"], labels),
        }
        for name, key in (("image_to_text", "caption_rank"), ("text_to_image", "image_rank")):
            measured |= {f"{name}_r{k}": recall(outputs[key], k) for k in RECALLS}
        measured |= pair_accuracies(outputs)
        if self.book.groups:
            held = self._is_held(torch.arange(outputs["logits"].shape[1], device=labels.device))
            measured |= unseen_accuracies(outputs, self.book.groups, held)
        return measured


def contrastive_loss(images: Tensor, texts: Tensor, scale: Tensor, caption: Tensor) -> Tensor:
    """Return the symmetric cross-entropy of similarities of unit vectors, (B, E) and (B, E).

    An image's targets are all texts that equal its own caption, with equal probability, and vice
    versa; equal captions have equal numbers in ``caption`` (B,). CLIP has only its own caption as
    target, because equal captions are rare in its data. ``scale`` is the inverse temperature.
    """
    logits = scale * images @ texts.mT
    same = (caption[:, None] == caption[None]).to(logits.dtype)
    targets = same / same.sum(1, keepdim=True)
    return (F.cross_entropy(logits, targets) + F.cross_entropy(logits.mT, targets)) / 2


def loss_floor(subject: Tensor) -> Tensor:
    """Return the smallest loss that a batch of captions of these subjects (B,) allows on average.

    Captions of one subject describe its images equally well, because the template is drawn anew in
    every epoch. So the best model spreads the probability over the captions with the subject, and
    the loss is the mean logarithm of their number. With 10 classes and 128 images this is 2.5.
    """
    return (subject[:, None] == subject[None]).sum(1).float().log().mean()


def ensemble(prompts: Tensor) -> Tensor:
    """Return the mean direction of the prompts of a class: (K, V, E) -> unit vectors (K, E)."""
    return F.normalize(F.normalize(prompts, dim=-1).mean(1), dim=-1)


def pair_accuracies(outputs: Mapping[str, Tensor]) -> dict[str, float]:
    """Return level L1: both words, and each of them, on seen and unseen combinations.

    ``seen_subject`` and ``seen_found`` are the true and the recognised subjects (N,) of images with
    a trained combination, the other two those of an unseen one. Without them nothing is returned.
    Chance is 1 / (7 K) for a pair, 1 / K for a class and 1 / 7 for a transformation.
    """
    measured: dict[str, float] = {}
    count = len(CHANGES)
    for name in ("seen", "unseen"):
        if f"{name}_found" not in outputs:
            continue
        wanted, found = outputs[f"{name}_subject"], outputs[f"{name}_found"]
        right = {
            "pair": wanted == found,
            "class": wanted // count == found // count,
            "transformation": wanted % count == found % count,
        }
        measured |= {f"l1_{name}_{k}_accuracy": v.double().mean().item() for k, v in right.items()}
    return measured


def unseen_accuracies(
    outputs: Mapping[str, Tensor], groups: Sequence[int], held_out: Tensor
) -> dict[str, float]:
    """Return the accuracy of superclasses, and level L2 if classes are held out, a mask (K,).

    L2 is measured on images of held-out classes only: their superclass, their class among the
    held-out classes, and their class among all classes. ``groups`` has the superclass of each
    class.
    """
    labels, logits, group_logits = (outputs[k] for k in ("labels", "logits", "group_logits"))
    wanted = torch.tensor(groups, device=labels.device)[labels]
    measured = {"superclass_accuracy": accuracy(group_logits, wanted)}
    is_unseen = held_out[labels]
    if is_unseen.any():
        classes = held_out.nonzero().flatten()
        place = (labels[is_unseen][:, None] == classes).int().argmax(1)
        measured |= {
            "l2_superclass_accuracy": accuracy(group_logits[is_unseen], wanted[is_unseen]),
            "l2_accuracy_among_unseen": accuracy(logits[is_unseen][:, classes], place),
            "l2_accuracy_among_all": accuracy(logits[is_unseen], labels[is_unseen]),
        }
    return measured
