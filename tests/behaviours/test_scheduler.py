"""The scheduler: the names and meanings of the exec-sandbox package."""

from __future__ import annotations

import asyncio
import io

import hayfork
import pytest
from hayfork import ExecutionResult, Scheduler, SchedulerConfig, SyncScheduler


def test_a_run_in_the_other_packages_words():
    async def main():
        async with Scheduler() as scheduler:
            result = await scheduler.run("print('hi')", language="python", timeout_seconds=30, memory_mb=256)
            assert isinstance(result, ExecutionResult)
            assert (result.stdout, result.stderr, result.exit_code) == ("hi\n", "", 0)
            assert result.timing.boot_ms > 0
            assert result.timing.total_ms >= result.timing.boot_ms
            assert ExecutionResult.model_validate_json(result.model_dump_json()) == result

    asyncio.run(main())


def test_a_session():
    async def main():
        async with Scheduler(SchedulerConfig(default_timeout_seconds=20)) as scheduler:
            async with await scheduler.session(language="python") as session:
                await session.exec("x = 41")
                pieces = []
                result = await session.exec("print(x + 1)", on_stdout=pieces.append)
                assert result.stdout == "42\n" == "".join(pieces)
                assert session.exec_count == 2
                timed_out = await session.exec(
                    "print('part', flush=True)\nimport time; time.sleep(60)", timeout_seconds=2
                )
                assert (timed_out.exit_code, timed_out.stdout) == (-1, "part\n")
                assert "Execution timeout after 2s" in timed_out.stderr
                await session.write_file("a/b.txt", b"content")
                out = io.BytesIO()
                await session.read_file("a/b.txt", destination=out)
                assert out.getvalue() == b"content"
                assert [(f.name, f.is_dir) for f in await session.list_files()] == [("a", True)]
                for path in ("/etc/passwd", "../x"):
                    with pytest.raises(hayfork.VmPermanentError):
                        await session.write_file(path, b"")
                with pytest.raises(hayfork.CodeValidationError):
                    await session.exec("  ")
                await session.exec("x = 41")
                first = []
                with pytest.raises(hayfork.OutputLimitError):
                    await session.exec("print('y' * 2_000_000)", on_stdout=first.append)
                assert len("".join(first)) >= 1_000_000
                assert (await session.exec("print(x)")).stdout == "41\n"
            assert session.closed
            with pytest.raises(hayfork.SessionClosedError):
                await session.exec("1")

    asyncio.run(main())


def test_the_sync_twin_and_every_language():
    with SyncScheduler() as scheduler:
        assert (
            scheduler.run("console.log([1, 2].map((x: number) => x * 2))", language="javascript").stdout == "[ 2, 4 ]\n"
        )
        assert scheduler.run("trap 'echo bye' EXIT; echo $((1 + 1))", language="raw").stdout == "2\nbye\n"
        with scheduler.session(language=hayfork.Language.PYTHON) as session:
            assert session.exec("print(1)").stdout == "1\n"


def test_wrong_values():
    with pytest.raises(ValueError, match="extra"):
        SchedulerConfig(nonsense=1)
    with SyncScheduler() as scheduler:
        for options in (
            {"language": "cobol"},
            {"language": "python", "timeout_seconds": 0},
            {"language": "python", "timeout_seconds": 301},
        ):
            with pytest.raises(ValueError, match=r"language|timeout"):
                scheduler.run("1", **options)
        with pytest.raises(hayfork.VmConfigError):
            scheduler.run("1", language="python", memory_mb=64)
        with pytest.raises(hayfork.UnsupportedOptionError):
            scheduler.run("1", language="python", allow_network=True)
    with pytest.raises(hayfork.SandboxError):
        scheduler.run("1", language="python")
