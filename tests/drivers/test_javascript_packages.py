"""The root image's recipe carries every npm file that the JavaScript driver loads."""

from __future__ import annotations

import json
import shutil
import tempfile
import tomllib
from pathlib import Path

import driver_harness
import pytest
from conftest import MakeDriver

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = REPOSITORY / "initramfs" / "node_modules"
PLACE = "/usr/lib/node_modules/"


def test_driver_works_with_the_files_of_the_recipe_alone(
    make_driver: MakeDriver,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = Path(tempfile.mkdtemp(prefix="hayfork-image-"))  # pytest's own folders are closed to uid 1000
    request.addfinalizer(lambda: shutil.rmtree(root))
    root.chmod(0o755)
    recipe = tomllib.loads((REPOSITORY / "initramfs" / "images" / "javascript" / "recipe.toml").read_text())
    for npm in recipe["npm"]:
        for copy in npm["install"]:
            if not copy["to"].startswith(PLACE):
                continue
            source = PACKAGES / npm["package"] / copy["from"]
            target = root / "node_modules" / copy["to"].removeprefix(PLACE)
            target.parent.mkdir(parents=True, exist_ok=True)
            if copy["from"].endswith("/"):
                shutil.copytree(source, target)
            else:
                shutil.copy(source, target)
    shutil.copytree(REPOSITORY / "initramfs" / "drivers" / "javascript", root / "drivers" / "javascript")
    monkeypatch.setattr(driver_harness, "DRIVERS", root / "drivers")
    driver = make_driver("javascript")
    assert driver.run("1 + 1").value == "2"
    assert driver.run("const a: number = 3; enum E { A = 4 }\n[a, E.A]").value == "[ 3, 4 ]"
    # Sucrase formats a message for this, which loads lines-and-columns.
    assert driver.run("const a: = 3").error["name"] == "SyntaxError"
    assert driver.run("const f = (a: string) => a; f.toString()").value == '"(a) => a"'


def test_versions_are_those_of_the_lock_file() -> None:
    locked = json.loads((REPOSITORY / "initramfs" / "package-lock.json").read_text())["packages"]
    recipe = tomllib.loads((REPOSITORY / "initramfs" / "images" / "javascript" / "recipe.toml").read_text())
    parsers = [npm for npm in recipe["npm"] if npm["install"][0]["to"].startswith(PLACE)]
    assert {npm["package"] for npm in parsers} == {"acorn", "sucrase", "lines-and-columns", "ts-interface-checker"}
    for npm in parsers:
        assert npm["version"] == locked[f"node_modules/{npm['package']}"]["version"]
