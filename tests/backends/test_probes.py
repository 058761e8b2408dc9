"""Which devices packages would bring here: by the system, the processor and the drivers, without any of the libraries."""

from __future__ import annotations

import sys

import pytest

from tritium import backends
from tritium.backends import Absent, probes
from tritium.errors import EXTRAS, install_command


@pytest.fixture
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Take away torch and mlx, and a driver."""
    find = probes.importlib.util.find_spec
    monkeypatch.setattr(probes.importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    monkeypatch.setattr(probes, "_DRIVERS", ("/no/such/driver",))
    return monkeypatch


@pytest.mark.parametrize(
    ("system", "machine", "has_driver", "kinds"),
    [
        ("Linux", "x86_64", False, {"mlx": "mlx", "torch": "torch"}),
        ("Linux", "aarch64", True, {"mlx": "mlx", "torch": "torch", "cuda": "cuda"}),
        ("Darwin", "arm64", False, {"mlx": "mlx", "torch": "torch", "mps": "torch"}),
        ("Darwin", "x86_64", False, {"torch": "torch", "mps": "torch"}),
    ],
)
def test_devices_that_packages_would_bring(
    system: str, machine: str, has_driver: bool, kinds: dict[str, str], without_libraries: pytest.MonkeyPatch
) -> None:
    without_libraries.setattr(probes.platform, "system", lambda: system)
    without_libraries.setattr(probes.platform, "machine", lambda: machine)
    if has_driver:
        without_libraries.setattr(probes, "_DRIVERS", ("/no/such/driver", "/proc" if system == "Linux" else "/"))
    assert backends.installable() == kinds
    assert set(kinds.values()) <= set(EXTRAS)
    listed = {d.name: d for d in backends.devices() if not d.available}
    assert set(kinds) <= set(listed)
    assert all(listed[name].remedy.startswith(install_command(extra)) for name, extra in kinds.items())


@pytest.mark.usefixtures("without_libraries")
def test_mps_on_linux_is_not_a_matter_of_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes.platform, "system", lambda: "Linux")
    found = probes.mps_units()
    assert found == Absent("mps is the GPU of a Mac, and this is not macOS", "use device='torch' or device='cpu'")


def test_a_library_that_is_damaged_is_not_brought_by_installing_it(without_libraries: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise OSError("wrong ELF class")

    without_libraries.setattr(probes.importlib.util, "find_spec", lambda name: probes)
    without_libraries.setattr(probes.importlib, "import_module", fails)
    found = probes.torch_units()
    assert isinstance(found, Absent)
    assert (found.remedy, found.extra) == ("pip install torch --force-reinstall", "")


def test_a_device_that_is_here_is_not_named() -> None:
    here = {device.type for device in backends.present()}
    assert "cpu" in here
    assert not here & set(backends.installable())
