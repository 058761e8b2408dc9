"""The environment of a measurement: what the system tells about its hypervisor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritium.perf.records.environment import _virtual

MACHINES: list[tuple[dict[str, str], str]] = [
    ({}, ""),
    ({"proc/cpuinfo": "flags\t\t: fpu sse avx2\n"}, ""),
    ({"proc/cpuinfo": "flags\t\t: fpu hypervisor avx2\n"}, "a hypervisor"),
    ({"proc/cpuinfo": "flags\t\t: fpu hypervisor\n", "sys/class/dmi/id/sys_vendor": "Acme Cloud"}, "Acme Cloud"),
    ({"sys/class/dmi/id/product_name": "VMware Virtual Platform"}, "VMware"),
    ({"sys/class/dmi/id/sys_vendor": "Amazon EC2", "sys/class/dmi/id/product_name": "m7g.metal"}, ""),
    ({"sys/class/dmi/id/sys_vendor": "Amazon EC2", "sys/class/dmi/id/product_name": "m7g.large"}, "Amazon EC2"),
    ({"sys/class/dmi/id/sys_vendor": "Dell Inc."}, ""),
    ({"sys/hypervisor/type": "xen"}, "xen"),
    ({"proc/device-tree/compatible": "linux,dummy-virt\0"}, "a hypervisor, by the device tree"),
    ({"proc/device-tree/compatible": "acme,board\0", "proc/device-tree/vmgenid/reg": ""}, "a hypervisor, by the device tree"),
    ({"proc/device-tree/hypervisor/compatible": "linux,kvm\0"}, "KVM"),
    ({"proc/device-tree/compatible": "raspberrypi,4-model-b\0brcm,bcm2711\0"}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("files", "name"), MACHINES)
def test_a_hypervisor_is_named_by_any_of_its_sources(tmp_path: Path, files: dict[str, str], name: str) -> None:
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert _virtual(tmp_path) == name
