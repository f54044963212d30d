//! Counts what passed and failed over test runners of several kinds.

use std::time::Duration;

/// The sum over everything that ran.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Tests and checks that passed.
    pub(crate) passed: u64,
    /// Tests and checks that failed, runners that did not come to an end among them.
    pub(crate) failed: u64,
    lines: Vec<String>,
    notes: Vec<String>,
}

impl Tally {
    /// Counts one check.
    pub(crate) fn check(&mut self, name: &str, passed: bool) {
        self.add(name, u64::from(passed), u64::from(!passed));
    }

    /// Counts one runner.
    pub(crate) fn add(&mut self, name: &str, passed: u64, failed: u64) {
        self.passed += passed;
        self.failed += failed;
        self.lines.push(format!("{name:<44} {passed:>5} passed {failed:>4} failed"));
    }

    /// Counts a runner by what it printed. One that failed without naming a failed test, or that ran
    /// nothing, counts as one failure.
    pub(crate) fn runner(&mut self, name: &str, output: &str, success: bool, took: Duration) {
        let (passed, mut failed) = counts(output);
        if (!success || passed == 0) && failed == 0 {
            failed = 1;
        }
        self.add(&format!("{name} ({} s)", took.as_secs()), passed, failed);
    }

    /// Something to be known about the results, such as a test that passed only when it was run again.
    pub(crate) fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    /// Prints a line for each runner and the sum, in the form that CI reads, as the last line.
    pub(crate) fn print(&self) {
        println!();
        for line in self.lines.iter().chain(&self.notes) {
            println!("{line}");
        }
        println!("{} passed, {} failed", self.passed, self.failed);
    }
}

/// Passed and failed tests in the output of cargo nextest, cargo test (several binaries) or pytest.
///
/// nextest repeats what failing tests print, which looks like cargo test's own lines; where it gives
/// its summary, only that counts.
fn counts(output: &str) -> (u64, u64) {
    let lines: Vec<String> = output.lines().map(|line| strip_colours(line).trim().to_owned()).collect();
    let nextest: Vec<&String> = lines.iter().filter(|line| line.starts_with("Summary [")).collect();
    let summaries = if nextest.is_empty() {
        lines.iter().filter(|line| line.starts_with("test result:") || is_pytest_summary(line)).collect()
    } else {
        nextest
    };
    let mut passed = 0;
    let mut failed = 0;
    for line in summaries {
        let words: Vec<&str> = line
            .split(|c: char| c.is_whitespace() || ",;:=()".contains(c))
            .filter(|word| !word.is_empty())
            .collect();
        for pair in words.windows(2) {
            let Ok(number) = pair[0].parse::<u64>() else { continue };
            match pair[1] {
                "passed" => passed += number,
                "failed" | "error" | "errors" | "timed" => failed += number,
                _ => {}
            }
        }
    }
    (passed, failed)
}

/// Whether it is pytest's last line, such as `2 failed, 802 passed, 1 xfailed in 483.53s (0:08:03)`.
fn is_pytest_summary(line: &str) -> bool {
    let line = line.trim_matches(['=', ' ']);
    let Some((counts, time)) = line.rsplit_once(" in ") else { return false };
    let seconds = time.split(' ').next().and_then(|time| time.strip_suffix('s'));
    let outcome = |part: &str| {
        let mut words = part.trim().split(' ');
        words.next().is_some_and(|n| n.parse::<u64>().is_ok()) && words.next().is_some()
    };
    seconds.is_some_and(|seconds| seconds.parse::<f64>().is_ok()) && counts.split(',').all(outcome)
}

fn strip_colours(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        if c == '\u{1b}' {
            characters.by_ref().find(char::is_ascii_alphabetic);
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_runner_is_understood() {
        assert_eq!(counts("     Summary [  17.221s] 29 tests run: 29 passed, 0 skipped"), (29, 0));
        assert_eq!(
            counts("     Summary [ 1s] 5 tests run: 3 passed (1 slow), 1 failed, 1 timed out, 2 skipped"),
            (3, 2)
        );
        assert_eq!(
            counts(
                "test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\ntest result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s"
            ),
            (5, 2)
        );
        assert_eq!(
            counts("\u{1b}[32m===== \u{1b}[1m12 passed\u{1b}[0m, 1 skipped in 3.21s =====\u{1b}[0m"),
            (12, 0)
        );
        assert_eq!(counts("===== 1 failed, 2 passed, 3 errors in 0.12s ====="), (2, 4));
        assert_eq!(counts("2 passed in 0.5s"), (2, 0));
        assert_eq!(counts("2 failed, 802 passed, 1 xfailed in 483.53s (0:08:03)"), (802, 2));
        assert_eq!(
            counts(
                "test result: FAILED. 0 passed; 1 failed; 0 ignored\n     Summary [ 8s] 51 tests run: 49 passed, 2 failed"
            ),
            (49, 2)
        );
        assert_eq!(counts("the code was 1 passed in 5 minutes"), (0, 0));
        assert_eq!(counts("a test printed: 7 passed"), (0, 0));
    }

    #[test]
    fn a_runner_that_breaks_or_runs_nothing_is_a_failure() {
        let mut tally = Tally::default();
        let took = Duration::ZERO;
        tally.runner("crashed", "error: could not compile", false, took);
        tally.runner("empty", "     Summary [ 0.0s] 0 tests run: 0 passed, 3 skipped", true, took);
        tally.runner("fine", "1 passed in 0.1s", true, took);
        assert_eq!((tally.passed, tally.failed), (1, 2));
    }
}
