//! The same tests once more, by somebody without privileges.

use std::process::Command;

use super::program;

/// The usual number of descriptors; root may have more.
pub const USUAL_DESCRIPTORS: &str = "ulimit -n 1024; exec \"$0\" \"$@\"";
/// The limits of whoever runs the tests.
pub const SAME_LIMITS: &str = "exec \"$0\" \"$@\"";

/// Runs the tests of a module (`module_path!()`) again as nobody. `line` is the shell line that starts
/// the program `$0`. Only root can; for everybody else the first time was that.
pub fn as_nobody(module: &str, line: &str, skip: &[&str]) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), open).unwrap();
    let copy = dir.path().join("tests");
    program::copy(&std::env::current_exe().unwrap(), &copy);
    let output = Command::new("setpriv")
        .args(["--reuid=65533", "--regid=65533", "--clear-groups"])
        .args(["--inh-caps=-all", "--", "bash", "-c", line])
        .arg(&copy)
        .arg(format!("{}::", module.trim_start_matches("integration::")))
        .arg("--show-output")
        .args(skip.iter().flat_map(|name| ["--skip", name]))
        .env("TMPDIR", dir.path())
        .current_dir(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains(" 0 passed"), "no test ran again: {said}");
    for line in said.lines().filter(|line| line.starts_with("SKIPPED ")) {
        println!("{line} (as nobody)");
    }
}
