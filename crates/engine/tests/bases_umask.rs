//! A base is readable whatever the umask of whoever makes it. The umask is the process's, so this is
//! a test program of its own.

#![allow(clippy::unwrap_used, dead_code)]

#[path = "mirrors_support/bench.rs"]
mod bench;

use std::os::unix::fs::MetadataExt;

use bench::Bench;
use ringfence_engine::base;
use rustix::fs::Mode;

#[test]
fn no_umask_changes_a_base() {
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
