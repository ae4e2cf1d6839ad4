//! What must come out of the cases that are not simply refused.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::support::{CANARY, Fixture, LOOK_SECONDS, Mode, Output, Sandboxed, is_root};

/// One finished run.
pub struct Seen<'a> {
    pub env: &'a Sandboxed,
    pub fixture: &'a Fixture,
    pub output: &'a Output,
    pub json: &'a Value,
}

type Check = fn(&Seen<'_>) -> Result<()>;

/// Every recorded case has an expectation; one without is a failure.
const CHECKS: &[(&str, Check)] = &[
    ("fs-018", |s| {
        // The kernel refuses the node within an overlay; where it does not, it is special.
        ensure!(
            s.exit_code() != Some(0) || s.omitted_as("wh", "special"),
            "`wh` is not special"
        );
        ensure!(s.changed().is_empty(), "changes: {:?}", s.changed());
        Ok(())
    }),
    ("fs-019", |s| {
        ensure!(s.changed().is_empty(), "changes: {:?}", s.changed());
        s.patch_lacks("passwd")
    }),
    ("fs-024", |s| {
        s.patch_lacks("root:x:0")?;
        // `ln -sf` makes a link of eight letters first and renames it; the end may come between.
        let expected = |name: &String| name == "f" || name.len() == 8;
        ensure!(
            s.changed().iter().all(expected),
            "changes: {:?}",
            s.changed()
        );
        Ok(())
    }),
    ("fs-025", |s| s.patch_lacks("root:x:0")),
    ("fs-034", |s| s.is_special("a.txt")),
    ("fs-035", |s| s.is_special(".gitattributes")),
    ("fs-036", |s| s.is_special("s.sock")),
    ("fs-041", |s| {
        s.succeeded()?;
        s.removes_all(&["deep"])
    }),
    ("fs-042", |s| s.removes_all(&["x", "y"])),
    ("fs-043", |s| {
        ensure!(s.changed() == ["a.txt"], "changes: {:?}", s.changed());
        ensure!(s.patch()?.contains("+evil"), "the edit is not in the patch");
        Ok(())
    }),
    ("fs-052", |s| {
        let patch = s.patch()?;
        ensure!(
            patch.contains("new file mode 100755"),
            "`su1` is not in the patch"
        );
        ensure!(
            !patch.contains("mode 104755"),
            "the setuid bit is in the patch"
        );
        let mode = fs::metadata(&s.fixture.state)?.permissions().mode() & 0o777;
        ensure!(mode == 0o700, "the state directory has mode {mode:o}");
        Ok(())
    }),
    ("fs-053", |s| {
        s.succeeded()?;
        let said = format!("{}{}", s.output.stdout, s.output.stderr);
        ensure!(
            !said.contains("Value too large"),
            "EOVERFLOW reached the agent"
        );
        ensure!(
            s.changed().iter().any(|path| path == "moved.txt"),
            "changes: {:?}",
            s.changed()
        );
        Ok(())
    }),
    ("fs-132", |s| {
        s.patch_lacks("root:x:0")?;
        s.patch_lacks(CANARY)?;
        ensure!(
            s.patch()?.contains("new file mode 120000"),
            "the link is not in the patch"
        );
        Ok(())
    }),
    ("fs-133", |s| {
        s.patch_lacks("root:x:0")?;
        let patch = s.patch()?;
        ensure!(
            patch.contains("deleted file mode 100644"),
            "no deletion in the patch"
        );
        ensure!(
            patch.contains("new file mode 120000"),
            "the link is not in the patch"
        );
        Ok(())
    }),
    ("fs-134", |s| {
        ensure!(s.changed().len() == 4, "changes: {:?}", s.changed());
        s.patch_lacks("\u{1b}")?;
        s.prints_no_escape()
    }),
    ("fs-135", |s| {
        ensure!(
            s.outcome() == "file_too_large"
                || s.omitted_as("huge", "too_large")
                || s.exit_code() != Some(0),
            "a huge file was taken"
        );
        Ok(())
    }),
    ("fs-136", |s| s.succeeded()),
    ("fs-137", |s| {
        let patch = s.patch()?;
        ensure!(
            patch.contains("src/main.c") && patch.contains("src/deep/x.c"),
            "a deletion is missing"
        );
        ensure!(patch.contains("src/other.c"), "the new file is missing");
        Ok(())
    }),
    ("fs-138", |s| {
        let named = s.changed().iter().any(|path| path.starts_with("k/"))
            || s.omitted()
                .iter()
                .any(|(path, _)| path.trim_end_matches('/') == "k" || path.starts_with("k/"));
        ensure!(named, "`k/f` is lost silently");
        s.removes_all(&["k"])
    }),
    ("info-006", |_| is_documented("uid_map")),
    ("info-008", |_| is_documented("boot id")),
    ("info-009", |s| {
        ensure!(
            s.exit_code() != Some(0),
            "the kernel command line can be read"
        );
        Ok(())
    }),
    ("proc-008", |s| s.succeeded()),
    ("proc-130", |s| s.succeeded()),
    ("proc-131", |s| s.succeeded()),
    ("proc-132", |_| Ok(())),
    ("proc-133", |_| Ok(())),
    ("proc-145", |s| s.succeeded()),
    ("tty-104", |s| s.prints_no_escape()),
];

/// Looks at one recorded case. That it ended, left nothing running and did not touch the folder
/// has been seen before.
pub fn check(id: &str, seen: &Seen<'_>) -> Result<()> {
    let Some((_, check)) = CHECKS.iter().find(|(name, _)| *name == id) else {
        bail!("there is no expectation for this case");
    };
    check(seen)
}

/// What a case needs on the host before it runs. `false` where this machine cannot give it.
pub fn prepare(id: &str, fixture: &Fixture) -> Result<bool> {
    if id == "fs-053" {
        let path = fixture.folder.join("foreign.txt");
        fs::write(&path, "somebody else's\n")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        if !is_root() {
            return Ok(false);
        }
        std::os::unix::fs::chown(&path, Some(65532), Some(65532))?;
    }
    Ok(true)
}

fn is_documented(words: &str) -> Result<()> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/threat-model.md");
    let text = fs::read_to_string(&page).context("cannot read docs/threat-model.md")?;
    ensure!(
        text.contains(words),
        "docs/threat-model.md does not say `{words}`"
    );
    Ok(())
}

