//! Progress of long work: bars on a terminal, plain lines elsewhere (log files, CI).
//!
//! A [`Progress`] hands out one [`Task`] for each part that is built; tasks may be used from several
//! threads at once. Everything goes to standard error, so that standard output stays free for results.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Width of the column with the tasks' names.
const NAME_COLUMN: usize = 11;

/// All tasks of one call.
pub(crate) struct Progress {
    bars: Option<MultiProgress>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { bars: stderr().is_terminal().then(MultiProgress::new) }
    }

    /// Begins a task. `name` is short: "kernel", "python".
    pub(crate) fn task(&self, name: &str) -> Task {
        let bar = self.bars.as_ref().map(|bars| {
            let bar = bars.add(ProgressBar::new_spinner());
            bar.set_style(spinner_style());
            bar.set_prefix(format!("{name:NAME_COLUMN$}"));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Task { name: name.to_owned(), bar, begun: Instant::now() }
    }

    /// A line that stays.
    pub(crate) fn note(&self, text: &str) {
        match &self.bars {
            // The only possible error is that standard error is gone: nobody to tell.
            Some(bars) => drop(bars.println(text)),
            None => eprintln!("{text}"),
        }
    }
}

/// Progress of one part.
pub(crate) struct Task {
    name: String,
    bar: Option<ProgressBar>,
    begun: Instant,
}

impl Task {
    /// What is being done now. Each call is a line of its own where there is no terminal.
    pub(crate) fn step(&self, text: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_style(spinner_style());
                bar.set_message(text.to_owned());
            }
            None => eprintln!("{:NAME_COLUMN$} {text}", self.name),
        }
    }

    /// What exactly is being done within the step. Shown on a terminal only.
    pub(crate) fn detail(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
        }
    }

    /// How far the step is. Shown on a terminal only.
    pub(crate) fn advance(&self, done: u64, of: u64) {
        if let Some(bar) = &self.bar {
            if bar.length() != Some(of) {
                bar.set_length(of);
                bar.set_style(bar_style());
            }
            bar.set_position(done.min(of));
        }
    }

    /// The task has ended well.
    pub(crate) fn done(self, text: &str) {
        let seconds = self.begun.elapsed().as_secs_f64();
        match &self.bar {
            Some(bar) => {
                bar.set_style(done_style());
                bar.finish_with_message(format!("{text} ({seconds:.1} s)"));
            }
            None => eprintln!("{:NAME_COLUMN$} {text} ({seconds:.1} s)", self.name),
        }
    }
}

impl Drop for Task {
    /// A task that ends by an error leaves no spinner behind: the error is printed after it.
    fn drop(&mut self) {
        if let Some(bar) = self.bar.as_ref().filter(|bar| !bar.is_finished()) {
            bar.abandon();
        }
    }
}

fn spinner_style() -> ProgressStyle {
    style("{spinner} {prefix} {wide_msg} {elapsed}")
}

fn bar_style() -> ProgressStyle {
    style("{spinner} {prefix} [{bar:24}] {wide_msg} {elapsed}")
}

fn done_style() -> ProgressStyle {
    style("✓ {prefix} {wide_msg}")
}

/// The templates are constants; should one be wrong, the default style does.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// Bytes for people: `47.6 MB`.
pub(crate) fn megabytes(bytes: u64) -> String {
    let tenths = bytes.saturating_add(50_000) / 100_000;
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_to_tenths() {
        assert_eq!(megabytes(0), "0.0 MB");
        assert_eq!(megabytes(49_999), "0.0 MB");
        assert_eq!(megabytes(50_000), "0.1 MB");
        assert_eq!(megabytes(47_628_288), "47.6 MB");
        assert_eq!(megabytes(u64::MAX), "18446744073709.5 MB");
    }
}
