//! Counts what passed and failed over test runners of several kinds.

/// The sum over everything that ran.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Tests and checks that passed.
    pub(crate) passed: u64,
    /// Tests and checks that failed, runners that did not come to an end among them.
    pub(crate) failed: u64,
    lines: Vec<String>,
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
    pub(crate) fn runner(&mut self, name: &str, output: &str, success: bool) {
        let (passed, mut failed) = counts(output);
        if (!success || passed == 0) && failed == 0 {
            failed = 1;
        }
        self.add(name, passed, failed);
    }

    /// Prints a line for each runner and the sum, in the form that CI reads, as the last line.
    pub(crate) fn print(&self) {
        println!();
        for line in &self.lines {
            println!("{line}");
        }
        println!("{} passed, {} failed", self.passed, self.failed);
    }
}

/// Passed and failed tests in the output of cargo nextest, cargo test (several binaries) or pytest.
fn counts(output: &str) -> (u64, u64) {
    let mut passed = 0;
    let mut failed = 0;
    for line in output.lines() {
        let line = strip_colours(line);
        let line = line.trim();
        let nextest = line.starts_with("Summary [");
        let cargo_test = line.starts_with("test result:");
        let pytest = line.starts_with('=') && line.ends_with('=') && line.contains(" in ")
            || (line.contains(" passed") || line.contains(" failed"))
                && line.contains(" in ")
                && line.ends_with('s');
        if !(nextest || cargo_test || pytest) {
            continue;
        }
        let words: Vec<&str> = line
            .split(|c: char| c.is_whitespace() || ",;:=()".contains(c))
            .filter(|w| !w.is_empty())
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
        assert_eq!(counts("a test printed: 7 passed"), (0, 0));
    }

    #[test]
    fn a_runner_that_breaks_or_runs_nothing_is_a_failure() {
        let mut tally = Tally::default();
        tally.runner("crashed", "error: could not compile", false);
        tally.runner("empty", "     Summary [ 0.0s] 0 tests run: 0 passed, 3 skipped", true);
        tally.runner("fine", "1 passed in 0.1s", true);
        assert_eq!((tally.passed, tally.failed), (1, 2));
    }
}
