//! Bases with the real git: what is in a workspace, and what git inside makes of it.

#![allow(clippy::unwrap_used, clippy::print_stdout, dead_code)]

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use ringfence_engine::base::{self, Base, BaseError};
use ringfence_engine::error::{Error, ErrorKind};
use ringfence_engine::mirror::Silent;

use crate::shared::mirror_bench as bench;
use bench::{Bench, inside, inside_at, tracing};

const SEED: &str = "git init -qb main app; cd app; echo one > a; git add a; git commit -qm one;";

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Names in a trace that git opened, of those that are asked for.
fn opened(bench: &Bench, base: &Base, names: &[&str]) -> Vec<String> {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("SKIPPED a trace of git: what git opens is not traced, since there is no strace");
        return Vec::new();
    }
    let trace = bench.path("trace");
    let program = ["strace", "-f", "-e", "trace=open,openat", "-o"];
    let program = [&program[..], &[trace.to_str().unwrap(), "git"]].concat();
    let output = tracing(base, "", &program, &["status", "--porcelain"]);
    assert!(output.status.success());
    let trace = std::fs::read_to_string(trace).unwrap();
    assert!(trace.contains("packed-refs"), "git was traced");
    let hit = |name: &&&str| trace.contains(&format!("\"{name}\""));
    names
        .iter()
        .filter(hit)
        .map(|name| (*name).to_owned())
        .collect()
}

