//! Which programs run tests, told by what the kernel ran.
//!
//! Each exec is looked at by itself. What stands around a test command (`sh -c`, `env`, `timeout`,
//! `npx`, `poetry run`) starts it as an exec of its own, so that a line that only mentions tests
//! (`sh -c "echo cargo test"`) is none.

use std::collections::BTreeMap;

use ringfence_model::ByteText;
use ringfence_model::observed::Exit;

use super::{LINEAGE, paths};
use crate::evidence::{Evidence, Ran};

/// A test command that ran.
#[derive(Clone, Debug)]
pub struct TestRun<'a> {
    pub ran: &'a Ran,
    /// Such as `cargo test`.
    pub runner: &'static str,
    /// Of what its process became at last.
    pub exit: Option<&'a Exit>,
    pub end: End,
    /// How many writes had been seen then.
    pub writes_before_end: usize,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Passed,
    Failed,
    /// It did not end, or its end was not seen.
    Unknown,
}

/// All test commands, in order. One that is part of another runner's own work (a test of a test
/// tool runs tests that fail) is left out; what `make` or `npm` start is not.
pub fn test_runs(evidence: &Evidence) -> Vec<TestRun<'_>> {
    let runners: BTreeMap<u64, (&'static str, Part)> = evidence
        .execs
        .iter()
        .filter_map(|(number, ran)| Some((*number, runner(&ran.exec.argv)?)))
        .collect();
    let mut became: BTreeMap<u64, u64> = BTreeMap::new();
    for (number, ran) in &evidence.execs {
        if let Some(before) = ran.exec.replaces {
            became.insert(before, *number);
        }
    }
    let mut runs = Vec::new();
    for (number, (runner, _)) in &runners {
        let ran = &evidence.execs[number];
        let within = evidence
            .lineage(*number)
            .take(LINEAGE)
            .skip(1)
            .any(|above| {
                let before = runners.get(&above.exec.exec);
                before.is_some_and(|(name, part)| *part == Part::Runs || name == runner)
            });
        if within {
            continue;
        }
        let mut last = *number;
        while let Some(next) = became.get(&last).filter(|next| **next > last) {
            last = *next;
        }
        let ended = &evidence.execs[&last];
        let exit = ended.exit.as_ref();
        let end = match exit.map(|e| (e.code, e.signal)) {
            Some((Some(0), None)) => End::Passed,
            Some((Some(_), _) | (_, Some(_))) => End::Failed,
            _ => End::Unknown,
        };
        runs.push(TestRun {
            ran,
            runner,
            exit,
            end,
            writes_before_end: ended.writes_before_end,
        });
    }
    runs
}

/// A script of the project that is called as tests are.
pub const TEST_SCRIPT: &str = "test script";

/// Whether it runs tests itself or starts what does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Runs,
    Starts,
}

/// What a list of arguments asks of a program that is called first among them.
enum Asks {
    /// The program runs tests and nothing else.
    Always,
    /// Its first word that is no option is one of these.
    Verb(&'static [&'static str]),
    /// Any word is one of these, or begins or ends so.
    Goal(&'static [&'static str]),
    /// `run` and a script called so, or the script itself.
    Script,
}

type Row = (&'static [&'static str], Asks, Part, &'static str);

const TESTS: &[&str] = &["test", "tests", "check"];

