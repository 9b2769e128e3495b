"""A benchmark record for readers: tables on screen, a plot in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from research.errors import BenchError

FLOOR = (
    "floor: the least that a matcher with one precomputed bitmap per attribute must do: AND one cold bitmap of n bits "
    "per attribute and write the numbers of the set bits"
)


def show(record: dict[str, Any], console: Console) -> None:
    """Everything that `run` or `grow` returned."""
    if "growth" in record:
        _show_growth(record["growth"], console)
        return
    console.print(_title(record), highlight=False)
    if record["matchers"]:
        console.print(_single(record))
        console.print(_batched(record))
        if any(m["counting"]["single"] for m in record["matchers"]):
            console.print(_counting(record))
        console.print(_upkeep(record))
    for skipped in record["skipped"]:
        console.print(f"left out {skipped['name']}: {skipped['why']}", style="yellow", highlight=False)
    if any(m["name"] == "floor" for m in record["matchers"]):
        console.print(FLOOR, style="dim", highlight=False)
    shortened = any(batch["events"] < int(size) for m in record["matchers"] for size, batch in m["batches"].items())
    if shortened:
        console.print("~ fewer events than the column says, to stay within the time or memory budget", style="dim")


def duration(micro: float | None) -> str:
    """
    >>> duration(0.5), duration(412.3), duration(9310)
    ('0.50 µs', '412 µs', '9.31 ms')
    """
    if micro is None:
        return "-"
    for limit, scale, unit in ((1e3, 1, "µs"), (1e6, 1e3, "ms")):
        if micro < limit:
            return f"{_three(micro / scale)} {unit}"
    return f"{_three(micro / 1e6)} s"


def rate(number: float | None) -> str:
    """
    >>> rate(412_345), rate(1_234_567), rate(12.3)
    ('412k', '1.23M', '12.3')
    """
    if number is None:
        return "-"
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if number >= limit:
            return _three(number / limit) + unit
    return _three(number)


def plot(record: dict[str, Any], path: Path) -> None:
    """Bars of the time per event, one per kind of call, or lines over n for growth; `path` ends in the format."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ModuleNotFoundError:
        raise BenchError("a plot needs the package 'matplotlib': run `make setup`") from None
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    if "growth" in record:
        _plot_growth(record["growth"], axes)
    else:
        _plot_bars(record, axes)
    axes.set_yscale("log")
    axes.set_ylabel("µs per event")
    figure.legend(loc="outside right upper")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as problem:
        raise BenchError(f"cannot write the plot {path}: {problem}") from None
    finally:
        pyplot.close(figure)


