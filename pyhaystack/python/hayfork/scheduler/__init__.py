"""The names of the exec-sandbox package, with their meanings, over hayfork's sandboxes.

Code written for that package runs after changing the import. Where the two differ, hayfork keeps what a session
has learned: `sys.exit(137)` does not close it, a timeout is interrupted first so that variables survive when the
code yields, and exit codes are those of POSIX.
"""

from hayfork.scheduler.logging import configure_logging
from hayfork.scheduler.models import (
    ExecutionResult,
    ExposedPort,
    FileInfo,
    Language,
    PortMapping,
    SchedulerConfig,
    TimingBreakdown,
)
from hayfork.scheduler.scheduler import Scheduler, SyncScheduler
from hayfork.scheduler.session import Session, SyncSession

__all__ = [
    "ExecutionResult",
    "ExposedPort",
    "FileInfo",
    "Language",
    "PortMapping",
    "Scheduler",
    "SchedulerConfig",
    "Session",
    "SyncScheduler",
    "SyncSession",
    "TimingBreakdown",
    "configure_logging",
]
