"""CPython's own tests as user code in a sandbox: `cargo xtask regrtest` fetches them and calls this.

Which modules run is in `modules.toml`, and which of their tests may fail and why. The run fails if a test fails that is
not explained there, if an explanation is for none that fails, or if more than 3 % of all tests fail.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import hayfork

#: Where the tests are put, in the sandbox.
FOLDER = "/home/user/lib"
#: The share of tests that may fail.
ALLOWED = 0.03
#: Python with these in front of the few that the image has, also in what the tests start themselves.
PYTHON = ["env", f"PYTHONPATH={FOLDER}", "python3"]
UNPACK = f"import tarfile; tarfile.open('tests.tar').extractall({FOLDER!r}, filter='data')"
FAILED = re.compile(r"^(?:FAIL|ERROR): \S+ \(([\w.]+)\)", re.MULTILINE)
TOTAL = re.compile(r"^Total tests: (.*)$", re.MULTILINE)


@dataclass
class Module:
    """What came out of one module."""

    name: str
    ran: int = 0
    skipped: int = 0
    failed: set[str] = field(default_factory=set)
    seconds: float = 0.0
    #: Why there is no result, if there is none.
    broken: str = ""


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=Path, required=True, help="an archive with the folder `test`")
    parser.add_argument("--backend", help="the backend")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the results as a page")
    parser.add_argument("modules", nargs="*", help="only these modules")
    options = parser.parse_args()
    settings = tomllib.loads((Path(__file__).parent / "modules.toml").read_text())
    explained = {tests: entry["why"] for entry in settings["explained"] for tests in entry["tests"]}
    unknown = set(options.modules) - set(settings["modules"])
    if unknown:
        parser.error(f"not in modules.toml: {', '.join(sorted(unknown))}")
    names = options.modules or settings["modules"]

    with hayfork.Sandbox.create(memory_mb=settings["memory_mb"], backend=options.backend) as sandbox:
        version = sandbox.run_code("import platform; platform.python_version()").text or "?"
        where = f"CPython {version.strip(chr(39))}, backend {sandbox.runs_on}"
        print(where)
        unpack(sandbox, options.tests)
        results = [run(sandbox, name, settings["seconds"]) for name in names]

    # Those of modules that did not run are not looked at.
    expected = {tests: why for tests, why in explained.items() if tests.split(".")[1] in names}
    text, good = report(results, expected, where)
    print(text)
    if options.write:
        options.write.write_text(text)
    return 0 if good else 1


def unpack(sandbox: hayfork.Sandbox, archive: Path) -> None:
    """Bring the tests into the sandbox."""
    sandbox.files.write("tests.tar", archive.read_bytes())
    sandbox.commands.run(["mkdir", "-p", FOLDER], check=True)
    sandbox.commands.run(["python3", "-c", UNPACK], timeout=120, check=True)
    sandbox.files.remove("tests.tar")


def run(sandbox: hayfork.Sandbox, name: str, seconds: float) -> Module:
    """Run one module in a process of its own."""
    began = time.monotonic()
    done = sandbox.commands.run([*PYTHON, "-m", "test", name, "--verbose3"], timeout=seconds)
    result = Module(name, seconds=time.monotonic() - began)
    total = TOTAL.search(done.stdout)
    if total is None or done.status not in ("ok", "error"):
        result.broken = f"status {done.status}, exit code {done.exit_code}: {(done.stdout + done.stderr)[-2000:]}"
    else:
        counts = {key: int(value.replace(",", "")) for key, value in re.findall(r"(\w+)=([\d,]+)", total[1])}
        result.ran, result.skipped = counts.get("run", 0), counts.get("skipped", 0)
        result.failed = set(FAILED.findall(done.stdout) + FAILED.findall(done.stderr))
        if done.exit_code != 0 and not result.failed:
            result.broken = f"exit code {done.exit_code}: {done.stdout[-2000:]}"
    how = result.broken.splitlines()[0] if result.broken else f"{len(result.failed)} failed"
    print(f"{name:<40} {result.ran:>6} run {result.skipped:>5} skipped  {how}  {result.seconds:.1f} s", flush=True)
    for test in sorted(result.failed):
        print(f"    {test}")
    return result


def report(results: list[Module], expected: dict[str, str], where: str) -> tuple[str, bool]:
    """The results as a page, and whether they are good."""
    ran = sum(result.ran for result in results)
    failed = set().union(*(result.failed for result in results))
    broken = [result for result in results if result.broken]
    why = {test: reason for tests, reason in expected.items() for test in failed if fnmatchcase(test, tests)}
    surprising = failed - why.keys()
    wrong = {tests for tests in expected if not any(fnmatchcase(test, tests) for test in failed)}
    share = len(failed) / max(ran, 1)
    good = not surprising and not wrong and not broken and share <= ALLOWED
    lines = [
        "# CPython's own tests inside a sandbox",
        "",
        "`cargo xtask regrtest --write` made this page. The tests are those of Debian's package of CPython's test",
        "suite, run by uid 1000 in a sandbox as `sandbox.commands.run` runs any program.",
        "",
        f"{where}: {len(results)} modules, {ran} tests, {sum(r.skipped for r in results)} of them skipped by their own"
        f" rules, {len(failed)} failed ({share:.2%}).",
        "",
        "| module | run | skipped | failed | seconds |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        bad = "no result" if result.broken else str(len(result.failed))
        lines.append(f"| {result.name} | {result.ran} | {result.skipped} | {bad} | {result.seconds:.0f} |")
    lines += ["", "## Tests that fail, and why", ""]
    for reason in dict.fromkeys(expected.values()):
        tests = sorted(test for test in failed if why.get(test) == reason)
        if tests:
            lines += [f"{reason}:", "", *(f"- `{test}`" for test in tests), ""]
    lines += [f"Not explained: `{test}`" for test in sorted(surprising)]
    lines += [f"Explained, but passes: `{tests}`" for tests in sorted(wrong)]
    for result in broken:
        lines += ["", f"{result.name} has no result:", "```", result.broken, "```"]
    return "\n".join(lines) + "\n", good


if __name__ == "__main__":
    sys.exit(main())
