"""Returns as text, for logs and reports."""

from __future__ import annotations


def return_text(value: float) -> str:
    """Return a mean return with one decimal, or with three if it is between -10 and 10.

    A return of 1 is the best of many games and grid worlds, so there 0.96 and 1.0 must differ.

    Examples:
        >>> return_text(487.25), return_text(-1234.5), return_text(0.955)
        ('487.2', '-1234.5', '0.955')
    """
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"
