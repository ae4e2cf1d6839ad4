//! A base is readable whatever the umask of whoever makes it. The umask belongs to the process, so the test
//! runs in a process of its own.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use ringfence_engine::base;
use rustix::fs::Mode;

use crate::shared::mirror_bench::Bench;

#[test]
fn no_umask_changes_a_base() {
    const CHILD: &str = "RINGFENCE_TEST_UMASK";
    if std::env::var_os(CHILD).is_none() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "bases_umask::no_umask_changes_a_base"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        let passed = child.status.success() && said.contains("1 passed");
        assert!(passed, "{said}");
        return;
    }
    let bench = Bench::new();
    bench.sh("git init -qb main app; cd app; mkdir d; echo x > d/f; echo y > run; chmod +x run; git add .; git commit -qm x");
    rustix::process::umask(Mode::from_raw_mode(0o077));
    let base = bench.commit("app");
    let stage = base::staged(&bench.home, &bench.store, &base, &["d".to_owned()]).unwrap();
    for (base, path, mode) in [
        (&base, "", 0o755),
        (&base, "d", 0o755),
        (&base, "d/f", 0o644),
        (&base, "run", 0o755),
        (&base, ".git", 0o755),
        (&base, ".git/index", 0o644),
        (&base, ".git/refs/heads", 0o755),
        (&stage, "d", 0o755),
        (&stage, "d/f", 0o644),
        (&stage, ".git/objects", 0o755),
        (&stage, ".git/refs/heads/main", 0o644),
    ] {
        let found = std::fs::metadata(base.workspace().join(path))
            .unwrap()
            .mode();
        assert_eq!(found & 0o7777, mode, "{path}");
    }
}
