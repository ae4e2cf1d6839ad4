//! A large tree: the private directory is ready at once, and `git status` inside opens no file.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::os::fd::AsFd;
use std::time::Instant;

use ringfence_engine::git::{IgnoreRules, Index};
use ringfence_model::changes::ObjectHash;

use crate::shared::git_bench as bench;
use bench::Bench;

#[test]
fn git_status_opens_no_tracked_file() {
    if std::process::Command::new("strace")
        .arg("-V")
        .output()
        .is_err()
    {
        println!("SKIPPED git_speed: strace is not installed");
        return;
    }
    let bench = Bench::new();
    bench.sh(
        "git init -q r; cd r
         for d in $(seq 50); do mkdir tracked$d; for f in $(seq 100); do echo $d $f > tracked$d/f$f; done; done
         find . -name 'f*' -exec touch -d '1 hour ago' {} +; git add .; git commit -qm all; sleep 1.1;
         git update-index --force-write-index",
    );
    let started = Instant::now();
    let private = bench.build("r");
    println!("5,000 files: private directory in {:?}", started.elapsed());
    let said = bench.inside(
        "r",
        &private,
        "strace -f -e trace=open,openat,openat2 -o \"$ROOT/trace\" git status --porcelain=v1;
         grep -c 'tracked[0-9]*/f' \"$ROOT/trace\" || true; grep -c . \"$ROOT/trace\"",
    );
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("0"), "tracked files were opened");
    assert!(
        lines.next().unwrap().parse::<u32>().unwrap() > 10,
        "the trace is empty"
    );
    // The control: with another time on its index, git must look into the files.
    let said = bench.inside(
        "r",
        &private,
        "touch -d '2 hours ago' .git/index
         strace -f -e trace=open,openat,openat2 -o \"$ROOT/trace\" git status --porcelain=v1;
         grep -c 'tracked[0-9]*/f' \"$ROOT/trace\" || true",
    );
    assert_eq!(said.trim(), "5000");
}

#[test]
fn an_index_of_50000_entries_parses_whole() {
    for (version, hash) in [(2, "sha1"), (4, "sha1"), (4, "sha256")] {
        let bench = Bench::new();
        bench.sh(&format!(
            "git init -q --object-format={hash} r; cd r
             oid=$(echo x | git hash-object -w --stdin)
             seq 0 49999 | awk -v oid=$oid '{{ printf \"100644 %s 0\\tsome/directory/number%d/file%d.txt\\n\",
               oid, $1 % 500, $1 / 500 }}' |
             git update-index --index-info; git update-index --index-version {version}"
        ));
        let bytes = std::fs::read(bench.path("outside/r/.git/index")).unwrap();
        let hash = if hash == "sha1" {
            ObjectHash::Sha1
        } else {
            ObjectHash::Sha256
        };
        let started = Instant::now();
        let index = Index::parse(&bytes, hash).unwrap();
        let took = started.elapsed();
        println!("version {version}: {} entries in {took:?}", index.len());
        assert_eq!(index.len(), 50_000);
        assert!(index.is_tracked(b"some/directory/number7/file8.txt"));
        assert!(!index.is_tracked(b"some/directory/number7/file800.txt"));
        assert!(index.has_tracked_below(b"some/directory/number7"));

        let started = Instant::now();
        bench.build("r");
        println!("private directory: {:?}", started.elapsed());
        let repo = bench.discover("r").unwrap();
        std::fs::write(
            bench.path("outside/r/.gitignore"),
            "*.o\n/out/\n*~\nnode_modules\n",
        )
        .unwrap();
        let upper = std::fs::File::open(bench.path("upper")).unwrap();
        let base = std::fs::File::open(bench.path("outside/r")).unwrap();
        let started = Instant::now();
        let mut rules = IgnoreRules::load(Some(&repo), upper.as_fd(), base.as_fd()).unwrap();
        println!("rules loaded: {:?}", started.elapsed());
        let started = Instant::now();
        for at in 0..1000 {
            let path = format!("some/directory/number{}/new{at}.o", at % 100);
            assert!(rules.is_ignored(path.as_bytes(), false));
        }
        println!("1,000 paths: {:?}", started.elapsed());
    }
}
