//! Files that decide how a check is done: the exam, which is not the examinee's to write.
//!
//! Tests, what steers their runners, what runs before them, what builds them and what CI does. A
//! patch may well change them; then it is looked at with them and without them.

use std::path::Path;
use std::sync::OnceLock;

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
    // What decides about runs and their checks.
    "ringfence.toml",
    // Settings of runners and of what builds for them.
    "go.mod",
    "go.work",
    "ruff.toml",
    ".ruff.toml",
    ".flake8",
    "mypy.ini",
    ".mypy.ini",
    ".pylintrc",
    "pyrightconfig.json",
    "tsconfig*.json",
    ".eslintrc*",
    "eslint.config.*",
    ".prettierrc*",
    "biome.json*",
    "clippy.toml",
    ".clippy.toml",
    ".golangci.*",
    "Pipfile",
    "Gemfile",
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
    "CMakeLists.txt",
    "pom.xml",
    "build.gradle*",
    "settings.gradle*",
    "gradle.properties",
    "build.xml",
    "meson.build",
    "BUILD",
    "BUILD.bazel",
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
#[derive(Debug)]
pub struct Protected {
    usual: &'static Globs,
    added: Globs,
}

impl Protected {
    pub fn with<T: AsRef<str>>(added: &[T]) -> Result<Self, GlobError> {
        Ok(Self {
            usual: usual(),
            added: Globs::parse(added)?,
        })
    }

    pub fn matches(&self, path: &Path) -> bool {
        self.usual.matches(path) || self.added.matches(path)
    }
}

/// The usual patterns, ready. Making them takes as long as starting a sandbox, and is done once;
/// whoever will need them calls this while there is nothing else to do.
pub fn usual() -> &'static Globs {
    static USUAL_GLOBS: OnceLock<Globs> = OnceLock::new();
    USUAL_GLOBS.get_or_init(|| Globs::parse(USUAL).expect("the table has patterns only"))
}

/// Scripts of the folder that a check runs by name: `./ci.sh`, `tools/test`, `sh run-tests`. What
/// other programs are given (`python3 main.py`) may well be what is to be looked at.
///
/// HOSTILE: too much is better than too little here. A word too many protects a file of that name.
pub fn scripts(command: &str) -> Vec<&str> {
    const SHELLS: [&str; 8] = ["sh", "bash", "dash", "zsh", "ksh", "busybox", ".", "source"];
    const BETWEEN: [char; 9] = [';', '&', '|', '(', ')', '`', '{', '}', '\n'];
    let mut found = Vec::new();
    for part in command.split(BETWEEN) {
        let mut shell = false;
        let mut leads = true;
        for word in part.split_whitespace() {
            let word = word.trim_matches(['"', '\'', '$', '<', '>']);
            let name = word.rsplit('/').next().unwrap_or(word);
            let is_shell = SHELLS.contains(&name);
            let ends = [".sh", ".bash", ".zsh"]
                .iter()
                .any(|end| word.ends_with(end));
            // What a shell is given is a script, an option's word, or a line of shell itself.
            if shell || ends || (leads && word.contains('/')) {
                found.push(word.trim_start_matches("./"));
            }
            shell |= is_shell;
            leads &= leads_on(word);
        }
    }
    found.retain(|script| !script.is_empty() && !script.starts_with(['/', '-']));
    found.dedup();
    found
}

/// Whether what follows a word is still the program that is run: variables, and programs that run
/// another, with their options.
fn leads_on(word: &str) -> bool {
    const RUN_ANOTHER: [&str; 20] = [
        "env", "timeout", "nice", "ionice", "time", "exec", "command", "nohup", "setsid", "stdbuf",
        "xargs", "sudo", "chrt", "taskset", "unbuffer", "if", "then", "do", "while", "!",
    ];
    word.contains('=')
        || word.starts_with('-')
        || word.starts_with(|first: char| first.is_ascii_digit())
        || RUN_ANOTHER.contains(&word)
}

#[cfg(test)]
mod tests {
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
            ("timeout 60 ./ci.sh", vec!["ci.sh"]),
            ("timeout -k 5s 1m tools/check", vec!["tools/check"]),
            ("env A=1 ./ci", vec!["ci"]),
            ("bash -o pipefail ci", vec!["pipefail", "ci"]),
            ("sh -c './ci && lint/all'", vec!["ci", "lint/all"]),
            ("cd sub && ./run.sh", vec!["run.sh"]),
            ("if ! tools/x; then tools/y; fi", vec!["tools/x", "tools/y"]),
            ("python3 src/main.py && ruff check src/a", vec![]),
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
        let globs = Protected::with(&["golden/**"]).unwrap();
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
