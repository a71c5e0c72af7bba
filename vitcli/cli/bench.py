"""`vitcli bench`: speed and memory on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitcli.cli.chosen import load_changed, option_names
from vitcli.cli.console import emit, emit_json, say, table
from vitcli.cli.options import Device, Json, Sets, group, with_code
from vitcli.cli.train import Name, Precision
from vitcli.runner.text import duration, percent

if TYPE_CHECKING:
    from vitcli.runner.speed.workload import Workload

bench_app = group(
    help="Measure speed and memory, without a data set.\n\nAll measurements run on random pixels.",
    example="vitcli bench train cifar10-tiny",
)

Rounds = Annotated[
    int, typer.Option(min=1, help="Number of measurements. The result is their median.")
]
Seconds = Annotated[float, typer.Option(min=0.0, help="Approximate seconds per measurement.")]
Trace = Annotated[
    bool, typer.Option("--trace", help="Also write a trace and show the slowest operators.")
]
Output = Annotated[
    Path,
    typer.Option("-o", "--output", metavar="FILE", help="File for the trace of --trace."),
]
Lengths = Annotated[
    str | None,
    typer.Option(help="Sequence lengths in tokens.", show_default="64,128,...,4096"),
]


@bench_app.command()
@with_code
def train(
    experiment: Name = None,
    sets: Sets = None,
    device: Device = "auto",
    precision: Precision = None,
    rounds: Rounds = 5,
    seconds: Seconds = 2.0,
    trace: Trace = False,
    output: Output = Path("trace.json"),
    json: Json = False,
) -> None:
    """Measure training steps: speed, memory, share of peak FLOP/s.

    \b
    Example:
      vitcli bench train cifar10-tiny
    """
    from vitcli.runner.speed.training import bench_training

    make_trace_folder(trace, output)
    work = workload(experiment, sets, device, precision)
    with work.built.settings():
        result = bench_training(work, rounds=rounds, seconds=seconds)
        if trace:
            steps = work.training()
            result |= profile_step(work, lambda: next(steps), output)
    if json:
        emit_json(result)
        return
    show_training(result)
    show_profile(result)


@bench_app.command()
@with_code
def data(
    experiment: Name = None,
    sets: Sets = None,
    device: Device = "auto",
    rounds: Rounds = 5,
    seconds: Seconds = 1.0,
    trace: Trace = False,
    output: Output = Path("trace.json"),
    json: Json = False,
) -> None:
    """Measure the input pipeline: order, augmentation, batches.

    \b
    Example:
      vitcli bench data cifar10-small-aug
    """
    from vitcli.runner.speed.training import bench_data

    make_trace_folder(trace, output)
    work = workload(experiment, sets, device, None)
    result = bench_data(work, rounds=rounds, seconds=seconds)
    if trace:
        batches = work.batches()
        result |= profile_step(work, lambda: next(batches), output)
    if json:
        emit_json(result)
        return
    emit(result["setting"])
    emit(f"images/s       {result['images_per_second']:,.0f}{spread(result['turns'])}")
    emit(f"batch          {1e3 * result['batch_seconds']:.2f} ms")
    share = result["bytes_per_second"] / result["copy_bandwidth"]
    emit(
        f"bytes made     {result['bytes_per_second'] / 1e6:,.0f} MB/s, {percent(share, 1)} of the"
        f" {result['copy_bandwidth'] / 1e6:,.0f} MB/s of a large copy"
    )
    emit(f"first batch    {duration(result['first_batch_seconds'])}")
    show_profile(result)


@bench_app.command()
@with_code
def inference(
    experiment: Name = None,
    sets: Sets = None,
    device: Device = "auto",
    precision: Precision = None,
    rounds: Rounds = 5,
    seconds: Seconds = 0.5,
    json: Json = False,
) -> None:
    """Measure inference: images per second and latency by batch size.

    \b
    Example:
      vitcli bench inference
    """
    from vitcli.runner.speed.training import bench_inference

    work = workload(experiment, sets, device, precision)
    result = bench_inference(work, rounds=rounds, seconds=seconds)
    if json:
        emit_json(result)
        return
    rows = [
        [
            *(row["precision"], str(row["batch_size"])),
            *(f"{1e3 * row['seconds']:.2f}", f"{row['images_per_second']:,.0f}"),
        ]
        for row in result["rows"]
    ]
    emit(result["setting"])
    emit(table(["precision", "images", "ms", "images/s"], rows, numeric=(1, 2, 3)))


@bench_app.command()
@with_code
def attention(
    device: Device = "auto",
    precision: Annotated[
        str, typer.Option(help="Precision: fp32, tf32, bf16, fp16 or auto.")
    ] = "auto",
    embed_dim: Annotated[int, typer.Option(min=1, help="Embedding dimension.")] = 256,
    num_heads: Annotated[int, typer.Option(min=1, help="Number of heads.")] = 4,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Number of images or sequences per step.")
    ] = 8,
    lengths: Lengths = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Number of CPU threads.", show_default="as torch chooses"),
    ] = None,
    rounds: Rounds = 5,
    seconds: Seconds = 0.2,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="File for a figure: .png, .svg or .pdf."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Measure each attention rule by sequence length.

    \b
    Example:
      vitcli bench attention --lengths 64,256
    """
    from vitcli.runner.machine.device import pick_device
    from vitcli.runner.machine.products import warn_if_emulated
    from vitcli.runner.speed.attention import LENGTHS, MAX_SECONDS, bench_attention
    from vitcli.runner.speed.attention_figure import draw, prepare_figure

    if output:
        prepare_figure(output)
    wanted = parse_lengths(lengths) or LENGTHS
    warn_if_emulated(precision, device, say)
    result = bench_attention(
        pick_device(device),
        precision=precision,
        embed_dim=embed_dim,
        num_heads=num_heads,
        batch_size=batch_size,
        lengths=wanted,
        threads=threads,
        rounds=rounds,
        seconds=seconds,
        on_message=say,
    )
    if output:
        draw(result, output)
        say(f"wrote {output}")
    if json:
        emit_json(result)
        return
    emit(result["setting"])
    show_lengths(result["rows"])
    if any(len(row["points"]) < len(wanted) for row in result["rows"]):
        emit(
            f"empty cells exceeded {MAX_SECONDS:g} s per pass or the memory, or have no such kernel"
        )