def _three(number: float) -> str:
    """Three significant digits, no exponent."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def _title(record: dict[str, Any]) -> str:
    machine = record["machine"]
    events = "interval events" if record["intervals"] else "events"
    met = "" if record["hits_per_event"] is None else f", {record['hits_per_event']:,.0f} matches per event"
    return (
        f"[bold]{record['workload']}[/bold]: {record['subscriptions']:,} subscriptions, {events}{met}; "
        f"{record['clock']} time, seed {record['seed']}\n[dim]{machine['cpu']}, {machine['cores']} cores, "
        f"Python {machine['python']}, hitbox {machine['hitbox']} ({machine['commit'] or 'installed'})[/dim]"
    )


def _columns(title: str, names: list[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("matcher", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _single(record: dict[str, Any]) -> Table:
    kinds = ["mean", "median", "p99", "std"]
    table = _columns("one event at a time", [*kinds, "spread", "ratio"])
    for m in record["matchers"]:
        times = [duration(m["single"][f"{kind}_us"]) for kind in [*kinds, "spread"]]
        table.add_row(m["name"], *times, _three(m["ratio"]["single"]))
    return table


def _batched(record: dict[str, Any]) -> Table:
    sizes = list(record["matchers"][0]["batches"])
    table = _columns("an event in batches", [name for size in sizes for name in (f"of {size}", "×")])
    for m in record["matchers"]:
        cells = []
        for size in sizes:
            cells += [_batch(m["batches"][size], int(size)), _three(m["ratio"][size])]
        table.add_row(m["name"], *cells)
    return table


def _batch(times: dict[str, Any], size: int) -> str:
    return ("~" if times["events"] < size else "") + duration(times["us"])


def _counting(record: dict[str, Any]) -> Table:
    table = _columns("counting only", ["one event", f"of {max(record['settings']['batches'])}"])
    for m in record["matchers"]:
        single, batch = m["counting"]["single"], m["counting"]["batch"]
        if single:
            table.add_row(m["name"], duration(single["us"]), _batch(batch, max(record["settings"]["batches"])))
    return table


def _upkeep(record: dict[str, Any]) -> Table:
    table = _columns("upkeep", ["build/s", "insert/s", "delete/s", "insert one", "delete one", "bytes/sub"])
    for m in record["matchers"]:
        rates = [rate(m[f"{name}_per_s"]) for name in ("build", "insert", "delete")]
        ones = [duration(m[f"{name}_one_us"]) for name in ("insert", "delete")]
        table.add_row(m["name"], *rates, *ones, f"{m['bytes_per_subscription']:,.0f}")
    return table


def _show_growth(runs: list[dict[str, Any]], console: Console) -> None:
    last = max(runs[0]["settings"]["batches"])
    names = ["n", "one event", f"of {last}", "build/s", "MB", "bytes/sub"]
    table = _columns(f"growth of {runs[0]['workload']}", names)
    for name in _names(runs):
        for run in runs:
            for m in (m for m in run["matchers"] if m["name"] == name):
                n, size = run["subscriptions"], m["bytes_per_subscription"]
                times = [duration(m["single"]["mean_us"]), _batch(m["batches"][str(last)], last)]
                cells = [rate(m["build_per_s"]), f"{n * size / 1e6:,.0f}", f"{size:,.0f}"]
                table.add_row(name, rate(n), *times, *cells)
        table.add_section()
    console.print(_title(runs[0]), highlight=False)
    console.print(table)
    for run in runs:
        for skipped in run["skipped"]:
            text = f"left out {skipped['name']} at {run['subscriptions']:,}: {skipped['why']}"
            console.print(text, style="yellow", highlight=False)


def _names(runs: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(m["name"] for run in runs for m in run["matchers"]))


def _plot_growth(runs: list[dict[str, Any]], axes: Any) -> None:
    last = str(max(runs[0]["settings"]["batches"]))
    for name in _names(runs):
        found = [(run["subscriptions"], m) for run in runs for m in run["matchers"] if m["name"] == name]
        sizes = [n for n, _ in found]
        (line,) = axes.plot(sizes, [m["single"]["mean_us"] for _, m in found], "o-", label=f"{name}, one event")
        times = [m["batches"][last]["us"] for _, m in found]
        axes.plot(sizes, times, "o--", color=line.get_color(), label=f"{name}, batches of {last}")
    axes.set_xscale("log")
    axes.set_xlabel("subscriptions")


def _plot_bars(record: dict[str, Any], axes: Any) -> None:
    sizes = list(record["matchers"][0]["batches"]) if record["matchers"] else []
    width = 0.8 / max(1, len(record["matchers"]))
    for i, m in enumerate(record["matchers"]):
        heights = [m["batches"][size]["us"] for size in sizes]
        spread = [m["batches"][size]["spread_us"] or 0.0 for size in sizes]
        axes.bar([place + i * width for place in range(len(sizes))], heights, width, yerr=spread, label=m["name"])
    middle = 0.4 - width / 2
    axes.set_xticks([place + middle for place in range(len(sizes))], [f"batch {size}" for size in sizes])
    axes.set_title(f"{record['workload']}, {record['subscriptions']:,} subscriptions")
