"""`vitcli bench`: speed and memory on this machine."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from vitcli.cli.chosen import collect_changes, load_changed
from vitcli.cli.console import emit_report, say
from vitcli.cli.options import Device, Format, Sets, group, output_option, with_code
from vitcli.cli.train import Name, Precision
from vitcli.runner.errors import ConfigError
from vitcli.runner.files import make_output_folder, require_replaceable
from vitcli.runner.report.report import TERA, DataTable, Fact, Field, Report

if TYPE_CHECKING:
    from vitcli.plugins.bench.training import Workload

commands = group(
    help="Measure speed and memory, without a data set.\n\nAll measurements run on random pixels.",
    example="vitcli bench train cifar10-tiny",
)

Rounds = Annotated[int, Option(min=1, help="Number of measurements. The result is their median.")]
Seconds = Annotated[float, Option(min=0.0, help="Approximate seconds per measurement.")]
Trace = Annotated[
    bool, Option("--trace", help="Also write a trace and show the slowest operators.")
]
Output = Annotated[Path, output_option("FILE", "File for the trace of --trace.")]
Lengths = Annotated[
    str | None, Option(help="Sequence lengths in tokens.", show_default="64,128,...,4096")
]


@commands.command(example="vitcli bench train cifar10-tiny")
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
    form: Format = "text",
) -> None:
    """Measure training steps: speed, memory, share of peak FLOP/s."""
    from vitcli.plugins.bench.training import bench_training, profile

    if trace:
        require_replaceable(output, "trace", b'"traceEvents"')
        make_output_folder(output.parent)
    work = workload(experiment, sets, device, precision)
    from vitcli.runner.train.build import settings

    with settings(work.training):
        result = bench_training(work, rounds=rounds, seconds=seconds)
        if trace:
            result["profile"] = profile(work.steps(), work.device, output)
    emit_report(report_of(result, [output] if trace else []), form)


@commands.command(example="vitcli bench data cifar10-small-aug")
@with_code
def data(
    experiment: Name = None,
    sets: Sets = None,
    device: Device = "auto",
    rounds: Rounds = 5,
    seconds: Seconds = 1.0,
    form: Format = "text",
) -> None:
    """Measure the input pipeline: order, augmentation, batches."""
    from vitcli.plugins.bench.training import bench_data

    work = workload(experiment, sets, device, None)
    emit_report(report_of(bench_data(work, rounds=rounds, seconds=seconds)), form)


@commands.command(example="vitcli bench inference")
@with_code
def inference(
    experiment: Name = None,
    sets: Sets = None,
    device: Device = "auto",
    precision: Precision = None,
    rounds: Rounds = 5,
    seconds: Seconds = 0.5,
    form: Format = "text",
) -> None:
    """Measure inference: images per second and latency by batch size."""
    from vitcli.plugins.bench.training import bench_inference

    work = workload(experiment, sets, device, precision)
    emit_report(report_of(bench_inference(work, rounds=rounds, seconds=seconds)), form)


@commands.command(example="vitcli bench attention --lengths 64,256")
@with_code
def attention(
    device: Device = "auto",
    precision: Annotated[str, Option(help="Precision: fp32, tf32, bf16, fp16 or auto.")] = "auto",
    embed_dim: Annotated[int, Option(min=1, help="Embedding dimension.")] = 256,
    num_heads: Annotated[int, Option(min=1, help="Number of heads.")] = 4,
    batch_size: Annotated[int, Option(min=1, help="Number of images or sequences per step.")] = 8,
    lengths: Lengths = None,
    threads: Annotated[
        int | None, Option(min=1, help="Number of CPU threads.", show_default="as torch chooses")
    ] = None,
    rounds: Rounds = 5,
    seconds: Seconds = 0.2,
    output: Annotated[
        Path | None, output_option("FILE", "File for a figure: .png, .svg or .pdf.")
    ] = None,
    form: Format = "text",
) -> None:
    """Measure each attention rule by sequence length."""
    from vitcli.plugins.bench import attention as rules
    from vitcli.runner.machine.device import pick_device, warn_if_emulated

    if output:
        rules.prepare_figure(output)
    wanted = parse_lengths(lengths) or rules.LENGTHS
    warn_if_emulated(precision, device, say)
    setting = rules.Setting(
        device=pick_device(device),
        precision=precision,
        embed_dim=embed_dim,
        num_heads=num_heads,
        batch_size=batch_size,
        rounds=rounds,
        seconds=seconds,
    )
    result = rules.bench_attention(setting, wanted, threads, say)
    if output:
        rules.draw(result, output)
    cells = len(result["rows"]) * len(wanted)
    missing = f"Empty cells exceeded {rules.MAX_SECONDS:g} s or the memory."
    report = report_of({name: value for name, value in result.items() if name != "rows"})
    report = replace(
        report,
        tables=growth_tables(result["rows"], wanted),
        notes=[missing] if sum(len(row["points"]) for row in result["rows"]) < cells else [],
        files=[output] if output else [],
    )
    emit_report(report, form)


def workload(
    experiment: str | None,
    sets: list[str] | None,
    device: str,
    precision: str | None,
) -> "Workload":
    from vitcli.plugins.bench.training import make_workload
    from vitcli.runner.machine.device import warn_if_emulated

    changes, options = collect_changes(sets, {"train.precision": precision})
    chosen = load_changed(experiment or "quickstart", changes, options)
    warn_if_emulated(chosen.spec.train.precision, device, say)
    return make_workload(chosen, device, say)


def report_of(result: dict[str, Any], files: Sequence[Path] = ()) -> Report:
    rates = {"matmul_peak": TERA}
    columns = {"rows": ["precision", "batch_size", "seconds", "images_per_second"]}
    columns["profile"] = ["share", "seconds", "calls", "operator"]
    facts = {name: Fact(name, value, metric=rates.get(name)) for name, value in result.items()}
    tables = [
        DataTable(name, columns[name], facts.pop(name).value)
        for name in [*columns]
        if name in facts
    ]
    for name in facts.keys() & {"benchmark", "turns", "environment"}:
        facts[name] = replace(facts[name], text="")
    if turns := result.get("turns"):
        about = f"(median of {len(turns)}: {min(turns):,.0f} to {max(turns):,.0f})"
        facts["images_per_second"] = replace(facts["images_per_second"], about=about)
    return Report(facts=[*facts.values()], tables=tables, files=files)


def parse_lengths(text: str | None) -> tuple[int, ...]:
    parts = text.split(",") if text else []
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise ConfigError(f"--lengths {text}: write whole numbers, such as 64,256")
    return tuple(sorted(set(map(int, parts))))


def growth_tables(rows: list[dict[str, Any]], lengths: Sequence[int]) -> list[DataTable]:
    """Return the measurement as it is, and time and memory by number of tokens for people."""
    tables = [DataTable("rows", [*rows[0]], rows, is_shown=False)]
    grows = Field("exponent", "grows as", text=growth, none="")
    for name, key, caption in (
        ("time", "seconds", "time of a pass, forward and backward, by number of tokens N"),
        ("memory", "kept_bytes", "memory kept for the backward pass, by number of tokens N"),
    ):
        shown = []
        for row in rows:
            measured = {point["tokens"]: point[key] for point in row["points"]}
            shown.append(
                {
                    **{"attention": row["attention"], "kernels": row["kernels"]},
                    key: [measured.get(length) for length in lengths],
                    "exponent": row[f"{name}_exponent"],
                    "stated": row[f"stated_{name}"],
                }
            )
        spread = Field(key, spread=[*map(str, lengths)], none="")
        columns: list[Field | str] = ["attention", "kernels", spread, grows, "stated"]
        tables.append(DataTable(name, columns, shown, caption=caption))
    return tables


def growth(exponent: tuple[float, float]) -> str:
    """Return an exponent as text, such as ``N^1.98 +- 0.05`` (half the 95 % interval)."""
    return f"N^{exponent[0]:.2f} +- {exponent[1]:.2f}"
