//! Files that decide how a check is done: the exam, which is not the examinee's to write.
//!
//! Tests, what steers their runners, what runs before them, what builds them and what CI does. A
//! patch may well change them; then it is looked at with them and without them.

use crate::policy::glob::{GlobError, Globs};

/// What is protected by itself, in the words of a policy's patterns.
pub const USUAL: &[&str] = &[
    // Tests, by where they are and what they are called.
    "tests",
    "test",
    "__tests__",
    "__snapshots__",
    "testdata",
    "spec",
    "e2e",
    "test_*.py",
    "*_test.py",
    "tests.py",
    "*_test.go",
    "*_test.rs",
    "tests.rs",
    "*.test.*",
    "*.spec.*",
    "*_spec.rb",
    "*Test.java",
    "*Tests.java",
    "*Test.kt",
    "*.snap",
    // What runs before a test, or in its place.
    "conftest.py",
    "sitecustomize.py",
    "usercustomize.py",
    "*.pth",
    "pytest.py",
    "pytest",
    "_pytest",
    "unittest.py",
    "unittest",
    // Settings of runners and of what builds for them.
    "pytest.ini",
    "pytest.toml",
    ".pytest.ini",
    "tox.ini",
    "noxfile.py",
    "setup.cfg",
    "pyproject.toml",
    ".coveragerc",
    "manage.py",
    "package.json",
    ".npmrc",
    ".yarnrc*",
    "jest.config.*",
    "jest.setup.*",
    "vitest.config.*",
    "vitest.workspace.*",
    "vite.config.*",
    ".mocharc*",
    ".babelrc*",
    "babel.config.*",
    "karma.conf.*",
    "playwright.config.*",
    "cypress.config.*",
    ".cargo",
    ".config/nextest.toml",
    "build.rs",
    "Cargo.toml",
    "rust-toolchain",
    "rust-toolchain.toml",
    "Makefile",
    "GNUmakefile",
    "justfile",
    "Taskfile.y*ml",
    "Rakefile",
    ".rspec",
    "phpunit.xml*",
    ".envrc",
    ".tool-versions",
    // What CI does.
    ".github",
    ".gitlab-ci.yml",
    ".gitlab",
    ".circleci",
    ".buildkite",
    ".woodpecker",
    ".woodpecker.y*ml",
    ".travis.yml",
    "azure-pipelines.yml",
    "Jenkinsfile",
    // What is installed.
    "Cargo.lock",
    "package-lock.json",
    "npm-shrinkwrap.json",
    "yarn.lock",
    "pnpm-lock.yaml",
    "bun.lock*",
    "poetry.lock",
    "uv.lock",
    "pdm.lock",
    "Pipfile.lock",
    "requirements*.txt",
    "go.sum",
    "Gemfile.lock",
    "composer.lock",
    "flake.lock",
];

/// What is protected: the usual, and what a policy adds.
pub fn globs<T: AsRef<str>>(added: &[T]) -> Result<Globs, GlobError> {
    let usual = USUAL.iter().copied();
    let all: Vec<&str> = usual.chain(added.iter().map(AsRef::as_ref)).collect();
    Globs::parse(&all)
}

/// Scripts of the folder that a check runs by name: `./ci.sh`, `tools/test`, `sh run-tests`. What
/// other programs are given (`python3 main.py`) may well be what is to be looked at.
pub fn scripts(command: &str) -> Vec<&str> {
    const SHELLS: [&str; 7] = ["sh", "bash", "dash", "zsh", "ksh", ".", "source"];
    const BETWEEN: [char; 6] = [';', '&', '|', '(', ')', '`'];
    let mut found = Vec::new();
    for part in command.split(BETWEEN) {
        let words = part
            .split_whitespace()
            .map(|word| word.trim_matches(['"', '\'']));
        // Variables before a command are not the command.
        let mut words = words.skip_while(|word| word.contains('='));
        let Some(first) = words.next() else {
            continue;
        };
        let name = first.rsplit('/').next().unwrap_or(first);
        let script = match SHELLS.contains(&name) {
            // `sh -e run-tests`; what follows `-c` is no file.
            true => words.find(|word| !word.starts_with('-')),
            false => Some(first).filter(|first| first.contains('/')),
        };
        let script = script.map(|script| script.trim_start_matches("./"));
        found.extend(script.filter(|script| !script.is_empty() && !script.starts_with('/')));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_script_that_a_check_runs_is_part_of_the_exam() {
        for (command, expected) in [
            ("./ci.sh --all", vec!["ci.sh"]),
            (
                "sh -e run-tests && tools/lint src",
                vec!["run-tests", "tools/lint"],
            ),
            ("CI=1 bash scripts/test", vec!["scripts/test"]),
            ("cd a; . ./env", vec!["env"]),
            ("pytest -q tests", vec![]),
            ("python3 main.py", vec![]),
            ("/usr/bin/make test", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(scripts(command), expected, "{command}");
        }
    }

    #[test]
    fn an_exam_is_known_by_its_name() {
        let globs = globs(&["golden/**"]).unwrap();
        for path in [
            "tests/a.py",
            "a/tests/b/c.py",
            "test_a.py",
            "pkg/x_test.go",
            "conftest.py",
            "deep/er/conftest.py",
            "src/a.test.ts",
            "src/a.spec.js",
            "sitecustomize.py",
            "jest.config.js",
            ".cargo/config.toml",
            "crates/x/.cargo/config",
            "package.json",
            "pytest/__init__.py",
            ".github/workflows/ci.yml",
            "Cargo.lock",
            "golden/x",
            // As a file system that folds case has them.
            "Tests/A.py",
            "CONFTEST.PY",
            // What takes the place of a directory of tests.
            "tests",
        ] {
            assert!(globs.matches(Path::new(path)), "{path}");
        }
        for path in [
            "src/lib.rs",
            "latest.py",
            "contest.py",
            "README.md",
            "src/testing.c",
        ] {
            assert!(!globs.matches(Path::new(path)), "{path}");
        }
    }
}
