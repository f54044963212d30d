//! What a guest's boot costs, in instructions: made for the nested rig (`tests/rig/`), where a nanosecond of processor time is
//! an instruction, the guest's and the kernel's included. Lines are `figure NAME VALUE within SPREAD %`, as those of the monitor's
//! own example `figures`. They repeat less well than those: guests draw random numbers, and the monitor asks each millisecond
//! whether the agent is there.
//!
//! Processor time, not time: what a guest sleeps, or a thread waits for the kernel, is the host's affair and does not repeat.
//!
//! | figure | from | to |
//! |---|---|---|
//! | `agent_ready.first` | the first call of a process | the agent has answered: the kernel is read and unpacked |
//! | `agent_ready` | another call | the same |
//! | `python_print` | another call | the first byte that a Python program has printed |
//! | `vcpu.agent_ready` | the same, the virtual CPU's thread alone | |
//! | `exits.agent_ready` | | number of exits to user space on the way to the agent's answer, where tracefs is mounted |
//! | `firecracker.…` | a new process | the agent takes a connection over vsock: same kernel, initramfs and root image, with Firecracker |
//!
//! To be compared are the threads of the virtual CPUs. The whole of a Firecracker process is another thing than the whole of ours:
//! it starts a program, and one that was measured spent 0.4 billion instructions on random numbers of its own from jitter
//! (aws-lc's, on its main thread, before there is a virtual CPU), which says nothing of its boots.
//!
//! For the last `HAYFORK_FIRECRACKER` is a command that starts it, of words without blanks; it is not part of this project.

mod counting;

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hayfork_sandbox::{
    Engine, EngineOptions, ExecuteOptions, KernelFlavour, Language, RunEvent, Sandbox, SandboxOptions,
};

use self::counting::{Outcome, costs, counted, exits_are_counted, median, own_time, time_of_threads};

/// Rounds of a figure; the median counts.
const ROUNDS: usize = 5;
/// No boot takes that long.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> Outcome<()> {
    let options = EngineOptions {
        backend: Some(String::from("monitor")),
        boot_timeout: LIMIT,
        // Each boots.
        templates: false,
        ..EngineOptions::default()
    };
    let engine = Engine::new(options)?;
    let images = engine.images()?;
    // Read once, so that no measurement waits for a disk.
    for file in [images.kernel()?, images.initramfs()?, images.image("python")?] {
        std::io::copy(&mut fs::File::open(file)?, &mut std::io::sink())?;
    }
    let runtime = engine.runtime().clone();
    let create = || runtime.block_on(engine.create(SandboxOptions::new(Language::Python)));
    let close = |sandbox: Sandbox| runtime.block_on(async move { sandbox.close().await });

    let (sandbox, cost) = costs(own_time, || Ok(create()?))?;
    println!("figure agent_ready.first {cost} within 2 %");
    close(sandbox)?;
    let rounds = (0..ROUNDS).map(|_| {
        let (sandbox, cost) = costs(own_time, || Ok(create()?))?;
        close(sandbox)?;
        Ok(cost)
    });
    println!("figure agent_ready {} within 2 %", median(rounds)?);
    let rounds = (0..ROUNDS).map(|_| {
        let sandbox = create()?;
        let cost = time_of_threads("self", "hayfork-vcpu0");
        close(sandbox)?;
        cost
    });
    println!("figure vcpu.agent_ready {} within 2 %", median(rounds)?);
    let rounds = (0..ROUNDS).map(|_| {
        let (sandbox, cost) = costs(own_time, || {
            let sandbox = create()?;
            runtime.block_on(print(&sandbox))?;
            Ok(sandbox)
        })?;
        close(sandbox)?;
        Ok(cost)
    });
    println!("figure python_print {} within 1 %", median(rounds)?);
    if exits_are_counted() {
        let rounds = (0..ROUNDS).map(|_| {
            let (sandbox, exits) = counted(|| Ok(create()?))?;
            close(sandbox)?;
            Ok(exits)
        });
        println!("figure exits.agent_ready {} within 1.5 %", median(rounds)?);
    }
    engine.shutdown();

    if let Ok(command) = std::env::var("HAYFORK_FIRECRACKER") {
        let kernel = images.kernel_of(KernelFlavour::Plain)?;
        firecracker(&command, &kernel, &images.initramfs()?, &images.image("python")?)?;
    }
    Ok(())
}

