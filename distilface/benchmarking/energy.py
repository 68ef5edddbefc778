"""Energy by the processor's own counters (RAPL), where the system lets them be read.

They count the whole package, whoever uses it, so they say something on a quiet machine only.
"""

from __future__ import annotations

from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """Joules that all processor packages used since `start`.

    Args:
        root: where the powercap tree lies.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        # intel-rapl:0 is a package, on AMD as well; intel-rapl:0:1 is a part of it, counted there already.
        self._packages = [folder for folder in sorted(root.glob("intel-rapl:*"))
                          if folder.name.count(":") == 1 and _read(folder / "energy_uj") is not None]
        self._before: list[int | None] = []

    @property
    def readable(self) -> bool:
        """Whether there is a counter and this process may read it (often root alone may)."""
        return bool(self._packages)

    def start(self) -> None:
        """Begin to count."""
        self._before = [_read(folder / "energy_uj") for folder in self._packages]

    def joules(self) -> float | None:
        """Since `start`; None where a counter can't be read. A counter that began anew is counted on."""
        total = 0
        for folder, before in zip(self._packages, self._before, strict=True):
            after = _read(folder / "energy_uj")
            if before is None or after is None:
                return None
            if after < before:
                after += (_read(folder / "max_energy_range_uj") or 0) + 1
            total += after - before
        return total / 1e6 if self._packages else None


def _read(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
