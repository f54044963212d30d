//! Chooses what executes the guest's instructions: KVM where it is real, else QEMU's translator.

use hayfork_vmm::backend::{Accelerator, BackendError};
use hayfork_vmm::hypervisor::probe::Verdict;

/// What the user wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcceleratorChoice {
    /// KVM if the probe finds hardware behind it, else TCG.
    #[default]
    Auto,
    /// KVM, or an error that says why not.
    Kvm,
    /// QEMU's translator.
    Tcg,
}

/// The accelerator, and a note for each reason why it is not a faster one.
pub(crate) fn choose(
    choice: AcceleratorChoice,
    verdict: impl FnOnce() -> &'static Verdict,
) -> Result<(Accelerator, Vec<String>), BackendError> {
    if choice == AcceleratorChoice::Tcg {
        return Ok((Accelerator::Tcg, Vec::new()));
    }
    let verdict = verdict();
    match (verdict.remedy(), choice) {
        (None, _) => Ok((Accelerator::Kvm, Vec::new())),
        (Some(remedy), AcceleratorChoice::Kvm) => {
            Err(BackendError::AcceleratorUnusable { detail: verdict.to_string(), remedy })
        }
        (Some(remedy), _) => Ok((
            Accelerator::Tcg,
            vec![format!("QEMU translates the guest, which is slower: {verdict}. {remedy}")],
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(verdict: Verdict) -> impl FnOnce() -> &'static Verdict {
        move || Box::leak(Box::new(verdict))
    }

    #[test]
    fn only_hardware_is_chosen() {
        let (accelerator, notes) =
            choose(AcceleratorChoice::Auto, verdict(Verdict::Hardware { rate: 1e9 })).unwrap();
        assert_eq!((accelerator, notes.len()), (Accelerator::Kvm, 0));
        for slow in [
            Verdict::KvmPvm { rate: 1e6 },
            Verdict::Emulating { rate: 1e6 },
            Verdict::Absent,
            Verdict::NoPermission,
            Verdict::Broken { detail: "busy".into() },
            Verdict::Unsupported,
        ] {
            let (accelerator, notes) = choose(AcceleratorChoice::Auto, verdict(slow.clone())).unwrap();
            assert_eq!(accelerator, Accelerator::Tcg, "{slow:?}");
            assert!(
                notes[0].contains(&slow.to_string()) && notes[0].contains(slow.remedy().unwrap()),
                "{notes:?}"
            );
            let error = choose(AcceleratorChoice::Kvm, verdict(slow)).unwrap_err();
            assert_eq!(error.code(), "accelerator_unusable");
        }
    }

    #[test]
    fn who_wants_tcg_is_not_probed_for() {
        let (accelerator, notes) = choose(AcceleratorChoice::Tcg, || panic!("probed")).unwrap();
        assert_eq!((accelerator, notes.len()), (Accelerator::Tcg, 0));
    }
}