/// Programs without path and extension.
#[rustfmt::skip]
const TABLE: &[Row] = &[
    (&["cargo"], Asks::Verb(&["test", "t", "nextest", "llvm-cov", "tarpaulin", "miri"]), Part::Runs, "cargo test"),
    (&["cargo-nextest"], Asks::Always, Part::Runs, "cargo nextest"),
    (&["pytest", "py.test", "pytest3", "pytest-3"], Asks::Always, Part::Runs, "pytest"),
    (&["unittest"], Asks::Always, Part::Runs, "unittest"),
    (&["nosetests", "nose2", "trial", "stestr", "behave", "ward", "green"], Asks::Always, Part::Runs, "python tests"),
    (&["doctest"], Asks::Always, Part::Runs, "doctest"),
    (&["tox", "nox"], Asks::Always, Part::Starts, "tox"),
    (&["hatch", "pdm"], Asks::Verb(&["test"]), Part::Starts, "hatch test"),
    (&["manage"], Asks::Verb(&["test"]), Part::Runs, "manage.py test"),
    (&["setup"], Asks::Verb(&["test"]), Part::Runs, "setup.py test"),
    (&["npm", "npm-cli"], Asks::Script, Part::Starts, "npm test"),
    (&["yarn", "yarnpkg"], Asks::Script, Part::Starts, "yarn test"),
    (&["pnpm"], Asks::Script, Part::Starts, "pnpm test"),
    (&["bun"], Asks::Script, Part::Starts, "bun test"),
    (&["deno"], Asks::Verb(&["test"]), Part::Runs, "deno test"),
    (&["jest", "jest-cli"], Asks::Always, Part::Runs, "jest"),
    (&["vitest"], Asks::Always, Part::Runs, "vitest"),
    (&["mocha", "_mocha"], Asks::Always, Part::Runs, "mocha"),
    (&["ava", "tap", "tape", "jasmine", "uvu", "qunit", "karma", "wtr"], Asks::Always, Part::Runs, "javascript tests"),
    (&["cypress"], Asks::Verb(&["run"]), Part::Runs, "cypress"),
    (&["playwright"], Asks::Verb(&["test"]), Part::Runs, "playwright"),
    (&["go"], Asks::Verb(&["test"]), Part::Runs, "go test"),
    (&["gotestsum", "ginkgo"], Asks::Always, Part::Runs, "go test"),
    (&["make", "gmake", "ninja", "just", "task", "mage"], Asks::Goal(TESTS), Part::Starts, "make test"),
    (&["ctest"], Asks::Always, Part::Runs, "ctest"),
    (&["meson"], Asks::Verb(&["test"]), Part::Runs, "meson test"),
    (&["mvn", "mvnw"], Asks::Goal(&["test", "verify", "integration-test"]), Part::Runs, "mvn test"),
    (&["gradle", "gradlew"], Asks::Goal(&["test", "check", "connectedcheck"]), Part::Runs, "gradle test"),
    (&["sbt", "lein", "mill", "clj"], Asks::Goal(&["test"]), Part::Runs, "sbt test"),
    (&["rspec", "cucumber", "minitest", "m"], Asks::Always, Part::Runs, "rspec"),
    (&["rake"], Asks::Goal(&["test", "spec"]), Part::Starts, "rake test"),
    (&["rails"], Asks::Verb(&["test", "spec"]), Part::Runs, "rails test"),
    (&["phpunit", "pest", "codecept", "behat"], Asks::Always, Part::Runs, "phpunit"),
    (&["composer"], Asks::Script, Part::Starts, "composer test"),
    (&["artisan"], Asks::Verb(&["test"]), Part::Runs, "artisan test"),
    (&["dotnet"], Asks::Verb(&["test", "vstest"]), Part::Runs, "dotnet test"),
    (&["bazel", "bazelisk", "buck", "buck2", "pants", "please", "plz"], Asks::Verb(&["test", "coverage"]), Part::Runs, "bazel test"),
    (&["swift", "xcodebuild", "zig", "stack", "cabal", "mix", "flutter", "dart", "forge", "hardhat", "nimble", "opa", "terraform", "tofu", "molecule"], Asks::Goal(&["test"]), Part::Runs, "test"),
    (&["dune"], Asks::Verb(&["test", "runtest"]), Part::Runs, "dune test"),
    (&["crystal"], Asks::Verb(&["spec"]), Part::Runs, "crystal spec"),
    (&["prove", "bats", "shellspec", "busted", "elm-test", "robot"], Asks::Always, Part::Runs, "test runner"),
];

/// Options that make a runner do something else than run tests.
const NOT_A_RUN: &[&str] = &[
    "--help",
    "-h",
    "--version",
    "--no-run",
    "--collect-only",
    "--co",
    "--list",
    "--list-tests",
    "--listtests",
    "--dry-run",
    "--just-print",
    "--fixtures",
    "--markers",
];

/// The kind of test command that a list of arguments is, if it is one.
fn runner(argv: &[ByteText]) -> Option<(&'static str, Part)> {
    let words: Vec<String> = argv
        .iter()
        .map(|word| String::from_utf8_lossy(word.as_bytes()).into_owned())
        .collect();
    let (program, arguments) = called(&words)?;
    if arguments
        .iter()
        .any(|word| NOT_A_RUN.contains(&word.to_lowercase().as_str()))
    {
        return None;
    }
    match program {
        Called::Named(name) => {
            let (_, _, part, runner) = TABLE
                .iter()
                .find(|(names, asks, ..)| names.contains(&name.as_str()) && asks.met(arguments))?;
            // `make -n` says what it would do.
            let dry = name.ends_with("make") && arguments.iter().any(|word| word == "-n");
            (!dry).then_some((runner, *part))
        }
        Called::NodeTest => Some(("node --test", Part::Runs)),
        Called::TestScript => Some((TEST_SCRIPT, Part::Starts)),
    }
}

