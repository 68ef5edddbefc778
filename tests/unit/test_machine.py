"""Machine facts from faked kernel files, and the judgement on other load."""

from __future__ import annotations

from pathlib import Path

import pytest

from distilface.machine import LoadWatch, library_versions, machine_facts, memory_limit

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Core(TM) i7-1165G7
flags\t\t: fpu sse2 avx2 avx512f avx512_vnni avx512_bf16_not_really nx

processor\t: 1
model name\t: something else
flags\t\t: fpu
"""
ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes crc32 asimddp i8mm bf16
CPU implementer\t: 0x41
CPU part\t: 0xd4f
"""


def write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def test_x86_names_the_processor_and_only_whole_flags(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", X86)
    write(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
    facts = machine_facts(tmp_path, cores=3)
    assert facts.cpu == "Intel(R) Core(TM) i7-1165G7"
    assert facts.instruction_sets == ("avx2", "avx512f", "avx512_vnni")
    assert (facts.cores_usable, facts.governor) == (3, "powersave")


def test_arm_has_features_and_no_model_name(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", ARM)
    facts = machine_facts(tmp_path, cores=1)
    assert facts.instruction_sets == ("asimddp", "i8mm", "bf16")
    assert facts.cpu == "ARM implementer 0x41 part 0xd4f"
    assert facts.governor is None


@pytest.mark.parametrize(("files", "expected"), [
    ({"proc/meminfo": "MemTotal:       2048 kB\nMemFree: 1 kB\n"}, 2048 * 1024),
    ({"proc/meminfo": "MemTotal: 2048 kB\n", "sys/fs/cgroup/memory.max": "1000000\n"}, 1_000_000),
    ({"proc/meminfo": "MemTotal: 2048 kB\n", "sys/fs/cgroup/memory.max": "max\n"}, 2048 * 1024),
    ({"proc/meminfo": "MemTotal: 2048 kB\n",
      "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 2048 * 1024),
    ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "500000\n"}, 500_000),
])
def test_memory_is_the_smaller_of_machine_and_container(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    for name, text in files.items():
        write(tmp_path, name, text)
    assert memory_limit(tmp_path) == expected


def stat(user: int, idle: int, steal: int) -> str:
    per_cpu = "cpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n"
    return f"cpu  {user} 0 0 {idle} 0 0 0 {steal} 0 0\n{per_cpu}"


def test_other_load_and_steal_are_shares_of_all_processor_time(tmp_path: Path) -> None:
    write(tmp_path, "proc/stat", stat(0, 0, 0))
    watch = LoadWatch(tmp_path)
    write(tmp_path, "proc/stat", stat(user=400_000, idle=500_000, steal=100_000))
    found = watch.finish()
    # This process uses some thousandths of what 1,000,000 faked ticks in no time amount to.
    assert found.other_busy is not None and 0 <= found.other_busy <= 0.4
    assert found.steal == pytest.approx(0.1)
    assert any("hypervisor took 10%" in warning for warning in found.warnings)


def test_a_quiet_machine_is_not_warned_about(tmp_path: Path) -> None:
    write(tmp_path, "proc/stat", stat(0, 0, 0))
    watch = LoadWatch(tmp_path)
    write(tmp_path, "proc/stat", stat(user=1, idle=99_999, steal=0))
    assert watch.finish().warnings == ()


def test_a_busy_machine_is_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0])
    monkeypatch.setattr("distilface.machine.time.perf_counter", lambda: next(clock))
    write(tmp_path, "proc/stat", stat(0, 0, 0))
    watch = LoadWatch(tmp_path)
    write(tmp_path, "proc/stat", stat(user=1500, idle=500, steal=0))  # 2 processors x 10 s x 100 ticks
    found = watch.finish()
    assert found.other_busy == pytest.approx(0.75, abs=0.05)
    assert "other programs used 7" in found.warnings[0]


def test_without_counters_nothing_is_claimed(tmp_path: Path) -> None:
    found = LoadWatch(tmp_path).finish()
    assert (found.other_busy, found.steal) == (None, None)


def test_library_versions_hold_installed_ones_only() -> None:
    import numpy

    versions = library_versions()
    assert versions["numpy"] == numpy.__version__
    assert None not in versions.values()
