from vitcli.core.metric import error

masked_mse = error(
    name="masked_mse",
    label="masked MSE",
    short="mse",
    condense="vitcli.core.metrics.stored:condense_errors",
    per_image="vitcli.core.metrics.stored:errors",
)
"""Mean squared error of the reconstructed pixels in masked patches, in units of the normalised
pixels. The masks of an evaluation are always the same."""
mse_ratio = error(name="mse_ratio", label="MSE by that of the best baseline")