#[test]
fn a_commit_is_checked_out_and_git_reads_no_file_of_it() {
    let bench = Bench::new();
    bench.sh(&format!(
        "umask 077; {SEED} mkdir -p d/e; echo x > d/e/run; chmod +x d/e/run
         printf x > \"$(printf 'new\\nline')\"; printf x > \"$(printf 'by\\377te')\"
         ln -s /etc/passwd out; ln -s nowhere d/dangling
         git add .; git commit -qm two; git tag -am t v1; git branch other HEAD~1"
    ));
    let base = bench.commit("app");
    let workspace = base.workspace();
    assert_eq!(
        base.tree.as_deref().unwrap(),
        bench.sh("cd app; git rev-parse HEAD^{tree}")
    );
    assert_eq!(base.objects.len(), 1);
    for (path, expected) in [
        ("workspace", 0o755),
        ("workspace/a", 0o644),
        ("workspace/d", 0o755),
        ("workspace/d/e/run", 0o755),
        ("workspace/.git", 0o755),
        ("workspace/.git/config", 0o644),
        ("home", 0o700),
        ("tmp", 0o1777),
    ] {
        assert_eq!(mode(&base.path.join(path)), expected, "{path}");
    }
    assert_eq!(
        std::fs::read_link(workspace.join("out")).unwrap(),
        Path::new("/etc/passwd")
    );
    assert_eq!(inside(&base, &["status", "--porcelain"]), "");
    assert_eq!(inside(&base, &["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert_eq!(
        inside(&base, &["rev-parse", "other"]),
        bench.sh("cd app; git rev-parse other")
    );
    assert_eq!(inside(&base, &["describe"]), "v1");
    assert_eq!(inside(&base, &["fsck"]), "");
    let names = ["a", "d/e/run", "d/dangling", "out"];
    assert_eq!(opened(&bench, &base, &names), [""; 0]);
    // A change is seen, of the same size too.
    std::fs::write(workspace.join("a"), "two\n").unwrap();
    assert_eq!(inside(&base, &["status", "--porcelain"]), " M a");
    // No path of the host is inside.
    let config = std::fs::read_to_string(workspace.join(".git/config")).unwrap();
    assert!(
        !config.contains(bench.directory.path().to_str().unwrap()),
        "{config}"
    );
    let alternates = std::fs::read_to_string(workspace.join(".git/objects/info/alternates"));
    assert_eq!(alternates.unwrap(), "/.ringfence/objects/0\n");
    assert_eq!(
        base::open(&bench.home, &bench.store, base.id).unwrap(),
        base
    );
}

#[test]
fn files_are_the_bytes_of_the_repository() {
    let bench = Bench::new();
    bench.sh(&format!(
        "{SEED} printf '*.txt text eol=crlf\\n*.id ident\\n*.u working-tree-encoding=UTF-16\\n*.f filter=x\\n' > .gitattributes
         printf 'a\\nb\\n' > x.txt; printf '$Id$\\n' > y.id; printf 'raw' > z.f
         git add .; echo u > e.u; git -c core.attributesFile=/dev/null hash-object -w --no-filters e.u > h
         git update-index --add --cacheinfo 100644,$(cat h),e.u; git commit -qm two"
    ));
    let base = bench.commit("app");
    for (name, bytes) in [
        ("x.txt", "a\nb\n"),
        ("y.id", "$Id$\n"),
        ("z.f", "raw"),
        ("e.u", "u\n"),
    ] {
        let found = std::fs::read_to_string(base.workspace().join(name)).unwrap();
        assert_eq!(found, bytes, "{name}");
    }
    assert_eq!(inside(&base, &["status", "--porcelain"]), "");
}

#[test]
fn a_tree_that_is_not_the_commits_is_refused() {
    let bench = Bench::new();
    bench.sh(&format!(
        "{SEED} printf 'a\\nb\\n' > x.txt; git add .; git commit -qm two"
    ));
    let resolved = bench.local("app", None);
    let attributes = resolved.mirror.path.join("info/attributes");
    std::fs::write(attributes, "* text eol=crlf\n").unwrap();
    let error = base::commit(&bench.home, &bench.store, &resolved, &mut Silent).unwrap_err();
    assert!(matches!(error, BaseError::Verify { .. }), "{error:?}");
    assert!(bench.store.bases().unwrap().is_empty());
    let left = std::fs::read_dir(bench.home.bases()).unwrap();
    assert!(
        left.into_iter()
            .all(|e| e.unwrap().path().extension().is_some()),
        "only the lock"
    );
}

#[test]
fn sha256_works_too() {
    let bench = Bench::new();
    let head = bench.sh(
        "git init -qb main --object-format=sha256 app; cd app; mkdir d; echo x > d/f; git add .
         git commit -qm one; git rev-parse HEAD",
    );
    let base = bench.commit("app");
    assert_eq!(base.commit.as_deref(), Some(&head[..]));
    assert_eq!(inside(&base, &["status", "--porcelain"]), "");
    assert_eq!(opened(&bench, &base, &["d/f"]), [""; 0]);
    std::fs::write(bench.path("app/d/g"), "y").unwrap();
    let base = bench.snapshot("app");
    assert_eq!(inside(&base, &["status", "--porcelain"]), "?? d/g");
    let base = base::staged(&bench.home, &bench.store, &base, &["d/g".to_owned()]).unwrap();
    assert_eq!(
        inside(&base, &["ls-tree", "-r", "--name-only", "HEAD"]),
        "d/g"
    );
}

#[test]
fn a_half_made_base_is_made_again_and_a_lost_one_named() {
    let bench = Bench::new();
    bench.sh(SEED);
    let base = bench.commit("app");
    assert_eq!(bench.commit("app"), base);
    bench.sh(&format!("rm -rf {}", base.path.display()));
    let error = base::open(&bench.home, &bench.store, base.id).unwrap_err();
    assert!(error.to_string().contains("is gone"), "{error}");
    assert_eq!(Error::from(error).kind(), ErrorKind::Conflict);
    // As a killed maker leaves it.
    std::fs::create_dir_all(base.workspace().join("half")).unwrap();
    std::fs::write(base.workspace().join("half/x"), "").unwrap();
    bench.store.remove_base(base.id).unwrap();
    assert_eq!(bench.commit("app"), base);
    assert!(!base.workspace().join("half").exists());
    let empty = base::empty(&bench.home, &bench.store).unwrap();
    assert_eq!(base::empty(&bench.home, &bench.store).unwrap(), empty);
    assert_eq!(std::fs::read_dir(empty.workspace()).unwrap().count(), 0);
    assert!(empty.objects.is_empty());
}

#[test]
fn a_snapshot_is_the_folder_as_it_is() {
    let bench = Bench::new();
    bench.sh(&format!(
        "{SEED} echo ign > .gitignore; for n in clean dirty gone touched; do echo $n > $n; done
         echo exec > run; ln -s clean link; git add .; git commit -qm two
         sleep 1.1; git update-index --refresh; touch -d '1 hour ago' clean; git update-index --refresh
         echo DIRTY > dirty; rm gone; touch touched; chmod +x run
         echo new > new; echo ign > ign; mkdir nested; git init -q nested; echo n > nested/n
         git init -q --bare kept; mkfifo pipe; echo staged > staged; git add staged; chmod 600 new"
    ));
    let index = std::fs::read(bench.path("app/.git/index")).unwrap();
    let base = bench.snapshot("app");
    assert_eq!(std::fs::read(bench.path("app/.git/index")).unwrap(), index);
    let workspace = base.workspace();
    assert_eq!(
        inside(&base, &["status", "--porcelain"]),
        " M dirty\n D gone\n M run\n?? nested/\n?? new\n?? staged"
    );
    assert_eq!(
        std::fs::read_to_string(workspace.join("ign")).unwrap(),
        "ign\n"
    );
    assert_eq!(mode(&workspace.join("new")), 0o600);
    assert!(!workspace.join("nested/.git").exists());
    assert!(!workspace.join("kept/config").exists());
    assert!(
        base.notes
            .iter()
            .any(|note| note.contains("`pipe` was left out")),
        "{:?}",
        base.notes
    );
    let links = |name: &str| {
        std::fs::symlink_metadata(workspace.join(name))
            .unwrap()
            .nlink()
    };
    assert_eq!((links("clean"), links("dirty"), links("new")), (2, 1, 1));
    let source = std::fs::metadata(bench.path("app/dirty")).unwrap();
    let copy = std::fs::metadata(workspace.join("dirty")).unwrap();
    assert_eq!(copy.mtime(), source.mtime());
    assert_eq!(opened(&bench, &base, &["clean", "link"]), [""; 0]);
    assert_eq!(base.commit.unwrap(), bench.sh("cd app; git rev-parse HEAD"));
}

#[test]
fn a_folder_without_history_is_copied() {
    let bench = Bench::new();
    bench.sh(&format!(
        "mkdir -p plain/d; echo x > plain/d/x; ln -s /etc plain/out; git init -q fresh; echo y > fresh/y; {SEED} mkdir s; echo z > s/z"
    ));
    for (name, file) in [("plain", "d/x"), ("fresh", "y"), ("app/s", "z")] {
        let base = bench.snapshot(name);
        assert!(base.workspace().join(file).is_file(), "{name}");
        assert!(!base.workspace().join(".git").exists(), "{name}");
        assert_eq!((base.commit, base.objects.len()), (None, 0));
    }
    assert!(std::fs::read_link(bench.snapshot("plain").workspace().join("out")).is_ok());
    let error = base::snapshot(
        &bench.home,
        &bench.store,
        bench.directory.path(),
        &mut Silent,
    );
    assert!(
        matches!(error, Err(BaseError::HoldsHome { .. })),
        "{error:?}"
    );
    let error = base::snapshot(&bench.home, &bench.store, &bench.path("no"), &mut Silent);
    assert!(
        matches!(error, Err(BaseError::NoFolder { .. })),
        "{error:?}"
    );
}

#[test]
fn a_stage_holds_what_was_selected_and_no_more() {
    let bench = Bench::new();
    bench.sh(&format!(
        "{SEED} mkdir -p src/deep; echo s > src/lib.rs; echo d > src/deep/d.rs; echo k > key
         ln -s ../key src/link; chmod +x src/deep/d.rs; git add .; git commit -qm two"
    ));
    let of = bench.commit("app");
    let stage = |patterns: &[&str]| {
        let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
        base::staged(&bench.home, &bench.store, &of, &patterns)
    };
    let base = stage(&["src/*.rs", "src/deep", "src/link"]).unwrap();
    assert_eq!(base, stage(&["src/link", "src/deep", "src/*.rs"]).unwrap());
    assert!(base.objects.is_empty());
    let workspace = base.workspace();
    assert!(!workspace.join("key").exists() && !workspace.join("a").exists());
    assert_eq!(
        std::fs::metadata(workspace.join("src/lib.rs"))
            .unwrap()
            .nlink(),
        2
    );
    assert_eq!(inside(&base, &["status", "--porcelain"]), "");
    assert_eq!(inside(&base, &["fsck", "--full"]), "");
    assert_eq!(inside(&base, &["rev-list", "--count", "HEAD"]), "1");
    let files = inside(
        &base,
        &["ls-tree", "-r", "--format=%(objectmode) %(path)", "HEAD"],
    );
    assert_eq!(
        files,
        "100755 src/deep/d.rs\n100644 src/lib.rs\n120000 src/link"
    );
    let key = bench.sh("cd app; git rev-parse HEAD:key");
    assert!(
        !tracing(&base, "", &["git"], &["cat-file", "-e", &key])
            .status
            .success()
    );
    let error = stage(&["src", "nothing", "no/*"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no file is selected by `no/*`, `nothing`"
    );
    assert_eq!(Error::from(error).kind(), ErrorKind::Invalid);
    assert!(stage(&[]).is_err());
}

#[test]
fn submodules_are_checked_out_and_hostile_ones_are_not() {
    let bench = Bench::new();
    bench.sh(
        "git init -qb main leaf; (cd leaf; echo l > leaf.txt; git add .; git commit -qm l)
         git init -qb main lib; (cd lib; echo x > lib.txt; git add .; git submodule -q add ../leaf leaf; git commit -qam lib)
         git init -qb main app; cd app; echo a > a; git submodule -q add ../lib dir/lib
         git submodule -q update --init --recursive; git add .; git commit -qm app
         id=$(git -C ../lib rev-parse HEAD)
         link() { git update-index --add --cacheinfo 160000,$id,\"$1\"; }
         for n in up abs opt ext gone name; do link h/$n; done; link unnamed
         cat >> .gitmodules <<'END'
[submodule \"../../up\"]
    path = h/up
    url = ../lib
[submodule \"abs\"]
    path = h/abs
    url = /nonexistent/lib
[submodule \"opt\"]
    path = h/opt
    url = --upload-pack=touch${IFS}PWNED
[submodule \"ext\"]
    path = h/ext
    url = ext::touch PWNED
[submodule \"gone\"]
    path = h/gone
    url = ../gone
[submodule \"dir/lib/objects\"]
    path = h/name
    url = ../lib
[submodule \"evil\"]
    path = ../evil
    url = ../lib
END
         git add .gitmodules; git commit -qm hostile",
    );
    let base = bench.commit("app");
    let workspace = base.workspace();
    assert_eq!(base.notes.len(), 7, "{:#?}", base.notes);
    let read = |path: &str| std::fs::read_to_string(workspace.join(path)).unwrap();
    assert_eq!(read("dir/lib/lib.txt"), "x\n");
    assert_eq!(read("dir/lib/leaf/leaf.txt"), "l\n");
    assert_eq!(read("dir/lib/.git"), "gitdir: ../../.git/modules/dir/lib\n");
    assert_eq!(base.objects.len(), 3);
    // Git tells its children in submodules nothing of the environment: here the places are written.
    for (number, path) in base.objects.iter().enumerate() {
        let (workspace, path) = (workspace.display(), path.display());
        bench.sh(&format!(
            "find {workspace}/.git -name alternates -exec sed -i 's#^/.ringfence/objects/{number}$#{path}#' {{}} +"
        ));
    }
    assert_eq!(inside(&base, &["status", "--porcelain"]), "");
    assert_eq!(inside_at(&base, "dir/lib", &["status", "--porcelain"]), "");
    assert_eq!(
        inside_at(&base, "dir/lib/leaf", &["rev-parse", "HEAD"]),
        bench.sh("git -C leaf rev-parse HEAD")
    );
    for name in ["up", "abs", "opt", "ext", "gone", "name"] {
        let mut left = std::fs::read_dir(workspace.join("h").join(name)).unwrap();
        assert!(left.next().is_none(), "{name}");
    }
    assert_eq!(bench.sh("find . -name PWNED -o -name evil"), "");
    // A snapshot has them as plain files, and fetches none.
    bench.sh("cd app; git submodule -q update --init dir/lib; echo more >> dir/lib/lib.txt");
    let snapshot = bench.snapshot("app");
    assert_eq!(
        std::fs::read(snapshot.workspace().join("dir/lib/lib.txt")).unwrap(),
        b"x\nmore\n"
    );
    assert!(!snapshot.workspace().join("dir/lib/.git").exists());
    assert!(
        snapshot
            .notes
            .iter()
            .any(|note| note.contains("plain files")),
        "{:?}",
        snapshot.notes
    );
}

#[test]
fn pointers_of_large_files_are_noted_or_filled() {
    let bench = Bench::new();
    let oid = bench.sh("printf large | sha256sum | cut -c1-64");
    bench.sh(&format!(
        "{SEED} echo '*.bin filter=lfs' > .gitattributes
         printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:{oid}\\nsize 5\\n' > x.bin
         sed 's/size 5/size 6/' x.bin > y.bin; git add .; git commit -qm two"
    ));
    let resolved = bench.local("app", None);
    let objects = resolved
        .mirror
        .path
        .join("lfs/objects")
        .join(&oid[..2])
        .join(&oid[2..4]);
    std::fs::create_dir_all(&objects).unwrap();
    std::fs::write(objects.join(&oid), "large").unwrap();
    let base = base::commit(&bench.home, &bench.store, &resolved, &mut Silent).unwrap();
    assert_eq!(
        std::fs::read(base.workspace().join("x.bin")).unwrap(),
        b"large"
    );
    let pointer = std::fs::read_to_string(base.workspace().join("y.bin")).unwrap();
    assert!(pointer.contains("size 6"), "{pointer}");
    assert!(
        base.notes[0].starts_with("1 files are LFS pointers"),
        "{:?}",
        base.notes
    );
    assert_eq!(inside(&base, &["status", "--porcelain"]), "");
}
