//! The end of a test run: what was skipped, flaky and failed, the slowest tests, and the counts.

use std::collections::BTreeSet;
use std::fmt;

use super::junit::Case;

/// BOUND: so many of the slowest tests are listed.
const SLOWEST: usize = 20;
/// BOUND: so many lines of a failure are repeated; nextest printed all of it when the test failed.
const OUTPUT_LINES: usize = 60;

/// A test that did not pass at once.
#[derive(Debug)]
pub enum Failure {
    /// It passed at a later try.
    Flaky { case: Case, tries: usize },
    /// It failed at each try that it had.
    Final { case: Case, tries: usize },
}

#[derive(Debug)]
pub struct Summary {
    programs: usize,
    passed: usize,
    skipped: usize,
    /// Each reason once.
    reasons: BTreeSet<String>,
    slowest: Vec<Case>,
    failures: Vec<Failure>,
}

impl Summary {
    pub fn of(cases: &[Case], failures: Vec<Failure>) -> Self {
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
        let failed = failures.iter().filter(|failure| failure.is_final()).count();
        Self {
            programs: programs.len(),
            passed: cases.len() - failed,
            skipped: skips.len(),
            reasons: skips.into_iter().map(str::to_owned).collect(),
            slowest,
            failures,
        }
    }

    pub fn is_success(&self) -> bool {
        !self.failures.iter().any(Failure::is_final)
    }
}

impl Failure {
    fn is_final(&self) -> bool {
        matches!(self, Self::Final { .. })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, case, tries, what) = match self {
            Self::Flaky { case, tries } => ("FLAKY", case, tries, "passed at try"),
            Self::Final { case, tries } => ("FAILED", case, tries, "failed, tries:"),
        };
        writeln!(
            f,
            "    {word} {} {} ({what} {tries})",
            case.program, case.name
        )?;
        if matches!(self, Self::Flaky { .. }) {
            let lines: Vec<&str> = case.output.lines().collect();
            let start = lines.len().saturating_sub(OUTPUT_LINES);
            writeln!(f, "        output of its first failure:")?;
            if start > 0 {
                writeln!(f, "        | … {start} earlier lines are above")?;
            }
            for line in &lines[start..] {
                writeln!(f, "        | {line}")?;
            }
        }
        Ok(())
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
        for failure in &self.failures {
            write!(f, "{failure}")?;
        }
        let failed = self.failures.iter().filter(|failure| failure.is_final());
        let flaky = self.failures.iter().filter(|failure| !failure.is_final());
        writeln!(
            f,
            "    {} test programs, {} flaky tests",
            self.programs,
            flaky.count()
        )?;
        writeln!(
            f,
            "    {} passed, {} failed, {} skipped",
            self.passed,
            failed.count(),
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
    fn flaky_tests_are_listed_with_their_first_failure() {
        let cases = [
            case("a", 1, "SKIPPED a: no go\n"),
            case("b", 3, "first line\nlast line\n"),
            case("c", 2, "test c ... SKIPPED a: no go\n"),
        ];
        let flaky = Failure::Flaky {
            case: cases[1].clone(),
            tries: 2,
        };
        let summary = Summary::of(&cases, vec![flaky]);
        assert!(summary.is_success());
        let text = summary.to_string();
        for line in [
            "    FLAKY p b (passed at try 2)\n",
            "        | first line\n        | last line\n",
            "\n    SKIPPED a: no go\n    FLAKY",
            "    1 test programs, 1 flaky tests\n    3 passed, 0 failed, 2 skipped\n",
            "         3.0 s  p b\n         2.0 s  p c\n         1.0 s  p a\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
    }

    #[test]
    fn test_that_fails_three_times_fails_the_run() {
        let cases = [case("a", 1, "")];
        let failure = Failure::Final {
            case: cases[0].clone(),
            tries: 3,
        };
        let summary = Summary::of(&cases, vec![failure]);
        assert!(!summary.is_success());
        assert!(
            summary
                .to_string()
                .ends_with("    0 passed, 1 failed, 0 skipped\n")
        );
    }
}
