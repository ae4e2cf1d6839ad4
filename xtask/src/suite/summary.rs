//! The end of a test run: what was skipped and failed, the slowest tests, and the counts.

use std::collections::BTreeSet;
use std::fmt;

use super::junit::Case;

/// BOUND: so many of the slowest tests are listed.
const SLOWEST: usize = 20;

#[derive(Debug)]
pub struct Summary {
    programs: usize,
    passed: usize,
    skipped: usize,
    /// Each reason once.
    reasons: BTreeSet<String>,
    slowest: Vec<Case>,
    failed: Vec<Case>,
}

impl Summary {
    pub fn of(cases: &[Case]) -> Self {
        let skips: Vec<&str> = cases
            .iter()
            .flat_map(|case| case.output.lines())
            // On one core libtest writes the name of the test before it.
            .filter_map(|line| line.find("SKIPPED ").map(|at| &line[at..]))
            .collect();
        let programs: BTreeSet<&str> = cases.iter().map(|case| case.program.as_str()).collect();
        let mut slowest = cases.to_vec();
        slowest.sort_by_key(|case| std::cmp::Reverse(case.time));
        slowest.truncate(SLOWEST);
        let failed: Vec<Case> = cases.iter().filter(|case| case.failed).cloned().collect();
        Self {
            programs: programs.len(),
            passed: cases.len() - failed.len(),
            skipped: skips.len(),
            reasons: skips.into_iter().map(str::to_owned).collect(),
            slowest,
            failed,
        }
    }

    pub fn is_success(&self) -> bool {
        self.failed.is_empty()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n    slowest tests")?;
        for case in &self.slowest {
            let seconds = case.time.as_secs_f64();
            writeln!(f, "    {seconds:8.1} s  {} {}", case.program, case.name)?;
        }
        writeln!(f)?;
        for reason in &self.reasons {
            writeln!(f, "    {reason}")?;
        }
        for case in &self.failed {
            writeln!(f, "    FAILED {} {}", case.program, case.name)?;
        }
        writeln!(f, "    {} test programs", self.programs)?;
        writeln!(
            f,
            "    {} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn case(name: &str, seconds: u64, output: &str) -> Case {
        Case {
            program: "p".to_owned(),
            name: name.to_owned(),
            time: Duration::from_secs(seconds),
            failed: false,
            output: output.to_owned(),
        }
    }

    #[test]
    fn skips_slowest_tests_and_failures_are_listed() {
        let mut cases = [
            case("a", 1, "SKIPPED a: no go\n"),
            case("b", 3, ""),
            case("c", 2, "SKIPPED a: no go\n"),
        ];
        cases[1].failed = true;
        let summary = Summary::of(&cases);
        assert!(!summary.is_success());
        let text = summary.to_string();
        for line in [
            "\n    SKIPPED a: no go\n    FAILED p b\n",
            "    1 test programs\n    2 passed, 1 failed, 2 skipped\n",
            "         3.0 s  p b\n         2.0 s  p c\n         1.0 s  p a\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
    }
}