impl Asks {
    fn met(&self, arguments: &[String]) -> bool {
        let mut words = arguments
            .iter()
            .map(String::as_str)
            .filter(|word| !word.starts_with(['-', '+']));
        match self {
            Self::Always => true,
            Self::Verb(verbs) => words.next().is_some_and(|word| verbs.contains(&word)),
            Self::Goal(goals) => words.any(|word| is_goal(word, goals)),
            Self::Script => match words.next() {
                Some("run" | "run-script" | "task") => words
                    .next()
                    .is_some_and(|word| is_goal(word, &["test", "tests"])),
                Some("t" | "tst") => true,
                Some(word) => is_goal(word, &["test", "tests"]),
                None => false,
            },
        }
    }
}

/// `test`, `test-unit`, `test:e2e`, `unit-test`, `:app:test`, `integrationTest`.
fn is_goal(word: &str, goals: &[&str]) -> bool {
    let lower = word.to_lowercase();
    goals.iter().any(|goal| {
        lower == *goal
            || lower
                .strip_prefix(goal)
                .is_some_and(|rest| rest.starts_with(['-', '_', ':']))
            || lower
                .strip_suffix(goal)
                .is_some_and(|rest| rest.ends_with(['-', '_', ':', '/']))
    }) || (word.len() > 4 && word.ends_with("Test"))
}

/// What is called by a list of arguments.
enum Called {
    Named(String),
    /// `node --test`.
    NodeTest,
    /// A script of the project that is called as tests are.
    TestScript,
}

/// Sees through an interpreter to its script or module.
fn called(words: &[String]) -> Option<(Called, &[String])> {
    let (first, rest) = words.split_first()?;
    let name = plain_name(first);
    let interpreter = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let script = match interpreter {
        "python" | "pypy" => match first_word(rest, &["-X", "-W"], &["-m", "-c"])? {
            at if rest[at] == "-m" => {
                let module = rest.get(at + 1)?.split('.').next().unwrap_or_default();
                return Some((Called::Named(module.to_owned()), &rest[at + 2..]));
            }
            at => at,
        },
        "node" | "nodejs" => {
            let valued = [
                "--import",
                "--require",
                "-r",
                "--loader",
                "--conditions",
                "-C",
            ];
            match first_word(rest, &valued, &["--test", "-e", "-p", "--eval", "--print"])? {
                at if rest[at] == "--test" => return Some((Called::NodeTest, rest)),
                at => at,
            }
        }
        "ruby" | "perl" | "php" => first_word(rest, &["-I"], &["-e", "-r", "-E"])?,
        "sh" | "bash" | "dash" | "zsh" | "ksh" | "ash" => {
            let at = first_word(rest, &["-o", "+o"], &[])?;
            let code = |word: &String| !word.starts_with("--") && word.contains('c');
            if rest[..at].iter().any(code) {
                return None;
            }
            at
        }
        _ => return Some((Called::Named(name), rest)),
    };
    let path = rest.get(script).filter(|path| !path.starts_with('-'))?;
    let arguments = &rest[script + 1..];
    let name = plain_name(path);
    let known = TABLE
        .iter()
        .any(|(names, ..)| names.contains(&name.as_str()));
    if known || !is_test_script(path) {
        return Some((Called::Named(name), arguments));
    }
    Some((Called::TestScript, arguments))
}

/// Where an interpreter's options end: at one that says what to run, or at the first word that is
/// none. Some take the next word with them.
fn first_word(words: &[String], valued: &[&str], ends: &[&str]) -> Option<usize> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        if ends.contains(&word.as_str()) || !word.starts_with(['-', '+']) {
            return Some(at);
        }
        at += if valued.contains(&word.as_str()) {
            2
        } else {
            1
        };
    }
    None
}

/// `./test.sh`, `scripts/run-tests`, `tests/test_a.py`; nothing of the system is one.
fn is_test_script(path: &str) -> bool {
    const NAMES: &[&str] = &[
        "test",
        "tests",
        "run-tests",
        "run_tests",
        "runtests",
        "run-test",
        "runtest",
        "test-all",
        "run_test",
        "test_all",
        "unittests",
        "check",
    ];
    let system = ["/usr/", "/bin/", "/lib", "/opt/", "/nix/", "/gnu/"];
    !system.iter().any(|top| path.starts_with(top))
        && (NAMES.contains(&plain_name(path).as_str())
            || (paths::is_test(paths::name(path.as_bytes()).as_bytes())
                && paths::name(path.as_bytes()) != "conftest.py"))
}

