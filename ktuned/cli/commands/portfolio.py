"""``ktuned portfolio``: few configs for many problems of a kernel, and the tree that chooses among them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import click
from msgspec import structs

from ktuned.cli import output, text
from ktuned.cli.options import WholeNumber, json_option, read_share
from ktuned.cli.output import Exit
from ktuned.model import KtunedError, UsageError
from ktuned.portfolio import Portfolio, describe_tree, render_c, render_json, render_python
from ktuned.protocol import PORTFOLIO, PortfolioAnswer, PortfolioInfo, PortfolioParams, call_method
from ktuned_client import Client

FORMATS = {".py": render_python, ".h": render_c, ".json": render_json}
"""The function that renders a portfolio as a file's text, by the file's extension."""

_ASK_EVERY_S = 0.5


class CannotWrite(KtunedError):
    """The portfolio cannot be written to a requested file."""

    code = "usage"


@click.command()
@click.argument("kernel")
@click.option("--configs", type=WholeNumber(1, 16), help="At most this many configs. Default: 4.")
@click.option(
    "--loss",
    metavar="LOSS",
    callback=read_share,
    help="Expected loss that is small enough for fewer configs: 2% or 0.02. Default: 2%.",
)
@click.option("--tunings", type=WholeNumber(1, 1000), help="At most this many problems are tuned. Default: 12.")
@click.option("--device", metavar="DEVICE", help="The device (cuda:1) or model to measure on. Default: the first.")
@click.option("--objective", metavar="OBJECTIVE", help="What configs are judged by. Default: the kernel file's.")
@click.option("--show", is_flag=True, help="Show the portfolio that there is; measure nothing.")
@click.option(
    "--output",
    "-o",
    "files",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    help="Write it as code too: FILE.py, FILE.h or FILE.json. May be given several times.",
)
@json_option
def portfolio(
    kernel: str,
    configs: int | None,
    loss: float | None,
    tunings: int | None,
    device: str | None,
    objective: str | None,
    show: bool,
    files: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Make few configs that serve many problems of a kernel.

    A small decision tree over a problem's fields chooses among them. The problems are those in the kernel file's
    portfolio=dict(over=…), or else its problems. Some are tuned, where most time is likely to be lost first; the useful
    configs are measured on all. Lookups of other problems are answered by the tree from then on, as near, with the loss
    that is expected.
    """
    for file in files:
        if file.suffix not in FORMATS:
            raise click.UsageError(f"{file}: the name ends in none of {', '.join(FORMATS)}")
    with Client() as client:
        if not show:
            params = PortfolioParams(
                kernel, None, device, objective, make=True, configs=configs, loss=loss, tunings=tunings
            )
            _make_portfolio(client, params, as_json=as_json)
        answer = call_method(client, PORTFOLIO, PortfolioParams(kernel))
    found = _choose_portfolio(answer, device, objective)
    fitted = Portfolio.from_wire(structs.asdict(found))
    for file in files:
        try:
            file.write_text(FORMATS[file.suffix](answer.kernel, found.device, fitted))
        except OSError as error:
            raise CannotWrite(f"{file} cannot be written: {error.strerror}") from error
    if as_json:
        output.emit_line(render_json(answer.kernel, found.device, fitted).rstrip())
        return Exit.DONE
    for line in [*_describe_portfolio(answer.kernel, found, fitted), *(f"written: {file}" for file in files)]:
        output.emit_line(line)
    return Exit.DONE


def _make_portfolio(client: Client, params: PortfolioParams, *, as_json: bool) -> None:
    """Request a portfolio, and wait until it is made.

    Raises:
        UsageError: the portfolio could not be made.
    """
    answer = call_method(client, PORTFOLIO, params)
    before, waiting = "", threading.Event()
    while (build := answer.making[-1]).is_under_way:
        line = (
            f"{text.format_count(build.tuned, 'problem')} tuned, {text.format_count(build.measured, 'config')} measured"
        )
        if line != before and not as_json:
            output.emit_line(f"{build.kernel} on {build.device}: {line} for {build.problems} problems")
            before = line
        waiting.wait(_ASK_EVERY_S)
        answer = call_method(client, PORTFOLIO, PortfolioParams(params.kernel))
    if build.state != "done":
        raise UsageError(f"no portfolio was made: {build.message}", hint="`ktuned results KERNEL` lists the trials")


def _choose_portfolio(answer: PortfolioAnswer, device: str | None, objective: str | None) -> PortfolioInfo:
    """Return the portfolio for the given device and objective.

    Raises:
        UsageError: there is none.
    """
    found = [
        known
        for known in answer.portfolios
        if objective in (None, known.objective) and (device is None or device == known.device or ":" in device)
    ]
    if not found:
        raise UsageError(f"{answer.kernel} has no portfolio", hint="leave out --show to make one")
    return max(found, key=lambda known: known.created)


def _describe_portfolio(kernel: str, found: PortfolioInfo, fitted: Portfolio) -> Iterator[str]:
    """Yield the lines that show a portfolio: its configs, its tree, its losses."""
    configs = text.format_count(len(fitted.configs), "config")
    yield f"{kernel} on {found.device}: {configs} for {fitted.problems} problems"
    yield f"expected loss {fitted.expected_loss:.1%}; of one config for all {fitted.single_loss:.1%}"
    if not found.current:
        yield "it was made before the last change of the kernel, its toolchain or its device"
    for number, config in enumerate(fitted.configs):
        yield f"  {number}  {text.format_values(json.loads(config))}"
    for depth, line in describe_tree(fitted.tree, fitted.configs):
        yield f"{'  ' * (depth + 1)}{line}"
