//! What a path looks like: a test, continuous integration, generated, something that runs.

pub mod runs;

/// The last component, as text in lower case.
pub fn name(path: &[u8]) -> String {
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    String::from_utf8_lossy(name).to_lowercase()
}

/// What follows the last dot of the name, in lower case.
pub fn extension(path: &[u8]) -> String {
    let name = name(path);
    match name.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() => extension.to_owned(),
        _ => String::new(),
    }
}

const CODE: &[&str] = &[
    "c", "cc", "clj", "cpp", "cr", "cs", "cxx", "dart", "ex", "exs", "go", "groovy", "h", "hpp",
    "hs", "java", "jl", "js", "jsx", "cjs", "mjs", "kt", "kts", "lua", "m", "ml", "nim", "php",
    "pl", "pm", "py", "r", "rb", "rs", "scala", "sh", "bash", "swift", "t", "ts", "tsx", "mts",
    "cts", "vue", "svelte", "zig", "bats", "feature",
];

/// Code that is run file by file, rather than built or loaded.
const SCRIPTS: &[&str] = &["sh", "bash", "bats", "exs", "kts", "groovy", "t", "feature"];

/// True for code that is a part of something larger.
pub fn is_source(path: &[u8]) -> bool {
    let extension = extension(path);
    CODE.contains(&extension.as_str()) && !SCRIPTS.contains(&extension.as_str())
}

const TEST_DIRECTORIES: &[&str] = &[
    "test",
    "tests",
    "__tests__",
    "__snapshots__",
    "testdata",
    "e2e",
    "integration-tests",
    "integration_tests",
    "unittests",
    "androidtest",
];
/// Test only where they hold code: specifications are called so, too.
const SPEC_DIRECTORIES: &[&str] = &["spec", "specs", "cypress"];

/// True for a file that belongs to the tests of a project.
pub fn is_test(path: &[u8]) -> bool {
    let text = String::from_utf8_lossy(path);
    let whole = text.rsplit('/').next().unwrap_or_default();
    let (name, extension) = (name(path), extension(path));
    let code = CODE.contains(&extension.as_str());
    let mut directories: Vec<String> = text.split('/').map(str::to_lowercase).collect();
    directories.pop();
    if directories.iter().any(|dir| {
        TEST_DIRECTORIES.contains(&dir.as_str())
            || (code && SPEC_DIRECTORIES.contains(&dir.as_str()))
    }) {
        return true;
    }
    if name.ends_with(".snap") || name.ends_with(".bats") {
        return true;
    }
    if !code {
        return false;
    }
    let stem = &name[..name.len() - extension.len() - 1];
    // `FooTest.java`: the capital tells it from `latest.java`.
    let original = &whole[..whole.len().saturating_sub(extension.len() + 1)];
    let camel = ["Test", "Tests", "TestCase", "Spec", "IT"]
        .iter()
        .any(|end| {
            original.strip_suffix(end).is_some_and(|before| {
                before.ends_with(|c: char| c.is_lowercase() || c.is_ascii_digit())
            })
        });
    camel
        || ["test", "tests", "conftest"].contains(&stem)
        || stem.starts_with("test_")
        || stem.starts_with("test-")
        || [
            "_test", "_tests", "-test", ".test", ".tests", ".spec", "_spec", "-spec", ".cy", ".e2e",
        ]
        .iter()
        .any(|end| stem.ends_with(end))
}

