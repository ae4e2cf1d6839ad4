//! Several processes on one store, and what is true after one of them was killed.
//!
//! A child is this same test program, asked for the same test, which then plays the other part.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::*;

const HOME_VARIABLE: &str = "RINGFENCE_TEST_CHILD_HOME";
const OTHER_UID: u32 = 65534;

fn child(test: &str, root: &std::path::Path) -> Command {
    let (_, module) = module_path!().split_once("::").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "--nocapture", &format!("{module}::{test}")])
        .env(HOME_VARIABLE, root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// The home that a parent gave us; `None` in the parent itself.
fn child_home() -> Option<PathBuf> {
    std::env::var_os(HOME_VARIABLE).map(PathBuf::from)
}

/// Reads what the child says until the line of this first word; gives the rest of that line.
fn wait_for(child: &mut Child, word: &str) -> String {
    for line in BufReader::new(child.stdout.as_mut().unwrap()).lines() {
        let line = line.unwrap();
        // The test harness may have written the test's name before it.
        if let Some((_, rest)) = line.split_once(word) {
            return rest.trim().to_owned();
        }
    }
    panic!("the child ended before it said `{word}`");
}

fn drive_a_run(root: PathBuf) {
    let home = Home::open(Some(root)).unwrap();
    let store = Store::open(&home).unwrap();
    let lock = begin(&store, &home, &new_run(Some("driven")));
    store.step_intent(lock.run(), "agent").unwrap();
    println!("driving {}", lock.run());
    std::io::stdout().flush().unwrap();
    // Until the parent kills us or goes away itself.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_killed_driver_is_found_out() {
    if let Some(root) = child_home() {
        return drive_a_run(root);
    }
    let (_directory, home) = home();
    let mut driver = child("a_killed_driver_is_found_out", home.root())
        .spawn()
        .unwrap();
    let run: RunId = wait_for(&mut driver, "driving").parse().unwrap();
    let store = Store::open(&home).unwrap();
    assert!(RunLock::is_held(&home, run).unwrap());
    assert!(recover(&store, &home).unwrap().lost.is_empty());
    assert_eq!(store.run(run).unwrap().status, RunStatus::Running);
    assert_eq!(store.run(run).unwrap().driver.pid, driver.id());

    driver.kill().unwrap();
    driver.wait().unwrap();
    let recovered = recover(&store, &home).unwrap();
    assert_eq!(recovered.lost, [run]);
    assert!(recovered.unclear.is_empty());
    let record = store.run(run).unwrap();
    assert_eq!(record.status, RunStatus::Lost);
    assert_eq!(store.open_steps(run).unwrap()[0].step, "agent");
    assert!(home.workspace(run).exists());
    assert!(recover(&store, &home).unwrap().lost.is_empty());
    assert_eq!(store.run(run).unwrap(), record);
    assert!(orphans(&store, &home).unwrap().is_empty());
}

#[test]
fn what_cannot_be_told_is_left_as_it_is() {
    let (_directory, home) = home();
    let store = Store::open(&home).unwrap();
    let run = begin(&store, &home, &new_run(None)).run();
    std::fs::remove_file(home.lock(run)).unwrap();
    std::os::unix::fs::symlink("/dev/null", home.lock(run)).unwrap();
    let recovered = recover(&store, &home).unwrap();
    assert_eq!((recovered.lost.len(), recovered.unclear[0].0), (0, run));
    assert_eq!(store.run(run).unwrap().status, RunStatus::Running);
    // A workspace that was removed by hand is driven by nobody.
    std::fs::remove_dir_all(home.workspace(run)).unwrap();
    assert_eq!(recover(&store, &home).unwrap().lost, [run]);
}

#[test]
fn directories_without_a_row_are_listed_and_kept() {
    let (_directory, home) = home();
    let store = Store::open(&home).unwrap();
    let known = begin(&store, &home, &new_run(None)).run();
    std::fs::create_dir(home.bundle(known)).unwrap();
    let being_made = RunLock::create(&home, RunId::random().unwrap()).unwrap();
    std::fs::create_dir(home.log(being_made.run())).unwrap();
    let run = RunId::random().unwrap();
    drop(RunLock::create(&home, run).unwrap());
    std::fs::create_dir(home.bundle(run)).unwrap();
    let odd = home.logs().join("not-an-id");
    std::fs::create_dir(&odd).unwrap();
    let expected = [
        (OrphanKind::Workspace, home.workspace(run), Some(run)),
        (OrphanKind::Bundle, home.bundle(run), Some(run)),
        (OrphanKind::Log, odd, None),
    ]
    .map(|(kind, path, run)| Orphan { kind, path, run });
    for _ in 0..2 {
        assert_eq!(orphans(&store, &home).unwrap(), expected);
    }
}

const WRITERS: usize = 8;
const RUNS_EACH: usize = 10;

fn write_runs(root: PathBuf) {
    // The home and the store are made by all of them at once.
    let home = Home::open(Some(root)).unwrap();
    let store = Store::open(&home).unwrap();
    for _ in 0..RUNS_EACH {
        let lock = begin(&store, &home, &new_run(None));
        let run = lock.run();
        for step in ["base", "start", "agent"] {
            store.step_intent(run, step).unwrap();
            store.step_done(run, step).unwrap();
        }
        assert!(recover(&store, &home).unwrap().lost.is_empty());
        store.finish_run(run, &finished()).unwrap();
    }
    println!("wrote all");
}

#[test]
fn many_processes_lose_no_update() {
    if let Some(root) = child_home() {
        return write_runs(root);
    }
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("home");
    let writers: Vec<Child> = (0..WRITERS)
        .map(|_| {
            child("many_processes_lose_no_update", &root)
                .spawn()
                .unwrap()
        })
        .collect();
    for mut writer in writers {
        wait_for(&mut writer, "wrote");
        assert!(writer.wait().unwrap().success());
    }
    let home = Home::open(Some(root)).unwrap();
    let store = Store::open(&home).unwrap();
    let runs = store.runs(RunFilter::default(), 1000).unwrap();
    assert_eq!(runs.len(), WRITERS * RUNS_EACH);
    for run in &runs {
        assert_eq!(run.status, RunStatus::Done);
        assert_eq!(store.steps(run.id).unwrap().len(), 6);
    }
    let check: String = store
        .connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(check, "ok");
}

#[test]
fn a_read_only_home_is_named() {
    if let Some(root) = child_home() {
        println!("said {}", Home::open(Some(root)).unwrap_err());
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("home");
    std::fs::create_dir(&root).unwrap();
    let mut command = child("a_read_only_home_is_named", &root);
    if rustix::process::geteuid().is_root() {
        // Permissions do not bind root, so the child is somebody else.
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        chown(&root, Some(OTHER_UID), Some(OTHER_UID)).unwrap();
        command.uid(OTHER_UID).gid(OTHER_UID);
    }
    std::fs::set_permissions(&root, PermissionsExt::from_mode(0o500)).unwrap();
    let mut reader = match command.spawn() {
        Ok(reader) => reader,
        Err(error) => {
            eprintln!(
                "SKIPPED another user: uid {OTHER_UID} cannot run this test program: {error}"
            );
            return;
        }
    };
    let message = wait_for(&mut reader, "said");
    reader.wait().unwrap();
    assert_eq!(
        message,
        format!("cannot create `{}`", root.join("bundles").display())
    );
    assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
}
