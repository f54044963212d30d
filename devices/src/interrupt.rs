//! Interrupts, as devices see them: a line that they pulse.

/// An interrupt line of the machine. Devices treat it as edge-triggered.
///
/// Any `Fn()` is one.
pub trait InterruptLine: Send + Sync {
    /// Makes one pulse, which is to arrive even if the line is masked or in service just now. Must not wait.
    fn raise(&self);
}

impl<F: Fn() + Send + Sync> InterruptLine for F {
    fn raise(&self) {
        self();
    }
}
