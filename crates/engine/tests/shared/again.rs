//! The same tests once more, by somebody without privileges.

#[path = "program.rs"]
mod program;

use std::process::Command;

/// Runs this test program again as nobody, by this shell line, in which `$0` is the program. Only
/// root can; for everybody else the first time was that.
pub fn as_nobody(line: &str) {
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
        .env("TMPDIR", dir.path())
        .current_dir(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
}