impl Seen<'_> {
    fn exit_code(&self) -> Option<i64> {
        self.json["exit_code"].as_i64()
    }

    fn outcome(&self) -> &str {
        self.json["outcome"].as_str().unwrap_or_default()
    }

    fn succeeded(&self) -> Result<()> {
        ensure!(
            self.exit_code() == Some(0),
            "exit code {:?}, outcome `{}`: {}",
            self.exit_code(),
            self.outcome(),
            self.output.tail()
        );
        Ok(())
    }

    fn changed(&self) -> Vec<String> {
        let list = self.json["changed_files"].as_array();
        list.into_iter()
            .flatten()
            .map(|path| path.as_str().unwrap_or_default().to_owned())
            .collect()
    }

    fn omitted(&self) -> Vec<(String, String)> {
        let list = self.json["omitted"].as_array();
        list.into_iter()
            .flatten()
            .map(|item| {
                let text = |key: &str| item[key].as_str().unwrap_or_default().to_owned();
                (text("path"), text("why"))
            })
            .collect()
    }

    fn omitted_as(&self, path: &str, why: &str) -> bool {
        self.omitted().iter().any(|(p, w)| p == path && w == why)
    }

    fn is_special(&self, path: &str) -> Result<()> {
        ensure!(
            self.omitted_as(path, "special"),
            "`{path}` is not reported as special: {:?}",
            self.omitted()
        );
        Ok(())
    }

    /// The patch; empty where nothing crossed back.
    fn patch(&self) -> Result<String> {
        let Some(path) = self.json["patch"].as_str() else {
            return Ok(String::new());
        };
        let bytes = fs::read(path).with_context(|| format!("cannot read the patch `{path}`"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn patch_lacks(&self, text: &str) -> Result<()> {
        ensure!(
            !self.patch()?.contains(text),
            "the patch holds `{}`",
            text.escape_debug()
        );
        Ok(())
    }

    /// What a person reads about the run holds no control character that the agent chose.
    fn prints_no_escape(&self) -> Result<()> {
        let run = self.json["run"]
            .as_str()
            .context("the result names no run")?;
        for words in [&["list"][..], &["show", run], &["diff", run]] {
            let output = self.env.ringfence(self.fixture, LOOK_SECONDS, words)?;
            ensure!(
                output.status.success(),
                "{words:?} failed: {}",
                output.tail()
            );
            let plain = !output.stdout.contains('\u{1b}') && !output.stderr.contains('\u{1b}');
            ensure!(plain, "{words:?} prints an escape sequence");
        }
        Ok(())
    }

    /// `rm` succeeds, and nothing called so is left in the state directory.
    fn removes_all(&self, names: &[&str]) -> Result<()> {
        let run = self.json["run"]
            .as_str()
            .context("the result names no run")?;
        let output = self
            .env
            .ringfence(self.fixture, LOOK_SECONDS, &["rm", run])?;
        ensure!(output.status.success(), "`rm` failed: {}", output.tail());
        let mut open = vec![self.fixture.state.clone()];
        while let Some(directory) = open.pop() {
            let Ok(entries) = fs::read_dir(&directory) else {
                continue;
            };
            for entry in entries {
                let path = entry?.path();
                let name = path.file_name().unwrap_or_default();
                ensure!(
                    !names.iter().any(|n| name == *n),
                    "`{}` is left",
                    path.display()
                );
                if path
                    .symlink_metadata()
                    .is_ok_and(|metadata| metadata.is_dir())
                {
                    open.push(path);
                }
            }
        }
        Ok(())
    }
}

/// Used by the tests to say for whom a case was looked at.
pub fn label(id: &str, mode: Mode) -> String {
    format!(
        "{id} ({})",
        if mode == Mode::Root {
            "root"
        } else {
            "rootless"
        }
    )
}