/// Without path, version and the extensions of scripts.
fn plain_name(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path).to_lowercase();
    for end in [
        ".js", ".mjs", ".cjs", ".py", ".sh", ".rb", ".php", ".pl", ".phar", ".exe", ".bash",
    ] {
        if let Some(stem) = name.strip_suffix(end) {
            return stem.to_owned();
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Run, evidence};
    use super::*;

    fn kind(line: &str) -> Option<&'static str> {
        let argv: Vec<ByteText> = line.split(' ').map(ByteText::from).collect();
        runner(&argv).map(|(name, _)| name)
    }

    #[test]
    fn test_commands_are_known() {
        for (line, expected) in [
            ("cargo test", "cargo test"),
            ("cargo +nightly test --all", "cargo test"),
            ("/usr/bin/cargo nextest run", "cargo test"),
            ("pytest -q tests", "pytest"),
            ("/usr/bin/python3 /usr/bin/pytest -q", "pytest"),
            ("python3.12 -m pytest", "pytest"),
            ("python -W error -m unittest discover", "unittest"),
            ("python3 -m unittest.main", "unittest"),
            ("python manage.py test", "manage.py test"),
            ("python3 tests/test_a.py", "test script"),
            (
                "node /usr/lib/node_modules/npm/bin/npm-cli.js test",
                "npm test",
            ),
            ("npm run test:unit", "npm test"),
            ("npm t", "npm test"),
            ("yarn test", "yarn test"),
            ("pnpm run test", "pnpm test"),
            ("node --test", "node --test"),
            ("node --import tsx --test a.js", "node --test"),
            ("node node_modules/.bin/jest --ci", "jest"),
            ("node ./node_modules/vitest/vitest.mjs run", "vitest"),
            ("go test ./...", "go test"),
            ("make -j2 check", "make test"),
            ("make unit-test", "make test"),
            ("ctest --output-on-failure", "ctest"),
            ("./gradlew :app:test", "gradle test"),
            ("gradle integrationTest", "gradle test"),
            ("mvn -q verify", "mvn test"),
            ("ruby /usr/bin/rspec", "rspec"),
            ("php vendor/bin/phpunit", "phpunit"),
            ("dotnet test", "dotnet test"),
            ("bazel test //...", "bazel test"),
            ("deno test -A", "deno test"),
            ("bun test", "bun test"),
            ("sh ./test.sh", "test script"),
            ("/bin/bash -eu scripts/run-tests --fast", "test script"),
        ] {
            assert_eq!(kind(line), Some(expected), "{line}");
        }
    }

    #[test]
    fn other_commands_are_not() {
        for line in [
            "cargo build",
            "cargo test --no-run",
            "cargo run test",
            "echo cargo test",
            "/usr/bin/test -f x",
            "[ -f x ]",
            "sh -c pytest",
            "bash -lc pytest",
            "python3 -c pytest",
            "python3 -m pip install pytest",
            "pip install pytest",
            "pytest --version",
            "pytest --collect-only",
            "npm install",
            "npm run build",
            "node -e 1",
            "node server.js test",
            "make",
            "make -n test",
            "make latest",
            "go build ./test",
            "git commit -m test",
            "vim test.sh",
            "sh /usr/bin/check",
            "ruby -e test",
        ] {
            assert_eq!(kind(line), None, "{line}");
        }
    }

    #[test]
    fn wrappers_count_once_and_ends_are_of_what_the_process_became() {
        let evidence = evidence(&[
            Run::new("sh -c pytest;true").exits(0),
            Run::new("timeout 60 pytest").below(1).exits(1),
            Run::new("env pytest").below(2),
            Run::new("/usr/bin/python3 /usr/bin/pytest")
                .replaces(3)
                .exits(1),
            Run::new("pytest inner").below(4).exits(1),
            Run::new("make test").exits(0),
            Run::new("cargo test").below(6),
            Run::new("/opt/rust/cargo test").replaces(7).exits(0),
            Run::new("go test").below(1),
        ]);
        let runs: Vec<(u64, &str, End)> = test_runs(&evidence)
            .iter()
            .map(|run| (run.ran.exec.exec, run.runner, run.end))
            .collect();
        assert_eq!(
            runs,
            [
                (4, "pytest", End::Failed),
                (6, "make test", End::Passed),
                (7, "cargo test", End::Passed),
                (9, "go test", End::Unknown),
            ]
        );
    }
}
