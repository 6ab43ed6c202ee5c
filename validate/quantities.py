"""Sizes, rates and times as people write them on a command line."""

from __future__ import annotations

import re

from .errors import UserError

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "y": 365 * 86400}


def parse_size(flag: str, given: str) -> int:
    """Bytes of `5GB` or `512MiB`. Raises UserError, naming the flag, for what is no size of a byte or more."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?", given, re.IGNORECASE)
    number = int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()]) if match else 0
    if number < 1:
        raise UserError(f"{flag} {given}: expected a size such as 5GB or 512MiB")
    return number


def parse_rate(flag: str, given: str) -> int:
    """Bytes a second of `2GB/s`, or `2GB`. Raises UserError, naming the flag."""
    try:
        return parse_size(flag, given.removesuffix("/s"))
    except UserError as error:
        raise UserError(f"{flag} {given}: expected bytes a second, such as 2GB/s") from error


def parse_count(flag: str, given: str) -> int:
    """A number such as `8e9`, `8B` (billion), `125M` or `4096`. Raises UserError, naming the flag."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)\s*([kmbt]?)", given, re.IGNORECASE)
    powers = {"": 0, "k": 1, "m": 2, "b": 3, "t": 4}
    number = round(float(match[1]) * 1000 ** powers[match[2].lower()]) if match else 0
    if number < 1:
        raise UserError(f"{flag} {given}: expected a number such as 8B, 125M or 4096")
    return number


def parse_seconds(flag: str, given: str) -> float:
    """Seconds of `90s`, `12h`, `30d` or `5y`. Raises UserError, naming the flag, for what is no time above zero."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdy])", given, re.IGNORECASE)
    seconds = float(match[1]) * _SECONDS[match[2].lower()] if match else 0.0
    if seconds <= 0:
        raise UserError(f"{flag} {given}: expected a time with its unit, such as 90s, 12h, 30d or 5y")
    return seconds


def shown_seconds(seconds: float) -> str:
    """`0.25 s`, `12 min`, `3.5 h`, `41 d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds >= 0.001 else f"{seconds * 1e6:.3g} µs"
