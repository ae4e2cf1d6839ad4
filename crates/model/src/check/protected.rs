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
    // A module may be a package or a library in the place of its file.
    "test_*",
    "*_test",
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
    // What is installed, and so what runs them.
    "node_modules",
    ".venv",
    "venv",
    "site-packages",
    ".tox",
    ".nox",
    // What runs before a test, or in its place.
    "conftest.py",
    "conftest",
    // What is loaded or believed in the place of a source: it was made of one, or of another one.
    "__pycache__",
    "*.pyc",
    "*.pyo",
    "*.pyd",
    "*.so",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".eslintcache",
    ".tsbuildinfo",
    "*.tsbuildinfo",
    ".phpunit.result.cache",
    "CMakeCache.txt",
    "**/target/debug",
    "**/target/release",
    "sitecustomize.py",
    "usercustomize.py",
    "*.pth",
    // What is in one of these is loaded by runners as a plugin, by its entry points.
    "*.dist-info",
    "*.egg-info",
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
    ".pytest.toml",
    "tox.ini",
    "tox.toml",
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
    "*.mk",
    "*.mak",
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
    ".justfile",
    ".mvn",
    "bunfig.toml",
    "Taskfile.y*ml",
    "Rakefile",
    ".rspec",
    "phpunit.xml*",
    "phpunit.dist.xml",
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

#[cfg(test)]
mod tests {
    use super::*;

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
            "evil-1.dist-info/entry_points.txt",
            "src/evil.egg-info/entry_points.txt",
            ".pytest.toml",
            "node_modules/.bin/jest",
            ".venv/lib/inner",
            "common.mk",
            "__pycache__/calc.cpython-311.pyc",
            "a/conftest.pyc",
            "conftest/__init__.py",
            "test_calc/__init__.py",
            "test_calc.cpython-311-x86_64-linux-gnu.so",
            ".ruff_cache/0.1/x",
            "sub/.mypy_cache/x",
            "build/x.tsbuildinfo",
            "target/debug/deps/x",
            "sub/target/release/x",
            ".mvn/jvm.config",
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
            "src/target/mod.rs",
            "src/so.rs",
            "src/testing_ground/a.py",
        ] {
            assert!(!globs.matches(Path::new(path)), "{path}");
        }
    }
}
