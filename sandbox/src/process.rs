//! Handles that belong to one process.
//!
//! A child made by `fork` without `exec` has copies of the engine's memory, but none of its threads: a lock that a
//! thread held stays held, a message to the reaper is never read, and the runtime's epoll descriptor is shared with the
//! parent. So handles remember their process; in any other one they refuse to be used, and dropping them touches nothing.

use crate::error::Error;

/// A value that exists only in the process that made it.
#[derive(Debug)]
pub(crate) struct ThisProcess<T> {
    /// `None` only while it is being dropped.
    value: Option<T>,
    process: u32,
}

impl<T> ThisProcess<T> {
    /// A value of the calling process.
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), process: std::process::id() }
    }

    /// The value.
    ///
    /// # Errors
    /// [`Error::ForkedProcess`] in a process that did not make it.
    pub(crate) fn get(&self) -> Result<&T, Error> {
        match &self.value {
            Some(value) if self.process == std::process::id() => Ok(value),
            _ => Err(Error::ForkedProcess),
        }
    }
}

impl<T> Drop for ThisProcess<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.value.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_value_of_another_process_is_neither_reached_nor_dropped() {
        let counter = Arc::new(());
        let here = ThisProcess::new(Arc::clone(&counter));
        assert!(here.get().is_ok());
        drop(here);
        assert_eq!(Arc::strong_count(&counter), 1);

        let elsewhere = ThisProcess { value: Some(Arc::clone(&counter)), process: u32::MAX };
        assert_eq!(elsewhere.get().unwrap_err().code(), "forked_process");
        drop(elsewhere);
        assert_eq!(Arc::strong_count(&counter), 2, "left alone");
    }
}
