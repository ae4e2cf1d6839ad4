//! Mirrors and bases when something was killed, is in use or could not be had, with the real git.

#![allow(clippy::unwrap_used, clippy::print_stdout, dead_code)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_engine::error::{Error, ErrorKind};
use ringfence_engine::home::Home;
use ringfence_engine::lock::FileLock;
use ringfence_engine::mirror::{self, MirrorError, Silent};
use ringfence_engine::policy::Asked;
use ringfence_engine::sandboxes::create::{self, CreateRequest, From, Stage};
use ringfence_engine::sandboxes::{Host, gc};
use ringfence_engine::store::{AutoCheckpoint, SourceState, Store};
use ringfence_engine::workspace::Ignored;
use ringfence_engine::{base, source};
use ringfence_model::limits::Limits;

use crate::shared::mirror_bench as bench;
use bench::{Bench, Server, inside};

const SEED: &str = "git init -qb main app; cd app; echo one > a; git add a; git commit -qm one;";

/// Enough objects for git to keep them in a pack, and too much for the buffers on the way.
const MANY: &str = "for n in $(seq 150); do head -c 20000 /dev/urandom > $n; done";

/// Makes a base where another process of this program asked for that, and says whether it did.
fn was_the_other_process() -> bool {
    let (Some(home), Ok(text)) = (
        std::env::var_os("RINGFENCE_TEST_HOME"),
        std::env::var("RINGFENCE_TEST_SOURCE"),
    ) else {
        return false;
    };
    let home = Home::open(Some(home.into())).unwrap();
    let store = Store::open(&home).unwrap();
    let typed = source::parse(&text).unwrap();
    let resolved = mirror::ensure(&home, &store, &typed, None, &mut Silent).unwrap();
    base::commit(&home, &store, &resolved, &mut Silent).unwrap();
    true
}

/// Starts this program again for the same test, which is then the other process; below another
/// program if one is given.
fn start(bench: &Bench, test: &str, below: &[&str], text: &str) -> Child {
    let this = std::env::current_exe().unwrap();
    let mut words: Vec<&str> = below.to_vec();
    let test = format!("mirrors_killed::{test}");
    words.extend([this.to_str().unwrap(), &test, "--exact"]);
    Command::new(words[0])
        .args(&words[1..])
        .env("RINGFENCE_TEST_HOME", bench.home.root())
        .env("RINGFENCE_TEST_SOURCE", text)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits for something that must come.
fn until(what: &str, mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn half_packs(mirror: &Path) -> usize {
    let Ok(packs) = std::fs::read_dir(mirror.join("objects/pack")) else {
        return 0;
    };
    let names = packs.flatten().map(|entry| entry.file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with("tmp_"))
        .count()
}

#[test]
fn a_killed_process_leaves_a_git_that_keeps_others_out_until_it_ends() {
    if was_the_other_process() {
        return;
    }
    let bench = Bench::new();
    let head = bench.sh(&format!(
        "mkdir srv; touch gate; cd srv; {SEED} {MANY}; git add .
         git commit -qm big; git rev-parse HEAD"
    ));
    let gate = bench.path("gate");
    let server = Server::start_slow(&bench.path("srv"), &gate);
    let url = server.url("", "app/.git");
    let id = mirror::id_of(&source::parse(&url).unwrap().source);
    let path = bench.home.mirror(id);
    let lock = bench.home.mirrors().join(format!("{id}.lock"));
    let mut child = start(
        &bench,
        "a_killed_process_leaves_a_git_that_keeps_others_out_until_it_ends",
        &[],
        &url,
    );
    until("half a pack", || half_packs(&path) > 0);
    let (tell, told) = std::sync::mpsc::channel();
    let resolved = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let store = Store::open(&bench.home).unwrap();
            let typed = source::parse(&url).unwrap();
            mirror::ensure(&bench.home, &store, &typed, None, &mut Telling(tell)).unwrap()
        });
        let first: String = told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(first.starts_with("waiting"), "{first}");
        // SIGKILL. Its git lives on, until it notices that nobody reads what it says.
        child.kill().unwrap();
        child.wait().unwrap();
        let record = bench.store.mirror(id).unwrap().unwrap();
        assert_eq!(record.state, SourceState::Making);
        // Nobody else writes to the mirror before that git ends.
        let held = FileLock::is_held(&lock).unwrap();
        // Where it has ended already, the one that waited has the lock or is about to take it.
        let next = || told.recv_timeout(Duration::from_secs(60)).is_ok();
        let had = held || next();
        std::fs::remove_file(&gate).unwrap();
        assert!(had, "nobody has it");
        waiting.join().unwrap()
    });
    assert_eq!(resolved.commit, head);
    assert_eq!(half_packs(&path), 0);
    let base = base::commit(&bench.home, &bench.store, &resolved, &mut Silent).unwrap();
    assert_eq!(inside(&base, &["fsck"]), "");
}

