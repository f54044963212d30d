"""A machine with an ordinary `/dev/kvm`, on hosts that have none: the nested rig.

The monitor has to be tested on KVM as nearly all its users have it, with hardware virtualisation. Where the tests run
there is none, so the rig emulates a machine that has it:

    host     QEMU translates (TCG) an AMD processor with SVM
      L1       Debian's cloud kernel with kvm_amd, a busybox, and the program under test: /dev/kvm is an ordinary one
        L2       the guests that the program under test makes

L1 boots once. It is stored while it waits for its first command (`snapshot`), and every use begins with that state,
half a second after it was asked for (`machine`): its memory is a private mapping of the stored file, so uses do not
disturb each other and any number may run at once.

One L1 processor, and in L1 one virtual processor for each guest: TCG delivers an interrupt twice when its loop is left
at an awkward moment, which a second processor makes likely, and two virtual processors that wait for each other on one
real one spin for whole time slices.

L1's time is the number of instructions that it has executed, L2's among them, at one nanosecond each (while it idles,
the host's). So a busy host, which makes L1 slow, does not make it late: whatever waits in there waits long enough. And
times taken in there are numbers of instructions, which repeat wherever they are measured (`figures`).

| module | what |
|---|---|
| `recipe` | what L1 is made of and how QEMU is called: what its cache entries are keyed by |
| `debian`, `modules`, `cpio`, `base` | L1's kernel and initramfs, from Debian packages |
| `machine`, `qmp`, `control` | one QEMU process: started, restored, given commands |
| `snapshot`, `disk` | the stored L1; read-only disks for what goes in |
| `plan`, `suite`, `report` | which tests run, running them, what came of it |
| `figures` | instruction counts and their comparison with the committed ones |

`cargo xtask test rig` and `cargo xtask bench-rig` drive it through `python -m hayfork_rig`; the cache is theirs.
"""
