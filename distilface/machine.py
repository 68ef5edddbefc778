"""Facts about the machine a number was measured on, and whether something else was running meanwhile.

Everything is read from files and the standard library; nothing here imports torch or onnxruntime. A fact that can't be
read is None, never guessed.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from distilface.config import StrictModel

# The sets that decide how fast, and how exactly, an INT8 or 16-bit product runs; names as Linux spells them.
RELEVANT = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16",
            "asimddp", "i8mm", "bf16", "sve")
_LIBRARIES = ("distilface", "onnxruntime", "onnxruntime-gpu", "numpy", "tokenizers", "torch", "transformers",
              "sentence-transformers", "openvino")
_SYSCTL = {"hw.optional.arm.FEAT_DotProd": "asimddp", "hw.optional.arm.FEAT_I8MM": "i8mm",
           "hw.optional.arm.FEAT_BF16": "bf16", "hw.optional.avx2_0": "avx2", "hw.optional.avx512f": "avx512f",
           "hw.optional.avx512vnni": "avx512_vnni"}
_WINDOWS = {40: "avx2", 41: "avx512f", 43: "asimddp"}  # PF_* of IsProcessorFeaturePresent
_NO_LIMIT = 1 << 60  # cgroup v1 writes a number near 2**63 for "unlimited"
BUSY_LIMIT = 0.10
STEAL_LIMIT = 0.02


class MachineFacts(StrictModel):
    """What a reader needs to judge a time: the processor, how much of it we may use, and the software."""

    cpu: str | None
    architecture: str
    instruction_sets: tuple[str, ...] | None
    cores_usable: int
    cores_present: int | None
    governor: str | None
    memory_bytes: int | None
    gpu: str | None = None
    os: str
    python: str
    libraries: dict[str, str]
    load_average: float | None


class Disturbance(StrictModel):
    """What else used the processor during a run.

    Attributes:
        load_before: one-minute load average at the start.
        other_busy: share of the machine's processor time that neither we nor our children used, 0..1.
        steal: share that the hypervisor gave to others, 0..1.
        warnings: sentences for the reader; empty when the run was quiet.
    """

    load_before: float | None
    load_after: float | None
    other_busy: float | None
    steal: float | None
    warnings: tuple[str, ...] = ()


def machine_facts(root: Path = Path("/"), cores: int | None = None, gpu: bool = False) -> MachineFacts:
    """Read the facts of this machine.

    Args:
        root: where ``proc`` and ``sys`` lie; tests give a folder of their own.
        cores: usable cores; by default affinity and cgroup quota are asked.
        gpu: also name the NVIDIA GPU.
    """
    if cores is None:
        from distilface.cpu import available_cpus

        cores = available_cpus()
    cpu, flags = _processor(root)
    return MachineFacts(
        cpu=cpu, architecture=platform.machine() or "unknown", instruction_sets=flags,
        cores_usable=cores, cores_present=os.cpu_count(),
        governor=_read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory_bytes=memory_limit(root), gpu=_gpu() if gpu else None,
        os=platform.platform(terse=True), python=platform.python_version(), libraries=library_versions(),
        load_average=_load_average(),
    )


def library_versions() -> dict[str, str]:
    """Versions of the libraries that compute, those that are installed; read from metadata, nothing is imported."""
    found = {name: next(iter(metadata.distributions(name=name)), None) for name in _LIBRARIES}
    return {name: distribution.version for name, distribution in found.items() if distribution is not None}


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes of memory we may use: the machine's, or the container's limit when that is smaller."""
    meminfo = (_read(root / "proc/meminfo") or "").splitlines()
    limits = [int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemTotal:")]
    for file in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(root / file)
        if text is not None and text.isdigit() and int(text) < _NO_LIMIT:
            limits.append(int(text))
    if not limits and sys.platform == "darwin":
        limits = [int(value) for value in _sysctl("hw.memsize").values()]
    return min(limits) if limits else None


def instruction_sets(root: Path = Path("/")) -> tuple[str, ...] | None:
    """Those of `RELEVANT` that the processor has; None where that can't be read (Windows tells too few of them)."""
    return None if sys.platform == "win32" else _processor(root)[1]


def _processor(root: Path) -> tuple[str | None, tuple[str, ...] | None]:
    """Name and relevant instruction sets; from /proc/cpuinfo, else from what macOS or Windows tell."""
    text = _read(root / "proc/cpuinfo")
    if text is not None:
        return _parse_cpuinfo(text)
    if sys.platform == "darwin":
        names = _sysctl("machdep.cpu.brand_string")
        flags = {flag for key, flag in _SYSCTL.items() if _sysctl(key).get(key) == "1"}
        return names.get("machdep.cpu.brand_string"), _ordered(flags)
    if sys.platform == "win32":
        import ctypes

        present = ctypes.windll.kernel32.IsProcessorFeaturePresent
        return platform.processor() or None, _ordered({flag for code, flag in _WINDOWS.items() if present(code)})
    return platform.processor() or None, None


def _parse_cpuinfo(text: str) -> tuple[str | None, tuple[str, ...] | None]:
    """x86 writes ``model name`` and ``flags``; ARM writes ``Features`` and often no name at all."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            fields.setdefault(key.strip().lower(), value.strip())
    name = next((fields[key] for key in ("model name", "hardware", "model") if fields.get(key)), None)
    if name is None and "cpu part" in fields:
        name = f"ARM implementer {fields.get('cpu implementer', '?')} part {fields['cpu part']}"
    flags = fields.get("flags", fields.get("features"))
    return name, None if flags is None else _ordered(set(flags.split()))


def _ordered(flags: set[str]) -> tuple[str, ...]:
    return tuple(flag for flag in RELEVANT if flag in flags)


def _sysctl(key: str) -> dict[str, str]:
    done = subprocess.run(["/usr/sbin/sysctl", "-n", key], capture_output=True, text=True, check=False)
    return {key: done.stdout.strip()} if done.returncode == 0 else {}


def _gpu() -> str | None:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else None


def _load_average() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):  # Windows has none
        return None


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


@dataclass(frozen=True)
class _Moment:
    total: int
    busy: int
    steal: int
    own_seconds: float
    clock: float


class LoadWatch:
    """Watches the processor from construction to `finish`.

    The load average lags by a minute, so the judgement comes from the kernel's own counters (/proc/stat): busy time of
    all processors, minus the time of this process and of its children that have been waited for.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._load = _load_average()
        self._start = self._moment()

    def finish(self) -> Disturbance:
        """Call it after the children were waited for: only then is their time known."""
        start, end = self._start, self._moment()
        if start is None or end is None or end.total <= start.total:
            return _judge(self._load, _load_average(), None, None)
        total = end.total - start.total
        ticks = total / max(1e-9, end.clock - start.clock)  # of all processors together, a second
        own = (end.own_seconds - start.own_seconds) * ticks / max(1, self._processors())
        other = max(0.0, (end.busy - start.busy) - own) / total
        return _judge(self._load, _load_average(), other, (end.steal - start.steal) / total)

    def _moment(self) -> _Moment | None:
        line = (_read(self._root / "proc/stat") or "").partition("\n")[0].split()
        if len(line) < 9 or line[0] != "cpu":
            return None
        user, nice, system, idle, iowait, irq, softirq, steal = (int(value) for value in line[1:9])
        busy = user + nice + system + irq + softirq
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        return _Moment(busy + idle + iowait + steal, busy, steal, own, time.perf_counter())

    def _processors(self) -> int:
        lines = (_read(self._root / "proc/stat") or "").splitlines()
        return sum(line.startswith("cpu") and line[3:4].isdigit() for line in lines)


def _judge(before: float | None, after: float | None, other: float | None, steal: float | None) -> Disturbance:
    warnings = []
    if other is not None and other > BUSY_LIMIT:
        warnings.append(f"other programs used {other:.0%} of the processor during this run: absolute times are too "
                        "high, ratios less so; repeat on a quiet machine")
    if steal is not None and steal > STEAL_LIMIT:
        warnings.append(f"the hypervisor took {steal:.0%} of the processor time for other guests; repeat the run")
    if other is None and before is not None and before > 0.5 * (os.cpu_count() or 1):
        warnings.append(f"the load average was {before:.2f} when the run began: something else was running")
    rounded = (None if value is None else round(value, 4) for value in (other, steal))
    return Disturbance(load_before=before, load_after=after, other_busy=next(rounded), steal=next(rounded),
                       warnings=tuple(warnings))
