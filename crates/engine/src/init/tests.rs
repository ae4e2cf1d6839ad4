//! Folders with real files, and with what somebody evil would put there.

use std::fs;
use std::os::unix::fs::symlink;

use ringfence_model::init::{AskedMount, Files, Said, Seen};
use ringfence_model::policy::Effective;

use super::*;
use crate::toolchains::Shown;

fn put(folder: &Path, name: &str, content: impl AsRef<[u8]>) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn looked(folder: &Path) -> Files {
    look(folder).unwrap()
}

#[test]
fn lock_files_of_several_projects_are_found_and_installed_ones_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for name in [
        "Cargo.lock",
        "web/package-lock.json",
        "services/api/uv.lock",
        "web/node_modules/x/package-lock.json",
        "tests/fixtures/Cargo.lock",
        ".hidden/go.sum",
        ".devcontainer/devcontainer.json",
        "a/b/c/d/go.sum",
        "README.md",
    ] {
        put(folder, name, "{}");
    }
    let found: Vec<String> = looked(folder).into_keys().collect();
    assert_eq!(
        found,
        [
            ".devcontainer/devcontainer.json",
            "Cargo.lock",
            "services/api/uv.lock",
            "web/package-lock.json",
        ]
    );
}

#[test]
fn no_link_is_followed_no_pipe_waited_for_and_no_more_read_than_a_bound() {
    let outside = tempfile::tempdir().unwrap();
    put(outside.path(), "secret", "FROM registry.example/canary");
    put(outside.path(), "sub/Cargo.lock", "");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    symlink(outside.path().join("secret"), folder.join("Dockerfile")).unwrap();
    symlink(outside.path().join("sub"), folder.join("crate")).unwrap();
    symlink(outside.path(), folder.join(".devcontainer")).unwrap();
    symlink("loop", folder.join("loop")).unwrap();
    let fifo = folder.join(".nvmrc");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    put(folder, "package.json", vec![b' '; (1 << 20) + 1]);
    put(folder, "yarn.lock", "x\n".repeat(1 << 20));
    put(folder, "go.mod", [0xff, 0xfe, 0]);
    let files = looked(folder);
    let odd = |name: &str| match &files[name] {
        Seen::Odd(why) => *why,
        Seen::Bytes(_) => "read",
    };
    assert_eq!(odd("Dockerfile"), "it is a link");
    assert_eq!(odd(".nvmrc"), "it is no file");
    assert_eq!(odd("package.json"), "it is too large");
    assert!(matches!(&files["yarn.lock"], Seen::Bytes(bytes) if bytes.len() <= 4096));
    assert_eq!(files.len(), 5, "{:?}", files.keys());
    let own = propose(&files);
    assert_eq!(own.image, None);
    assert_eq!(own.left_out.len(), 3, "{:?}", own.left_out);
}

#[test]
fn a_folder_of_a_million_names_is_looked_at_in_part() {
    let folder = tempfile::tempdir().unwrap();
    for at in 0..600 {
        fs::create_dir(folder.path().join(format!("d{at:04}"))).unwrap();
        put(folder.path(), &format!("d{at:04}/Cargo.lock"), "");
    }
    let files = looked(folder.path());
    assert_eq!(files.len(), 400);
    let own = propose(&files);
    assert!(own.setup.len() <= 16 && own.key.len() <= 64);
}

#[test]
fn what_is_there_is_not_written_over_and_no_link_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let victim = folder.join("victim");
    put(folder, "victim", "mine");
    symlink(&victim, folder.join(PROPOSAL)).unwrap();
    let refused = write(folder, "text", Existing::Refuse);
    assert!(
        matches!(refused, Err(Error::Init(InitError::Taken(_)))),
        "{refused:?}"
    );
    write(folder, "text", Existing::Replace).unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
    let path = folder.join(PROPOSAL);
    assert!(path.symlink_metadata().unwrap().is_file());
    assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o644);
    let refused = write(folder, "other", Existing::Refuse);
    assert!(matches!(refused, Err(Error::Init(InitError::Taken(_)))));
}