def workload(
    experiment: str | None, sets: list[str] | None, device: str, precision: str | None
) -> "Workload":
    """Return the experiment to measure."""
    from vitcli.runner.experiment.config import parse_sets
    from vitcli.runner.machine.products import warn_if_emulated
    from vitcli.runner.speed.workload import make_workload

    changes = parse_sets(sets)
    shortcuts = {} if precision is None else {"train.precision": precision}
    chosen = load_changed(experiment or "quickstart", changes | shortcuts, option_names(shortcuts))
    warn_if_emulated(chosen.spec.train.precision, device, say)
    return make_workload(chosen, device, say)


def make_trace_folder(trace: bool, output: Path) -> None:
    """Create the folder of the trace before anything is measured."""
    from vitcli.runner.files import make_output_folder

    if trace:
        make_output_folder(output.parent)


def profile_step(work: "Workload", step: Any, output: Path) -> dict[str, Any]:
    from vitcli.runner.speed.profile import profile

    return {"profile": profile(step, work.device, output), "trace": str(output)}


def spread(turns: list[float]) -> str:
    return f"   (median of {len(turns)}: {min(turns):,.0f} to {max(turns):,.0f})"


def show_training(result: dict[str, Any]) -> None:
    """Print the measurement of training steps."""
    peak, flops = result["matmul_peak"], result["flops_per_second"]
    copy, traffic = result["copy_bandwidth"], result["activation_traffic"]
    emit(result["setting"])
    emit(f"images/s       {result['images_per_second']:,.0f}{spread(result['turns'])}")
    emit(
        f"step           {1e3 * result['step_seconds']:.2f} ms, of which the input pipeline"
        f" {percent(result['data_share'], 1)}"
    )
    emit(
        f"epoch          {duration(result['epoch_seconds'])}"
        f" ({result['images_per_epoch']:,} images, no evaluation)"
    )
    emit(
        f"operations     {flops / 1e12:.3f} TFLOP/s, {percent(result['matmul_share'], 1)} of the"
        f" {peak / 1e12:.2f} TFLOP/s of a large {result['precision']} matrix product"
    )
    emit(
        f"activations    {traffic / 1e9:.1f} GB/s kept for the backward pass and read again,"
        f" {percent(traffic / copy, 0)} of the {copy / 1e9:.0f} GB/s of a large copy"
    )
    emit(f"peak memory    {result['peak_memory_bytes'] / 2**30:.2f} GiB")
    emit(
        f"start          {duration(result['compile_seconds'])} to compile,"
        f" {result['first_step_seconds']:.1f} s for the first step"
    )


def show_profile(result: dict[str, Any]) -> None:
    """Print the slowest operators, if they were measured."""
    if "profile" not in result:
        return
    rows = [
        [percent(row["share"], 1), f"{1e3 * row['seconds']:.2f}", f"{row['calls']:g}", row["words"]]
        for row in result["profile"]
    ]
    emit("")
    emit(table(["share", "ms per step", "calls", "operator"], rows, numeric=(0, 1, 2)))
    emit(f"trace          {result['trace']} (open it at chrome://tracing or ui.perfetto.dev)")


def parse_lengths(text: str | None) -> tuple[int, ...]:
    """Return the sequence lengths in a text such as ``64,256``, sorted."""
    from vitcli.runner.errors import ConfigError

    parts = text.split(",") if text else []
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise ConfigError(f"--lengths {text}: write whole numbers, such as 64,256")
    return tuple(sorted(set(map(int, parts))))


def show_lengths(rows: list[dict[str, Any]]) -> None:
    """Print time and memory by sequence length, with measured and stated growth."""
    lengths = sorted({point["tokens"] for row in rows for point in row["points"]})
    header = ["attention", "kernels", *map(str, lengths), "grows as", "stated"]
    for name, key, unit, of in (
        ("ms per pass, forward and backward", "seconds", 1e3, "time"),
        ("MB kept for the backward pass", "kept_bytes", 1e-6, "memory"),
    ):
        emit(f"\n{name}, by number of tokens N")
        lines = []
        for row in rows:
            measured = {point["tokens"]: point[key] for point in row["points"]}
            cells = [f"{unit * measured[n]:.1f}" if n in measured else "" for n in lengths]
            lines.append(
                [
                    *(row["attention"], row["kernels"], *cells),
                    *(growth(row[f"{of}_exponent"]), row[f"stated_{of}"]),
                ]
            )
        emit(table(header, lines, numeric=range(2, 2 + len(lengths))))


def growth(exponent: tuple[float, float] | None) -> str:
    """Return an exponent as text, such as ``N^1.98 +- 0.05`` (half the 95 % interval)."""
    return "" if exponent is None else f"N^{exponent[0]:.2f} +- {exponent[1]:.2f}"
