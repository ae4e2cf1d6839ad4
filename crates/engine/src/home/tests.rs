//! Where a home is, and whom it is open to.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};

use super::*;

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn the_environment_says_where() {
    type Case<'a> = (Option<&'a str>, &'a [(&'a str, &'a str)], Option<&'a str>);
    let table: &[Case<'_>] = &[
        (Some("/e"), &[("RINGFENCE_HOME", "/r")], Some("/e")),
        (
            None,
            &[("RINGFENCE_HOME", "/r"), ("HOME", "/h")],
            Some("/r"),
        ),
        (None, &[("RINGFENCE_HOME", "r")], Some("r")),
        (
            None,
            &[("RINGFENCE_HOME", ""), ("XDG_DATA_HOME", "/x")],
            Some("/x/ringfence"),
        ),
        (
            None,
            &[("XDG_DATA_HOME", "/x"), ("HOME", "/h")],
            Some("/x/ringfence"),
        ),
        (
            None,
            &[("XDG_DATA_HOME", "x"), ("HOME", "/h")],
            Some("/h/.local/share/ringfence"),
        ),
        (None, &[("HOME", "/h")], Some("/h/.local/share/ringfence")),
        (None, &[("HOME", "h")], None),
        (None, &[("HOME", "")], None),
        (None, &[], None),
    ];
    for (explicit, environment, expected) in table {
        let found = locate(explicit.map(PathBuf::from), |name| {
            let pair = environment.iter().find(|(key, _)| *key == name);
            pair.map(|(_, value)| OsString::from(value))
        });
        assert_eq!(found.ok(), expected.map(PathBuf::from), "{environment:?}");
    }
    let message = locate(None, |_| None).unwrap_err().to_string();
    assert!(message.contains("`RINGFENCE_HOME`"), "{message}");
}

#[test]
fn a_home_is_made_private_with_its_marker_and_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("a/b/home");
    let home = Home::open(Some(root.clone())).unwrap();
    assert_eq!(mode(&root), 0o700);
    assert_eq!(std::fs::read(root.join("version")).unwrap(), b"1\n");
    for path in [home.bundles(), home.workspaces(), home.logs()] {
        assert_eq!(mode(&path), 0o700);
    }
    assert_eq!(Home::open(Some(root)).unwrap(), home);
}

#[test]
fn a_readable_home_is_tightened_and_a_writable_one_refused() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("home");
    std::fs::create_dir(&root).unwrap();
    set_mode(&root, 0o755);
    Home::open(Some(root.clone())).unwrap();
    assert_eq!(mode(&root), 0o700);
    for bits in [0o770, 0o702, 0o1777] {
        set_mode(&root, bits);
        let error = Home::open(Some(root.clone())).unwrap_err();
        assert!(
            matches!(error, HomeError::WritableByOthers { .. }),
            "{error:?}"
        );
        assert_eq!(mode(&root), bits);
    }
}

#[test]
fn a_link_of_our_own_is_followed_and_a_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let link = directory.path().join("link");
    symlink(&target, &link).unwrap();
    Home::open(Some(link.clone())).unwrap();
    assert!(target.join("version").exists());
    if is_root() {
        lchown(&link, Some(12345), None).unwrap();
        let error = Home::open(Some(link)).unwrap_err();
        assert!(matches!(error, HomeError::ForeignLink { .. }), "{error:?}");
    } else {
        eprintln!("SKIPPED links of others: a link of another uid needs root to make");
    }
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Home::open(Some(file)).unwrap_err();
    assert!(matches!(error, HomeError::Open { .. }), "{error:?}");
}

#[test]
fn a_home_of_another_uid_is_refused_untouched() {
    if !is_root() {
        eprintln!("SKIPPED directories of others: a directory of another uid needs root to make");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("home");
    std::fs::create_dir(&root).unwrap();
    chown(&root, Some(12345), None).unwrap();
    let error = Home::open(Some(root.clone())).unwrap_err();
    let expected = format!(
        "the home `{}` belongs to uid 12345, not to uid 0",
        root.display()
    );
    assert_eq!(error.to_string(), expected);
    assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
}

#[test]
fn a_newer_home_is_refused_untouched_and_a_garbled_marker_too() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("home");
    std::fs::create_dir(&root).unwrap();
    set_mode(&root, 0o755);
    for (content, expected) in [
        (
            "2\n",
            "was made by a newer ringfence (layout 2, this one knows 1)",
        ),
        ("", "does not hold a version number"),
        ("one", "does not hold a version number"),
        (
            "11111111111111111111111111111111111",
            "does not hold a version number",
        ),
    ] {
        std::fs::write(root.join("version"), content).unwrap();
        let message = Home::open(Some(root.clone())).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
        assert_eq!(mode(&root), 0o755);
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 1);
    }
}

#[test]
fn many_may_make_it_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("parent/home");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| Home::open(Some(root.clone())).unwrap());
        }
    });
    let mut names: Vec<_> = std::fs::read_dir(&root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    let mut expected = DIRECTORIES.to_vec();
    expected.push("version");
    expected.sort_unstable();
    assert_eq!(names, expected);
}