fn grants() -> Grants {
    let toolchain = Toolchain {
        manager: "rustup",
        version: None,
        why: "in ~/.rustup".to_owned(),
        programs: vec!["cargo".to_owned()],
        mounts: vec![Shown {
            host: "/srv/rustup/toolchains".into(),
            inside: "/srv/rustup/toolchains".into(),
        }],
        path: vec!["/srv/cargo/bin".into()],
        set: vec![("RUSTUP_HOME", "/srv/rustup".to_owned())],
        notes: Vec::new(),
    };
    let proposed = Proposed {
        mounts: vec![AskedMount {
            host: "/srv/models".to_owned(),
            inside: "/models".to_owned(),
            why: String::new(),
        }],
        ..Proposed::default()
    };
    Grants::missing(&Effective::default(), &[&toolchain], &proposed)
}

#[test]
fn grants_are_added_to_a_policy_and_its_own_words_stay() {
    let temporary = tempfile::tempdir().unwrap();
    let home = Home::open(Some(temporary.path().join("home"))).unwrap();
    // Where there is none, one is made.
    let widened = widen(&home, &grants()).unwrap();
    assert!(
        widened.text.starts_with("# What sandboxes may do"),
        "{}",
        widened.text
    );
    assert!(widened.text.contains("extends = \"standard\""));
    assert!(!widened.text.contains("/models"), "{}", widened.text);
    // Into one that is there, through a link, with its mode.
    let real = temporary.path().join("dotfiles.toml");
    let before =
        "# mine\n[env] # a\nset = { PATH = '/mine', A = 'b' }\n[files]\nhide = ['x'] # h\n";
    fs::write(&real, before).unwrap();
    fs::set_permissions(&real, Permissions::from_mode(0o640)).unwrap();
    symlink(&real, home.root().join(HOST_FILE)).unwrap();
    widen(&home, &grants()).unwrap().save().unwrap();
    let text = fs::read_to_string(&real).unwrap();
    for kept in ["# mine", "[env] # a", "A = 'b'", "hide = ['x'] # h"] {
        assert!(text.contains(kept), "{text}");
    }
    assert_eq!(real.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    assert!(
        home.root()
            .join(HOST_FILE)
            .symlink_metadata()
            .unwrap()
            .is_symlink()
    );
    let policy = policy::of_host(&home, None, None).unwrap();
    assert_eq!(policy.files.mounts.len(), 1);
    // The user's own `PATH` counts more than what an environment adds: it has to lead there too.
    let path = policy.env.set["PATH"].value.as_deref();
    assert_eq!(path, Some("/srv/cargo/bin:/mine"));
    assert_eq!(policy.environment.path[0].text, "/srv/cargo/bin");
    let rustup = policy.environment.env["RUSTUP_HOME"].value.as_deref();
    assert_eq!(rustup, Some("/srv/rustup"));
    assert_eq!(policy.files.hide.last().unwrap().text, "x");
}

#[test]
fn a_policy_of_another_shape_is_left_alone() {
    let temporary = tempfile::tempdir().unwrap();
    let home = Home::open(Some(temporary.path().join("home"))).unwrap();
    let path = home.root().join(HOST_FILE);
    for before in [
        "files = { mount = [] }",
        "[files",
        "environment = 1",
        "[files]\nmount = []",
    ] {
        fs::write(&path, before).unwrap();
        assert!(widen(&home, &grants()).is_err(), "{before}");
        assert_eq!(fs::read_to_string(&path).unwrap(), before);
    }
    // What a policy takes is decided by whoever reads policies.
    let mut odd = grants();
    odd.network = vec![Said {
        value: "no rule at all".to_owned(),
        why: String::new(),
    }];
    fs::write(&path, "").unwrap();
    assert!(matches!(widen(&home, &odd), Err(Error::Policy(_))));
}
