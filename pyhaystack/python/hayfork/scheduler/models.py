"""Configuration and results of the scheduler."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Language(str, Enum):
    """What a scheduler can run."""

    PYTHON = "python"
    JAVASCRIPT = "javascript"
    RAW = "raw"


class SchedulerConfig(BaseModel):
    """Configuration of a scheduler. Fields that hayfork has no use for are kept, so that a config loads.

    Attributes:
        warm_pool_size: VMs that are kept ready for each language of the image set.
        default_memory_mb: Memory of a VM in MiB, unless asked for otherwise.
        default_timeout_seconds: Seconds that an execution may take, unless asked for otherwise.
        session_idle_timeout_seconds: Seconds without use after which a session closes.
        images_dir: Folder of the image set; found without it.
        backend: What runs the VMs: `"auto"`, `"monitor"` or `"qemu"`. A field of hayfork's own.
        isolation: Where the monitor runs the VMs: `"auto"`, `"process"` or `"worker"`. A field of hayfork's own.
        disk_snapshot_cache_dir: Not used.
        memory_snapshot_cache_dir: Not used.
        s3_bucket: Not used.
        s3_region: Not used.
        s3_prefix: Not used.
        max_concurrent_s3_uploads: Not used.
        memory_overcommit_ratio: Not used.
        cpu_overcommit_ratio: Not used.
        host_memory_reserve_ratio: Not used.
        host_cpu_reserve_cores: Not used.
        enable_package_validation: Not used.
        auto_download_assets: Not used: images are built or installed, never fetched at run time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    warm_pool_size: int = Field(default=0, ge=0)
    default_memory_mb: int = Field(default=256, ge=128)
    default_timeout_seconds: int = Field(default=30, ge=1, le=300)
    session_idle_timeout_seconds: int = Field(default=300, ge=10, le=3600)
    images_dir: Path | None = None
    backend: str | None = None
    isolation: str | None = None
    disk_snapshot_cache_dir: Path | None = None
    memory_snapshot_cache_dir: Path | None = None
    s3_bucket: str | None = None
    s3_region: str = "us-east-1"
    s3_prefix: str = "snapshots/"
    max_concurrent_s3_uploads: int = Field(default=4, ge=1, le=16)
    memory_overcommit_ratio: float = Field(default=5.0, ge=1, le=10)
    cpu_overcommit_ratio: float = Field(default=2.0, ge=1, le=20)
    host_memory_reserve_ratio: float = Field(default=0.08, ge=0.01, le=0.5)
    host_cpu_reserve_cores: float = Field(default=0.5, ge=0, le=16)
    enable_package_validation: bool = True
    auto_download_assets: bool = True


class TimingBreakdown(BaseModel):
    """Where the time of an execution went, in milliseconds."""

    setup_ms: int
    boot_ms: int
    execute_ms: int
    total_ms: int
    connect_ms: int | None = None
    admission_ms: int | None = None
    overlay_ms: int | None = None
    qemu_cmd_build_ms: int | None = None
    gvproxy_start_ms: int | None = None
    qemu_fork_ms: int | None = None
    guest_wait_ms: int | None = None
    l1_restore_ms: int | None = None
    teardown_ms: int | None = None
    boot_retries: int = 0


class PortMapping(BaseModel):
    """A port of the guest that is to be reachable from the host."""

    internal: int = Field(ge=1, le=65535)
    external: int | None = Field(default=None, ge=1024, le=65535)
    protocol: Literal["tcp", "udp"] = "tcp"


class ExposedPort(BaseModel):
    """A port of the guest that is reachable from the host."""

    internal: int
    external: int
    host: str = "127.0.0.1"
    protocol: Literal["tcp", "udp"] = "tcp"

    @property
    def url(self) -> str:
        """Its address."""
        scheme = "http" if self.protocol == "tcp" else "udp"
        return f"{scheme}://{self.host}:{self.external}"


class ExecutionResult(BaseModel):
    """The end of an execution.

    Attributes:
        stdout: What it printed.
        stderr: What it printed on standard error.
        exit_code: 0 to 255; -1 if its time was over.
        execution_time_ms: The code itself, as measured in the guest.
        external_cpu_time_ms: Not known.
        external_memory_peak_mb: Not known.
        external_cpu_nr_throttled: Not known.
        timing: Where the time went.
        warm_pool_hit: Whether a VM of the pool was taken.
        l1_cache_hit: Whether the VM was restored from a snapshot.
        spawn_ms: Starting an interpreter.
        process_ms: The code itself.
        exposed_ports: Ports of the guest that were reachable.
        backend: What ran the VM; this and what follows are fields of hayfork's own.
        kernel: Flavour of the guest's kernel.
        isolation: What kept the code from the host.
    """

    stdout: str
    stderr: str
    exit_code: int
    execution_time_ms: int | None = None
    external_cpu_time_ms: int | None = None
    external_memory_peak_mb: int | None = None
    external_cpu_nr_throttled: int | None = None
    timing: TimingBreakdown
    warm_pool_hit: bool = False
    l1_cache_hit: bool = False
    spawn_ms: int | None = None
    process_ms: int | None = None
    exposed_ports: list[ExposedPort] = Field(default_factory=list)
    backend: str | None = None
    kernel: str | None = None
    isolation: str | None = None


class FileInfo(BaseModel):
    """A directory entry in a session."""

    name: str
    is_dir: bool
    size: int
