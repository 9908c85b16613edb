"""Numbers and foreign names, as people read them. Pure."""

from __future__ import annotations

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_AGE_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


def counted(count: int, noun: str) -> str:
    """A number of things: `1 object`, `1,204 objects`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def bytes_text(byte_count: float) -> str:
    """A size in binary units: `532 B`, `5.9 MiB`."""
    value, unit = float(byte_count), _BYTE_UNITS[0]
    for unit in _BYTE_UNITS:
        if value < 1024 or unit == _BYTE_UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def age_text(age_s: float | None) -> str:
    """A duration in the largest unit that fits: `12 s`, `5 min`, `3.2 h`, `41 d`; `-` for None."""
    if age_s is None:
        return "-"
    for unit_s, unit in _AGE_UNITS:
        if age_s >= unit_s:
            value = age_s / unit_s
            return f"{value:.0f} {unit}" if value >= 10 or unit == "min" else f"{value:.1f} {unit}"
    return f"{max(0.0, age_s):.0f} s"


def printable(text: str) -> str:
    """Foreign text without control characters: what is not printable is escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
