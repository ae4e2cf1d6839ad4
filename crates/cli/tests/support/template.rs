//! The folder that fixtures are copies of, made once for all tests of a build.

use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::PATH;

const FILES: &[(&str, &str)] = &[
    ("a.txt", "one\ntwo\nthree\n"),
    ("README.md", "# Fixture\n"),
    ("src/main.c", "int main(void) { return 0; }\n"),
    ("src/deep/x.c", "int x;\n"),
    (".gitignore", "ignored/\n*.o\n"),
];

/// A repository with a commit, uncommitted work, ignored files, and secrets in its `.git`.
pub fn made() -> Result<PathBuf> {
    let top = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Another version of this file makes another template.
    let mut hasher = DefaultHasher::new();
    include_str!("template.rs").hash(&mut hasher);
    let place = top.join(format!("template-{:x}", hasher.finish()));
    if !place.exists() {
        fs::create_dir_all(top)?;
        let making = tempfile::tempdir_in(top)?;
        make(making.path())?;
        // Atomic, so that no test sees half of it. Another test may have been faster.
        if let Err(error) = fs::rename(making.path().join("folder"), &place) {
            ensure!(place.exists(), "cannot make the template: {error}");
        }
    }
    Ok(place)
}

fn make(directory: &Path) -> Result<()> {
    let folder = directory.join("folder");
    fs::create_dir_all(folder.join("src/deep"))?;
    for (name, text) in FILES {
        fs::write(folder.join(name), text)?;
    }
    for words in [
        &["init", "-q", "-b", "main"][..],
        &["config", "user.name", "Fixture"],
        &["config", "user.email", "fixture@example.org"],
        &[
            "config",
            "remote.origin.url",
            "https://x:canary-in-git-config@example.org/r",
        ],
        &["add", "-A"],
        &["commit", "-q", "-m", "first"],
    ] {
        let git = Command::new("git")
            .args(["-c", "maintenance.auto=false"])
            .args(words)
            .current_dir(&folder)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", directory)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .context("cannot run git")?;
        ensure!(git.status.success(), "git {words:?}: {git:?}");
    }
    fs::create_dir_all(folder.join(".git/hooks"))?;
    let hook = folder.join(".git/hooks/pre-commit");
    fs::write(&hook, "#!/bin/sh\n# canary-real-hook\n")?;
    fs::set_permissions(&hook, Permissions::from_mode(0o755))?;
    fs::write(folder.join("README.md"), "# Fixture\n\nNot committed.\n")?;
    Ok(())
}
