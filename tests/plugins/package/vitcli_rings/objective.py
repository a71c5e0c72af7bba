from vitcli.parts import Classify, objective


@objective(name="confident")
class Confident(Classify):
    """Cross-entropy minus a share of the entropy (Pereyra et al. 2017)."""

    weight: float = 0.1

    def class_losses(self, logits, targets, weights=None):
        found = super().class_losses(logits, targets, weights)
        log = logits.log_softmax(-1)
        entropy = -(log.exp() * log).sum(-1).mean()
        return found | {"loss": found["loss"] - self.weight * entropy}
