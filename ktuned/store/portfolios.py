"""Table of portfolios: the newest of each kernel, device model and objective."""

from __future__ import annotations

import sqlite3

import msgspec

from ktuned.model import Objective
from ktuned.protocol import PortfolioDocument
from ktuned.store.reader import Reader, Row


class StoredPortfolio(msgspec.Struct, frozen=True):
    """A portfolio's document, and the state (digests) of the kernel, toolchain and device that it was fitted in."""

    kernel: str
    device: str
    objective: Objective
    state: str
    document: PortfolioDocument
    created: float


def load_portfolios(reader: Reader, kernel: str) -> list[StoredPortfolio]:
    """Return a kernel's portfolios."""
    return reader.fetch_values(
        _decode_portfolio, "SELECT * FROM portfolios WHERE kernel = ? ORDER BY device, objective", kernel
    )


def all_of(reader: Reader) -> list[StoredPortfolio]:
    """Return the portfolios of all kernels."""
    return reader.fetch_values(_decode_portfolio, "SELECT * FROM portfolios ORDER BY kernel, device, objective")


def save_portfolio(connection: sqlite3.Connection, portfolio: StoredPortfolio) -> None:
    """Keep a portfolio in place of the one before."""
    connection.execute(
        "INSERT OR REPLACE INTO portfolios VALUES (?, ?, ?, ?, ?, ?)",
        (
            portfolio.kernel,
            portfolio.device,
            portfolio.objective,
            portfolio.state,
            msgspec.json.encode(portfolio.document).decode(),
            portfolio.created,
        ),
    )


def _decode_portfolio(row: Row) -> StoredPortfolio:
    kernel, device, objective, state, document, created = row
    try:
        found = msgspec.json.decode(document, type=PortfolioDocument)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    return StoredPortfolio(kernel, device, Objective(objective), state, found, created)
