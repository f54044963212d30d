"""What came of the tests."""

from __future__ import annotations

import enum
import json
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path

_LOG_TAIL = 60


class Outcome(enum.Enum):
    """How an attempt at a test ended."""

    PASSED = "pass"
    FAILED = "fail"
    OUT_OF_TIME = "timeout"
    NO_MACHINE = "no machine"
    """L1 did not come up, or died."""


@dataclass(frozen=True)
class Attempt:
    """One run of a test.

    Attributes:
        outcome: How it ended.
        seconds: How long it took, of the host's time.
        log: What it printed; L1's console if that has something to say.
    """

    outcome: Outcome
    seconds: float
    log: str


@dataclass
class Result:
    """A test and all attempts at it. The last one counts; a test that needed a second one is reported as such."""

    test: str
    attempts: list[Attempt] = field(default_factory=list)
    skipped: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the last attempt passed."""
        return bool(self.attempts) and self.attempts[-1].outcome is Outcome.PASSED

    @property
    def flaky(self) -> bool:
        """Whether it passed, but not at once."""
        return self.passed and len(self.attempts) > 1


class Report:
    """Collects results from several threads, prints each attempt, and keeps the logs in a folder."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._lock = threading.Lock()
        self._results: dict[str, Result] = {}
        self._remarks: list[str] = []
        logs.mkdir(parents=True, exist_ok=True)
        for old in logs.glob("*.log"):
            old.unlink()

    def attempt(self, test: str, attempt: Attempt) -> None:
        """Takes one attempt at a test."""
        with self._lock:
            result = self._results.setdefault(test, Result(test))
            result.attempts.append(attempt)
            number = len(result.attempts)
            again = "" if number == 1 else f" (attempt {number})"
            print(f"{attempt.outcome.value.upper():>10} [{attempt.seconds:7.2f}s] {test}{again}", flush=True)
            if attempt.outcome is not Outcome.PASSED:
                print("\n".join(f"           | {line}" for line in attempt.log.splitlines()[-_LOG_TAIL:]), flush=True)
            name = re.sub(r"[^\w.-]+", "_", test)[-180:]
            (self._logs / f"{name}.{number}.log").write_text(attempt.log, errors="replace")

    def skip(self, test: str, reason: str) -> None:
        """Takes a test that was not run."""
        with self._lock:
            self._results[test] = Result(test, skipped=reason)
            print(f"      SKIP            {test}: {reason}", flush=True)

    def remark(self, text: str) -> None:
        """Takes something that belongs to no test, such as a machine that had to be started again."""
        with self._lock:
            self._remarks.append(text)
            print(f"    REMARK            {text}", flush=True)

    @property
    def results(self) -> list[Result]:
        """All results so far, by name."""
        with self._lock:
            return sorted(self._results.values(), key=lambda result: result.test)

    def close(self, path: Path | None) -> bool:
        """Prints the sum, writes it as JSON, and says whether all is well: something ran, and nothing failed."""
        results = self.results
        passed = [each for each in results if each.passed]
        failed = [each for each in results if not each.passed and each.skipped is None]
        skipped = [each for each in results if each.skipped is not None]
        flaky = [each for each in passed if each.flaky]
        for each in flaky:
            print(f"     FLAKY            {each.test}: passed at attempt {len(each.attempts)}")
        for each in failed:
            print(f"    FAILED            {each.test}")
        again = f" ({len(flaky)} not at once)" if flaky else ""
        print(f"rig: {len(passed)} passed{again}, {len(failed)} failed, {len(skipped)} skipped; logs in {self._logs}")
        if path is not None:
            total = {
                "passed": len(passed),
                "failed": len(failed),
                "skipped": len(skipped),
                "flaky": [each.test for each in flaky],
                "remarks": self._remarks,
            }
            path.write_text(json.dumps(total, indent=2) + "\n")
        return bool(passed) and not failed