/// True for what tells a machine how to check a change: continuous integration of all kinds.
pub fn is_ci(path: &[u8]) -> bool {
    const NAMES: &[&str] = &[
        ".gitlab-ci.yml",
        ".gitlab-ci.yaml",
        ".travis.yml",
        ".drone.yml",
        ".cirrus.yml",
        ".woodpecker.yml",
        ".appveyor.yml",
        "appveyor.yml",
        "azure-pipelines.yml",
        "azure-pipelines.yaml",
        "bitbucket-pipelines.yml",
        "buildspec.yml",
        "cloudbuild.yaml",
        "cloudbuild.yml",
        "codemagic.yaml",
        "jenkinsfile",
        ".semaphore.yml",
        "wercker.yml",
        ".build.yml",
        ".sourcehut.yml",
        "taskcluster.yml",
        ".taskcluster.yml",
        ".mergify.yml",
        "netlify.toml",
        "vercel.json",
        "action.yml",
        "action.yaml",
    ];
    const DIRECTORIES: &[&str] = &[
        ".github/workflows/",
        ".github/actions/",
        ".gitea/workflows/",
        ".forgejo/workflows/",
        ".gitlab/ci/",
        ".circleci/",
        ".buildkite/",
        ".semaphore/",
        ".woodpecker/",
        ".drone/",
        ".teamcity/",
        ".builds/",
        ".azure-pipelines/",
        ".tekton/",
        ".concourse/",
    ];
    let whole = String::from_utf8_lossy(path).to_lowercase();
    NAMES.contains(&name(path).as_str()) || within(&whole, DIRECTORIES)
}

/// True where a path (in lower case) lies in one of these directories, at the top or deeper.
pub fn within(whole: &str, directories: &[&str]) -> bool {
    directories.iter().any(|dir| {
        whole.starts_with(dir)
            || whole
                .match_indices(dir)
                .any(|(at, _)| whole[..at].ends_with('/'))
    })
}

/// True for files that a program wrote and a person does not read line by line.
pub fn is_generated(path: &[u8]) -> bool {
    const NAMES: &[&str] = &[
        "cargo.lock",
        "package-lock.json",
        "npm-shrinkwrap.json",
        "yarn.lock",
        "pnpm-lock.yaml",
        "bun.lock",
        "poetry.lock",
        "uv.lock",
        "pdm.lock",
        "pipfile.lock",
        "gemfile.lock",
        "composer.lock",
        "go.sum",
        "flake.lock",
        "mix.lock",
        "pubspec.lock",
        "packages.lock.json",
        "podfile.lock",
        "deno.lock",
    ];
    let name = name(path);
    NAMES.contains(&name.as_str())
        || [
            ".min.js", ".min.css", ".map", ".snap", ".svg", ".ipynb", ".sum",
        ]
        .iter()
        .any(|end| name.ends_with(end))
}

/// True for files of variables: `.env`, `.env.local`, `production.env`.
pub fn is_environment(path: &[u8]) -> bool {
    let name = name(path);
    name == ".env" || name.starts_with(".env.") || name.ends_with(".env")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_known_by_their_paths() {
        for path in [
            "tests/a.py",
            "test_a.py",
            "src/a_test.go",
            "src/a.test.tsx",
            "src/FooTest.java",
            "src/FooTests.cs",
            "spec/models/user_spec.rb",
            "src/__tests__/x.js",
            "conftest.py",
            "pkg/testdata/golden.txt",
            "src/tests.rs",
            "a.bats",
            "web/__snapshots__/a.snap",
        ] {
            assert!(is_test(path.as_bytes()), "{path}");
        }
        for path in [
            "src/latest.java",
            "src/contest.py",
            "spec/openapi.yaml",
            "src/attestation.rs",
            "docs/test.md",
            "testing.md",
            "src/protest.c",
            "src/inspect.py",
            "src/EXIT.java",
            "README",
        ] {
            assert!(!is_test(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn continuous_integration_is_known() {
        for path in [
            ".github/workflows/ci.yml",
            "sub/.github/workflows/x.yaml",
            ".gitlab-ci.yml",
            "Jenkinsfile",
            ".circleci/config.yml",
        ] {
            assert!(is_ci(path.as_bytes()), "{path}");
        }
        for path in [
            "src/ci.rs",
            ".github/CODEOWNERS",
            "x.github/workflows/a",
            "ci/README.md",
        ] {
            assert!(!is_ci(path.as_bytes()), "{path}");
        }
    }
}
