//! Which guest kernel a backend boots, and what then stands between user code and the host.

use std::fmt;

/// A build of the guest kernel, by the name that image sets give it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum KernelFlavour {
    /// The ordinary one: hardware virtualisation and emulation.
    #[default]
    Plain,
    /// Made for kvm_pvm, which interprets every other kernel a hundred times too slowly; boots nowhere else.
    Pvm,
}

impl KernelFlavour {
    /// The name in manifests and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Pvm => "pvm",
        }
    }
}

impl fmt::Display for KernelFlavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which process a guest runs in, and so what a guest that breaks out of its machine would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// This one.
    ThisProcess,
    /// A worker: the monitor in a confined process of its own.
    Worker,
    /// QEMU's.
    Qemu,
}

impl Place {
    /// A stable name, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::ThisProcess => "process",
            Self::Worker => "worker",
            Self::Qemu => "qemu",
        }
    }

    /// What stands behind the virtual machine, in a sentence without its full stop.
    pub fn description(self) -> &'static str {
        match self {
            Self::ThisProcess => "behind it is this process, with all that it may do",
            Self::Worker => {
                "behind it is a worker process of its own, which may open and start nothing and is killed if it tries"
            }
            Self::Qemu => "behind it is a QEMU process of its own, with QEMU's filter of system calls",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What keeps user code in a guest from the host: how many walls there are, and what they are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// The processor's virtualisation. Inside, the guest's kernel is a wall of its own.
    Hardware,
    /// An emulator's process. Inside, the guest's kernel is a wall of its own.
    Emulation,
    /// kvm_pvm's shadow paging. Inside, user code can read and write the guest's kernel: the virtual machine is the only
    /// wall.
    KvmPvm,
}

impl Isolation {
    /// A stable name, for programs.
    pub fn code(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Emulation => "emulation",
            Self::KvmPvm => "kvm_pvm",
        }
    }

    /// What isolates, in a sentence without its full stop.
    pub fn description(self) -> &'static str {
        match self {
            Self::Hardware => {
                "the processor's virtualisation is the wall towards the host, and the guest's kernel another one before it"
            }
            Self::Emulation => {
                "an emulator in a process of its own, with few system calls, is the wall towards the host, and the guest's \
                 kernel another one before it"
            }
            Self::KvmPvm => {
                "the virtual machine (kvm_pvm, without hardware virtualisation) is the only wall: inside it there is none \
                 between user code and the guest's kernel"
            }
        }
    }

    /// Whether user code must break the guest's kernel before it can attack the virtual machine.
    pub fn guest_kernel_is_a_wall(self) -> bool {
        !matches!(self, Self::KvmPvm)
    }
}