/// Passes on each line as it comes.
struct Telling(std::sync::mpsc::Sender<String>);

impl mirror::Progress for Telling {
    fn say(&mut self, line: &str) {
        // Who heard enough is gone.
        let _ = self.0.send(line.to_owned());
    }
}

#[test]
fn a_git_that_was_killed_too_blocks_nothing() {
    if was_the_other_process() {
        return;
    }
    let bench = Bench::new();
    bench.sh(&format!(
        "mkdir srv; touch gate; cd srv; {SEED} git branch tmp_x; git branch d/tmp_y
         {MANY}; git add .; git commit -qm big"
    ));
    let gate = bench.path("gate");
    let server = Server::start_slow(&bench.path("srv"), &gate);
    let url = server.url("", "app/.git");
    let id = mirror::id_of(&source::parse(&url).unwrap().source);
    let path = bench.home.mirror(id);
    let mut child = start(
        &bench,
        "a_git_that_was_killed_too_blocks_nothing",
        &[],
        &url,
    );
    until("half a pack", || half_packs(&path) > 0);
    // As a power cut: git is not told either.
    let git = bench.sh(&format!(
        "for p in /proc/[0-9]*; do
           if tr '\\0' ' ' < $p/environ 2>/dev/null | grep -q 'GIT_DIR={}'; then echo ${{p#/proc/}}; fi
         done",
        path.display()
    ));
    child.kill().unwrap();
    child.wait().unwrap();
    for pid in git.split_ascii_whitespace() {
        let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        // Some end with the others.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    let lock = bench.home.mirrors().join(format!("{id}.lock"));
    until("the lock", || !FileLock::is_held(&lock).unwrap());
    assert!(half_packs(&path) > 0);
    std::fs::remove_file(&gate).unwrap();
    let locks = ["HEAD.lock", "packed-refs.lock", "refs/heads/main.lock"];
    let leave = || {
        for name in locks {
            let name = path.join(name);
            std::fs::create_dir_all(name.parent().unwrap()).unwrap();
            std::fs::write(name, "").unwrap();
        }
    };
    leave();
    bench.ensure(&url, None).unwrap();
    assert_eq!(half_packs(&path), 0);
    // The same after a later fetch.
    leave();
    bench.sh("cd srv/app; git commit -q --allow-empty -m more; git branch late");
    for branch in ["late", "tmp_x", "d/tmp_y"] {
        let found = bench.ensure(&url, Some(branch)).unwrap();
        let expected = bench.sh(&format!("git -C srv/app rev-parse {branch}"));
        assert_eq!(found.commit, expected, "{branch}");
    }
    assert!(locks.iter().all(|name| !path.join(name).exists()));
    // Refs are in one file.
    let packed = std::fs::read_to_string(path.join("packed-refs")).unwrap();
    assert!(packed.contains("refs/heads/tmp_x"), "{packed}");
    assert!(!path.join("refs/heads/tmp_x").exists());
}

#[test]
fn a_token_is_in_no_argument_of_any_process() {
    if was_the_other_process() {
        return;
    }
    if Command::new("strace").arg("-V").output().is_err() {
        println!("SKIPPED arguments of processes are not traced: there is no strace");
        return;
    }
    let bench = Bench::new();
    bench.sh(&format!("mkdir srv; cd srv; {SEED}"));
    let server = Server::start(&bench.path("srv"), "me:sesame-token");
    let trace = bench.path("trace");
    let strace = ["strace", "-f", "-qq", "-e", "trace=execve", "-s", "4096"];
    let strace = [&strace[..], &["-o", trace.to_str().unwrap()]].concat();
    let url = server.url("me:sesame-token@", "app/.git");
    let mut child = start(
        &bench,
        "a_token_is_in_no_argument_of_any_process",
        &strace,
        &url,
    );
    assert!(child.wait().unwrap().success());
    let trace = std::fs::read_to_string(trace).unwrap();
    assert!(trace.contains("\"fetch\""), "git was traced");
    assert!(trace.contains("remote-http"), "{trace}");
    assert!(!trace.contains("sesame"), "{trace}");
    assert_eq!(bench.store.bases().unwrap().len(), 1);
}

#[test]
fn a_mirror_that_a_base_reads_is_not_forgotten() {
    let bench = Bench::new();
    bench.sh(
        "git init -qb main lib; (cd lib; echo x > x; git add .; git commit -qm lib)
         git init -qb main app; cd app; git submodule -q add ../lib lib; git commit -qam app",
    );
    let base = bench.commit("app");
    let stage = base::staged(&bench.home, &bench.store, &base, &["lib".to_owned()]).unwrap();
    let lib = bench.local("app/.git/modules/lib", None).mirror;
    assert_ne!(base.mirror, Some(lib.id));
    for id in [base.mirror.unwrap(), lib.id] {
        let error = mirror::forget(&bench.home, &bench.store, id).unwrap_err();
        assert!(
            matches!(error, MirrorError::InUse { base: by, .. } if by == base.id),
            "{error:?}"
        );
        assert_eq!(Error::from(error).kind(), ErrorKind::Conflict);
        assert!(bench.home.mirror(id).join("HEAD").exists());
    }
    // The whole base stays as long as a staged one stands on it.
    let error = base::forget(&bench.home, &bench.store, base.id).unwrap_err();
    assert_eq!(Error::from(error).kind(), ErrorKind::Conflict);
    assert!(base.workspace().exists());
    base::forget(&bench.home, &bench.store, stage.id).unwrap();
    base::forget(&bench.home, &bench.store, base.id).unwrap();
    mirror::forget(&bench.home, &bench.store, lib.id).unwrap();
    assert!(!lib.path.exists());
}

#[test]
fn a_submodule_that_was_not_to_be_had_is_tried_again() {
    let bench = Bench::new();
    bench.sh(
        "git init -qb main app; cd app; echo in/ > .gitignore; git add .; git commit -qm one
         git init -qb main in/lib; (cd in/lib; echo x > x; git add .; git commit -qm lib)
         git update-index --add --cacheinfo 160000,$(git -C in/lib rev-parse HEAD),lib
         printf '[submodule \"lib\"]\n\tpath = lib\n\turl = ./in/lib\n' > .gitmodules
         git add .gitmodules; git commit -qm app; mv in/lib ../away",
    );
    let url = format!("file://{}", bench.path("app").display());
    for text in [bench.path("app").to_str().unwrap(), &url] {
        let make = || {
            let resolved = bench.ensure(text, None).unwrap();
            base::commit(&bench.home, &bench.store, &resolved, &mut Silent).unwrap()
        };
        let first = make();
        assert!(!first.workspace().join("lib/x").exists());
        assert!(
            first.notes[0].contains("`lib` is empty"),
            "{:?}",
            first.notes
        );
        // Still not: the same base, not one more.
        assert_eq!(make().id, first.id);
        bench.sh("mv away app/in/lib");
        let second = make();
        assert_ne!(second.id, first.id);
        assert_eq!(second.notes, [""; 0]);
        assert_eq!(
            std::fs::read(second.workspace().join("lib/x")).unwrap(),
            b"x\n"
        );
        // Whoever stands on the first keeps it as it was.
        assert_eq!(
            base::open(&bench.home, &bench.store, first.id).unwrap(),
            first
        );
        assert!(!first.workspace().join("lib/x").exists());
        assert_eq!(make().id, second.id);
        bench.sh("mv app/in/lib away");
    }
}

#[test]
fn large_files_come_from_the_repository_and_from_nowhere_else() {
    if Command::new("git")
        .args(["lfs", "version"])
        .output()
        .is_ok_and(|o| !o.status.success())
    {
        println!("SKIPPED large files are not fetched: there is no git-lfs");
        return;
    }
    let bench = Bench::new();
    let oid = bench.sh("printf large | sha256sum | cut -c1-64");
    let secret = bench.sh("printf secret | sha256sum | cut -c1-64");
    let store = |repository: &str, oid: &str, text: &str| {
        let directory = format!("{repository}/.git/lfs/objects/{}/{}", &oid[..2], &oid[2..4]);
        bench.sh(&format!(
            "mkdir -p {directory}; printf {text} > {directory}/{oid}"
        ));
    };
    let pointer = |oid: &str, size: usize| {
        format!("version https://git-lfs.github.com/spec/v1\\noid sha256:{oid}\\nsize {size}\\n")
    };
    // `.lfsconfig` names another folder of this host, which holds something that was not given.
    bench.sh(&format!(
        "git init -qb main other; {SEED} echo '*.bin filter=lfs' > .gitattributes
         printf '{}' > x.bin; printf '{}' > y.bin
         printf '[lfs]\\n\\turl = file://{other}\\n[remote \"origin\"]\\n\\tlfsurl = file://{other}\\n' > .lfsconfig
         git add .; git commit -qm two",
        pointer(&oid, 5),
        pointer(&secret, 6),
        other = bench.path("other").display(),
    ));
    store("other", &secret, "secret");
    let make = || {
        let url = format!("file://{}", bench.path("app").display());
        let resolved = bench.ensure(&url, None).unwrap();
        base::commit(&bench.home, &bench.store, &resolved, &mut Silent).unwrap()
    };
    let read = |base: &base::Base, name: &str| {
        std::fs::read_to_string(base.workspace().join(name)).unwrap()
    };
    // Nothing is there yet.
    let first = make();
    assert!(
        first.notes[0].starts_with("2 files are LFS pointers"),
        "{:?}",
        first.notes
    );
    assert!(read(&first, "x.bin").contains("oid sha256"));
    assert_eq!(make().id, first.id);
    // Some of it: what the other folder holds is not taken.
    store("app", &oid, "large");
    let second = make();
    assert!(
        read(&second, "y.bin").contains("oid sha256"),
        "{:?}",
        second.notes
    );
    store("app", &secret, "secret");
    let third = make();
    assert_eq!(
        (third.notes.len(), read(&third, "x.bin")),
        (0, "large".to_owned())
    );
    assert_eq!(read(&third, "y.bin"), "secret");
    assert_eq!(inside(&third, &["status", "--porcelain"]), "");
}

#[test]
fn a_sub_folder_has_no_history_and_says_so() {
    let bench = Bench::new();
    bench.sh(&format!(
        "{SEED} mkdir sub; echo s > sub/s; git add .; git commit -qm sub"
    ));
    let base = bench.snapshot("app/sub");
    assert_eq!(std::fs::read(base.workspace().join("s")).unwrap(), b"s\n");
    assert!(
        base.notes[0].contains("part of a larger repository"),
        "{:?}",
        base.notes
    );
    assert_eq!((base.mirror, base.objects.len()), (None, 0));
    let output = bench::tracing(&base, "", &["git"], &["status"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(128));
    assert!(said.contains("not a git repository"), "{said}");
    // At a revision it is the repository.
    let resolved = bench.local("app/sub", Some("main"));
    let whole = base::commit(&bench.home, &bench.store, &resolved, &mut Silent).unwrap();
    assert!(whole.workspace().join("sub/s").exists());
}

fn request(text: &str) -> CreateRequest {
    CreateRequest {
        backend: Default::default(),
        from: From::Repository {
            typed: text.to_owned(),
            revision: None,
        },
        stage: Stage::Whole,
        name: None,
        tag: None,
        policy: Asked::nothing(Limits::for_host(8 << 30)),
        env: Vec::new(),
        ignored: Ignored::default(),
        idle_seconds: None,
        ttl_seconds: None,
        auto_checkpoint: AutoCheckpoint::default(),
    }
}

#[test]
fn collecting_leaves_what_a_sandbox_stands_on() {
    let bench = Bench::new();
    bench.sh(
        "git init -qb main lib; (cd lib; echo x > x; git add .; git commit -qm lib)
         git init -qb main app; cd app; git submodule -q add ../lib lib; git commit -qam app
         mkdir sub; echo s > sub/s; cp -r . ../old",
    );
    let url = |name: &str| format!("file://{}", bench.path(name).display());
    let old = bench.ensure(&url("old"), None).unwrap();
    let old = base::commit(&bench.home, &bench.store, &old, &mut Silent).unwrap();
    let host = Host {
        home: bench.home.clone(),
        store: Store::open(&bench.home).unwrap(),
        program: "/nonexistent".into(),
    };
    std::fs::write(
        bench.home.root().join("config.toml"),
        "[gc]\ncache_age = \"1s\"\n",
    )
    .unwrap();
    let app = create::create(&host, &request(&url("app")), &mut Silent).unwrap();
    // Nobody can set the clock back; a second is the least that counts.
    std::thread::sleep(Duration::from_millis(1100));
    let words = |actions: &[gc::Action]| -> Vec<gc::What> {
        actions.iter().map(|action| action.what.clone()).collect()
    };
    let actions = gc::plan(&host).unwrap();
    let planned = words(&actions);
    let kept_by = |name: &str| {
        let path = bench.path(name).join(".git/modules/lib");
        gc::What::RemoveMirror(mirror::id_of(&source::Source::Path(path)))
    };
    assert_eq!(
        planned,
        [
            gc::What::RemoveBase(old.id),
            gc::What::RemoveMirror(old.mirror.unwrap()),
            kept_by("old"),
        ]
    );
    // Used meanwhile: neither goes, and the error says why.
    let second = create::create(&host, &request(&url("old")), &mut Silent).unwrap();
    assert_eq!(second.base, old.id);
    for action in &actions {
        let error = gc::act(&host, action).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
        assert!(error.to_string().contains("is in use"), "{error}");
    }
    for id in [app.base, second.base] {
        let base = base::open(&host.home, &host.store, id).unwrap();
        assert!(base.objects.iter().all(|path| path.join("pack").exists()));
        assert!(base.workspace().join("lib/x").exists());
    }
    // A sub-folder of a repository says what it has not.
    let sub = create::create(
        &host,
        &request(bench.path("app/sub").to_str().unwrap()),
        &mut Silent,
    );
    let notes = sub.unwrap().notes;
    assert!(
        notes[0].contains("part of a larger repository"),
        "{notes:?}"
    );
    let mut at_main = request(bench.path("app/sub").to_str().unwrap());
    if let From::Repository { revision, .. } = &mut at_main.from {
        *revision = Some("main".to_owned());
    }
    let notes = create::create(&host, &at_main, &mut Silent).unwrap().notes;
    assert!(notes[0].contains("all of that is there"), "{notes:?}");
}