/// Runs a program until its first byte has come.
async fn print(sandbox: &Sandbox) -> Outcome<()> {
    let mut running = sandbox.execute(ExecuteOptions::new("print(1)"));
    while let Some(event) = running.next().await {
        match event {
            RunEvent::Stdout(_) => return Ok(()),
            RunEvent::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Err("nothing was printed".into())
}

/// The same boot with Firecracker: until the agent takes a connection.
fn firecracker(command: &str, kernel: &Path, initramfs: &Path, root: &Path) -> Outcome<()> {
    let folder = std::env::temp_dir().join("firecracker");
    fs::create_dir_all(&folder)?;
    let line = "quiet 8250.nr_uarts=0 panic=-1 reboot=k noreplace-smp pci=off hayfork.carrier=vsock:1024 \
                hayfork.linger=1 hayfork.root=/dev/vda";
    let config = serde_json::json!({
        "boot-source": {"kernel_image_path": kernel, "initrd_path": initramfs, "boot_args": line},
        "machine-config": {"vcpu_count": 1, "mem_size_mib": 256},
        "entropy": {},
        "drives": [{"drive_id": "root", "path_on_host": root, "is_root_device": false, "is_read_only": true}],
        "vsock": {"guest_cid": 3, "uds_path": folder.join("vsock")},
    });
    fs::write(folder.join("config.json"), config.to_string())?;
    let boot = || -> Outcome<Firecracker> {
        let mut guest = Firecracker::start(command, &folder)?;
        guest.wait_for_agent()?;
        Ok(guest)
    };
    drop(boot()?);
    for (figure, thread) in [("process", ""), ("vcpu", "fc_vcpu")] {
        let rounds = (0..ROUNDS).map(|_| time_of_threads(&boot()?.process.id().to_string(), thread));
        println!("figure firecracker.{figure}.agent_ready {} within 5 %", median(rounds)?);
    }
    if exits_are_counted() {
        let rounds = (0..ROUNDS).map(|_| Ok(counted(boot)?.1));
        println!("figure firecracker.exits.agent_ready {} within 5 %", median(rounds)?);
    }
    Ok(())
}

/// A Firecracker process; killed when dropped.
struct Firecracker {
    process: Child,
    socket: PathBuf,
}

impl Firecracker {
    fn start(command: &str, folder: &Path) -> Outcome<Self> {
        let socket = folder.join("vsock");
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let mut words = command.split_whitespace();
        let process = Command::new(words.next().ok_or("HAYFORK_FIRECRACKER is empty")?)
            .args(words)
            .args(["--no-api", "--no-seccomp", "--config-file"])
            .arg(folder.join("config.json"))
            .stdin(Stdio::null())
            .stdout(fs::File::create(folder.join("log"))?)
            .stderr(Stdio::inherit())
            .spawn()?;
        Ok(Self { process, socket })
    }

    /// Asks again and again for a connection to the agent's port, as the monitor does.
    fn wait_for_agent(&mut self) -> Outcome<()> {
        let start = Instant::now();
        while start.elapsed() < LIMIT {
            if let Some(status) = self.process.try_wait()? {
                return Err(format!("Firecracker has ended: {status}").into());
            }
            sleep(Duration::from_millis(1));
            let Ok(mut stream) = UnixStream::connect(&self.socket) else { continue };
            stream.set_read_timeout(Some(LIMIT))?;
            // Before the guest's driver is there, or while nobody listens, the connection ends without an answer.
            let mut answer = [0; 3];
            if stream.write_all(b"CONNECT 1024\n").is_ok() && stream.read_exact(&mut answer).is_ok() {
                return Ok(());
            }
        }
        Err("Firecracker's guest does not come up".into())
    }
}

impl Drop for Firecracker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
